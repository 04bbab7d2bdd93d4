"""Which ids the kubelet is steered to, and which it is given."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import names
from device_plugin import allocate
from device_plugin.allocate import Denial, Terms, prefer
from device_plugin.delivery import Delivery, Grant, Mount
from device_plugin.devices import NodeGpu
from device_plugin.sale import GpuPlan, Sold, Strategy
from gpu.hardware import SeenGpu, SeenSlice
from gpu.node import Mode, Placement, Share
from tests.builders import layout, model, placement

TWO = layout("1g.10gb@0", "1g.10gb@1")
SLICED = NodeGpu(
    SeenGpu("GPU-0", 0, 0, "", "", model(), mig=True),
    Mode.SLICED,
    (SeenSlice(TWO[0], 7, 0, "MIG-a"), SeenSlice(TWO[1], 8, 0, "MIG-b")),
)


def shared(uuid: str, index: int, units: int = 20) -> NodeGpu:
    return NodeGpu(SeenGpu(uuid, index, index, "", "", model()), Mode.SHARED, units=units)


def whole(uuid: str, index: int) -> NodeGpu:
    return NodeGpu(SeenGpu(uuid, index, index, "", "", model()))


GPUS = (SLICED, shared("GPU-1", 1), shared("GPU-2", 2), whole("GPU-3", 3), whole("GPU-4", 4))
MIG = names.mig_resource("1g.10gb")


def liked(available: list[str], size: int, resource: str, *promises: Placement, must: tuple[str, ...] = ()) -> set[str]:
    return set(prefer(available, must, size, resource, GPUS, promises))


def grant(ids: list[str] | tuple[str, ...], gpus: Iterable[NodeGpu], terms: Terms | None = None) -> Grant | Denial:
    return allocate.grant(tuple(ids), gpus, terms or Terms())


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
    first = prefer(available, (), 4, names.SHARED, GPUS, [promise])
    assert {i.partition("::")[0] for i in first} == {"GPU-2"}
    # The kubelet hands those four on, and asks for eight that include them.
    then = prefer(available, first, 8, names.SHARED, GPUS, [promise])
    assert set(first) < set(then)
    assert len(then) == 8
    assert isinstance(grant(then, GPUS), Grant)


def test_what_must_be_included_elsewhere_overrules_a_promise() -> None:
    available = [*units("GPU-1", *range(20)), *units("GPU-2", *range(20))]
    promise = placement("p", Share("GPU-2", units=8))
    ids = prefer(available, ("GPU-1::0",), 8, names.SHARED, GPUS, [promise])
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


def test_a_grant_names_devices_for_cdi_and_says_how_much() -> None:
    assert grant(["MIG-b"], GPUS) == Grant({"FALLOW_DEVICES": "MIG-b"}, ("fallow.dev/gpu=MIG-b",))
    answer = grant(units("GPU-1", 0, 1, 2), GPUS)
    assert answer == Grant({"FALLOW_DEVICES": "GPU-1", "FALLOW_UNITS": "3/20"}, ("fallow.dev/gpu=GPU-1",))


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([], "no device"),
        (["MIG-gone"], "not here"),
        (["GPU-1::0", "GPU-2::0"], "must be on one GPU"),
        (["GPU-3", "MIG-gone"], "not here"),
        (["GPU-1::0", "GPU-1::0"], "named twice"),
    ],
)
def test_what_is_unknown_or_spread_over_two_gpus_is_denied_in_words(ids: list[str], says: str) -> None:
    answer = grant(ids, GPUS)
    assert isinstance(answer, Denial)
    assert says in answer.why


def test_what_is_unhealthy_or_being_recut_is_denied() -> None:
    sick = replace(GPUS[3], healthy=False, problem="XID 79")
    held = replace(SLICED, withheld=frozenset({"MIG-a"}))
    assert "XID 79" in grant(["GPU-3"], [sick]).why  # type: ignore[union-attr]
    assert "being re-cut" in grant(["MIG-a"], [held]).why  # type: ignore[union-attr]
    assert isinstance(grant(["MIG-b"], [held]), Grant)


def test_a_sick_slice_is_denied_and_its_neighbour_is_not() -> None:
    """B034: one fault takes only what it hit."""
    sick = replace(SLICED, sick={"MIG-a": "XID 48"})
    assert "XID 48" in grant(["MIG-a"], [sick]).why  # type: ignore[union-attr]
    assert isinstance(grant(["MIG-b"], [sick]), Grant)


def test_where_more_than_one_unit_is_refused_the_answer_names_the_key() -> None:
    """B070: the rule of the configuration file holds in Allocate too."""
    terms = Terms(refuse_more_than_one=frozenset({names.SHARED}))
    assert isinstance(grant(units("GPU-1", 0), GPUS, terms), Grant)
    answer = grant(units("GPU-1", 0, 1), GPUS, terms)
    assert isinstance(answer, Denial)
    assert "failRequestsGreaterThanOne" in answer.why


def test_a_client_of_mps_gets_its_share_or_nothing() -> None:
    mps = replace(GPUS[1], plan=GpuPlan("GPU-1", Sold("nvidia.com/gpu", 20, Strategy.MPS)))
    assert "no MPS control daemon" in grant(units("GPU-1", 0), [mps]).why  # type: ignore[union-attr]
    asked = []

    def client(gpu: str, held: int, replicas: int, memory_mib: int) -> Grant:
        asked.append((gpu, held, replicas, memory_mib))
        return Grant({"CUDA_MPS_PIPE_DIRECTORY": "/mps"}, mounts=(Mount("/mps", "/run/mps"),))

    answer = grant(units("GPU-1", 0, 1), [mps], Terms(mps=client))
    assert isinstance(answer, Grant)
    assert asked == [("GPU-1", 2, 20, model().memory_mib)]
    assert answer.env == {"FALLOW_DEVICES": "GPU-1", "FALLOW_UNITS": "2/20", "CUDA_MPS_PIPE_DIRECTORY": "/mps"}
    assert answer.mounts == (Mount("/mps", "/run/mps"),)
    assert answer.cdi == ("fallow.dev/gpu=GPU-1",)


def test_the_ways_of_nvidias_plugin_name_the_same_devices() -> None:
    terms = Terms(Delivery(cdi=False, envvar=True, nodes=True), exists=lambda path: "uvm" not in path)
    answer = grant(["MIG-a"], GPUS, terms)
    assert isinstance(answer, Grant)
    assert answer.env["NVIDIA_VISIBLE_DEVICES"] == "MIG-a"
    assert [n.host for n in answer.nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    ]
    assert answer.cdi == ()
