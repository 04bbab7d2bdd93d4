"""place() against brute force and against the rules that nobody may break."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.node import Mode, NodeGpus, Share, Snapshot, Stage
from gpu.placement import Fit, PodRequest, Reason, Refusal, in_flight, place
from gpu.scoring import Scoring
from gpu.seating import best_of, place_all
from tests import builders as b
from tests import strategies

PLAIN = Scoring(now=strategies.NOW)


@given(strategies.nodes(), strategies.requests(), strategies.scorings())
def test_what_fits_is_really_free_and_exactly_what_was_asked(
    node: NodeGpus, request: PodRequest, scoring: Scoring
) -> None:
    answer = place(node, request, scoring)
    if isinstance(answer, Refusal):
        assert answer.reason is not Reason.FITS_NOT_BEST
        return
    shares = answer.placement.shares
    assert 0 <= answer.score <= 1
    assert len(set(shares)) == len([s for s in shares if not s.units]) + len({s for s in shares if s.units})
    assert all(node.by_uuid[s.gpu].takes_pods and node.by_uuid[s.gpu].mode is s.mode for s in shares)
    assert all(node.has_room(s) for s in shares)
    after = node.holding(answer.placement)
    assert not any(after.has_room(s) for s in shares if not s.units)
    for gpu in node.gpus:
        mine = [s for s in shares if s.gpu == gpu.uuid]
        assert {s.slice for s in mine if s.slice} <= set(node.free_slices(gpu))
        assert sum(s.units for s in mine) <= node.free_units(gpu)
        assert after.use(gpu).whole <= 1
        assert after.use(gpu).units <= gpu.units
    assert _counted(shares) == _asked(request)


def _counted(shares: tuple[Share, ...]) -> dict[tuple[Mode, str], list[int]]:
    counted: dict[tuple[Mode, str], list[int]] = {}
    for share in shares:
        counted.setdefault((share.mode, share.slice.profile.name if share.slice else ""), []).append(share.units or 1)
    return {key: sorted(ns) if key[0] is Mode.SHARED else [sum(ns)] for key, ns in counted.items()}


def _asked(request: PodRequest) -> dict[tuple[Mode, str], list[int]]:
    asked: dict[tuple[Mode, str], list[int]] = {}
    for want in request.wants:
        asked.setdefault((want.mode, want.profile), []).append(want.amount)
    return {key: sorted(ns) if key[0] is Mode.SHARED else [sum(ns)] for key, ns in asked.items()}


@settings(max_examples=200)
@given(strategies.nodes(), strategies.requests())
def test_a_refusal_means_that_no_choice_at_all_would_do(node: NodeGpus, request: PodRequest) -> None:
    calm = replace(PLAIN, now=1e9)  # nothing is in flight any more
    assert isinstance(place(node, request, calm), Fit) == _any_choice(node, request)


def _any_choice(node: NodeGpus, request: PodRequest) -> bool:
    """Brute force: whole GPUs and slices by counting, every assignment of shared wants to GPUs by trying."""
    open_gpus = [g for g in node.gpus if g.takes_pods]
    whole = sum(g.mode is Mode.WHOLE and node.use(g).idle for g in open_gpus)
    if whole < sum(w.amount for w in request.wants if w.mode is Mode.WHOLE):
        return False
    for profile in {w.profile for w in request.wants if w.mode is Mode.SLICED}:
        free = sum(s.profile.name == profile for g in open_gpus if g.mode is Mode.SLICED for s in node.free_slices(g))
        if free < sum(w.amount for w in request.wants if w.profile == profile):
            return False
    shared = [w.amount for w in request.wants if w.mode is Mode.SHARED]
    rooms = [node.free_units(g) for g in open_gpus if g.mode is Mode.SHARED]
    return any(
        all(sum(a for a, c in zip(shared, choice, strict=True) if c == i) <= room for i, room in enumerate(rooms))
        for choice in product(range(len(rooms)), repeat=len(shared))
    )


@given(strategies.snapshots(), st.lists(strategies.wants(), max_size=6), strategies.scorings())
def test_seating_many_never_gives_anything_twice(snapshot: Snapshot, asked: list, scoring: Scoring) -> None:
    pods = [b.request(want, pod=f"p{i}", since=i) for i, want in enumerate(asked)]
    seated = place_all(snapshot, pods, scoring)
    assert len(seated.placed) + len(seated.refused) == len(pods)
    for node in seated.after.nodes:
        for gpu in node.gpus:
            shares = [s for p in node.placements for s in p.shares if s.gpu == gpu.uuid]
            exclusive = [s for s in shares if not s.units]
            assert len(exclusive) == len(set(exclusive))
            assert sum(s.units for s in shares) <= gpu.units


@given(strategies.snapshots(), strategies.requests(), strategies.scorings())
def test_the_best_is_the_highest_score_and_the_first_name(
    snapshot: Snapshot, request: PodRequest, scoring: Scoring
) -> None:
    fits = {n.name: a.score for n in snapshot.nodes if isinstance(a := place(n, request, scoring), Fit)}
    best = best_of(reversed(snapshot.nodes), request, scoring)
    if isinstance(best, Fit):
        assert best.placement.node == min(fits, key=lambda n: (-fits[n], n))
    else:
        assert not fits


WHOLE, SHARED = b.gpu("GPU-0"), b.gpu("GPU-0", units=20)
CUT = b.gpu("GPU-0", "1g.10gb@0", "3g.40gb@4")
FIFTEEN = b.placement("a", b.share("GPU-0", units=15))


@pytest.mark.parametrize(
    ("node", "want", "reason"),
    [
        (b.node(), b.whole(), Reason.NO_GPUS),
        (b.node(replace(WHOLE, healthy=False)), b.whole(), Reason.UNHEALTHY),
        (b.node(replace(WHOLE, closed=True)), b.whole(), Reason.HELD),
        (b.node(replace(CUT, held=frozenset(CUT.layout))), b.slices("1g.10gb"), Reason.HELD),
        (b.node(WHOLE), b.whole(2), Reason.TOO_MANY_GPUS),
        (b.node(SHARED), b.whole(), Reason.NO_WHOLE_FREE),
        (b.node(CUT), b.slices("2g.20gb"), Reason.NO_SLICE_FREE),
        (b.node(CUT), b.slices("1g.5gb"), Reason.NO_SUCH_PROFILE),
        (b.node(WHOLE), b.units(1), Reason.NO_SHARED_GPU),
        (b.node(SHARED), b.units(21), Reason.TOO_MANY_UNITS),
        (b.node(SHARED, placements=(FIFTEEN,)), b.units(6), Reason.NO_UNITS_TOGETHER),
    ],
)  # fmt: skip
def test_a_refusal_says_why(node: NodeGpus, want, reason: Reason) -> None:
    answer = place(node, b.request(want), PLAIN)
    assert isinstance(answer, Refusal)
    assert answer.reason is reason


def test_two_containers_together_may_ask_for_more_gpus_than_there_are() -> None:
    answer = place(b.node(b.gpu("GPU-0"), b.gpu("GPU-1")), b.request(b.whole(2), b.whole(1)), PLAIN)
    assert answer == Refusal(Reason.TOO_MANY_GPUS, "3 asked, 2 here")


@pytest.mark.parametrize("left", [b.share("GPU-0"), b.share("GPU-0", units=1), b.share("GPU-0", "1g.10gb@0")])
def test_what_is_left_of_another_mode_closes_the_gpu(left: Share) -> None:
    for gpu, want in ((WHOLE, b.whole()), (SHARED, b.units(1)), (CUT, b.slices("3g.40gb"))):
        node = b.node(gpu, placements=(b.placement("a", left, claimed=True),))
        if gpu.mode is not left.mode:
            assert isinstance(place(node, b.request(want), PLAIN), Refusal)


def test_shares_that_the_kubelet_could_mix_up_do_not_travel_together() -> None:
    full = b.placement("full", b.share("GPU-1", units=12), claimed=True)
    moving = b.placement("moving", b.share("GPU-0", units=12), at=strategies.NOW)
    node = b.node(b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=24), placements=(full, moving))
    ten = b.request(b.units(10))
    assert place(node, ten, PLAIN) == Refusal(Reason.IN_FLIGHT)
    assert isinstance(place(node, b.request(b.units(12)), PLAIN), Fit), "equal sizes may be swapped"
    assert isinstance(place(node, b.request(b.units(8)), PLAIN), Fit), "on the same GPU there is nothing to mix up"
    claimed = node.holding(replace(moving, stage=Stage.CLAIMED))
    assert isinstance(place(claimed, ten, PLAIN), Fit)
    lost = replace(PLAIN, now=strategies.NOW + PLAIN.promise_seconds)
    assert in_flight(node, ten.pod, lost) == ()
    assert isinstance(place(node, ten, lost), Fit)


def test_many_odd_containers_cannot_stall_the_search() -> None:
    node = b.node(*(b.gpu(f"GPU-{i}", units=20) for i in range(8)))
    odd = b.request(*(b.units(7) for _ in range(17)))  # two on each of eight GPUs, and one too many
    answer = place(node, odd, PLAIN)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.NO_UNITS_TOGETHER


def test_containers_are_moved_together_when_the_best_gpu_for_the_first_leaves_no_room() -> None:
    taken = (
        b.placement("a", b.share("GPU-0", units=10), claimed=True),
        b.placement("c", b.share("GPU-1", units=8), claimed=True),
    )
    node = b.node(b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=20), placements=taken)  # 10 and 12 free
    for scorer in ("pack", "spread", "least_stranded", "most_idle"):
        answer = place(node, b.request(b.units(12), b.units(10)), replace(PLAIN, scorer=scorer))
        assert isinstance(answer, Fit)
