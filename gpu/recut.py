"""The words of a re-cut: what is wanted of one GPU, and how far its node has come with it.

Values only; who decides the next step is `mig_manager/steps.py`.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpu.layout import Layout
from gpu.node import Mode


class Phase(StrEnum):
    HOLD = "Hold"
    DRAIN = "Drain"
    APPLY = "Apply"
    VERIFY = "Verify"
    ADVERTISE = "Advertise"
    DONE = "Done"
    STUCK = "Stuck"

    @property
    def final(self) -> bool:
        return self in (Phase.DONE, Phase.STUCK)


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPU's mode with, when sliced, its layout."""

    mode: Mode
    layout: Layout = ()

    def __str__(self) -> str:
        return self.mode.value if self.mode is not Mode.SLICED else f"sliced [{', '.join(map(str, self.layout))}]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the planner wants of one GPU. A higher generation replaces a lower one.

    `fence` is the number of the planner's lease term: an order of an earlier term than the last one obeyed is old.
    """

    generation: int
    shape: Shape
    reason: str = ""
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Recut:
    """The journal of one re-cut. `since` is when the phase began, seconds since the epoch.

    `target` is what is being worked towards: the wanted shape, or `before` once it is being rolled back.
    `failures`: how many re-cuts of this GPU were rolled back one after another, this one included.
    """

    generation: int
    phase: Phase
    since: float
    before: Shape
    target: Shape
    tries: int = 0
    message: str = ""
    fence: int = 0
    failures: int = 0

    @property
    def rolling_back(self) -> bool:
        return self.target == self.before
