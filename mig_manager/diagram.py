"""The diagram of a re-cut, drawn from the step table itself by asking it everything. Pure."""

from collections.abc import Iterator
from itertools import product

from gpu.layout import Slice
from gpu.node import Mode
from gpu.profiles import MigProfile
from gpu.recut import Phase, Recut, Shape, Wanted
from mig_manager.moment import Rules, Seen
from mig_manager.steps import STEPS, Step, next_step

_PROFILE = MigProfile("1g.10gb", 19, 1, 1, 9984, (0, 1), 2)
BEFORE = Shape(Mode.SLICED, (Slice(_PROFILE, 0),))
TARGET = Shape(Mode.SLICED, (Slice(_PROFILE, 1),))
OTHER = Shape(Mode.WHOLE)
RULES = Rules()


def everything() -> Iterator[tuple[Recut | None, Wanted | None, Seen, Step]]:
    """Every kind of record with every kind of order and sight, and the step that follows."""
    orders = (None, Wanted(1, TARGET, fence=1), Wanted(2, OTHER, fence=1))
    for recut, wanted, seen, late in product(_records(), orders, _sights(), (0.0, 0.5, 1000.0)):
        yield recut, wanted, seen, next_step(recut, wanted, seen, RULES, late)


def edges() -> dict[Phase | None, tuple[Phase, ...]]:
    """From which phase to which others a step can lead; None is the time before the first order."""
    found: dict[Phase | None, set[Phase]] = {}
    for recut, _, _, (after, _act) in everything():
        before = recut.phase if recut else None
        if after is not None and after.phase is not before:
            found.setdefault(before, set()).add(after.phase)
    order = list(Phase)
    return {p: tuple(sorted(found.get(p, ()), key=order.index)) for p in (None, *Phase) if p in found}


def mermaid() -> str:
    """The diagram for the README."""
    lines = ["stateDiagram-v2"]
    for before, afters in edges().items():
        lines += [f"    {before.value if before else '[*]'} --> {after.value}" for after in afters]
    return "\n".join(lines)


def table() -> str:
    """What each phase waits for, from the steps' own words."""
    lines = ["| phase | lasts |", "|---|---|"]
    lines += [f"| {phase.value} | {(step.__doc__ or '').strip().splitlines()[0]} |" for phase, step in STEPS.items()]
    return "\n".join(lines)


def _records() -> Iterator[Recut | None]:
    yield None
    for phase, target, tries in product(Phase, (TARGET, BEFORE), (0, RULES.tries)):
        yield Recut(1, phase, 0.0, BEFORE, target, tries, "", 1)


def _sights() -> Iterator[Seen]:
    flags = product((TARGET, BEFORE, OTHER), (TARGET, BEFORE), *[(True, False)] * 4, ("", "lost"))
    for cut, advertised, held, coming, withheld, agrees, fault in flags:
        yield Seen(
            mig=cut.mode is Mode.SLICED,
            layout=cut.layout,
            complete=True,
            advertised=advertised,
            holders=("default/a",) if held else (),
            unstarted=("default/b",) if coming else (),
            withheld=withheld,
            node_agrees=agrees,
            fault=fault,
        )


if __name__ == "__main__":
    print(mermaid(), table(), sep="\n\n")
