"""GPU models known beforehand, read from `profiles.json`.

For doubles, simulations and tests only: live tables come from the driver, through a node's inventory, because
profile ids, names and memory sizes differ between drivers and board revisions.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from gpu.profiles import GpuModel, MigProfile


@cache
def models() -> dict[str, GpuModel]:
    """All known models by key, such as `h100-80gb`."""
    return {key: _model(m) for key, m in _table().items()}


def facts(key: str) -> dict[str, Any]:
    """Everything the table says of a known model: architecture, engines and multiprocessors of each profile, ..."""
    return _table()[key]


@cache
def _table() -> dict[str, dict[str, Any]]:
    raw = json.loads(files("gpu").joinpath("profiles.json").read_text("utf-8"))
    return {m["key"]: m for m in raw["models"]}


def model(key: str) -> GpuModel:
    """Raises KeyError that lists the known keys."""
    known = models()
    if key not in known:
        raise KeyError(f"no GPU model {key!r}; known are {', '.join(sorted(known))}")
    return known[key]


def _model(raw: dict[str, Any]) -> GpuModel:
    return GpuModel(
        key=raw["key"],
        memory_mib=raw["memory_total_mib"] or max(p["memory_mib"] or 0 for p in raw["profiles"]),
        axis=raw["placement_axis_length"],
        profiles=tuple(_profile(p) for p in raw["profiles"]),
        needs_reset=raw["mig_mode_change_needs_gpu_reset"],
    )


def _profile(raw: dict[str, Any]) -> MigProfile:
    return MigProfile(
        name=raw["name"],
        profile_id=raw["profile_id"],
        size=raw["placements"][0]["size"],
        compute=raw["compute_slices"],
        memory_mib=raw["memory_mib"] or round(raw["memory_gb_in_name"] * 1e9 / 2**20),
        starts=tuple(sorted(p["start"] for p in raw["placements"])),
        limit=raw["max_instances"],
    )
