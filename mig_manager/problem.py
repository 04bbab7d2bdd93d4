"""The packing problem in numbers: equal GPUs in groups, equal requests in classes, nodes in pools. Pure.

A request of a single piece may go to any node, so all nodes share one pool. A request of several pieces must find
them on one node: for those, as many nodes of each kind as there are such requests get a pool of their own (more
could not be needed), which keeps the problem small on large clusters and still exact.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu.node import NodeGpus, Snapshot
from gpu.placement import PodRequest, Want
from mig_manager.demand import items
from mig_manager.outlook import Key
from mig_manager.patterns import Pattern, Standing, Terms, patterns, standing, truncated

ANYWHERE = ""
"""The pool of all nodes without one of their own."""


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs of one pool that are interchangeable, in a fixed order."""

    pool: str
    gpus: tuple[Key, ...]
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """Requests that ask for the same with the same priority."""

    pieces: tuple[tuple[Want, int], ...]
    priority: int
    count: int

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


def pose(
    snapshot: Snapshot, requests: Iterable[PodRequest], movable: frozenset[Key], terms: Terms, budget: int
) -> Problem:
    """`terms` come from `terms_of(requests, ...)`."""
    wishes = _wishes(requests)
    found = {n.name: _standings(n, movable) for n in snapshot.nodes}
    own = _own_pools(found, sum(w.count for w in wishes if w.compound))
    members: dict[tuple[str, Standing], list[Key]] = {}
    for name in sorted(found):
        for key, gpu in found[name]:
            members.setdefault((name if name in own else ANYWHERE, gpu), []).append(key)
    groups = tuple(Group(pool, tuple(keys), patterns(gpu, terms)) for (pool, gpu), keys in members.items())
    useful = tuple(g for g in groups if any(p.offers for p in g.patterns))
    return Problem(useful, wishes, budget, not any(truncated(gpu, terms) for _, gpu in members))


def asked(requests: Iterable[PodRequest]) -> tuple[tuple[Want, int], ...]:
    """All pieces that the requests ask for together."""
    total: Counter[Want] = Counter()
    for request in requests:
        total.update(items(request))
    return tuple(sorted(total.items(), key=_piece_order))


def _wishes(requests: Iterable[PodRequest]) -> tuple[Wish, ...]:
    counts = Counter((tuple(sorted(items(r).items(), key=_piece_order)), r.priority) for r in requests)
    wishes = (Wish(pieces, priority, n) for (pieces, priority), n in counts.items())
    return tuple(sorted(wishes, key=lambda w: (-w.priority, [_piece_order(p) for p in w.pieces])))


def _piece_order(piece: tuple[Want, int]) -> tuple[str, str, int, int]:
    want, n = piece
    return want.mode.value, want.profile, want.amount, n


def _standings(node: NodeGpus, movable: frozenset[Key]) -> tuple[tuple[Key, Standing], ...]:
    gpus = sorted(node.gpus, key=lambda g: (g.index, g.uuid))
    seen = (((node.name, g.uuid), standing(node, g, movable=(node.name, g.uuid) in movable)) for g in gpus)
    return tuple((key, gpu) for key, gpu in seen if gpu is not None)


def _own_pools(found: Mapping[str, tuple[tuple[Key, Standing], ...]], compound: int) -> set[str]:
    alike: Counter[frozenset[tuple[Standing, int]]] = Counter()
    own = set()
    for name in sorted(found) if compound else ():
        kind = frozenset(Counter(gpu for _, gpu in found[name]).items())
        alike[kind] += 1
        if kind and alike[kind] <= compound:
            own.add(name)
    return own
