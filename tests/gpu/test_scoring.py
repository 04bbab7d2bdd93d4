"""The scorers: what each prefers, and when an answer may change by itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.node import NodeGpus
from gpu.placement import Fit, PodRequest, place
from gpu.scoring import SCORERS, Scoring, good_until
from tests import builders as b
from tests import strategies


def _chosen(node: NodeGpus, want, scorer: str, now: float = 0.0) -> str:
    answer = place(node, b.request(want), Scoring(scorer, now))
    assert isinstance(answer, Fit)
    return str(answer.placement.shares[0])


@given(strategies.nodes(), strategies.requests(), strategies.scorings(), st.floats(0, 1))
def test_an_answer_stands_until_the_moment_that_is_named(
    node: NodeGpus, request: PodRequest, scoring: Scoring, part: float
) -> None:
    until = min(good_until(node, scoring), scoring.now + 1000)
    later = min(scoring.now + part * (until - scoring.now), until - 1e-6)
    assert _without_time(node, request, scoring) == _without_time(
        node, request, replace(scoring, now=max(later, scoring.now))
    )


def _without_time(node: NodeGpus, request: PodRequest, scoring: Scoring):
    answer = place(node, request, scoring)
    return (answer.score, answer.placement.shares) if isinstance(answer, Fit) else answer


@pytest.mark.parametrize("scorer", sorted(SCORERS))
@given(strategies.nodes(), strategies.requests())
def test_every_score_is_between_zero_and_one(scorer: str, node: NodeGpus, request: PodRequest) -> None:
    answer = place(node, request, Scoring(scorer, strategies.NOW))
    assert not isinstance(answer, Fit) or 0 <= answer.score <= 1


def test_pack_fills_and_spread_empties() -> None:
    used = b.placement("a", b.share("GPU-1", units=4), claimed=True)
    node = b.node(b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=20), placements=(used,))
    assert _chosen(node, b.units(4), "pack") == "4 units of GPU-1"
    assert _chosen(node, b.units(4), "spread") == "4 units of GPU-0"


def test_most_idle_goes_by_what_was_measured_and_takes_old_readings_for_busy() -> None:
    node = b.node(
        b.gpu("GPU-0", units=20, busy=0.8, at=100.0),
        b.gpu("GPU-1", units=20, busy=0.2, at=100.0),
        b.gpu("GPU-2", units=20, busy=0.0, at=10.0),
        b.gpu("GPU-3", units=20),
    )
    assert _chosen(node, b.units(1), "most_idle", now=110.0) == "1 units of GPU-1"
    assert _chosen(node, b.units(1), "most_idle", now=130.0) == "1 units of GPU-0", "all stale now: the first"


def test_a_reading_from_far_ahead_is_no_reading() -> None:
    node = b.node(b.gpu("GPU-0", units=20, busy=0.5, at=100.0), b.gpu("GPU-1", units=20, busy=0.0, at=5000.0))
    assert _chosen(node, b.units(1), "most_idle", now=110.0) == "1 units of GPU-0"


def test_least_stranded_keeps_large_openings_open() -> None:
    node = b.node(
        b.gpu("GPU-0", "1g.10gb@0", "3g.40gb@4"),
        b.gpu("GPU-1", "1g.10gb@6", "3g.40gb@0"),
        placements=(b.placement("a", b.share("GPU-0", "3g.40gb@4"), claimed=True),),
    )
    assert _chosen(node, b.slices("1g.10gb"), "least_stranded") == "1g.10gb@0 of GPU-0"
    shares = (b.placement("a", b.share("GPU-0", units=15), claimed=True),)
    shared = b.node(b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=20), placements=shares)
    assert _chosen(shared, b.units(5), "least_stranded") == "5 units of GPU-0"
