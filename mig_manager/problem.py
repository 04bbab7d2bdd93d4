"""The packing problem in numbers: equal GPUs in groups, equal requests in classes, nodes in pools. Pure.

Nodes that are open to the same requests share a pool: a request of a single piece may go to any of them. A request of
several pieces must find them on one node: for those, as many nodes of each kind as there are such requests get a pool
of their own (more could not be needed), which keeps the problem small on large clusters and still exact.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpu.node import NodeGpus, Snapshot
from gpu.placement import PodRequest, Want
from mig_manager.demand import items
from mig_manager.outlook import Key
from mig_manager.patterns import Pattern, Standing, Terms, patterns, standing, truncated


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs of one pool that are interchangeable, in a fixed order."""

    pool: str
    gpus: tuple[Key, ...]
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """Requests that ask for the same with the same priority and may run on the same nodes.

    `pools` are those that it may be served from.
    """

    pieces: tuple[tuple[Want, int], ...]
    priority: int
    count: int
    pools: tuple[str, ...] = ()

    @property
    def compound(self) -> bool:
        """Needs its pieces on one node."""
        return sum(n for _, n in self.pieces) > 1


@dataclass(frozen=True, slots=True)
class Problem:
    """`budget` bounds the GPUs that may change. `complete` is False when some patterns were left out."""

    groups: tuple[Group, ...]
    wishes: tuple[Wish, ...]
    budget: int
    complete: bool = True

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(sorted({g.pool for g in self.groups}))


@dataclass(frozen=True, slots=True)
class _Pool:
    """Nodes that are one to the solver. `open_to`: numbers of the wishes whose pods may run there."""

    name: str
    open_to: tuple[int, ...]
    single: bool


def pose(
    snapshot: Snapshot, requests: Iterable[PodRequest], movable: frozenset[Key], terms: Terms, budget: int
) -> Problem:
    """`terms` say what GPUs may be turned into; what is asked for is worked out here, for each pool."""
    classes = _classes(requests)
    found = {n.name: s for n in snapshot.nodes if (s := _standings(n, movable))}
    pools = _pools(found, classes)
    members: dict[tuple[_Pool, Standing], list[Key]] = {}
    for name, pool in pools.items():
        for key, gpu in found[name]:
            members.setdefault((pool, gpu), []).append(key)
    here = {pool: _terms_in(pool, classes, terms) for pool in pools.values()}
    groups = (Group(pool.name, tuple(keys), patterns(gpu, here[pool])) for (pool, gpu), keys in members.items())
    useful = tuple(g for g in groups if any(p.offers for p in g.patterns))
    complete = not any(truncated(gpu, here[pool]) for pool, gpu in members)
    return Problem(useful, _wishes(classes, pools.values(), {g.pool for g in useful}), budget, complete)


@dataclass(frozen=True, slots=True)
class _Class:
    """A wish before it is known where it can be served."""

    wish: Wish
    barred: frozenset[str]


def _classes(requests: Iterable[PodRequest]) -> tuple[_Class, ...]:
    requests = tuple(requests)
    counts = Counter((tuple(sorted(items(r).items(), key=_piece_order)), r.priority, r.barred) for r in requests)
    classes = [_Class(Wish(pieces, priority, n), barred) for (pieces, priority, barred), n in counts.items()]
    # The sort is stable, and requests come in a fixed order: of equal wishes, who asked first stays first.
    return tuple(sorted(classes, key=lambda c: (-c.wish.priority, [_piece_order(p) for p in c.wish.pieces])))


def _wishes(classes: tuple[_Class, ...], pools: Iterable[_Pool], useful: set[str]) -> tuple[Wish, ...]:
    places: dict[int, set[str]] = defaultdict(set)
    for pool in set(pools):
        for i in pool.open_to if pool.name in useful else ():
            if pool.single or not classes[i].wish.compound:
                places[i].add(pool.name)
    return tuple(replace(c.wish, pools=tuple(sorted(places[i]))) for i, c in enumerate(classes))


def _terms_in(pool: _Pool, classes: tuple[_Class, ...], terms: Terms) -> Terms:
    """Only what pods that may run there ask for: nothing else is worth a change."""
    total: Counter[Want] = Counter()
    for i in pool.open_to:
        for piece, n in classes[i].wish.pieces:
            total[piece] += n * classes[i].wish.count
    return replace(terms, asked=tuple(sorted(total.items(), key=_piece_order)))


def _piece_order(piece: tuple[Want, int]) -> tuple[str, str, int, int]:
    want, n = piece
    return want.mode.value, want.profile, want.amount, n


def _standings(node: NodeGpus, movable: frozenset[Key]) -> tuple[tuple[Key, Standing], ...]:
    gpus = sorted(node.gpus, key=lambda g: (g.index, g.uuid))
    seen = (((node.name, g.uuid), standing(node, g, movable=(node.name, g.uuid) in movable)) for g in gpus)
    return tuple((key, gpu) for key, gpu in seen if gpu is not None)


def _pools(found: Mapping[str, tuple[tuple[Key, Standing], ...]], classes: tuple[_Class, ...]) -> dict[str, _Pool]:
    """The pool of each node that any of the requests may use."""
    open_to = _open_to(found, classes)
    numbers: dict[tuple[int, ...], int] = {}
    alike: Counter[tuple[tuple[int, ...], frozenset[tuple[Standing, int]]]] = Counter()
    compound = {i: c.wish.count for i, c in enumerate(classes) if c.wish.compound}
    pools = {}
    for name in sorted(name for name, wishes in open_to.items() if wishes):
        wishes = open_to[name]
        most = sum(compound.get(i, 0) for i in wishes)
        kind = wishes, frozenset(Counter(gpu for _, gpu in found[name]).items()) if most else frozenset()
        alike[kind] += 1
        if alike[kind] <= most:
            pools[name] = _Pool(name, wishes, single=True)
        else:
            number = numbers.setdefault(wishes, len(numbers))
            pools[name] = _Pool(f"*{number}", wishes, single=False)  # no node is called so
    return pools


def _open_to(names: Iterable[str], classes: tuple[_Class, ...]) -> dict[str, tuple[int, ...]]:
    """For each node the numbers of the wishes whose pods may run there."""
    sharing: dict[frozenset[str], list[int]] = {}
    for i, one in enumerate(classes):
        sharing.setdefault(one.barred, []).append(i)
    found: dict[str, list[int]] = {name: [] for name in names}
    for barred, numbers in sharing.items():
        for name in found.keys() - barred:
            found[name] += numbers
    return {name: tuple(sorted(numbers)) for name, numbers in found.items()}
