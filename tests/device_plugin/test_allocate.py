"""What a container gets for the ids that the kubelet chose."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from cluster import names
from device_plugin import allocate
from device_plugin.allocate import Denial, Terms
from device_plugin.delivery import Delivery, Grant, Mount
from device_plugin.devices import NodeGpu
from device_plugin.sale import GpuPlan, Sold, Strategy
from gpu.hardware import SeenGpu, SeenSlice
from gpu.node import Mode
from tests.builders import layout, model

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


def grant(ids: list[str] | tuple[str, ...], gpus: Iterable[NodeGpu], terms: Terms | None = None) -> Grant | Denial:
    return allocate.grant(tuple(ids), gpus, terms or Terms())


def units(uuid: str, *numbers: int) -> list[str]:
    return [f"{uuid}::{n}" for n in numbers]


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
