"""What the double in Python tells of its GPUs beyond their layout.

Pure. Machines are like an HGX board: neighbours share a PCIe switch, four GPUs a socket, every pair of GPUs with
NVLink is one switch hop away.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from gpu import catalogue
from gpu.hardware import Ancestor, Checkup, Engines, Link, Product, Recovery, Topology

Raw = dict[str, Any]
DRIVER = "580.95.05"
CUDA = (13, 0)
_FAMILIES = {"ada": "ada-lovelace"}
_NVLINKS = {"ampere": 12, "hopper": 18, "blackwell": 18}
_WITHOUT_NVLINK = ("a30-24gb", "rtxpro6000-96gb")


def fresh() -> Raw:
    """The signs of a GPU that is new."""
    return {
        "exclusive": False,
        "recovery": Recovery.NONE.name,
        "remap_pending": False,
        "remap_failed": False,
        "uncorrectable": 0,
        "fabric": "",
        "limits_memory": False,
        "limits": {},
    }


def product(raw: Raw) -> Product:
    known = catalogue.facts(raw["model"])
    major, minor = known["cuda_compute_capability"].split(".")
    family = known["architecture"]
    return Product(
        architecture=_FAMILIES.get(family, family),
        compute=(int(major), int(minor)),
        memory_mib=catalogue.model(raw["model"]).memory_mib,
        fabric=raw["fabric"],
        mig_capable=bool(known["profiles"]),
    )


def engines(raw: Raw) -> Mapping[int, Engines]:
    known = catalogue.facts(raw["model"])
    profiles = {p["name"]: p for p in known["profiles"]}
    return {
        s["gi"]: _engines(profiles[s["slice"].partition("@")[0]], known) for s in raw["slices"] if s["uuid"] is not None
    }


def checkup(raw: Raw) -> Checkup:
    return Checkup(raw["remap_pending"], raw["remap_failed"], raw["uncorrectable"], Recovery[raw["recovery"]])


def topology(gpus: Mapping[str, Raw]) -> Topology:
    """Of the GPUs that can be asked."""
    there = {uuid: raw for uuid, raw in gpus.items() if not raw["lost"]}
    return Topology({(a, b): _link(there[a], there[b]) for a, b in combinations(sorted(there), 2)})


def _link(a: Raw, b: Raw) -> Link:
    x, y = a["index"], b["index"]
    ancestor = Ancestor.SWITCH if x // 2 == y // 2 else Ancestor.NUMA_NODE if x // 4 == y // 4 else Ancestor.SYSTEM
    # MIG mode switches NVLinks and peer access off.
    return Link(min(_nvlinks(a), _nvlinks(b)), ancestor, not (a["mig"] or b["mig"]))


def _nvlinks(raw: Raw) -> int:
    if raw["mig"] or raw["model"] in _WITHOUT_NVLINK:
        return 0
    return _NVLINKS.get(catalogue.facts(raw["model"])["architecture"], 0)


def _engines(profile: Raw, model: Raw) -> Engines:
    """Multiprocessors that are unknown are their share of the whole, by compute slices."""
    whole = model["sm_total_full_gpu"] or 0
    return Engines(
        memory_mib=profile["memory_mib"],
        multiprocessors=profile["sm_count"] or whole * profile["compute_slices"] // model["compute_slices_total"],
        gi_slices=profile["compute_slices"],
        ci_slices=profile["compute_slices"],
        copy=profile["copy_engines"],
        decoder=profile["decoders"],
        encoder=profile["encoders"],
        jpeg=profile["jpeg"],
        ofa=profile["ofa"],
    )
