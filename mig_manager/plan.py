"""From demand to a plan, and whether the plan is worth acting on. Pure.

A plan is acted on only if the one fitting function agrees: strictly more of the waiting pods find a place, and nobody
who has one loses it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu.layout import legal
from gpu.node import Gpu, Mode, PodRef, Snapshot
from gpu.placement import PodRequest
from gpu.recut import Shape
from gpu.scoring import Scoring
from gpu.seating import Asked, Seated, place_all
from mig_manager.demand import Demand
from mig_manager.outlook import Key, Outlook, shape_of
from mig_manager.packing import Packing, solve
from mig_manager.patterns import Terms
from mig_manager.problem import pose
from policies.model import Policy


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """One GPU, what it is, what it shall be, and the waiting pods that find their place on it."""

    node: str
    gpu: str
    before: Shape
    after: Shape
    serves: tuple[PodRequest, ...] = ()

    @property
    def reason(self) -> str:
        """`for 2 pods that wait for 1 x 1g.10gb: default/a, default/b`."""
        if not self.serves:
            return "for pods that need several GPUs of this node"
        pods = sorted({str(r.pod) for r in self.serves})
        wants = sorted({str(r) for r in self.serves})
        named = ", ".join(pods[:5]) + (f" and {len(pods) - 5} more" if len(pods) > 5 else "")
        count = "1 pod that waits" if len(pods) == 1 else f"{len(pods)} pods that wait"
        return f"for {count} for {' or '.join(wants[:3])}{' and more' if len(wants) > 3 else ''}: {named}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`gain`: waiting pods served. `cost`: of the changes, only comparable between plans. `bound`: most pods that
    any plan could serve; `gap`: what this one may fall short of it. `proven`: that no better plan exists.
    """

    changes: tuple[LayoutChange, ...] = ()
    gain: int = 0
    cost: int = 0
    bound: int = 0
    proven: bool = True
    method: str = "cp-sat"

    @property
    def gap(self) -> int:
        return max(0, self.bound - self.gain)


def propose(outlook: Outlook, demand: Demand, policy: Policy) -> Plan:
    """The best plan for this demand; without changes when none can help."""
    terms = Terms(frozenset(policy.recutting.modes), policy.sharing.units_per_gpu)
    budget = policy.recutting.max_gpus_at_once - len(outlook.under_way)
    if budget < 1 or not demand.waiting:
        return Plan()
    packing = solve(pose(demand.after, demand.waiting, outlook.movable, terms, budget))
    return _plan(outlook.snapshot, packing)


def why_nothing(outlook: Outlook, demand: Demand, policy: Policy) -> str:
    """One sentence for a plan without changes."""
    wait = f"{len(demand.waiting)} pods wait for {demand}"
    if len(outlook.under_way) >= policy.recutting.max_gpus_at_once:
        return f"{wait}; {len(outlook.under_way)} GPUs are being re-cut, which is all that policy allows at once"
    if outlook.resting:
        return f"{wait}; no GPU that may change can help, {len(outlook.resting)} rest after their last re-cut"
    return f"{wait}; no GPU that may change can help"


def apply(snapshot: Snapshot, plan: Plan, units: int) -> Snapshot:
    """The books as if the plan had been carried out; `units` of a GPU that becomes shared."""
    nodes = snapshot.by_name.copy()
    for change in plan.changes:
        shared = units if change.after.mode is Mode.SHARED else 0
        nodes[change.node] = nodes[change.node].with_layout(change.gpu, change.after.mode, change.after.layout, shared)
    return replace(snapshot, nodes=tuple(nodes[n.name] for n in snapshot.nodes))


def worth_it(
    plan: Plan, outlook: Outlook, pending: Iterable[PodRequest], scoring: Scoring, units: int
) -> tuple[Plan, str]:
    """The plan with its true gain and the pods each change serves; and, if it must not be acted on, why not."""
    pending = tuple(pending)
    if why := _unsound(plan, outlook) or _useless(plan, pending):
        return plan, why
    asked = Asked(scoring)
    before = place_all(outlook.snapshot, pending, asked)
    after = place_all(apply(outlook.snapshot, plan, units), pending, asked)
    sat, sits = ({p.pod for p in seated.placed} for seated in (before, after))
    true = replace(_with_servants(plan, before, after, pending), gain=len(sits) - len(sat))
    if homeless := sorted(str(pod) for pod in sat - sits):
        return true, f"not acted on: {homeless[0]} would no longer find a place"
    if true.gain < 1:
        return true, f"not acted on: {len(plan.changes)} GPUs would change, yet no more pods would find a place"
    return true, ""


def _plan(snapshot: Snapshot, packing: Packing) -> Plan:
    changes = tuple(
        LayoutChange(node, uuid, shape_of(snapshot.by_name[node].by_uuid[uuid]), shape)
        for (node, uuid), shape in packing.shapes.items()
    )
    return Plan(changes, packing.served, packing.cost, packing.bound, packing.proven, packing.method)


def _unsound(plan: Plan, outlook: Outlook) -> str:
    """Why a change must not be made as the books stand now; a second look, independent of how the plan was found."""
    for change in plan.changes:
        node = outlook.snapshot.by_name.get(change.node)
        gpu = node.by_uuid.get(change.gpu) if node else None
        if node is None or gpu is None:
            return f"not acted on: GPU {change.gpu} of node {change.node} is gone"
        if why := _must_stay(change, gpu, outlook):
            return f"not acted on: GPU {gpu.index} of node {node.name} {why}"
        use = node.use(gpu)
        if change.after.mode is not gpu.mode and not use.idle:
            return f"not acted on: GPU {gpu.index} of node {node.name} is in use and cannot change its kind"
        if not use.slices <= frozenset(change.after.layout):
            return f"not acted on: GPU {gpu.index} of node {node.name} would lose a slice in use"
    return ""


def _useless(plan: Plan, pending: tuple[PodRequest, ...]) -> str:
    """A change where none of those who wait may run; they may have been given other constraints meanwhile."""
    for node in sorted({c.node for c in plan.changes}):
        if pending and all(node in request.barred for request in pending):
            return f"not acted on: no pod that waits may run on node {node}"
    return ""


def _must_stay(change: LayoutChange, gpu: Gpu, outlook: Outlook) -> str:
    key: Key = (change.node, change.gpu)
    if key not in outlook.movable:
        return "may not change now"
    if shape_of(gpu) != change.before:
        return "is no longer what it was"
    if not legal(change.after.layout, gpu.model):
        return f"cannot be cut into {change.after}"
    return ""


def _with_servants(plan: Plan, before: Seated, after: Seated, pending: tuple[PodRequest, ...]) -> Plan:
    """Each change with the pods that sit on its GPU then and nowhere now."""
    sat = {p.pod for p in before.placed}
    requests: dict[PodRef, PodRequest] = {r.pod: r for r in pending}
    on: dict[Key, list[PodRequest]] = {}
    for placement in after.placed:
        for uuid in {s.gpu for s in placement.shares} if placement.pod not in sat else ():
            on.setdefault((placement.node, uuid), []).append(requests[placement.pod])
    return replace(
        plan,
        changes=tuple(replace(c, serves=tuple(on.get((c.node, c.gpu), ()))) for c in plan.changes),
    )
