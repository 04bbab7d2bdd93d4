"""The cluster-wide loop, one active replica: sees who waits, plans, and orders GPUs to be re-cut.

Writes only `spec.gpus` of GpuNodes, and events. Never touches a GPU, a pod or a Node.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster import eligible, names
from cluster.cache import Cache
from cluster.client import GPUNODES, Client
from cluster.clock import Clock
from cluster.errors import ApiError, Conflict, Unreachable
from cluster.events import Events
from cluster.gpunode import NodeFacts, Object, read_gpunode, wanted_out
from cluster.process import forever
from gpu.node import Snapshot
from gpu.placement import PodRequest
from gpu.recut import Wanted
from gpu.scoring import Scoring
from mig_manager import demand as demands
from mig_manager import metrics
from mig_manager.demand import Demand
from mig_manager.outlook import Key, Outlook, outlook
from mig_manager.plan import LayoutChange, Plan, propose, why_nothing, worth_it
from policies.load import Policies
from policies.model import Policy

log = logging.getLogger(__name__)

ECHO_SECONDS = 30.0
"""How long the planner waits for the watch to show its own last order before it plans without having seen it."""


@dataclass(frozen=True)
class View:
    """All that one decision is made from, taken at one moment."""

    outlook: Outlook
    pending: tuple[PodRequest, ...]
    policy: Policy
    scoring: Scoring

    @property
    def demand(self) -> Demand:
        patience = self.policy.recutting.patience_seconds
        return demands.find(self.outlook.snapshot, self.pending, patience, self.scoring)

    def judge(self, plan: Plan) -> tuple[Plan, str]:
        return worth_it(plan, self.outlook, self.pending, self.scoring, self.policy.sharing.units_per_gpu)


class Planner:
    """`tick` is called by one thread."""

    def __init__(self, client: Client, cache: Cache, policies: Policies, clock: Clock, events: Events) -> None:
        self._client, self._cache, self._policies = client, cache, policies
        self._clock, self._events = clock, events
        self._ordered: dict[Key, tuple[int, float]] = {}
        self._term = 0

    def lead(self, lost: threading.Event, term: int, seconds: float = 1.0) -> None:
        """Plan until the lease is lost; `term` is the fence of every order given meanwhile."""
        self._term = term
        metrics.leading.set(1)
        try:
            forever("planner", lambda: self.tick(lost), seconds, self._clock, lost)
        finally:
            metrics.leading.set(0)

    def tick(self, lost: threading.Event | None = None) -> str:
        """One round; what it did in one sentence."""
        if why := self._not_now():
            return why
        if not self._anybody_impatient():
            metrics.waiting.set(0)
            metrics.demand.clear()
            return "nobody waits for a GPU to be re-cut"
        view = self._look()
        demand = view.demand
        _measure_demand(view, demand)
        if not demand.waiting:
            return "nobody waits for a GPU to be re-cut"
        with metrics.solve_seconds.time():
            plan = propose(view.outlook, demand, view.policy)
        _measure_plan(plan)
        if not plan.changes:
            return why_nothing(view.outlook, demand, view.policy)
        # A solve takes time and the world goes on: the plan must still hold on the newest books. The objects are taken
        # first, so that whatever changes after this look makes the write a conflict.
        objects = {c.node: self._cache.gpunode(c.node) for c in plan.changes}
        plan, why = self._look().judge(plan)
        if why:
            metrics.plans.labels("dropped").inc()
            return why
        return self._order(plan, objects, lost)

    def _not_now(self) -> str:
        if why := self._cache.ready():
            return f"not ready: {why}"
        if why := self._policies.ready():
            return f"nothing is ordered: {why}"
        if not self._policies.current.recutting.enabled:
            return "re-cutting is switched off by policy"
        return self._echo()

    def _anybody_impatient(self) -> bool:
        """Spares a large cluster the folding of all its books while nobody has waited long enough."""
        patience, now = self._policies.current.recutting.patience_seconds, self._clock.now()
        return any(now - request.since >= patience for request in self._cache.pending())

    def _echo(self) -> str:
        """Until the watch shows the last order, the books are from before it and would lead to a second one."""
        for (node, uuid), (generation, at) in list(self._ordered.items()):
            facts = self._cache.facts(node)
            wanted = (facts.wanted or {}).get(uuid) if facts else None
            shown = wanted is not None and wanted.generation >= generation
            if shown or self._clock.monotonic() - at > ECHO_SECONDS:
                del self._ordered[node, uuid]
        return "waiting for the watch to show the last order" if self._ordered else ""

    def _look(self) -> View:
        policy, now = self._policies.current, self._clock.now()
        snapshot = self._cache.snapshot()
        facts: Mapping[str, NodeFacts] = {n.name: f for n in snapshot.nodes if (f := self._cache.facts(n.name))}
        view = outlook(snapshot, facts, policy.recutting.cooldown_seconds, policy.sharing.units_per_gpu, now)
        scoring = Scoring(policy.placing.scorer, now, policy.placing.stale_after_seconds)
        return View(view, _with_bars(self._cache, snapshot), policy, scoring)

    def _order(self, plan: Plan, objects: Mapping[str, Object | None], lost: threading.Event | None) -> str:
        done: list[LayoutChange] = []
        for node in sorted({c.node for c in plan.changes}):
            if lost is not None and lost.is_set():
                return "the lease is lost, nothing more is ordered"
            changes = [c for c in plan.changes if c.node == node]
            if why := self._write(node, objects[node], changes):
                metrics.plans.labels("refused").inc()
                return why
            done += changes
        metrics.plans.labels("ordered").inc()
        metrics.changes.inc(len(done))
        note = "" if plan.proven else f" (found by {plan.method}, at most {plan.gap} pods short of the best)"
        told = "; ".join(f"{c.gpu} of {c.node} becomes {c.after} {c.reason}" for c in done)
        return f"{plan.gain} pods gain a place{note}: {told}"

    def _write(self, node: str, obj: Object | None, changes: list[LayoutChange]) -> str:
        if obj is None:
            return f"not ordered: GpuNode {node} is gone"
        facts = read_gpunode(obj)
        orders = {c.gpu: self._wanted(facts, c) for c in changes}
        patch = {
            # The books this was decided on: if anything there changed meanwhile, decide again.
            "metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]},
            "spec": {"gpus": {uuid: wanted_out(w) for uuid, w in orders.items()}},
        }
        try:
            self._client.patch(GPUNODES, node, patch)
        except Conflict:
            return f"not ordered: GpuNode {node} changed meanwhile"
        except Unreachable as error:
            self._remember(node, orders)  # it may have been written all the same
            return f"not known whether ordered: {error}"
        except ApiError as error:
            return f"not ordered: {error}"
        self._remember(node, orders)
        self._tell(node, changes)
        return ""

    def _remember(self, node: str, orders: Mapping[str, Wanted]) -> None:
        at = self._clock.monotonic()
        self._ordered |= {(node, uuid): (w.generation, at) for uuid, w in orders.items()}

    def _wanted(self, facts: NodeFacts, change: LayoutChange) -> Wanted:
        wanted, recut = (facts.wanted or {}).get(change.gpu), (facts.recuts or {}).get(change.gpu)
        last = max(wanted.generation if wanted else 0, recut.generation if recut else 0)
        return Wanted(last + 1, change.after, change.reason, self._term)

    def _tell(self, node: str, changes: list[LayoutChange]) -> None:
        about = self._cache.gpunode(node) or {}
        for change in changes:
            said = f"GPU {change.gpu} of node {node}: {change.before} becomes {change.after}"
            self._events.write(about, names.RECUT_STARTED, f"{said} {change.reason}")
            for request in change.serves[:10]:
                if pod := self._cache.pod(request.pod.uid):
                    self._events.write(pod, names.RECUT_STARTED, f"{said} for this pod")


def _with_bars(cache: Cache, snapshot: Snapshot) -> tuple[PodRequest, ...]:
    """Those who wait, each with the nodes it may not run on; a pod or node that is gone meanwhile is left out.

    Pods of other schedulers wait too: they ask for the same resources of the same nodes and take what is cut.
    """
    requests = cache.pending()
    pods = {r.pod.uid: pod for r in requests if (pod := cache.pod(r.pod.uid))}
    nodes = {n.name: node for n in snapshot.nodes if (node := cache.node(n.name))}
    shut = eligible.barred(pods, nodes)
    return tuple(replace(r, barred=shut[r.pod.uid]) for r in requests if r.pod.uid in shut)


def _measure_demand(view: View, demand: Demand) -> None:
    metrics.under_way.set(len(view.outlook.under_way))
    metrics.waiting.set(len(demand.waiting))
    metrics.demand.clear()
    for kind, amount in demand.counts.items():
        metrics.demand.labels(kind).set(amount)


def _measure_plan(plan: Plan) -> None:
    metrics.gain.set(plan.gain)
    metrics.gap.set(plan.gap)
    metrics.cost.set(plan.cost)
    if not plan.changes:
        metrics.plans.labels("empty").inc()
