"""Promises that the watch has not shown yet, laid over what it has.

Between a Binding and the moment its pod comes back through the watch, this is the only place that knows of it. One lock
makes "look, choose, note" a single step, so that nothing is promised twice; it is never held across a network call.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cluster import facts
from cluster.cache import Cache
from cluster.clock import Clock
from gpu.node import NodeGpus, Placement, PodRef, Snapshot
from gpu.placement import Answer, Fit

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class _Promise:
    """`until` on the monotonic clock. `known`: the cache has had this pod, so that its end will be noticed."""

    placement: Placement
    until: float
    known: bool


class Promises:
    """Keyed by pod UID and node: a Binding whose reply was lost may come true while the pod is tried elsewhere."""

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self._cache, self._clock = cache, clock
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], _Promise] = {}
        self._laid: dict[str, tuple[NodeGpus, tuple[Placement, ...], NodeGpus]] = {}
        self._last: tuple[Snapshot, tuple[Placement, ...], Snapshot] = (Snapshot(), (), Snapshot())

    def __len__(self) -> int:
        return len(self._made)

    def snapshot(self, besides: str = "") -> Snapshot:
        """The newest snapshot with every promise in it, but for those to the pod with this UID.

        Nodes and the whole keep their identity as long as nothing about them has changed.
        """
        with self._lock:
            return self._snapshot(besides)

    def make(self, pod: PodRef, node: str, choose: Callable[[NodeGpus], Answer], seconds: float) -> Answer:
        """Let `choose` look at the newest books of that node and note what it finds, for so long at most.

        What this pod was promised there before stays its promise while it can: that Binding may have taken effect.
        """
        with self._lock:
            nodes = self._snapshot(pod.uid).nodes
            at = _index(nodes, node)
            books = nodes[at].without(pod.uid) if at is not None else NodeGpus(node)
            before = self._made.get((pod.uid, node))
            if before is not None and all(books.has_room(s) for s in before.placement.shares):
                return Fit(before.placement, 1.0)
            answer = choose(books)
            if isinstance(answer, Fit):
                until, known = self._clock.monotonic() + seconds, self._cache.pod(pod.uid) is not None
                self._made[pod.uid, node] = _Promise(answer.placement, until, known)
            return answer

    def confirm(self, uid: str, node: str) -> None:
        """The Binding took effect: the promise stands until the watch shows the pod, however long that takes."""
        with self._lock:
            promise = self._made.get((uid, node))
            if promise is not None and promise.known:
                self._made[uid, node] = replace(promise, until=NEVER)

    def withdraw(self, uid: str, node: str) -> None:
        """The Binding was refused for certain."""
        with self._lock:
            self._made.pop((uid, node), None)

    def _snapshot(self, besides: str) -> Snapshot:
        self._settle()  # first: what is dropped here, the snapshot taken after it shows already
        base = self._cache.snapshot()
        placements = tuple(p.placement for (uid, _), p in self._made.items() if uid != besides)
        if base is not self._last[0] or placements != self._last[1]:
            self._last = (base, placements, self._over(base, placements))
        return self._last[2]

    def _settle(self) -> None:
        now = self._clock.monotonic()
        for key, promise in list(self._made.items()):
            pod = self._cache.pod(key[0])
            shown = pod is not None and (facts.bound_node(pod) or facts.over(pod))
            if shown or now >= promise.until or (pod is None and promise.known):
                del self._made[key]
            elif pod is not None and not promise.known:
                self._made[key] = replace(promise, known=True)

    def _over(self, base: Snapshot, placements: tuple[Placement, ...]) -> Snapshot:
        by_node: dict[str, tuple[Placement, ...]] = {}
        for placement in placements:
            by_node[placement.node] = (*by_node.get(placement.node, ()), placement)
        nodes = list(base.nodes)
        laid = {}
        for name, here in by_node.items():
            at = _index(nodes, name)
            if at is not None:
                laid[name] = self._lay(nodes[at], here)
                nodes[at] = laid[name][2]
        self._laid = laid
        return replace(base, nodes=tuple(nodes)) if laid else base

    def _lay(
        self, node: NodeGpus, placements: tuple[Placement, ...]
    ) -> tuple[NodeGpus, tuple[Placement, ...], NodeGpus]:
        before = self._laid.get(node.name)
        if before is not None and before[0] is node and before[1] == placements:
            return before
        over = node
        for placement in placements:
            over = over.holding(placement)
        # In the cache's own order, so that the value stays equal when the watch takes the promise over.
        ordered = tuple(sorted(over.placements, key=lambda p: p.pod.uid))
        return node, placements, replace(over, placements=ordered)


def _index(nodes: Sequence[NodeGpus], name: str) -> int | None:
    """Where this node is among those of a snapshot, which the cache keeps sorted by name."""
    at = bisect_left(nodes, name, key=lambda n: n.name)
    return at if at < len(nodes) and nodes[at].name == name else None
