"""The loop on each node: carries out what the planner ordered for the GPUs of this node.

Reads the orders and its own record, asks `next_step`, saves the record, and only then acts. GPUs are independent: each
has a lane of its own, so that one whose driver hangs does not stop the others, and no GPU ever has two acts at once.
Writes `status.recuts` and `status.conditions` of its own GpuNode, and events.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from cluster import names
from cluster.cache import Cache
from cluster.client import GPUNODES, Client
from cluster.clock import Clock
from cluster.errors import ApiError
from cluster.events import Events
from cluster.gpunode import recut_out
from gpu.hardware import GpuFault
from gpu.node import Mode
from gpu.recut import Phase, Recut, Shape, Wanted
from mig_manager import metrics
from mig_manager.conditions import Conditions
from mig_manager.lanes import Inline, Lanes
from mig_manager.moment import Act, Apply, Publish, Release, Rest, Rules, Seen, Withhold
from mig_manager.steps import next_step
from policies.load import Policies

log = logging.getLogger(__name__)

REST_SECONDS = 10.0
"""Between two looks at a GPU of which nothing is ordered."""
STEPS_AT_ONCE = 12
"""Steps of one GPU in one round, as long as each brings it on: no phase has to wait for the next round."""


class NodeHands(Protocol):
    """What the loop can see and do on its node. Every act may be repeated; GpuFault from any of them counts a try."""

    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that this node has now."""

    def see(self, gpu: str, target: Shape) -> Seen:
        """The GPU as it is, seen with this target in mind."""

    def withhold(self, gpu: str, target: Shape) -> None:
        """Take the ids of all that `target` removes out of the kubelet's lists, except those promised to a pod that
        is bound here and has not started. Replaces an earlier withholding on this GPU."""

    def release(self, gpu: str) -> None:
        """Advertise again what is there; ends the withholding."""

    def apply(self, gpu: str, target: Shape) -> None:
        """One pass of hardware changes (see apply.towards)."""

    def advertise(self, gpu: str, shape: Shape) -> None:
        """Read again, publish the inventory with this mode, renew lists and CDI specs; ends the withholding; and wake
        the waiting pods when capacity appeared."""

    def conditions(self) -> tuple[Mapping[str, str], ...]:
        """Further conditions of the GpuNode (type, status, reason, message)."""


class NodeLoop:
    """`tick` is called by one thread; the steps of a GPU run in its lane."""

    def __init__(
        self,
        node: str,
        client: Client,
        cache: Cache,
        policies: Policies,
        hands: NodeHands,
        clock: Clock,
        events: Events,
        lanes: Lanes | Inline | None = None,
    ) -> None:
        self._node, self._client, self._cache, self._policies = node, client, cache, policies
        self._hands, self._clock, self._events = hands, clock, events
        self._lanes: Lanes | Inline = lanes or Lanes()
        self._records: dict[str, Recut] = {}
        self._rested: dict[str, float] = {}
        self._object: str | None = None
        self._conditions = Conditions(node, client, cache, clock)

    def tick(self) -> str:
        """One round over all GPUs; what happened, in one sentence per GPU that is not at rest."""
        if why := self._cache.ready():
            return f"not ready: {why}"
        facts = self._cache.facts(self._node)
        if facts is None:
            return f"waiting for GpuNode {self._node} to be published"
        self._follow_object()
        recorded = facts.recuts or {}
        for uuid in (g.uuid for g in facts.gpus):
            if uuid in recorded:
                # From then on our own memory is ahead of the watch: nobody else writes these records.
                self._records.setdefault(uuid, recorded[uuid])
        here = [g for g in self._hands.gpus() if any(g == known.uuid for known in facts.gpus)]
        said = self._lanes.run({gpu: self._job(gpu) for gpu in here if not self._resting(gpu)})
        self._conditions.show(dict(self._records), self._hands.conditions())
        return "; ".join(f"{gpu}: {sentence}" for gpu, sentence in said.items() if sentence)

    def _follow_object(self) -> None:
        """A GpuNode that was made anew counts orders from one again: what was done under the old one is over."""
        uid = ((self._cache.gpunode(self._node) or {}).get("metadata") or {}).get("uid")
        if uid != self._object:
            self._records = {gpu: r for gpu, r in self._records.items() if not r.phase.final}
            self._object = uid

    def _job(self, gpu: str) -> Callable[[], str]:
        return lambda: self._advance(gpu)

    def _wanted(self, gpu: str) -> Wanted | None:
        """The newest order; asked anew at each step, for a step may have hung for long."""
        facts = self._cache.facts(self._node)
        return (facts.wanted or {}).get(gpu) if facts else None

    def _advance(self, gpu: str) -> str:
        """Steps of one GPU until it has to wait for something."""
        said = ""
        for _ in range(STEPS_AT_ONCE):
            before, wanted = self._records.get(gpu), self._wanted(gpu)
            seen = self._see(gpu, self._target(before, wanted))
            recut, act = next_step(before, wanted, seen, self._rules(), self._clock.now())
            if recut is not None and recut != before and not self._save(gpu, before, recut):
                return "the record cannot be saved, so nothing is done"
            said = self._act(gpu, act)
            if isinstance(act, Rest) and (recut == before or _same_phase(before, recut)):
                break
        return "" if recut is None or (recut == before and recut.phase is Phase.DONE) else said

    def _resting(self, gpu: str) -> bool:
        """No order is open, and the GPU has been looked at not long ago: a look costs the driver dozens of calls."""
        record, wanted, now = self._records.get(gpu), self._wanted(gpu), self._clock.monotonic()
        new = wanted is not None and (record is None or wanted.generation > record.generation)
        if new or (record is not None and not record.phase.final):
            self._rested.pop(gpu, None)
            return False
        if now - self._rested.get(gpu, -REST_SECONDS) < REST_SECONDS:
            return True
        self._rested[gpu] = now
        return False

    def _target(self, recut: Recut | None, wanted: Wanted | None) -> Shape:
        """What the GPU is to be looked at for: the order in work, else the next one."""
        if recut is not None and not recut.phase.final:
            return recut.target
        if wanted is not None and (recut is None or wanted.generation > recut.generation):
            return wanted.shape
        return recut.target if recut is not None else Shape(Mode.WHOLE)

    def _see(self, gpu: str, target: Shape) -> Seen:
        try:
            return self._hands.see(gpu, target)
        except GpuFault as fault:
            return Seen(mig=False, layout=(), complete=False, advertised=target, fault=str(fault))

    def _rules(self) -> Rules:
        policy = self._policies.current.recutting
        return Rules(drain_seconds=policy.drain_seconds, tries=policy.tries)

    def _save(self, gpu: str, before: Recut | None, recut: Recut) -> bool:
        patch = {"status": {"recuts": {gpu: recut_out(recut)}}}
        try:
            self._client.patch(GPUNODES, self._node, patch, subresource="status")
        except ApiError as error:
            log.warning("GPU %s: %s", gpu, error)
            return False
        self._records[gpu] = recut
        if before is None or before.phase is not recut.phase:
            self._tell(gpu, recut)
        return True

    def _act(self, gpu: str, act: Act) -> str:
        """Do it; a refusal of the hardware is no failure of the loop: the next step counts it."""
        try:
            match act:
                case Rest(why):
                    return why
                case Withhold(target):
                    self._hands.withhold(gpu, target)
                case Release():
                    self._hands.release(gpu)
                case Apply(target):
                    self._hands.apply(gpu, target)
                case Publish(shape):
                    self._hands.advertise(gpu, shape)
        except GpuFault as fault:
            metrics.faults.labels(type(act).__name__).inc()
            self._note(gpu, str(fault))
            return f"{type(act).__name__}: {fault}"
        return f"{type(act).__name__} done"

    def _note(self, gpu: str, problem: str) -> None:
        """Keep what went wrong with the record, for the person who asks why."""
        recut = self._records.get(gpu)
        if recut is not None and recut.message != problem:
            self._save(gpu, recut, replace(recut, message=problem))

    def _tell(self, gpu: str, recut: Recut) -> None:
        for phase in Phase:
            metrics.phase.labels(gpu, phase.value).set(phase is recut.phase)
        if not recut.phase.final:
            return
        stuck = recut.phase is Phase.STUCK
        reason = names.RECUT_STUCK if stuck else names.RECUT_ROLLED_BACK if recut.rolling_back else names.RECUT_DONE
        metrics.recuts.labels(reason).inc()
        about = self._cache.gpunode(self._node)
        if about is not None:
            said = f"GPU {gpu} of node {self._node}: {recut.message}"
            self._events.write(about, reason, said, warning=reason != names.RECUT_DONE)


def _same_phase(before: Recut | None, after: Recut | None) -> bool:
    return before is not None and after is not None and before.phase is after.phase and before.target == after.target
