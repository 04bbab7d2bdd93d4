"""What a kind of GPU is, and the sizes it can be cut to.

Values only. Live tables come from the driver through a node's inventory; `catalogue.py` knows models beforehand.
"""

from dataclasses import dataclass
from enum import Enum


class Media(Enum):
    """How much of the GPU's media engines (JPEG, OFA, decoders) a profile takes.

    NVIDIA MIG User Guide: a `+me` profile exists once per GPU; `+me.all` takes every engine,
    so that only `-me` profiles can stand beside it.
    """

    NONE = "none"
    STANDARD = "standard"
    EXTENDED = "extended"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One size. `size` and `starts` are in the driver's placement units, `compute` in compute slices."""

    name: str
    profile_id: int
    size: int
    compute: int
    memory_mib: int
    starts: tuple[int, ...]
    limit: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.compute < 1 or self.limit < 1 or not self.starts:
            raise ValueError(f"profile {self.name}: size, compute, limit and starts must be positive")
        if min(self.starts) < 0 or list(self.starts) != sorted(set(self.starts)):
            raise ValueError(f"profile {self.name}: starts must be distinct, ascending and not negative")

    def __hash__(self) -> int:
        return hash((self.name, self.profile_id))  # cheap and as good: equal profiles have equal names

    @property
    def media(self) -> Media:
        if self.name.endswith("+me.all"):
            return Media.ALL
        if self.name.endswith("+me"):
            return Media.EXTENDED
        if self.name.endswith("-me"):
            return Media.NONE
        return Media.STANDARD


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A kind of GPU. `axis` is the number of placement units, 0 when it cannot be cut at all.

    `needs_reset`: switching MIG mode needs a GPU reset with no client on it (Ampere).
    """

    key: str
    memory_mib: int
    axis: int
    profiles: tuple[MigProfile, ...] = ()
    needs_reset: bool = False

    def __post_init__(self) -> None:
        for profile in self.profiles:
            if profile.starts[-1] + profile.size > self.axis:
                raise ValueError(f"model {self.key}: profile {profile.name} reaches past the axis of {self.axis}")

    def __hash__(self) -> int:
        return hash(self.key)  # cheap and as good: equal models have equal keys

    def profile(self, name: str) -> MigProfile | None:
        return next((p for p in self.profiles if p.name == name), None)

    @property
    def can_be_cut(self) -> bool:
        return bool(self.profiles)
