"""Shared memory: who uses more than promised is named, after a while, once; nobody else ever."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_plugin.devices import NodeGpu
from device_plugin.guard import Place, Watch, excesses, judge, promised_mib, together
from device_plugin.sale import GpuPlan, Sold, Strategy
from gpu.hardware import GpuProcess, SeenGpu, SeenSlice
from gpu.node import Mode
from tests.builders import layout, model, placement, ref, share

WHOLE = model().memory_mib
GPU = NodeGpu(SeenGpu("GPU-0", 0, 0, "", "", model()), Mode.SHARED, units=20)
PIECE = layout("3g.40gb@4")[0]
CUT = NodeGpu(
    SeenGpu("GPU-1", 1, 1, "", "", model(), mig=True, slices=(SeenSlice(PIECE, 5, 0, "MIG-1"),)),
    Mode.SLICED,
    slices=(SeenSlice(PIECE, 5, 0, "MIG-1"),),
    plan=GpuPlan("GPU-1", slices={"3g.40gb": Sold("nvidia.com/mig-3g.40gb", 4, Strategy.TIME_SLICING)}),
)


@pytest.mark.parametrize(
    ("gpu", "held", "promised"),
    [
        (GPU, share("GPU-0", units=5), WHOLE // 4),
        (CUT, share("GPU-1", "3g.40gb@4", units=2), PIECE.profile.memory_mib // 2),
        (CUT, share("GPU-1", "3g.40gb@4"), None),
        (GPU, share("GPU-0"), None),
        (replace(CUT, slices=()), share("GPU-1", "3g.40gb@4", units=2), None),
    ],
)
def test_what_units_promise(gpu: NodeGpu, held: object, promised: int | None) -> None:
    assert promised_mib(gpu, held) == promised  # type: ignore[arg-type]


def test_units_of_two_containers_are_one_promise() -> None:
    assert together((share("GPU-0", units=1), share("GPU-0", units=2), share("GPU-1"))) == (share("GPU-0", units=3),)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, WHOLE // 4)), max_size=6), st.floats(0, 1))
def test_exactly_those_are_named_whose_own_processes_use_more(pods: list[tuple[int, int]], tolerance: float) -> None:
    placements = [placement(f"p{i}", share("GPU-0", units=u)) for i, (u, _) in enumerate(pods)]
    processes = [GpuProcess(100 + i, used, None) for i, (_, used) in enumerate(pods)]
    pod_of = {100 + i: ref(f"p{i}").uid for i in range(len(pods))}
    found = excesses(placements, [GPU], {"GPU-0": [*processes, GpuProcess(1, WHOLE, None)]}, pod_of, tolerance)
    wrong = {f"p{i}" for i, (u, used) in enumerate(pods) if used > WHOLE * u // 20 * (1 + tolerance)}
    assert {e.pod.name for e in found.values()} == wrong


def test_memory_on_another_slice_or_gpu_is_not_counted() -> None:
    held = placement("p", share("GPU-1", "3g.40gb@4", units=1))
    elsewhere = {"GPU-1": [GpuProcess(7, WHOLE, 4)], "GPU-0": [GpuProcess(7, WHOLE, None)]}
    assert not excesses([held], [CUT, GPU], elsewhere, {7: held.pod.uid}, 0.1)
    here = {"GPU-1": [GpuProcess(7, WHOLE, 5)]}
    assert str(next(iter(excesses([held], [CUT], here, {7: held.pod.uid}, 0.1).values()))).startswith("uses ")


def test_a_gpu_that_cannot_be_asked_names_nobody_and_forgets_nothing() -> None:
    held = placement("p", share("GPU-0", units=1))
    assert not excesses([held], [GPU], {}, {}, 0.1)
    watch = {Place(held.pod.uid, "GPU-0", None): Watch(0.0)}
    assert judge(watch, {}, frozenset(), 30, 100.0)[0] == watch
    assert judge(watch, {}, frozenset({"GPU-0"}), 30, 100.0)[0] == {}


def test_an_excess_is_acted_upon_once_after_the_grace_and_again_only_when_it_comes_anew() -> None:
    held = placement("p", share("GPU-0", units=1))
    over = excesses([held], [GPU], {"GPU-0": [GpuProcess(7, WHOLE, None)]}, {7: held.pod.uid}, 0.1)
    asked = frozenset({"GPU-0"})
    watches, due = judge({}, over, asked, 30, 100.0)
    assert not due
    watches, due = judge(watches, over, asked, 30, 130.0)
    assert [e.pod.name for e in due] == ["p"]
    watches, due = judge(watches, over, asked, 30, 200.0)
    assert not due
    watches, due = judge(watches, {}, asked, 30, 210.0)
    watches, due = judge(watches, over, asked, 30, 220.0)
    assert not due
    assert judge(watches, over, asked, 30, 250.0)[1]
