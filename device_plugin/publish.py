"""Writes what this node has: the inventory on its GpuNode, claims on its pods, and the mark that wakes waiting pods.

The only writer of `status.models`, `status.gpus`, `status.summary` and of claims. Every write may be repeated.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from cluster import facts, gpunode, names
from cluster.cache import Cache
from cluster.client import GPUNODES, NODES, PODS, Client
from cluster.clock import Clock
from cluster.errors import ApiError, Conflict, NotFound
from cluster.events import Events
from device_plugin import metrics
from device_plugin.claims import Claim, Held, missing, unknown
from device_plugin.devices import NodeGpu
from device_plugin.state import NodeState
from gpu.node import Mode

log = logging.getLogger(__name__)

OURS = ("models", "gpus", "summary")


class Publisher:
    """Writing belongs to one thread; `shows` may be asked by any. `state` may change meanwhile."""

    def __init__(self, node: str, client: Client, cache: Cache, state: NodeState, events: Events, clock: Clock) -> None:
        self._node, self._client, self._cache = node, client, cache
        self._state, self._events, self._clock = state, events, clock
        self._published: dict[str, Any] | None = None
        self._done = False
        self._offered: frozenset[str] | None = None
        self._sick: dict[str, str] = {}
        self._strange: frozenset[str] = frozenset()

    @property
    def done(self) -> bool:
        """The inventory has been published once by this process."""
        return self._done

    def remembered(self) -> gpunode.NodeFacts:
        """What the GpuNode says now, creating it if there is none. Raises ApiError."""
        try:
            obj = self._client.get(GPUNODES, self._node)
        except NotFound:
            node = self._client.get(NODES, self._node)
            try:
                obj = self._client.create(GPUNODES, gpunode.empty(self._node, node["metadata"]["uid"]))
            except Conflict:
                obj = self._client.get(GPUNODES, self._node)
        status = obj.get("status") or {}
        self._published = {k: status[k] for k in OURS if k in status}
        return gpunode.read_gpunode(obj)

    def inventory(self) -> bool:
        """Publish what has changed; True when something was written. Raises ApiError."""
        if self._published is None or (not self._cache.ready() and self._cache.gpunode(self._node) is None):
            self.remembered()  # somebody may have deleted it: it is made anew
        gpus = self._state.gpus()
        fresh = _inventory(gpus)
        patch = gpunode.merge_patch(self._published, fresh)
        if patch:
            try:
                self._client.patch(GPUNODES, self._node, {"status": patch}, subresource="status")
            except NotFound:
                self._published = None  # somebody deleted it: the next round makes it anew
                return False
            self._published = fresh
        self._done = True
        self._wake()
        self._tell(gpus)
        return bool(patch)

    def shows(self) -> bool:
        """What has been published is what is advertised now."""
        return self._published == _inventory(self._state.gpus())

    def claims(self, held: Iterable[Held]) -> bool:
        """Write the claims that pods of this node lack; False when one could not be written and must be tried again."""
        held, gpus = tuple(held), self._state.gpus()
        strange = unknown(held, gpus)
        if strange != self._strange:
            self._strange = strange
            log.warning(
                "the kubelet lists devices that are not here: %s", ", ".join(sorted(strange)) or "none any more"
            )
        wanted = missing(held, self._cache.pods_on(self._node), gpus)
        written = [self._claim(c) for c in wanted]  # each is tried, whatever became of the one before
        return all(written)

    def _claim(self, claim: Claim) -> bool:
        text = facts.write_shares(claim.shares, self._clock.now())
        # The uid is a precondition: a pod re-created under this name meanwhile holds something else.
        patch = {"metadata": {"uid": claim.uid, "annotations": {names.CLAIM: text}}}
        try:
            self._client.patch(PODS, claim.pod, patch, claim.namespace)
        except (Conflict, NotFound):
            metrics.claims.labels("gone").inc()
            return True
        except ApiError as error:
            metrics.claims.labels("failed").inc()
            log.warning("claim of pod %s/%s not written: %s", claim.namespace, claim.pod, error)
            return False
        metrics.claims.labels("written").inc()
        log.info("pod %s/%s holds %s", claim.namespace, claim.pod, ", ".join(map(str, claim.shares)))
        return True

    def _wake(self) -> None:
        """Bump the Node's annotation when ids appeared: each write to a Node wakes every pod refused so far."""
        offered = frozenset(d.id for devices in self._state.lists()[1].values() for d in devices if d.healthy)
        before, self._offered = self._offered, offered
        if before is None or not offered - before:
            return
        mark = {"metadata": {"annotations": {names.CAPACITY: f"{self._clock.now():.3f}"}}}
        try:
            self._client.patch(NODES, self._node, mark)
        except ApiError as error:
            self._offered = before  # try again with the next round
            log.warning("node %s not marked: %s", self._node, error)

    def _tell(self, gpus: Iterable[NodeGpu]) -> None:
        sick = {g.uuid: g.problem for g in gpus if not g.healthy}
        about = self._cache.gpunode(self._node)
        if about is not None:
            for uuid in sick.keys() - self._sick.keys():
                text = f"GPU {uuid} takes no new pods: {sick[uuid]}"
                self._events.write(about, names.GPU_UNHEALTHY, text, warning=True)
            for uuid in self._sick.keys() - sick.keys():
                self._events.write(about, names.GPU_RECOVERED, f"GPU {uuid} takes pods again")
            self._sick = sick
        metrics.unhealthy.set(len(sick))


def _inventory(gpus: Iterable[NodeGpu]) -> dict[str, Any]:
    gpus = tuple(gpus)
    return gpunode.inventory((g.books() for g in gpus), {g.uuid: _details(g) for g in gpus})


def _details(gpu: NodeGpu) -> Mapping[str, Any]:
    seen = gpu.seen
    details: dict[str, Any] = {"name": seen.name, "minor": seen.minor, "busId": seen.bus_id}
    if seen.numa is not None:
        details["numa"] = seen.numa
    if gpu.mode is not Mode.SLICED and gpu.plan is not None and gpu.plan.whole is not None:
        details["resource"] = gpu.sold.resource
    if gpu.mode is Mode.SHARED:
        details["sharing"] = gpu.sold.strategy.value
    if gpu.problem:
        details["problem"] = gpu.problem
    details["slices"] = {
        str(s.slice): {k: v for k, v in (("uuid", s.uuid), ("gi", s.gi), ("ci", s.ci)) if v is not None}
        for s in gpu.slices
    }
    for piece in gpu.slices if gpu.plan is not None else ():
        details["slices"][str(piece.slice)]["resource"] = gpu.sold_slice(piece).resource
    return details
