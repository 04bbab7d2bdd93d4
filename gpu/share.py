"""What a pod holds, in the words of the books: modes, shares, placements, and what is taken of one GPU.

Values only. `node.py` puts them together.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from gpu.layout import Slice


class Mode(StrEnum):
    """The one kind of resource a GPU is advertised under at a time."""

    WHOLE = "whole"
    SHARED = "shared"
    SLICED = "sliced"


class SoldAs(StrEnum):
    """Under whose resource name the devices of a GPU are advertised: their own kind's, that of whole GPUs (though they
    are units or slices), or a name that an administrator chose, which only kube-scheduler and the kubelet count."""

    OWN = "own"
    WHOLE = "whole"
    OTHER = "other"


class Stage(StrEnum):
    PROMISED = "promised"
    CLAIMED = "claimed"


@dataclass(frozen=True, slots=True)
class PodRef:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Activity:
    """Measured share of time (0 to 1) in which a GPU was busy; `at` in seconds since the epoch."""

    busy: float
    at: float
    source: str


@dataclass(frozen=True, slots=True)
class Share:
    """What one pod holds on one GPU: all of it, one slice, or a number of units of the GPU or of one slice."""

    gpu: str
    slice: Slice | None = None
    units: int = 0

    @property
    def mode(self) -> Mode:
        if self.slice is not None:
            return Mode.SLICED
        return Mode.SHARED if self.units else Mode.WHOLE

    def __str__(self) -> str:
        units = f"{self.units} units" if self.units else ""
        what = " of ".join(p for p in (units, str(self.slice) if self.slice else "") if p) or "whole"
        return f"{what} of {self.gpu}"


@dataclass(frozen=True, slots=True)
class Placement:
    """The shares a pod gets on one node. `at` orders promises; seconds since the epoch."""

    pod: PodRef
    node: str
    shares: tuple[Share, ...]
    stage: Stage = Stage.PROMISED
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Use:
    """What is taken of one GPU. `parts` are the units taken of slices that are shared; those slices are in use too."""

    whole: int = 0
    slices: frozenset[Slice] = frozenset()
    units: int = 0
    parts: tuple[tuple[Slice, int], ...] = ()

    @property
    def idle(self) -> bool:
        return not (self.whole or self.slices or self.units)

    def parts_of(self, piece: Slice) -> int:
        return sum(units for slice_, units in self.parts if slice_ == piece)

    def only(self, mode: Mode) -> bool:
        """Nothing is taken that belongs to another mode: such leftovers close the GPU until they are gone."""
        return not (
            (self.whole and mode is not Mode.WHOLE)
            or (self.slices and mode is not Mode.SLICED)
            or (self.units and mode is not Mode.SHARED)
        )


NOTHING = Use()


def plus(use: Use, share: Share) -> Use:
    if share.slice is not None:
        parts = (*use.parts, (share.slice, share.units)) if share.units else use.parts
        return replace(use, slices=use.slices | {share.slice}, parts=parts)
    if share.units:
        return replace(use, units=use.units + share.units)
    return replace(use, whole=use.whole + 1)
