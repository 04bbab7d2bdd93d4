"""Which GPUs to give together: the best connected ones, and of equals those that leave the best connected rest.

Pure. Every set is looked at where that is affordable, so the answer is the best there is; beyond, a search by hand.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb

from gpu.hardware import Ancestor, Link, Topology

SETS = 12_870
"""Sets that are looked at one by one: all of 8 out of 16. Above, `_grown` looks for a good one."""

NVLINK = 100
"""The worth of one NVLink between two GPUs; that of PCIe below is never as much (the proportions of NVIDIA's public
go-gpuallocator, which counts no links into a switch fabric; `Link.nvlinks` does)."""
NEAR = {
    Ancestor.BOARD: 60,
    Ancestor.SWITCH: 50,
    Ancestor.SWITCHES: 40,
    Ancestor.HOST_BRIDGE: 30,
    Ancestor.NUMA_NODE: 20,
    Ancestor.SYSTEM: 10,
}
PEERS = 4
"""They may read each other's memory: decides between pairs that are equally near."""
SAME_NUMA = 2
"""Where a virtual machine hides PCIe, the NUMA node may still tell."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU that may be given. `kind` numbers the models of the node, the smallest first; `numa` None: not known."""

    uuid: str
    index: int
    numa: int | None = None
    kind: int = 0


def worth(link: Link | None, a: int | None, b: int | None) -> int:
    """How much it is worth that two GPUs on these NUMA nodes work together; `link` None: nothing is known of it."""
    together = a is not None and a >= 0 and a == b
    if link is None:
        return NEAR[Ancestor.NUMA_NODE if together else Ancestor.SYSTEM] + SAME_NUMA * together
    return NVLINK * link.nvlinks + NEAR[link.ancestor] + PEERS * link.p2p + SAME_NUMA * together


def best(free: Sequence[Candidate], must: Iterable[str], size: int, topology: Topology) -> tuple[str, ...]:
    """The UUIDs of `size` of the free GPUs, those in `must` among them, by index.

    First as few models and as small ones as will do: a job is as fast as its slowest GPU, and a large one is wanted
    elsewhere. Then the greatest worth of all pairs, then the greatest worth of what is left, then the lowest indexes.
    `size` is at least the number of those that must be and at most that of all.
    """
    board = _Board(tuple(sorted(free, key=lambda c: (c.index, c.uuid))), topology)
    fixed = frozenset(must)
    kept = tuple(n for n, c in enumerate(board.free) if c.uuid in fixed)
    open_ = [n for n in range(len(board.free)) if n not in kept]
    more = size - len(kept)
    sets: Iterable[tuple[int, ...]]
    if comb(len(open_), more) <= SETS:
        sets = (tuple(sorted((*kept, *others))) for others in combinations(open_, more))
    else:
        sets = _grown(board, kept, size)
    return tuple(board.free[n].uuid for n in min(sets, key=board.rank))


Rank = tuple[int, tuple[int, ...], int, int, tuple[int, ...]]


class _Board:
    """Worths of all pairs, by position; nothing changes after it is made."""

    def __init__(self, free: tuple[Candidate, ...], topology: Topology) -> None:
        self.free = free
        self.pairs = [
            [0 if a is b else worth(topology.between(a.uuid, b.uuid), a.numa, b.numa) for b in free] for a in free
        ]
        self._rows = [sum(row) for row in self.pairs]
        self._uniform = len({c.kind for c in free}) < 2

    def rank(self, chosen: tuple[int, ...]) -> Rank:
        """The smaller, the better. What the others are worth together is what is lost by taking these, turned about:
        all pairs less those that have a chosen GPU in them."""
        inside = sum(self.pairs[a][b] for a, b in combinations(chosen, 2))
        touched = sum(self._rows[n] for n in chosen) - inside
        return *self._kinds(chosen), -inside, touched, chosen

    def _kinds(self, chosen: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        if self._uniform:
            return 1, ()
        kinds = sorted((self.free[n].kind for n in chosen), reverse=True)
        return 1 + sum(a != b for a, b in pairwise(kinds)), tuple(kinds)


def _grown(board: _Board, kept: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    """Good sets where there are too many: one grown from each GPU, always by the one that ranks best with those that
    are there, and the best of these bettered by exchanging one for another for as long as that helps."""
    everyone = range(len(board.free))
    grown = []
    for seed in everyone if size > len(kept) else ():
        chosen = tuple(sorted({*kept, seed}))
        while len(chosen) < size:
            chosen = min((_with(chosen, n) for n in everyone if n not in chosen), key=board.rank)
        grown.append(chosen)
    current = min(grown, key=board.rank)
    while True:
        swaps = (
            _with(tuple(n for n in current if n != out), into)
            for out in current
            if out not in kept
            for into in everyone
            if into not in current
        )
        better = min(swaps, key=board.rank)
        if board.rank(better) >= board.rank(current):
            break
        current = better
    yield current


def _with(chosen: tuple[int, ...], one: int) -> tuple[int, ...]:
    return tuple(sorted((*chosen, one)))
