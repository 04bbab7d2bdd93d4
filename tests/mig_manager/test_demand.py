"""Who waits, and for what; what re-cuts under way will change about it."""

from dataclasses import replace

from cluster.gpunode import NodeFacts
from gpu.node import Mode, Snapshot
from gpu.placement import Want
from gpu.recut import Phase, Recut, Shape, Wanted
from gpu.scoring import Scoring
from mig_manager.demand import Demand, find, items
from mig_manager.outlook import outlook, rest_seconds, under_way
from tests.builders import A100, gpu, layout, node, placement, request, share, slices, units, whole

NOW = Scoring(now=100.0)
CUT = Shape(Mode.SLICED, layout("1g.10gb@6"))


def demand(*pods: object, cluster: object = None) -> Demand:
    return find(Snapshot((cluster or node(gpu()),)), pods, 5.0, NOW)  # type: ignore[arg-type]


def test_only_who_waited_long_enough_and_fits_nowhere() -> None:
    old, young = request(slices("1g.10gb"), pod="old", since=90), request(slices("1g.10gb"), pod="young", since=97)
    fits = request(whole(), pod="fits", since=10)
    found = demand(old, young, fits)
    assert found.waiting == (old,)
    assert found.counts == {"1g.10gb": 1}
    assert str(found) == "1 x 1g.10gb"
    assert not found.after.nodes[0].use(found.after.nodes[0].gpus[0]).idle, "the one that fits has its seat"


def test_one_free_slice_serves_one_of_two() -> None:
    pods = [request(slices("1g.10gb"), pod=name, since=1) for name in "ab"]
    assert demand(*pods, cluster=node(gpu("GPU-0", "1g.10gb@6"))).waiting == (pods[1],)


def test_what_no_recut_can_help_is_no_demand() -> None:
    assert not demand(request(whole(9)), request(slices("1g.99gb"), pod="b")).waiting
    assert not find(Snapshot(), [request(whole())], 5.0, NOW).waiting
    assert str(demand()) == "nothing"


def test_who_may_run_nowhere_with_such_gpus_is_no_demand() -> None:
    cluster = Snapshot((node(gpu(), name="n1"), node(gpu("GPU-0", key=A100), name="n2"), node(name="n3")))
    pod = request(slices("1g.20gb"))
    assert find(cluster, [pod], 5.0, NOW).waiting
    assert find(cluster, [replace(pod, barred=frozenset({"n2", "n3"}))], 5.0, NOW).waiting
    for bars in ({"n1"}, {"n1", "n2"}, {"n1", "n2", "n3"}):
        assert not find(cluster, [replace(pod, barred=frozenset(bars))], 5.0, NOW).waiting


def test_a_free_seat_where_it_may_not_run_is_no_seat() -> None:
    cluster = Snapshot((node(gpu("GPU-0", "1g.10gb@6"), name="n1"), node(gpu(), name="n2")))
    pinned = replace(request(slices("1g.10gb")), barred=frozenset({"n1"}))
    assert find(cluster, [pinned], 5.0, NOW).waiting == (pinned,)


def test_pieces_of_a_request() -> None:
    assert items(request(whole(2), slices("1g.10gb", 2), slices("1g.10gb"), units(4), units(4))) == {
        Want(Mode.WHOLE, 1): 2,
        Want(Mode.SLICED, 1, "1g.10gb"): 3,
        Want(Mode.SHARED, 4): 2,
    }


def see(one: object, wanted: Wanted | None = None, recut: Recut | None = None, now: float = 100.0):  # type: ignore[no-untyped-def]
    cluster = node(one)  # type: ignore[arg-type]
    facts = NodeFacts("n1", cluster.gpus, {"GPU-0": wanted} if wanted else {}, {"GPU-0": recut} if recut else {})
    return outlook(Snapshot((cluster,)), {"n1": facts}, 30.0, 20, now)


def test_an_ordered_gpu_counts_as_what_it_becomes() -> None:
    view = see(replace(gpu(), closed=True), Wanted(1, CUT))
    assert view.under_way == {("n1", "GPU-0")}
    assert not view.movable
    assert view.snapshot.nodes[0].gpus == (gpu("GPU-0", "1g.10gb@6"),)
    shared = see(replace(gpu(), closed=True), Wanted(1, Shape(Mode.SHARED)))
    assert shared.snapshot.nodes[0].gpus == (gpu("GPU-0", units=20),)


def test_one_that_goes_back_counts_as_what_it_was() -> None:
    back = Recut(1, Phase.APPLY, 90.0, Shape(Mode.WHOLE), Shape(Mode.WHOLE))
    assert see(replace(gpu(), closed=True), Wanted(1, CUT), back).snapshot.nodes[0].gpus == (gpu(),)


def test_a_gpu_rests_after_a_recut() -> None:
    done = Recut(1, Phase.DONE, 80.0, Shape(Mode.WHOLE), CUT)
    one = gpu("GPU-0", "1g.10gb@6")
    assert see(one, Wanted(1, CUT), done).resting == {("n1", "GPU-0")}
    assert see(one, Wanted(1, CUT), done, now=110.0).movable == {("n1", "GPU-0")}


def test_the_rest_doubles_with_every_failure_in_a_row() -> None:
    rests = [rest_seconds(Recut(1, Phase.DONE, 0.0, CUT, CUT, failures=n), 30.0) for n in range(10)]
    assert rests == [30, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert rest_seconds(Recut(1, Phase.DONE, 0.0, CUT, CUT, failures=10**9), 30.0) == 3600
    assert rest_seconds(Recut(1, Phase.DONE, 0.0, CUT, CUT, failures=3), 7200.0) == 7200, "never less than policy says"
    assert [rest_seconds(Recut(1, Phase.DONE, 0.0, CUT, CUT, failures=n), 0.0) for n in range(4)] == [0, 1, 2, 4]


def test_a_gpu_that_was_rolled_back_again_rests_longer() -> None:
    whole_again = Recut(2, Phase.DONE, 80.0, Shape(Mode.WHOLE), Shape(Mode.WHOLE), failures=2)
    assert see(gpu(), Wanted(2, CUT), whole_again, now=139.0).resting == {("n1", "GPU-0")}
    assert see(gpu(), Wanted(2, CUT), whole_again, now=140.0).movable == {("n1", "GPU-0")}


def test_closed_held_and_unhealthy_gpus_stay() -> None:
    for one in (gpu(closed=True), gpu(healthy=False), replace(gpu("GPU-0", "1g.10gb@6"), held=frozenset(CUT.layout))):
        view = see(one)
        assert not view.movable | view.under_way | view.resting


def test_under_way() -> None:
    order, done = Wanted(2, CUT), Recut(1, Phase.DONE, 0.0, CUT, CUT)
    assert not under_way(None, None)
    assert under_way(order, None)
    assert under_way(order, done)
    assert not under_way(order, replace(done, generation=2))
    assert not under_way(order, replace(done, generation=2, phase=Phase.STUCK))
    assert under_way(None, replace(done, phase=Phase.HOLD))


def test_promises_count_as_settled() -> None:
    promised = placement("a", share("GPU-0", units=4))
    cluster = node(gpu("GPU-0", units=20), gpu("GPU-1", units=20), placements=(promised,))
    view = outlook(Snapshot((cluster,)), {}, 30.0, 20, 100.0)
    assert not find(view.snapshot, [request(units(20)), request(units(16), pod="b")], 5.0, NOW).waiting
