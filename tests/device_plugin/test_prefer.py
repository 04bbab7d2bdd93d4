"""Which free ids the kubelet is steered to: what was promised, else what strands least."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster import names
from device_plugin.allocate import Terms, grant
from device_plugin.delivery import Grant
from device_plugin.devices import NodeGpu
from device_plugin.prefer import Asked, Steering, prefer
from device_plugin.sale import GpuPlan, Sold, Strategy
from gpu.hardware import Ancestor, Link, SeenGpu, SeenSlice, Topology
from gpu.layout import Layout, legal_layouts
from gpu.node import Mode, Placement, Share
from gpu.scoring import usefulness
from tests.builders import A100, H100, layout, model, placement

TWO = layout("1g.10gb@0", "1g.10gb@1")
MIG = names.mig_resource("1g.10gb")


def shared(uuid: str, index: int, units: int = 20) -> NodeGpu:
    return NodeGpu(SeenGpu(uuid, index, index, "", "", model()), Mode.SHARED, units=units)


def whole(uuid: str, index: int, key: str = H100, numa: int | None = None) -> NodeGpu:
    return NodeGpu(SeenGpu(uuid, index, index, "", "", model(key), numa=numa))


def sliced(uuid: str, index: int, pieces: Layout) -> NodeGpu:
    """Its slices have the ids `MIG-<index>-<place in the layout>`."""
    seen = tuple(SeenSlice(p, 7 + n, 0, f"MIG-{index}-{n}") for n, p in enumerate(pieces))
    return NodeGpu(SeenGpu(uuid, index, index, "", "", model(), mig=True), Mode.SLICED, seen)


SLICED = replace(sliced("GPU-0", 0, TWO), slices=(SeenSlice(TWO[0], 7, 0, "MIG-a"), SeenSlice(TWO[1], 8, 0, "MIG-b")))
GPUS = (SLICED, shared("GPU-1", 1), shared("GPU-2", 2), whole("GPU-3", 3), whole("GPU-4", 4))


def ids_liked(
    available: Sequence[str], size: int, resource: str, *promises: Placement, must: tuple[str, ...] = ()
) -> tuple[str, ...]:
    return prefer(Asked(resource, tuple(available), must, size), GPUS, Steering(promises))


def liked(available: list[str], size: int, resource: str, *promises: Placement, must: tuple[str, ...] = ()) -> set[str]:
    return set(ids_liked(available, size, resource, *promises, must=must))


def units(uuid: str, *numbers: int) -> list[str]:
    return [f"{uuid}::{n}" for n in numbers]


def test_the_promised_slice_is_liked_in_whatever_order_it_is_offered() -> None:
    promise = placement("p", Share("GPU-0", TWO[1]))
    for available in (["MIG-a", "MIG-b"], ["MIG-b", "MIG-a"]):
        assert liked(available, 1, MIG, promise) == {"MIG-b"}


def test_promised_whole_gpus_are_liked() -> None:
    promise = placement("p", Share("GPU-4"))
    assert liked(["GPU-3", "GPU-4"], 1, names.WHOLE, promise) == {"GPU-4"}


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_promised_units_come_from_the_promised_gpu(seed: int, size: int) -> None:
    available = [*units("GPU-1", *range(20)), *units("GPU-2", *range(20))]
    random.Random(seed).shuffle(available)
    promise = placement("p", Share("GPU-2", units=size))
    ids = liked(available, size, names.SHARED, promise)
    assert len(ids) == size
    assert {i.partition("::")[0] for i in ids} == {"GPU-2"}


def test_promises_of_another_size_are_somebody_elses() -> None:
    available = [*units("GPU-1", *range(20)), *units("GPU-2", *range(20))]
    promises = (placement("p", Share("GPU-2", units=8)), placement("q", Share("GPU-1", units=4)))
    assert {i.partition("::")[0] for i in liked(available, 4, names.SHARED, *promises)} == {"GPU-1"}


@given(st.integers(0, 2**32), st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_without_a_promise_units_are_on_one_gpu_whenever_one_has_enough(seed: int, a: int, b: int, size: int) -> None:
    available = [*units("GPU-1", *range(a)), *units("GPU-2", *range(b))]
    random.Random(seed).shuffle(available)
    ids = liked(available, size, names.SHARED)
    if max(a, b) >= size:
        assert len(ids) == size
        assert len({i.partition("::")[0] for i in ids}) == 1
    assert ids <= set(available)


def test_an_init_container_that_wants_less_starts_on_the_gpu_of_its_pods_promise() -> None:
    available = [*units("GPU-1", *range(20)), *units("GPU-2", *range(20))]
    promise = placement("p", Share("GPU-2", units=8))
    first = ids_liked(available, 4, names.SHARED, promise)
    assert {i.partition("::")[0] for i in first} == {"GPU-2"}
    # The kubelet hands those four on, and asks for eight that include them.
    then = ids_liked(available, 8, names.SHARED, promise, must=first)
    assert set(first) < set(then)
    assert len(then) == 8
    assert isinstance(grant(then, GPUS, Terms()), Grant)


def test_what_must_be_included_elsewhere_overrules_a_promise() -> None:
    available = [*units("GPU-1", *range(20)), *units("GPU-2", *range(20))]
    promise = placement("p", Share("GPU-2", units=8))
    ids = ids_liked(available, 8, names.SHARED, promise, must=("GPU-1::0",))
    assert {i.partition("::")[0] for i in ids} == {"GPU-1"}


def test_without_a_promise_the_fullest_gpu_that_has_enough_is_taken() -> None:
    available = [*units("GPU-1", *range(20)), *units("GPU-2", *range(6))]
    assert {i.partition("::")[0] for i in liked(available, 5, names.SHARED)} == {"GPU-2"}
    assert {i.partition("::")[0] for i in liked(available, 7, names.SHARED)} == {"GPU-1"}


def test_what_must_be_included_is() -> None:
    available = [*units("GPU-1", *range(20)), *units("GPU-2", *range(20))]
    ids = liked(available, 3, names.SHARED, must=("GPU-2::7",))
    assert "GPU-2::7" in ids
    assert {i.partition("::")[0] for i in ids} == {"GPU-2"}


def test_a_promise_of_exactly_this_size_goes_before_one_that_covers_it() -> None:
    gpus = tuple(whole(f"GPU-{n}", n) for n in range(8))
    four = placement("four", *(Share(f"GPU-{n}") for n in range(4)), at=1.0)
    two = placement("two", Share("GPU-5"), Share("GPU-7"), at=2.0)
    free = tuple(g.uuid for g in gpus)
    steering = Steering((four, two))
    assert set(prefer(Asked(names.WHOLE, free, (), 2), gpus, steering)) == {"GPU-5", "GPU-7"}
    assert set(prefer(Asked(names.WHOLE, free, (), 3), gpus, steering)) < {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}


def test_part_of_a_larger_promise_is_connected_as_well_as_it_can_be() -> None:
    gpus = tuple(whole(f"GPU-{n}", n) for n in range(4))
    bridge = Topology({("GPU-1", "GPU-3"): Link(12, Ancestor.SYSTEM, p2p=True)})
    promise = placement("p", *(Share(g.uuid) for g in gpus))
    free = tuple(g.uuid for g in gpus)
    assert prefer(Asked(names.WHOLE, free, (), 2), gpus, Steering((promise,), bridge)) == ("GPU-1", "GPU-3")


def test_units_are_packed_by_default_and_distributed_where_the_file_says_so() -> None:
    """Least taken is by number of units that are taken, whatever the number of all."""
    gpus = (shared("GPU-1", 1, 10), shared("GPU-2", 2, 20))
    free = (*units("GPU-1", *range(9)), *units("GPU-2", *range(12)))  # taken: 1 and 8
    asked = Asked(names.SHARED, free, (), 2)
    assert prefer(asked, gpus, Steering()) == ("GPU-1::0", "GPU-1::1")
    free = (*units("GPU-1", *range(9)), *units("GPU-2", *range(4)))  # taken: 1 and 16
    asked = Asked(names.SHARED, free, (), 2)
    assert prefer(asked, gpus, Steering()) == ("GPU-2::0", "GPU-2::1")
    assert prefer(asked, gpus, Steering(distribute=True)) == ("GPU-1::0", "GPU-1::1")


def test_distributed_units_of_one_container_are_on_one_gpu_all_the_same() -> None:
    """B069: the least taken GPU that has enough, not one unit of each."""
    gpus = (shared("GPU-1", 1, 4), shared("GPU-2", 2, 4))
    free = (*units("GPU-1", 0, 1, 2, 3), *units("GPU-2", 0, 1, 2))
    assert prefer(Asked(names.SHARED, free, (), 3), gpus, Steering(distribute=True)) == tuple(units("GPU-1", 0, 1, 2))


def test_units_of_a_shared_slice_are_of_one_slice() -> None:
    plan = GpuPlan("GPU-0", slices={"1g.10gb": Sold(MIG, 4, Strategy.TIME_SLICING)})
    gpu = replace(SLICED, plan=plan)
    free = tuple(i for i in gpu.shares if i != "MIG-a::0")
    assert prefer(Asked(MIG, free, (), 2), (gpu,), Steering()) == ("MIG-a::1", "MIG-a::2")
    assert prefer(Asked(MIG, free, (), 4), (gpu,), Steering()) == tuple(units("MIG-b", 0, 1, 2, 3))


def test_one_name_for_whole_gpus_and_units_gives_the_smallest_that_will_do() -> None:
    """B059: under one name a unit goes before a whole GPU."""
    plan = GpuPlan("GPU-1", Sold(names.WHOLE, 4, Strategy.TIME_SLICING))
    gpus = (whole("GPU-0", 0), replace(shared("GPU-1", 1, 4), plan=plan), whole("GPU-2", 2))
    free = ("GPU-0", *units("GPU-1", 0, 1), "GPU-2")
    assert prefer(Asked(names.WHOLE, free, (), 1), gpus, Steering()) == ("GPU-1::0",)
    assert prefer(Asked(names.WHOLE, ("GPU-0", "GPU-1::0", "GPU-2"), (), 2), gpus, Steering()) == ("GPU-0", "GPU-2")
    assert prefer(Asked(names.WHOLE, free, ("GPU-2",), 2), gpus, Steering()) == ("GPU-2", "GPU-0")


def test_any_whole_gpu_is_one_of_the_smallest_model_and_models_are_not_mixed() -> None:
    """B118: a large GPU is kept for those who need it; a job is as fast as its slowest GPU."""
    gpus = (whole("GPU-0", 0, H100), whole("GPU-1", 1, A100), whole("GPU-2", 2, H100), whole("GPU-3", 3, A100))
    free = tuple(g.uuid for g in gpus)
    assert prefer(Asked(names.WHOLE, free, (), 1), gpus, Steering()) == ("GPU-1",)
    assert prefer(Asked(names.WHOLE, free, (), 2), gpus, Steering()) == ("GPU-1", "GPU-3")
    assert prefer(Asked(names.WHOLE, free, ("GPU-0",), 2), gpus, Steering()) == ("GPU-0", "GPU-2")


def test_a_slice_comes_from_the_gpu_that_is_cut_up_anyway() -> None:
    pieces = tuple(TWO)
    gpus = (sliced("GPU-0", 0, pieces), sliced("GPU-1", 1, (*pieces, *layout("3g.40gb@4"))))
    free = ("MIG-0-0", "MIG-0-1", "MIG-1-0", "MIG-1-1")
    (one,) = prefer(Asked(MIG, free, (), 1), gpus, Steering())
    assert one.startswith("MIG-1")


LAYOUTS = tuple(p for p in legal_layouts(model()) if any(s.profile.name == "1g.10gb" for s in p))


@given(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_no_other_slice_would_cost_its_gpu_less_usefulness(layouts: list[Layout], rng: random.Random) -> None:
    gpus = tuple(sliced(f"GPU-{n}", n, pieces) for n, pieces in enumerate(layouts))
    every = [i for g in gpus for i in g.shares if g.resource(i) == MIG]
    free = [i for i in every if rng.random() < 0.6] or every[:1]
    rng.shuffle(free)

    def cost(id_: str) -> float:
        gpu = next(g for g in gpus if id_ in g.shares)
        piece = gpu.shares[id_].slice
        taken = tuple(s for s in gpu.layout if not any(gpu.shares[f].slice == s for f in free if f in gpu.shares))
        after = tuple(s for s in gpu.layout if s in taken or s == piece)
        return usefulness(taken, gpu.seen.model) - usefulness(after, gpu.seen.model)

    (picked,) = prefer(Asked(MIG, tuple(free), (), 1), gpus, Steering())
    assert cost(picked) <= min(map(cost, free)) + 1e-12


@given(st.data())
def test_whatever_is_asked_the_answer_is_free_has_no_id_twice_and_holds_what_must(data: st.DataObject) -> None:
    resource = data.draw(st.sampled_from([names.WHOLE, names.SHARED, MIG]))
    every = [i for g in GPUS for i in g.shares if g.resource(i) == resource]
    free = data.draw(st.lists(st.sampled_from(every), unique=True, min_size=1))
    must = tuple(data.draw(st.lists(st.sampled_from(free), unique=True, max_size=2)))
    size = data.draw(st.integers(len(must), len(free)))
    promised = data.draw(st.lists(st.sampled_from([Share("GPU-3"), Share("GPU-1", units=3), Share("GPU-0", TWO[1])])))
    steering = Steering(
        tuple(placement(f"p{n}", s) for n, s in enumerate(promised)), distribute=data.draw(st.booleans())
    )
    ids = prefer(Asked(resource, tuple(free), must, size), GPUS, steering)
    assert len(ids) == len(set(ids)) == size
    assert set(must) <= set(ids) <= set(free)
