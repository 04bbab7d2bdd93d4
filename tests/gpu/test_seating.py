"""place_all against asking every node for every pod."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.node import NodeGpus, Placement, Share, Snapshot, Stage
from gpu.placement import Fit, PodRequest, Reason, Refusal, place
from gpu.scoring import Scoring
from gpu.seating import Asked, Seated, best_of, place_all
from tests import builders as b
from tests import strategies

PLAIN = Scoring(now=strategies.NOW)
PODS = ("p0", "p1", "p2", "p3", "on-n0-0", "on-n1-0")
"""The last two may have a promise in the books already."""

barred = st.sets(st.sampled_from(["n0", "n1", "n2", "elsewhere"])).map(frozenset)


@st.composite
def crowds(draw: st.DrawFn) -> list[PodRequest]:
    kinds = draw(st.lists(strategies.requests(), min_size=1, max_size=3))
    return [
        replace(
            draw(st.sampled_from(kinds)),
            pod=b.ref(draw(st.sampled_from(PODS))),
            priority=draw(st.integers(0, 1)),
            since=float(draw(st.integers(0, 3))),
            barred=draw(barred),
        )
        for _ in range(draw(st.integers(0, 8)))
    ]


def naive(snapshot: Snapshot, requests: list[PodRequest], scoring: Scoring) -> Seated:
    nodes = snapshot.by_name.copy()
    placed: list[Placement] = []
    refused: list[tuple[PodRequest, Refusal]] = []
    for request in sorted(requests, key=lambda r: (-r.priority, r.since, r.pod.uid)):
        answer = best_of(nodes.values(), request, scoring)
        if isinstance(answer, Fit):
            placed.append(replace(answer.placement, stage=Stage.CLAIMED))
            nodes[placed[-1].node] = nodes[placed[-1].node].holding(placed[-1])
        else:
            refused.append((request, answer))
    return Seated(replace(snapshot, nodes=tuple(nodes.values())), tuple(placed), tuple(refused))


@settings(max_examples=150, deadline=None)
@given(strategies.snapshots(), crowds(), strategies.scorings())
def test_same_as_asking_every_node_for_every_pod(snapshot: Snapshot, pods: list[PodRequest], scoring: Scoring) -> None:
    assert place_all(snapshot, pods, scoring) == naive(snapshot, pods, scoring)


@settings(max_examples=100, deadline=None)
@given(strategies.snapshots(3), strategies.nodes("n1"), crowds(), strategies.scorings())
def test_what_was_asked_before_changes_nothing(
    snapshot: Snapshot, other: NodeGpus, pods: list[PodRequest], scoring: Scoring
) -> None:
    asked = Asked(scoring)
    place_all(snapshot, pods, asked)
    changed = snapshot.with_node(other)
    assert place_all(changed, pods, asked) == naive(changed, pods, scoring)


@given(strategies.snapshots(), crowds())
def test_nobody_sits_where_it_may_not_run(snapshot: Snapshot, pods: list[PodRequest]) -> None:
    shut = {r.pod: r.barred for r in pods} if len({r.pod for r in pods}) == len(pods) else {}
    for placement in place_all(snapshot, pods, PLAIN).placed:
        assert placement.node not in shut.get(placement.pod, frozenset())


def test_a_barred_node_refuses_for_good() -> None:
    request = replace(b.request(b.whole()), barred=frozenset({"n1"}))
    answer = place(b.node(b.gpu()), request, PLAIN)
    assert answer == Refusal(Reason.NOT_ALLOWED)
    assert not Reason.NOT_ALLOWED.may_change
    assert isinstance(place(b.node(b.gpu(), name="n2"), request, PLAIN), Fit)


def test_the_most_hopeful_refusal_is_told() -> None:
    full = b.node(b.gpu(), name="full", placements=(b.placement("a", Share("GPU-0"), node="full"),))
    other = b.node(b.gpu("GPU-0", key=b.A100), name="other")
    none = b.node(name="none")

    def told(request: PodRequest, *nodes: NodeGpus) -> Reason:
        (refused,) = place_all(Snapshot(nodes), [request], PLAIN).refused
        return refused[1].reason

    assert told(b.request(b.whole()), none, full) is Reason.NO_WHOLE_FREE
    shut = replace(b.request(b.whole()), barred=frozenset({"full", "other"}))
    assert told(shut, none, other, full) is Reason.NOT_ALLOWED
    assert told(replace(shut, wants=(b.slices("1g.20gb"),), barred=frozenset({"full"})), full, other) is (
        Reason.NO_SUCH_PROFILE
    )
    assert told(b.request(b.whole())) is Reason.NO_GPUS


def test_nodes_are_asked_again_only_when_they_changed(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asked: list[str] = []

    def counted(node: NodeGpus, request: PodRequest, scoring: Scoring) -> Fit | Refusal:
        asked.append(node.name)
        return place(node, request, scoring)

    monkeypatch.setattr("gpu.seating.place", counted)
    snapshot = Snapshot(tuple(b.node(b.gpu("GPU-0"), b.gpu("GPU-1"), name=f"n{i}") for i in range(10)))
    place_all(snapshot, [b.request(b.whole(), pod=f"p{i}") for i in range(6)], PLAIN)
    assert len(asked) == 10 + 5


def test_its_own_promise_does_not_stand_in_a_pods_way() -> None:
    full = b.placement("full", b.share("GPU-1", units=12), claimed=True)
    moving = b.placement("moving", b.share("GPU-0", units=12), at=strategies.NOW)
    node = b.node(b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=24), placements=(full, moving))
    pods = [b.request(b.units(10), pod="other", since=1.0), b.request(b.units(10), pod="moving", since=2.0)]
    seated = place_all(Snapshot((node,)), pods, PLAIN)
    assert seated == naive(Snapshot((node,)), pods, PLAIN)
    assert [p.pod.name for p in seated.placed] == ["moving"]
    assert [(r.pod.name, refusal.reason) for r, refusal in seated.refused] == [("other", Reason.IN_FLIGHT)]
