"""How good a place is: one small function per wish of the operator, in a closed table.

A score is a number between 0 and 1, higher is better; equal scores are settled by the name of the node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

from gpu.layout import Layout, Slice, canonical, openings
from gpu.node import Gpu, NodeGpus, Share, Stage
from gpu.profiles import GpuModel, MigProfile

# The sizes of shared requests that count as likely, as parts of a GPU: the FGD measure (Weng et al., "Beware of
# Fragmentation", USENIX ATC 2023) sums over the workload's task classes; until a cluster's own mix is known the
# classes are the sizes that MIG profiles come in.
LIKELY_PARTS = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which scorer, and what it needs to know of the moment. Times in seconds, `now` since the epoch.

    A reading counts from `stale_after` before its time (a node's clock may be ahead) until `stale_after` past it.
    A promise is in flight for `promise_seconds`; after that it is taken for lost and delays nobody.
    """

    scorer: str = "least_stranded"
    now: float = 0.0
    stale_after: float = 30.0
    promise_seconds: float = 300.0


def least_stranded(node: NodeGpus, gpu: Gpu, share: Share, scoring: Scoring) -> float:
    """Small rise in capacity that no likely request could use, then packed tightly."""
    return 0.9 * (1.0 - _rise(node, gpu, share)) + 0.1 * pack(node, gpu, share, scoring)


def pack(node: NodeGpus, gpu: Gpu, share: Share, scoring: Scoring) -> float:
    """Fullest GPU first, on the node with the least left."""
    return 0.7 * node.fullness_of[gpu.uuid] + 0.3 * node.fullness


def spread(node: NodeGpus, gpu: Gpu, share: Share, scoring: Scoring) -> float:
    """Emptiest GPU first, on the node with the most left."""
    return 1.0 - pack(node, gpu, share, scoring)


def most_idle(node: NodeGpus, gpu: Gpu, share: Share, scoring: Scoring) -> float:
    """Lowest measured activity first. What has not been measured lately counts as busy."""
    activity = gpu.activity
    if activity is None or not activity.at - scoring.stale_after <= scoring.now < activity.at + scoring.stale_after:
        return 0.0
    return 1.0 - min(1.0, max(0.0, activity.busy))


Scorer = Callable[[NodeGpus, Gpu, Share, Scoring], float]

SCORERS: dict[str, Scorer] = {
    "least_stranded": least_stranded,
    "pack": pack,
    "spread": spread,
    "most_idle": most_idle,
}


def score(node: NodeGpus, gpu: Gpu, share: Share, scoring: Scoring) -> float:
    return SCORERS[scoring.scorer](node, gpu, share, scoring)


def good_until(node: NodeGpus, scoring: Scoring) -> float:
    """The next moment, in epoch seconds, at which an answer of this node changes though nothing is written.

    A reading begins or ceases to count, or a promise ceases to be in flight. Up to that moment, and not at it,
    what was decided at `scoring.now` stands.
    """
    promises = [p for p in node.placements if p.stage is Stage.PROMISED and any(s.units for s in p.shares)]
    moments = [p.at + scoring.promise_seconds for p in promises]
    if scoring.scorer == "most_idle":
        readings = [g.activity.at for g in node.gpus if g.activity]
        moments += [at + away for at in readings for away in (-scoring.stale_after, scoring.stale_after)]
    return min((moment for moment in moments if moment > scoring.now), default=float("inf"))


def _rise(node: NodeGpus, gpu: Gpu, share: Share) -> float:
    """How much of the GPU's usefulness is lost beyond what the share itself takes, between 0 and 1."""
    use = node.use(gpu)
    if share.slice is not None:
        return _rise_of_slice(use.slices, share.slice, gpu.model)
    return _rise_of_units(use.units, share.units, gpu.units) if share.units else 0.0


@lru_cache(maxsize=16384)
def _rise_of_units(taken: int, more: int, units: int) -> float:
    free = (units - taken) / units
    return min(1.0, max(0.0, _stranded(free - more / units) - _stranded(free)))


@lru_cache(maxsize=16384)
def _rise_of_slice(taken: frozenset[Slice], more: Slice, model: GpuModel) -> float:
    before, after = canonical(taken), canonical(taken | {more})
    return max(0.0, usefulness(before, model) - usefulness(after, model))


def _stranded(free: float) -> float:
    """Expected part of `free` (of one GPU) that a request of a likely size could not use."""
    return sum(free for part in LIKELY_PARTS if free < part - 1e-9) / len(LIKELY_PARTS)


@cache
def usefulness(taken: Layout, model: GpuModel) -> float:
    """Mean over the profiles of the part of the GPU that more slices of it could still take, between 0 and 1."""
    return sum(_room(taken, p) / model.axis for p in model.profiles) / max(1, len(model.profiles))


def _room(taken: Layout, profile: MigProfile) -> int:
    room, layout = 0, taken
    while left := openings(layout, profile):
        layout = (*layout, left[0])
        room += profile.size
    return room
