"""Plans, what they say about themselves, and when they are not acted on."""

from dataclasses import replace

from gpu.node import Mode, NodeGpus, Snapshot
from gpu.placement import PodRequest
from gpu.recut import Shape
from gpu.scoring import Scoring
from mig_manager.demand import Demand, find
from mig_manager.outlook import Outlook
from mig_manager.plan import LayoutChange, Plan, apply, propose, why_nothing, worth_it
from policies.model import Policy, Recutting
from tests.builders import gpu, layout, node, placement, request, share, slices, units, whole

NOW = Scoring(now=100.0)
WHOLE = Shape(Mode.WHOLE)


def look(*cluster: NodeGpus, under_way: int = 0, resting: int = 0) -> Outlook:
    keys = frozenset((n.name, g.uuid) for n in cluster for g in n.gpus)
    return Outlook(
        Snapshot(cluster),
        keys,
        frozenset(("r", str(i)) for i in range(resting)),
        frozenset(("u", str(i)) for i in range(under_way)),
    )


def planned(view: Outlook, *pods: PodRequest, policy: Policy | None = None) -> tuple[Plan, str, Demand]:
    demand = find(view.snapshot, pods, 5.0, NOW)
    plan = propose(view, demand, policy or Policy())
    return *worth_it(plan, view, pods, NOW, 20), demand


def test_a_plan_states_gain_cost_bound_and_for_whom() -> None:
    pods = [request(slices("1g.10gb"), pod=name) for name in "ab"]
    plan, why, _ = planned(look(node(gpu())), *pods)
    assert why == ""
    assert (plan.gain, plan.bound, plan.gap, plan.proven) == (2, 2, 0, True)
    assert plan.cost > 0
    (change,) = plan.changes
    assert change.before == WHOLE
    assert change.after == Shape(Mode.SLICED, layout("1g.10gb@4", "1g.10gb@5"))
    assert change.reason == "for 2 pods that wait for 1 x 1g.10gb: default/a, default/b"


def test_reasons_stay_short() -> None:
    one = LayoutChange("n1", "GPU-0", WHOLE, WHOLE, (request(whole(), pod="a"),))
    assert one.reason == "for 1 pod that waits for 1 whole GPU(s): default/a"
    many = replace(one, serves=tuple(request(units(i + 1), pod=f"p{i}") for i in range(9)))
    assert many.reason.endswith(" and more: default/p0, default/p1, default/p2, default/p3, default/p4 and 4 more")


def test_the_way_back_and_the_way_to_shared() -> None:
    plan, why, _ = planned(look(node(gpu("GPU-0", "1g.10gb@6"))), request(whole()))
    assert why == ""
    assert plan.changes[0].after == WHOLE
    plan, why, _ = planned(look(node(gpu())), request(units(8)))
    assert why == ""
    assert plan.changes[0].after == Shape(Mode.SHARED)


def test_policy_limits_what_is_made() -> None:
    policy = Policy(recutting=Recutting(modes=(Mode.WHOLE,)))
    view = look(node(gpu()))
    plan, _, demand = planned(view, request(slices("1g.10gb")), policy=policy)
    assert plan == Plan()
    assert why_nothing(view, demand, policy) == "1 pods wait for 1 x 1g.10gb; no GPU that may change can help"


def test_no_more_gpus_at_once_than_policy_says() -> None:
    policy = Policy(recutting=Recutting(max_gpus_at_once=2))
    pods = [request(slices("7g.80gb"), pod=f"p{i}") for i in range(3)]
    cluster = node(gpu("GPU-0"), gpu("GPU-1"), gpu("GPU-2"))
    assert len(planned(look(cluster), *pods, policy=policy)[0].changes) == 2
    assert len(planned(look(cluster, under_way=1), *pods, policy=policy)[0].changes) == 1
    full = look(cluster, under_way=2)
    plan, _, demand = planned(full, *pods, policy=policy)
    assert not plan.changes
    assert "2 GPUs are being re-cut" in why_nothing(full, demand, policy)
    assert "4 rest after their last re-cut" in why_nothing(look(cluster, resting=4), demand, policy)


def forced(view: Outlook, *changes: LayoutChange, pods: tuple[PodRequest, ...] = ()) -> str:
    return worth_it(Plan(changes, gain=1), view, pods, NOW, 20)[1]


def test_what_is_not_acted_on() -> None:
    used = node(gpu("GPU-0", "1g.10gb@6"), placements=(placement("u", share("GPU-0", "1g.10gb@6"), claimed=True),))
    here = Shape(Mode.SLICED, layout("1g.10gb@6"))
    other = Shape(Mode.SLICED, layout("7g.80gb@0"))
    assert "is gone" in forced(look(used), LayoutChange("n9", "GPU-0", here, WHOLE))
    assert "is gone" in forced(look(used), LayoutChange("n1", "GPU-9", here, WHOLE))
    assert "in use and cannot change its kind" in forced(look(used), LayoutChange("n1", "GPU-0", here, WHOLE))
    assert "would lose a slice in use" in forced(look(used), LayoutChange("n1", "GPU-0", here, other))
    assert "no longer what it was" in forced(look(used), LayoutChange("n1", "GPU-0", other, here))
    overlap = Shape(Mode.SLICED, layout("7g.80gb@0", "1g.10gb@6"))
    assert "cannot be cut into" in forced(look(used), LayoutChange("n1", "GPU-0", here, overlap))
    assert "may not change now" in forced(
        replace(look(used), movable=frozenset()), LayoutChange("n1", "GPU-0", here, other)
    )


def test_nobody_loses_a_seat_and_somebody_gains_one() -> None:
    view = look(node(gpu("GPU-0", "1g.10gb@6")))
    here, other = Shape(Mode.SLICED, layout("1g.10gb@6")), Shape(Mode.SLICED, layout("7g.80gb@0"))
    change = LayoutChange("n1", "GPU-0", here, other)
    small, large = request(slices("1g.10gb"), pod="small"), request(slices("7g.80gb"), pod="large")
    assert forced(view, change, pods=(small, large)) == "not acted on: default/small would no longer find a place"
    assert "no more pods would find a place" in forced(view, change)
    assert forced(view, change, pods=(large,)) == ""


def test_a_change_where_nobody_may_run_is_not_acted_on() -> None:
    view = look(node(gpu(), name="n1"), node(gpu("GPU-1"), name="n2"))
    pods = (replace(request(slices("1g.10gb")), barred=frozenset({"n2"})),)
    cut = Shape(Mode.SLICED, layout("1g.10gb@6"))
    assert forced(view, LayoutChange("n2", "GPU-1", WHOLE, cut), pods=pods) == (
        "not acted on: no pod that waits may run on node n2"
    )
    plan, why, _ = planned(view, *pods)
    assert why == ""
    assert [c.node for c in plan.changes] == ["n1"]


def test_the_books_with_the_plan_carried_out() -> None:
    view = look(node(gpu()))
    after = apply(view.snapshot, Plan((LayoutChange("n1", "GPU-0", WHOLE, Shape(Mode.SHARED)),)), 10)
    assert after.nodes[0].gpus[0].units == 10
