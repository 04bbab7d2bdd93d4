"""The values a re-cut is decided on: what is seen of one GPU, the rules, and the acts an agent knows. Pure."""

from dataclasses import dataclass

from gpu.layout import Layout
from gpu.node import Mode
from gpu.recut import Shape


@dataclass(frozen=True, slots=True)
class Seen:
    """One GPU at this moment, seen with a target in mind.

    `complete`: no slice is half made. `advertised`: what the kubelet has been offered. `holders`: who still uses what
    the target removes (API, kubelet list, driver), in words; a pod is written namespace/name. `unstarted`: pods bound
    here whose promise lies on it and who have not got it yet. `withheld`: the ids of what goes are out of the
    kubelet's lists. `node_agrees`: the Node shows what is advertised. `short`: for whatever reason some of its ids are
    kept out of the lists. `fault`: what is wrong with the hardware; then the other fields may be old.
    """

    mig: bool
    layout: Layout
    complete: bool
    advertised: Shape
    holders: tuple[str, ...] = ()
    unstarted: tuple[str, ...] = ()
    withheld: bool = False
    node_agrees: bool = False
    short: bool = False
    fault: str = ""

    @property
    def shape(self) -> Shape:
        """What the hardware is; only the advertisement tells whole from shared."""
        if self.mig:
            return Shape(Mode.SLICED, self.layout)
        return self.advertised if self.advertised.mode is not Mode.SLICED else Shape(Mode.WHOLE)

    def is_cut_as(self, shape: Shape) -> bool:
        """The hardware is as `shape` needs it (whole and shared need the same)."""
        sliced = shape.mode is Mode.SLICED
        return self.complete and not self.fault and self.mig == sliced and self.layout == shape.layout


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds and counts. `settle_seconds`: how long schedulers get to see the order before ids are withheld.

    The n-th try at a layout comes `retry_seconds` x (2^n - 1) after the first.
    """

    settle_seconds: float = 1.0
    drain_seconds: float = 300.0
    tries: int = 3
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do now; `why` in a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Withhold:
    """Take the ids of what `target` removes out of the kubelet's lists."""

    target: Shape


@dataclass(frozen=True, slots=True)
class Release:
    """Advertise again what is there."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Change the hardware towards `target`."""

    target: Shape


@dataclass(frozen=True, slots=True)
class Publish:
    """Advertise `target`, which is there; nothing is withheld any more."""

    target: Shape


Act = Rest | Withhold | Release | Apply | Publish


@dataclass(frozen=True, slots=True)
class Moment:
    """What every step looks at."""

    seen: Seen
    rules: Rules
    now: float
