"""What a GPU could be turned into, and what it would then offer to the pods that wait.

Few patterns stand for all legal layouts: only slices that somebody waits for are added, and of the layouts that offer
the same, the one is kept that changes least and keeps most room for other profiles. Slices in use stay where they
are, and a GPU with a whole or shared user stays as it is. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpu.layout import Layout, canonical, every_slice, openings
from gpu.node import Gpu, Mode, NodeGpus
from gpu.placement import Want
from gpu.profiles import GpuModel
from gpu.recut import Shape
from gpu.scoring import usefulness

# Costs only order plans that serve the same pods. A GPU that keeps its kind is dearer to us than five that are
# touched (a whole GPU broken up is hard to get back), then fewer GPUs, then fewer slices joined and cut, then the
# room that is left for other profiles.
KIND, RESET, TOUCH, JOIN, CUT, ROOM = 1000, 500, 200, 40, 10, 100

BINS_LIMIT = 400
"""Ways to fill one shared GPU that are looked at; with more, the packing says that it is not proven."""

Offers = tuple[tuple[Want, int], ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a GPU is and what of it must stay. GPUs that are equal in this are interchangeable.

    `units` are the free ones of a shared GPU; `movable` says that it may be re-cut at all.
    """

    model: GpuModel
    shape: Shape
    pinned: Layout
    units: int
    idle: bool
    movable: bool


@dataclass(frozen=True, slots=True)
class Pattern:
    """A shape, what of it would be free for those who wait, and the cost of getting there (0: nothing changes)."""

    shape: Shape
    offers: Offers
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What GPUs may be turned into, units of a GPU that becomes shared, how much of each piece is waited for."""

    modes: frozenset[Mode]
    units: int
    asked: tuple[tuple[Want, int], ...] = ()

    @property
    def profiles(self) -> dict[str, int]:
        return {w.profile: n for w, n in self.asked if w.mode is Mode.SLICED}

    def asks(self, mode: Mode) -> bool:
        return any(w.mode is mode for w, _ in self.asked)


def standing(node: NodeGpus, gpu: Gpu, *, movable: bool) -> Standing | None:
    """None for a GPU that has nothing to give: closed, unhealthy, or used as a whole."""
    use = node.use(gpu)
    if not gpu.takes_pods or gpu.fixed or use.whole or not use.only(gpu.mode):
        return None
    layout = gpu.layout if gpu.mode is Mode.SLICED else ()
    pinned = canonical(use.slices & frozenset(layout))
    # A slice in the books that the GPU does not have: the books are not of one mind, so nothing is changed.
    sound = pinned == canonical(use.slices) and not gpu.held
    return Standing(gpu.model, Shape(gpu.mode, layout), pinned, node.free_units(gpu), use.idle, movable and sound)


@lru_cache(maxsize=50_000)
def patterns(gpu: Standing, terms: Terms) -> tuple[Pattern, ...]:
    """What this GPU can be, staying as it is first; in a fixed order."""
    found = list(_staying(gpu, terms))
    if gpu.movable:
        found += [*_whole(gpu, terms), *_shared(gpu, terms), *_sliced(gpu, terms)]
    return tuple(found)


def truncated(gpu: Standing, terms: Terms) -> bool:
    """Whether some ways to fill this GPU with shares were left out of `patterns`."""
    room = max(gpu.units, terms.units if gpu.movable and gpu.idle else 0)
    return bool(room) and len(_bins(room, _sizes(terms))) >= BINS_LIMIT


def _staying(gpu: Standing, terms: Terms) -> Iterator[Pattern]:
    if gpu.shape.mode is Mode.SHARED:
        for offers in _bins(gpu.units, _sizes(terms)) or ((),):
            yield Pattern(gpu.shape, offers)
        return
    if gpu.shape.mode is Mode.WHOLE:
        yield Pattern(gpu.shape, _of_whole(terms) if gpu.idle else ())
        return
    yield Pattern(gpu.shape, _free(gpu.shape.layout, gpu.pinned, terms))


def _whole(gpu: Standing, terms: Terms) -> Iterator[Pattern]:
    if gpu.idle and gpu.shape.mode is not Mode.WHOLE and Mode.WHOLE in terms.modes and terms.asks(Mode.WHOLE):
        yield Pattern(Shape(Mode.WHOLE), _of_whole(terms), _cost(gpu, Shape(Mode.WHOLE)))


def _shared(gpu: Standing, terms: Terms) -> Iterator[Pattern]:
    if gpu.idle and gpu.shape.mode is not Mode.SHARED and Mode.SHARED in terms.modes:
        for offers in _bins(terms.units, _sizes(terms)):
            yield Pattern(Shape(Mode.SHARED), offers, _cost(gpu, Shape(Mode.SHARED)))


def _sliced(gpu: Standing, terms: Terms) -> Iterator[Pattern]:
    sliced_already = gpu.shape.mode is Mode.SLICED
    if Mode.SLICED not in terms.modes or not (sliced_already or gpu.idle):
        return
    now = _free(gpu.shape.layout, gpu.pinned, terms)
    best: dict[Offers, Pattern] = {}
    for layout in _layouts(gpu, tuple(sorted(terms.profiles.items()))):
        offers = _free(layout, gpu.pinned, terms)
        if not offers or offers == now:
            continue
        candidate = Pattern(Shape(Mode.SLICED, layout), offers, _cost(gpu, Shape(Mode.SLICED, layout)))
        if offers not in best or _order(candidate) < _order(best[offers]):
            best[offers] = candidate
    yield from sorted(best.values(), key=_order)


def _layouts(gpu: Standing, asked: tuple[tuple[str, int], ...]) -> Iterator[Layout]:
    """Layouts that hold the pinned slices, any of the free ones that stand, and new ones of the asked profiles."""
    standing = frozenset(gpu.shape.layout)
    new = (p for name, _ in asked if (p := gpu.model.profile(name)) is not None)
    pieces = (standing | {s for p in new for s in every_slice(p)}) - frozenset(gpu.pinned)
    limits = dict(asked)

    def extend(layout: Layout, rest: Layout, left: Mapping[str, int]) -> Iterator[Layout]:
        yield canonical(layout)
        for i, piece in enumerate(rest):
            fresh = piece not in standing
            if (fresh and left[piece.profile.name] < 1) or piece not in openings(layout, piece.profile):
                continue
            after = {**left, piece.profile.name: left[piece.profile.name] - 1} if fresh else left
            yield from extend((*layout, piece), rest[i + 1 :], after)

    yield from extend(gpu.pinned, canonical(pieces), limits)


def _free(layout: Layout, pinned: Layout, terms: Terms) -> Offers:
    asked = terms.profiles
    counts = Counter(s.profile.name for s in layout if s not in pinned and s.profile.name in asked)
    return tuple((Want(Mode.SLICED, 1, name), n) for name, n in sorted(counts.items()))


def _of_whole(terms: Terms) -> Offers:
    return ((Want(Mode.WHOLE, 1), 1),) if terms.asks(Mode.WHOLE) else ()


def _sizes(terms: Terms) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(((w.amount, n) for w, n in terms.asked if w.mode is Mode.SHARED), reverse=True))


@lru_cache(maxsize=4_096)
def _bins(room: int, sizes: tuple[tuple[int, int], ...]) -> tuple[Offers, ...]:
    """The ways to fill `room` units that cannot take one more of the asked sizes, BINS_LIMIT at most."""
    found: list[Offers] = []

    def fill(left: int, index: int, chosen: tuple[tuple[int, int], ...]) -> None:
        if len(found) >= BINS_LIMIT:
            return
        if index == len(sizes):
            taken = dict(chosen)
            if taken and not any(size <= left and taken.get(size, 0) < limit for size, limit in sizes):
                found.append(tuple((Want(Mode.SHARED, size), n) for size, n in sorted(chosen)))
            return
        size, limit = sizes[index]
        for n in range(min(limit, left // size), -1, -1):
            fill(left - n * size, index + 1, (*chosen, (size, n)) if n else chosen)

    fill(room, 0, ())
    return tuple(found)


def _cost(gpu: Standing, shape: Shape) -> int:
    before, after = frozenset(gpu.shape.layout), frozenset(shape.layout)
    cost = TOUCH + JOIN * len(before - after) + CUT * len(after - before)
    if shape.mode is not gpu.shape.mode:
        cost += KIND + (RESET if gpu.model.needs_reset and Mode.SLICED in (shape.mode, gpu.shape.mode) else 0)
    if shape.mode is Mode.SLICED:
        cost += round(ROOM * (1.0 - usefulness(shape.layout, gpu.model)))
    return cost


def _order(pattern: Pattern) -> tuple[int, list[tuple[int, str]]]:
    """Least cost first; then named starts settle it: high ones, which large profiles cannot use."""
    return pattern.cost, [(-s.start, s.profile.name) for s in reversed(pattern.shape.layout)]
