"""The books: who holds what, claims over promises, and nothing free that somebody could still have."""

from dataclasses import replace

from hypothesis import given

from gpu.node import Mode, NodeGpus, Share
from tests import builders as b
from tests import strategies


@given(strategies.nodes())
def test_the_books_equal_a_recount(node: NodeGpus) -> None:
    for gpu in node.gpus:
        shares = [s for p in node.placements for s in p.shares if s.gpu == gpu.uuid]
        assert node.use(gpu).units == sum(s.units for s in shares)
        assert node.use(gpu).slices == {s.slice for s in shares if s.slice}
        assert node.use(gpu).whole == sum(s.mode is Mode.WHOLE for s in shares)
        assert not set(node.free_slices(gpu)) & node.use(gpu).slices
        assert 0 <= node.fullness_of[gpu.uuid] <= 1


@given(strategies.nodes())
def test_a_trial_is_a_new_value_and_forgetting_it_undoes_it(node: NodeGpus) -> None:
    for placement in node.placements:
        assert node.without(placement.pod.uid).placement_of(placement.pod.uid) is None
        again = node.without(placement.pod.uid).holding(placement)
        assert {p.pod for p in again.placements} == {p.pod for p in node.placements}
        assert node.holding(placement).placements.count(placement) == 1


def test_a_promise_whose_slice_a_claim_took_sits_on_an_equal_slice() -> None:
    gpu = b.gpu("GPU-0", "1g.10gb@0", "1g.10gb@1")
    swapped = b.node(
        gpu,
        placements=(
            b.placement("a", b.share("GPU-0", "1g.10gb@0")),
            b.placement("b", b.share("GPU-0", "1g.10gb@0"), claimed=True),
        ),
    )
    assert swapped.free_slices(gpu) == ()
    assert {str(s) for p in swapped.seats for s in p.shares} == {"1g.10gb@0 of GPU-0", "1g.10gb@1 of GPU-0"}


def test_promises_settle_in_the_order_they_were_made() -> None:
    late, early = b.placement("a", b.share("GPU-0", units=15), at=2), b.placement("b", b.share("GPU-0", units=15), at=1)
    node = b.node(b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=20), placements=(late, early))
    seats = {p.pod.name: p.shares[0].gpu for p in node.seats}
    assert seats == {"b": "GPU-0", "a": "GPU-1"}


def test_a_slice_that_stands_where_somebody_still_holds_an_older_one_is_not_free() -> None:
    gpu = b.gpu("GPU-0", "1g.10gb@4", "1g.10gb@0")
    node = b.node(gpu, placements=(b.placement("a", b.share("GPU-0", "3g.40gb@4"), claimed=True),))
    assert node.free_slices(gpu) == b.layout("1g.10gb@0")


def test_held_slices_are_not_free_and_a_re_cut_opens_the_gpu() -> None:
    gpu = b.gpu("GPU-0", "1g.10gb@0", "1g.10gb@1", held=frozenset(b.layout("1g.10gb@0")))
    assert b.node(gpu).free_slices(gpu) == b.layout("1g.10gb@1")
    after = b.node(replace(gpu, closed=True)).with_layout("GPU-0", Mode.SHARED, units=20)
    assert after.by_uuid["GPU-0"].takes_pods
    assert after.free_units(after.by_uuid["GPU-0"]) == 20


def test_a_node_without_gpus_and_shares_on_unknown_gpus_break_nothing() -> None:
    node = b.node(placements=(b.placement("a", Share("GPU-gone", units=3)),))
    assert node.fullness == 1.0
    assert node.seats[0].shares[0].gpu == "GPU-gone"
