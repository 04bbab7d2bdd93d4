"""What went wrong for others who keep such books, told as cases of ours: leaks, early release, wrong containers."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import names
from cluster.cache import Cache
from cluster.clock import ManualClock
from cluster.facts import read_request, write_shares
from device_plugin.allocate import Grant, Terms, grant
from device_plugin.devices import NodeGpu
from device_plugin.prefer import Asked, Steering, prefer
from gpu.hardware import SeenGpu
from gpu.layout import openings
from gpu.node import Mode, Share, Stage
from gpu.placement import Fit, Reason, Refusal, place
from gpu.scoring import Scoring
from tests.builders import (
    gpu,
    gpunode_object,
    layout,
    model,
    node,
    placement,
    pod,
    request,
    share,
    slices,
    units,
    whole,
)


def books(*gpus, pods=()) -> Cache:
    cache = Cache(ManualClock())
    cache.take("nodes", "ADDED", {"metadata": {"name": "n1"}})
    cache.take("gpunodes", "ADDED", gpunode_object("n1", *gpus))
    for each in pods:
        cache.take("pods", "ADDED", each)
    return cache


def held(cache: Cache) -> int:
    return sum(len(p.shares) for p in cache.snapshot().by_name["n1"].seats)


def claimed(name: str, *shares: Share, **more) -> dict:
    return pod(name, node="n1", annotations={names.CLAIM: write_shares(shares, 1.0)}, **more)


def test_replacing_one_of_four_pods_gives_the_newcomer_the_pair_that_became_free() -> None:
    gpus = [gpu(f"GPU-{n}") for n in range(8)]
    cache = books(*gpus, pods=[claimed(f"p{n}", Share(f"GPU-{2 * n}"), Share(f"GPU-{2 * n + 1}")) for n in range(4)])
    assert isinstance(place(cache.snapshot().by_name["n1"], request(whole(2)), Scoring()), Refusal)
    cache.take("pods", "DELETED", claimed("p2", Share("GPU-4"), Share("GPU-5")))
    answer = place(cache.snapshot().by_name["n1"], request(whole(2), pod="new"), Scoring())
    assert isinstance(answer, Fit)
    assert {s.gpu for s in answer.placement.shares} == {"GPU-4", "GPU-5"}


def test_three_pods_for_the_last_gpu_where_two_fit() -> None:
    full = [placement(f"old{n}", share(f"GPU-{n}", units=20), claimed=True) for n in range(7)]
    now = node(*(gpu(f"GPU-{n}", units=20) for n in range(8)), placements=tuple(full))
    for name in ("a", "b"):
        answer = place(now, request(units(10), pod=name), Scoring())
        assert isinstance(answer, Fit)
        assert answer.placement.shares == (share("GPU-7", units=10),)
        now = now.holding(answer.placement)
    third = place(now, request(units(10), pod="c"), Scoring())
    assert isinstance(third, Refusal)
    assert third.reason is Reason.NO_UNITS_TOGETHER


def test_a_pod_with_a_deletion_timestamp_holds_until_it_is_gone_or_has_ended() -> None:
    pods = claimed("p", Share("GPU-0"), phase="Running")
    pods["metadata"]["deletionTimestamp"] = "2026-12-01T00:00:00Z"
    cache = books(gpu("GPU-0"), pods=[pods])
    assert held(cache) == 1
    cache.take("pods", "MODIFIED", {**pods, "status": {"phase": "Failed"}})
    assert held(cache) == 0


def test_a_pod_that_the_kubelet_refused_releases_at_once() -> None:
    cache = books(
        gpu("GPU-0"), pods=[pod("p", node="n1", annotations={names.PROMISE: write_shares([Share("GPU-0")], 1)})]
    )
    assert held(cache) == 1
    refused = pod("p", node="n1", annotations={names.PROMISE: write_shares([Share("GPU-0")], 1)}, phase="Failed")
    cache.take("pods", "MODIFIED", refused)
    assert held(cache) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), st.integers(0, 5), st.integers(1, 6)), max_size=40
    )
)
def test_the_books_equal_a_recount_after_any_events_repeated_or_out_of_order(
    events: list[tuple[str, int, int]],
) -> None:
    cache, truth = books(gpu("GPU-0", units=100)), {}
    for event, number, size in events:
        obj = claimed(f"p{number}", share("GPU-0", units=size))
        cache.take("pods", event, obj)
        truth.pop(number, None)
        if event != "DELETED":
            truth[number] = size
    now = cache.snapshot().by_name["n1"]
    assert now.use(now.gpus[0]).units == sum(truth.values())
    assert now.free_units(now.gpus[0]) == 100 - sum(truth.values())


def test_a_node_that_is_made_again_under_its_name_starts_with_empty_books_of_its_pods() -> None:
    cache = books(gpu("GPU-0"), pods=[claimed("p", Share("GPU-0"))])
    cache.take("nodes", "DELETED", {"metadata": {"name": "n1"}})
    assert "n1" not in cache.snapshot().by_name
    cache.take("nodes", "ADDED", {"metadata": {"name": "n1"}})
    assert held(cache) == 1, "the pod is still bound there, so what it holds counts"


@pytest.mark.parametrize(
    "rubbish",
    ["[" * 100_000, '{"v":1,"shares":[],"at":1' + "0" * 400 + "}", '{"v":1,"shares":[],"at":NaN}', "x" * 10**6],
)
def test_rubbish_on_one_pod_stops_nobody_else(rubbish: str) -> None:
    bad = pod("bad", node="n1", annotations={names.CLAIM: rubbish})
    cache = books(gpu("GPU-0"), gpu("GPU-1"), pods=[bad, claimed("good", Share("GPU-1"))])
    assert held(cache) == 1
    assert any("annotation fallow.dev/claim" in sentence for _, sentence in cache.problems())


def test_a_claim_that_cannot_be_read_does_not_free_what_was_promised() -> None:
    promise = write_shares([Share("GPU-0")], 1.0)
    cache = books(gpu("GPU-0"), pods=[pod("p", node="n1", annotations={names.CLAIM: "{", names.PROMISE: promise})])
    assert held(cache) == 1


SIDECAR = {"name": "cache", "restartPolicy": "Always", "resources": {"limits": {names.SHARED: "4"}}}
APP = {"name": "app", "resources": {"limits": {names.SHARED: "4"}}}


def of(*, init: list[dict] = (), containers: list[dict] = ()) -> tuple[int, ...]:  # type: ignore[assignment]
    asked = read_request({"metadata": {"name": "p"}, "spec": {"initContainers": init, "containers": containers}})
    return tuple(w.amount for w in asked.wants) if asked else ()


def test_a_sidecar_and_its_application_each_have_their_share() -> None:
    assert sum(of(init=[SIDECAR], containers=[APP])) == 8


@pytest.mark.parametrize(("first", "expected"), [("2", (4,)), ("4", (4,)), ("9", (9,))])
def test_an_init_container_hands_its_units_on(first: str, expected: tuple[int, ...]) -> None:
    init = {"name": "load", "resources": {"limits": {names.SHARED: first}}}
    assert of(init=[init], containers=[APP]) == expected


def test_containers_without_a_gpu_change_nothing_wherever_they_stand() -> None:
    mesh, other = {"name": "mesh"}, {"name": "b", "resources": {"limits": {names.SHARED: "2"}}}
    plain = of(containers=[APP, other])
    assert of(init=[mesh], containers=[mesh, APP, other]) == of(containers=[APP, mesh, other, mesh]) == plain


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("8k", 8000), ("1.0", 1), ("2Ki", 2048), ("0", None)])
def test_suffixes_of_a_plain_count_are_read_as_kubernetes_writes_them(text: str, number: int | None) -> None:
    asked = read_request(pod("p", asks={names.WHOLE: text}))
    assert (asked.wants[0].amount if asked else None) == number


def shared_gpus() -> tuple[NodeGpu, ...]:
    return tuple(NodeGpu(SeenGpu(f"GPU-{n}", n, n, "", "", model()), Mode.SHARED, units=20) for n in range(2))


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_pods_wait_and_the_kubelet_starts_them_in_either_order(order: tuple[str, str]) -> None:
    gpus = shared_gpus()
    promised = {"a": share("GPU-0", units=8), "b": share("GPU-1", units=2)}
    waiting = {n: placement(n, s, at=float(i)) for i, (n, s) in enumerate(promised.items())}
    free = [i for g in gpus for i in g.shares]
    random.Random(4).shuffle(free)
    for name in order:
        ids = prefer(
            Asked(names.SHARED, tuple(free), (), promised[name].units), gpus, Steering(tuple(waiting.values()))
        )
        assert {i.partition("::")[0] for i in ids} == {promised[name].gpu}
        free = [i for i in free if i not in ids]
        del waiting[name]


def test_each_container_of_a_pod_gets_its_own_part_of_the_promise() -> None:
    gpus = shared_gpus()
    promise = placement("pair", share("GPU-1", units=2), share("GPU-1", units=3))
    stranger = placement("other", share("GPU-0", units=5))
    free = [i for g in gpus for i in g.shares]
    for size in (2, 3):
        ids = prefer(Asked(names.SHARED, tuple(free), (), size), gpus, Steering((stranger, promise)))
        assert (len(ids), {i.partition("::")[0] for i in ids}) == (size, {"GPU-1"})
        answer = grant(ids, gpus, Terms())
        assert isinstance(answer, Grant)
        assert answer.env == {"FALLOW_DEVICES": "GPU-1", "FALLOW_UNITS": f"{size}/20"}


OPENINGS = json.loads("""[
    [["1g.10gb@0", "1g.10gb@1", "1g.10gb@5"], {"1g.10gb": [2, 3, 4, 6], "2g.20gb": [2], "3g.40gb": []}],
    [["3g.40gb@0"], {"1g.10gb": [4, 5, 6], "1g.20gb": [4, 6], "2g.20gb": [4], "3g.40gb": [4], "4g.40gb": []}],
    [["3g.40gb@4"], {"1g.10gb": [0, 1, 2, 3], "2g.20gb": [0, 2], "3g.40gb": [0], "4g.40gb": [0], "7g.80gb": []}],
    [["4g.40gb@0"], {"1g.10gb": [4, 5, 6], "2g.20gb": [4], "3g.40gb": [4], "4g.40gb": [], "7g.80gb": []}],
    [["1g.20gb@6"], {"1g.10gb": [0, 1, 2, 3, 4, 5], "1g.20gb": [0, 2, 4], "3g.40gb": [0], "4g.40gb": [0]}]
]""")


@pytest.mark.parametrize(("occupied", "expected"), OPENINGS)
def test_openings_come_from_placements_never_from_sums(occupied: list[str], expected: dict[str, list[int]]) -> None:
    for profile, starts in expected.items():
        found = model().profile(profile)
        assert found is not None
        assert [s.start for s in openings(layout(*occupied), found)] == starts, profile


def test_a_profile_that_a_board_does_not_have_is_refused_and_never_by_a_shared_beginning() -> None:
    now = node(gpu("GPU-0", "1g.10gb@0"))
    for profile in ("1g.12gb", "1g.10gb+me.all"):
        answer = place(now, request(slices(profile)), Scoring())
        assert isinstance(answer, Refusal)
        assert answer.reason is Reason.NO_SUCH_PROFILE
    plain = place(now, request(slices("1g.10gb+me")), Scoring())
    assert isinstance(plain, Refusal), "a free plain slice is no slice with media engines"


def test_a_claim_counts_where_the_kubelet_gave_and_the_promise_of_another_moves() -> None:
    cut = gpu("GPU-0", "1g.10gb@0", "1g.10gb@1")
    given = placement("a", share("GPU-0", "1g.10gb@1"), claimed=True)
    other = placement("b", share("GPU-0", "1g.10gb@1"))
    now = node(cut, placements=(given, other))
    assert {str(s.slice) for p in now.seats for s in p.shares} == {"1g.10gb@0", "1g.10gb@1"}
    assert next(p for p in now.seats if p.pod.name == "a").stage is Stage.CLAIMED
    assert isinstance(place(now, request(slices("1g.10gb"), pod="c"), Scoring()), Refusal)
