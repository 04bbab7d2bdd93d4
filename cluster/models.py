"""MIG tables of GPU models, as they stand in a GpuNode's status."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gpu.profiles import GpuModel, MigProfile

Object = Mapping[str, Any]


@lru_cache(maxsize=256)
def _one(model: GpuModel) -> GpuModel:
    """The same object for equal tables: thousands of nodes carry a few models, and comparing these is then free."""
    return model


def model_in(key: str, raw: Object) -> GpuModel:
    model = GpuModel(
        key=key,
        memory_mib=int(raw["memoryMib"]),
        axis=int(raw["axis"]),
        profiles=tuple(_profile_in(p) for p in raw.get("profiles") or ()),
        needs_reset=bool(raw.get("needsReset", False)),
    )
    return _one(model)


def model_out(model: GpuModel) -> dict[str, Any]:
    return {
        "memoryMib": model.memory_mib,
        "axis": model.axis,
        "needsReset": model.needs_reset,
        "profiles": [_profile_out(p) for p in model.profiles],
    }


def _profile_in(raw: Object) -> MigProfile:
    return MigProfile(
        name=str(raw["name"]),
        profile_id=int(raw["profileId"]),
        size=int(raw["size"]),
        compute=int(raw["compute"]),
        memory_mib=int(raw["memoryMib"]),
        starts=tuple(int(s) for s in raw["starts"]),
        limit=int(raw["limit"]),
    )


def _profile_out(profile: MigProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "profileId": profile.profile_id,
        "size": profile.size,
        "compute": profile.compute,
        "memoryMib": profile.memory_mib,
        "starts": list(profile.starts),
        "limit": profile.limit,
    }
