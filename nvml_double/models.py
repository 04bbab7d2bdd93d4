"""GPU models from `gpu/profiles.json`, written into the state file: the C code has no tables of its own."""

import json
import time
import uuid
from typing import Any

from nvml_double import layout
from nvml_double.layout import Gpu
from nvml_double.library import HERE, DoubleError

NO_ID = 0xFFFFFFFF
ARCHITECTURES = {"ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
CLOCKS_MHZ = {"ampere": (1410, 1593), "hopper": (1980, 2619), "blackwell": (1965, 3996)}
"""Highest graphics and memory clock, as such GPUs typically show them; no rule rests on it."""
BOARDS = {
    "a30-24gb": (165, 0),
    "a100-40gb": (400, 12),
    "a100-80gb": (400, 12),
    "h100-nvl-94gb": (400, 12),
    "h20-96gb": (500, 18),
    "h20-141gb": (500, 18),
    "b200-180gb": (1000, 18),
    "b300-269gb": (1100, 18),
    "gb200": (1200, 18),
    "gb300-278gb": (1400, 18),
    "rtxpro6000-96gb": (600, 0),
}
"""Board power in watts and NVLinks, rounded from the data sheets; for show. Others are like an H100 SXM."""
H100 = (700, 18)
IDLE_MW, IDLE_CELSIUS, BUSY_CELSIUS = 70_000, 30, 75
MEDIA = {"none": 0, "standard": 1, "extended": 2, "all": 3}
ALIASES = {"a30": "a30-24gb", "a100": "a100-40gb", "h100": "h100-80gb", "h200": "h200-141gb", "b200": "b200-180gb"}
_NAMESPACE = uuid.UUID("2f4b9a57-3ed8-5f0b-8c55-6f7e9a1f2c01")


def model_keys() -> list[str]:
    return sorted(_models())


def _models() -> dict[str, dict[str, Any]]:
    raw = json.loads((HERE.parent / "gpu" / "profiles.json").read_text("utf-8"))
    return {m["key"]: m for m in raw["models"]}


def model(name: str) -> dict[str, Any]:
    """By its key, such as `h100-80gb`, in any case, or a short name. Raises DoubleError that lists the keys."""
    key = name.lower()
    models = _models()
    key = ALIASES.get(key, key)
    if key not in models:
        raise DoubleError(f"no GPU model {name!r}; known are {', '.join(sorted(models))}")
    return models[key]


def fill(gpu: Gpu, raw: dict[str, Any], index: int, seed: int) -> None:
    """A GPU of this model as it leaves the factory: uncut and idle. The same seed gives the same UUIDs."""
    major, minor = raw["cuda_compute_capability"].split(".")
    gpu.uuid = f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}')}".encode()
    gpu.name = raw["product_name"].encode()
    gpu.serial = f"{1650000000000 + 1000 * seed + index}".encode()
    gpu.minor, gpu.bus = index, 0x10 + 0xF * index
    gpu.energy_at = time.time()
    gpu.pci_device_id = int(raw["pci_device_ids"][0], 16)
    gpu.architecture = ARCHITECTURES.get(raw["architecture"], NO_ID)
    gpu.cc_major, gpu.cc_minor = int(major), int(minor)
    gpu.needs_reset = int(raw["mig_mode_change_needs_gpu_reset"])
    gpu.axis, gpu.compute_total = raw["placement_axis_length"], raw["compute_slices_total"]
    gpu.sm_total = _sm_total(raw)
    gpu.memory_bytes = raw["memory_total_mib"] * 2**20
    watts, gpu.nvlinks = BOARDS.get(raw["key"], H100)
    gpu.clock_mhz, gpu.memory_clock_mhz = CLOCKS_MHZ[raw["architecture"]]
    gpu.power_mw, gpu.power_limit_mw, gpu.temperature = IDLE_MW, 1000 * watts, IDLE_CELSIUS
    gpu.persistence = 1
    gpu.profile_count = len(raw["profiles"])
    for number, profile in enumerate(raw["profiles"]):
        _fill_profile(gpu.profiles[number], profile, raw)


def _sm_total(model: dict[str, Any]) -> int:
    """Multiprocessors of the whole GPU. Where even that is unknown, the most of its generation: a stand-in, no fact."""
    known = [m["sm_total_full_gpu"] for m in _models().values() if m["architecture"] == model["architecture"]]
    return int(model["sm_total_full_gpu"] or max(known))


def _fill_profile(target: layout.Profile, raw: dict[str, Any], model: dict[str, Any]) -> None:
    """Multiprocessor counts that are unknown (0 in the table) are their share of the whole, by compute slices."""
    target.name = raw["name"].encode()
    target.id, target.index = raw["profile_id"], raw["nvml_index"]
    target.compute, target.limit = raw["compute_slices"], raw["max_instances"]
    target.memory_mib = raw["memory_mib"]
    target.sm = raw["sm_count"] or _sm_total(model) * target.compute // model["compute_slices_total"]
    target.copy_engines, target.decoders = raw["copy_engines"], raw["decoders"]
    target.encoders, target.jpeg, target.ofa = raw["encoders"], raw["jpeg"], raw["ofa"]
    target.media = MEDIA[raw["media"]]
    starts = sorted(p["start"] for p in raw["placements"])
    target.size, target.start_count = raw["placements"][0]["size"], len(starts)
    for number, start in enumerate(starts):
        target.starts[number] = start
    target.ci_count = len(raw["compute_instances"])
    for number, ci in enumerate(raw["compute_instances"]):
        made = target.ci[number]
        made.id, made.index, made.slices = ci["ci_profile_id"], ci["nvml_index"], ci["compute_slices"]
        made.sm = ci["sm_count"] or target.sm * made.slices // target.compute
        made.limit = ci["max_instances"]
