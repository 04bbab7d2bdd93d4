"""GPUs whose devices carry another name than their kind's, and slices that are shared."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster import gpunode
from gpu.node import SoldAs, Stage, Terms
from gpu.placement import Fit, Reason, Refusal, place
from gpu.scoring import Scoring
from gpu.share import Share
from tests import builders as b

AT = Scoring(now=1000.0)
TWO = ("3g.40gb@0", "3g.40gb@4")


def terms(units: int = 0, sold: SoldAs = SoldAs.OWN) -> tuple[Terms, ...]:
    return tuple(Terms(piece, units, sold) for piece in b.layout(*TWO))


def test_units_sold_as_whole_gpus_answer_the_whole_gpus_name_and_stay_on_one_gpu() -> None:
    node = b.node(
        b.gpu("GPU-0", units=4, sold=SoldAs.WHOLE),
        b.gpu("GPU-1", units=4, sold=SoldAs.WHOLE),
        placements=(b.placement("other", b.share("GPU-0", units=3), claimed=True),),
    )
    answer = place(node, b.request(b.whole(2)), AT)
    assert isinstance(answer, Fit)
    assert answer.placement.shares == (Share("GPU-1", units=2),)
    assert place(node, b.request(b.units(1)), AT) == Refusal(Reason.NO_SHARED_GPU)


def test_slices_sold_as_whole_gpus_are_handed_out_one_by_one() -> None:
    node = b.node(b.gpu("GPU-0", *TWO, terms=terms(sold=SoldAs.WHOLE)))
    answer = place(node, b.request(b.whole(2)), AT)
    assert isinstance(answer, Fit)
    assert {s.slice for s in answer.placement.shares} == set(node.gpus[0].layout)
    assert place(node, b.request(b.whole(3)), AT) == Refusal(Reason.TOO_MANY_GPUS, "3 asked, 2 here")


def test_a_name_of_the_administrators_is_left_to_kube_scheduler() -> None:
    node = b.node(b.gpu("GPU-0", sold=SoldAs.OTHER))
    for want in (b.whole(), b.units(1), b.slices("1g.10gb")):
        assert isinstance(place(node, b.request(want), AT), Refusal)


def test_a_sick_slice_takes_nobody_and_its_neighbours_do() -> None:
    """B034: one fault takes only what it hit."""
    sick = frozenset(b.layout("3g.40gb@0"))
    node = b.node(b.gpu("GPU-0", *TWO, sick=sick))
    assert [str(s) for s in node.free_slices(node.gpus[0])] == ["3g.40gb@4"]
    shared = b.node(b.gpu("GPU-0", *TWO, terms=terms(3), sick=sick))
    assert [str(s) for s in shared.free_parts(shared.gpus[0])] == ["3g.40gb@4"]


@given(st.lists(st.integers(1, 5), max_size=12))
def test_units_of_shared_slices_are_never_promised_twice(sizes: list[int]) -> None:
    node = b.node(b.gpu("GPU-0", *TWO, terms=terms(5)))
    for number, size in enumerate(sizes):
        answer = place(node, b.request(b.slices("3g.40gb", size), pod=f"p{number}"), AT)
        if isinstance(answer, Refusal):
            assert all(free < size for free in node.free_parts(node.gpus[0]).values()) or len(
                node.free_parts(node.gpus[0])
            ) < len(node.gpus[0].layout)
            continue
        (share,) = answer.placement.shares
        assert share.slice is not None and share.units == size and node.has_room(share)
        node = node.holding(replace(answer.placement, stage=Stage.CLAIMED))
    use = node.use(node.gpus[0])
    assert all(use.parts_of(piece) <= 5 for piece in node.gpus[0].layout)


def test_how_a_gpu_is_sold_survives_the_api() -> None:
    gpus = (
        b.gpu("GPU-0", units=4, sold=SoldAs.WHOLE, fixed=True),
        b.gpu("GPU-1", *TWO, terms=terms(2, SoldAs.OTHER)[1:], sick=frozenset(b.layout("3g.40gb@4"))),
        b.gpu("GPU-2"),
    )
    assert gpunode.read_gpunode(b.gpunode_object("n1", *gpus)).gpus == gpus
