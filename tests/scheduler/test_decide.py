"""The answer to the scheduler's offer, in both forms."""

from hypothesis import given
from hypothesis import strategies as st

from gpu.node import Snapshot
from gpu.placement import PodRequest, Reason, Want
from policies.model import Placing, Policy
from scheduler import decide
from tests import builders as b
from tests import strategies

EXACT = Policy(placing=Placing(scorer="pack"))
ADVISORY = Policy(placing=Placing(scorer="pack", answer="advisory"))

FULL = b.node(b.gpu("GPU-0"), name="full", placements=(b.placement("x", b.share("GPU-0"), node="full", claimed=True),))
FREE = b.node(b.gpu("GPU-0"), name="free")
HALF = b.node(
    b.gpu("GPU-0"), b.gpu("GPU-1"), name="half",
    placements=(b.placement("y", b.share("GPU-0"), node="half", claimed=True),),
)  # fmt: skip
ONE = b.whole()
NODES = (FREE, FULL, HALF)


def _filter(policy: Policy, *names: str, want: Want = ONE) -> decide.Verdict:
    scoring = decide.scoring_of(policy, 0.0)
    return decide.filter(decide.standing(NODES, b.request(want), scoring), names, policy)


def test_exact_names_the_best_node_and_no_failure() -> None:
    assert _filter(EXACT, "full", "free", "half") == decide.Verdict(("half",), {})


def test_exact_answers_with_all_reasons_when_nothing_fits() -> None:
    assert _filter(EXACT, "full", "free", "unheard-of", want=b.whole(2)) == decide.Verdict(
        (),
        {"full": Reason.TOO_MANY_GPUS, "free": Reason.TOO_MANY_GPUS, "unheard-of": Reason.NO_GPUS},
    )


def test_only_offered_nodes_are_named() -> None:
    assert _filter(EXACT, "full", "free").nodes == ("free",)
    assert _filter(EXACT).nodes == ()


def test_advisory_names_all_that_fit_and_why_the_others_do_not() -> None:
    verdict = _filter(ADVISORY, "full", "free", "half")
    assert verdict == decide.Verdict(("free", "half"), {"full": Reason.NO_WHOLE_FREE})
    ranks = decide.rank(decide.standing(NODES, b.request(b.whole()), decide.scoring_of(ADVISORY, 0.0)), verdict.nodes)
    assert 0 <= ranks["free"] < ranks["half"] <= 10
    assert all(type(r) is int for r in ranks.values())


def test_equal_nodes_are_told_apart_by_name() -> None:
    twins = tuple(b.node(b.gpu("GPU-0"), name=n) for n in ("b", "a", "c"))
    standing = decide.standing(twins, b.request(b.whole()), decide.scoring_of(EXACT, 0.0))
    assert decide.filter(standing, ("c", "b", "a"), EXACT).nodes == ("a",)


@given(strategies.snapshots(), strategies.requests(), st.lists(st.sampled_from(["n0", "n1", "n2", "zz"]), unique=True))
def test_the_answer_is_always_from_the_offer(snapshot: Snapshot, request: PodRequest, names: list[str]) -> None:
    for policy in (EXACT, ADVISORY):
        standing = decide.standing(snapshot.nodes, request, decide.scoring_of(policy, strategies.NOW))
        verdict = decide.filter(standing, names, policy)
        assert set(verdict.nodes) | set(verdict.refusals) <= set(names)
        assert verdict.nodes or set(verdict.refusals) == set(names)
        assert Reason.FITS_NOT_BEST not in verdict.refusals.values()
