"""From a configuration to what each GPU is sold as: NVIDIA's rules, and GPUs of one node shared differently."""

import pytest

from device_plugin.allocate import Denial, Terms, grant
from device_plugin.config.plan import delivery, plan
from device_plugin.config.read import read
from device_plugin.delivery import Delivery, Grant
from device_plugin.devices import assemble, lists
from device_plugin.sale import NodePlan, Strategy, Wish
from gpu.hardware import SeenGpu, SeenSlice
from tests.builders import layout, model

GPUS = tuple(SeenGpu(f"GPU-{i}", i, i, "", "", model()) for i in range(3))


def cut(index: int, *pieces: str) -> SeenGpu:
    slices = tuple(SeenSlice(p, n, 0, f"MIG-{index}{n}") for n, p in enumerate(layout(*pieces)))
    return SeenGpu(f"GPU-{index}", index, index, "", "", model(), mig=True, slices=slices)


def planned(text: str, gpus: tuple[SeenGpu, ...] = GPUS) -> NodePlan:
    found = plan(read(text, "f"), gpus)
    assert isinstance(found, NodePlan), found
    return found


def refused(text: str, gpus: tuple[SeenGpu, ...] = GPUS) -> str:
    found = plan(read(text, "f"), gpus)
    assert not isinstance(found, NodePlan)
    return "; ".join(map(str, found))


def offered(text: str, gpus: tuple[SeenGpu, ...] = GPUS) -> dict[str, int]:
    """How many devices each resource name has when these GPUs are seen for the first time."""
    made = assemble(gpus, {}, {}, frozenset(), Wish(20, planned(text, gpus)))
    return {name: len(devices) for name, devices in lists(made).items() if devices}


def sliced(*entries: str, head: str = "", way: str = "timeSlicing", more: str = "") -> str:
    items = "".join(f"    - {{{e}}}\n" for e in entries)
    return f"{head}sharing:\n  {way}:\n{more}    resources:\n{items}"


def test_one_node_shares_gpu_0_in_ten_gpu_1_in_four_and_leaves_gpu_2_whole() -> None:
    text = sliced(
        "name: gpu, replicas: 10, devices: [0], rename: gpu.tenth",
        "name: gpu, replicas: 4, devices: [GPU-1], rename: gpu.quarter",
    )
    assert offered(text) == {"nvidia.com/gpu.tenth": 10, "nvidia.com/gpu.quarter": 4, "nvidia.com/gpu": 1}
    assert planned(text).fixed == {"GPU-0", "GPU-1"}


def test_the_same_under_nvidias_default_name() -> None:
    text = sliced(
        "name: gpu, replicas: 10, devices: [0]",
        "name: gpu, replicas: 4, devices: [1]",
        more="    renameByDefault: true\n",
    )
    assert offered(text) == {"nvidia.com/gpu.shared": 14, "nvidia.com/gpu": 1}


def test_nvidias_own_example_shares_every_gpu_under_its_usual_name() -> None:
    assert offered(sliced("name: nvidia.com/gpu, replicas: 10")) == {"nvidia.com/gpu": 30}


def test_a_number_of_devices_is_the_first_ones() -> None:
    text = sliced("name: gpu, replicas: 5, devices: 2, rename: gpu.fifth")
    assert offered(text) == {"nvidia.com/gpu.fifth": 10, "nvidia.com/gpu": 1}


def test_one_name_for_whole_gpus_and_for_parts_is_refused_with_both_named() -> None:
    said = refused(sliced("name: gpu, replicas: 10, devices: [0]"))
    assert "sharing.timeSlicing.resources.0" in said
    assert "GPU-1, GPU-2" in said and "renameByDefault" in said


def test_a_gpu_that_two_entries_share_is_refused() -> None:
    said = refused(sliced("name: gpu, replicas: 10", "name: gpu, replicas: 4, devices: [1]"))
    assert "GPU-1 is shared by sharing.timeSlicing.resources.0 already" in said


def test_devices_that_are_not_here_are_noted_and_stop_nothing() -> None:
    made = planned(sliced("name: gpu, replicas: 2, devices: [0, 9, GPU-abc], rename: gpu.half"))
    assert [n.partition(": ")[2] for n in made.notes] == ["9 is no GPU of this node", "GPU-abc is no GPU of this node"]
    assert set(made.fixed) == {"GPU-0"}


def test_profiles_match_exactly_and_not_their_variants() -> None:
    gpus = (cut(0, "1g.10gb@0", "1g.10gb+me@1", "2g.20gb@2"),)
    text = sliced("name: mig-1g.10gb, replicas: 3, rename: small")
    assert offered(text, gpus) == {"nvidia.com/small": 3, "nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-2g.20gb": 1}


def test_slices_are_chosen_by_gpu_and_mig_index_and_by_uuid() -> None:
    gpus = (cut(0, "1g.10gb@0", "1g.10gb@1"), cut(1, "1g.10gb@0"))
    text = sliced('name: mig-1g.10gb, replicas: 3, devices: ["0:1", MIG-10], rename: small'.replace("MIG-10", "MIG-10"))
    assert offered(text, gpus) == {"nvidia.com/small": 6, "nvidia.com/mig-1g.10gb": 1}


def test_single_sells_slices_as_gpus_while_all_are_alike() -> None:
    gpus = (cut(0, "1g.10gb@0", "1g.10gb@1"), cut(1, "1g.10gb@0"))
    assert offered("flags: {migStrategy: single}", gpus) == {"nvidia.com/gpu": 3}
    shared = sliced("name: gpu, replicas: 4", head="flags: {migStrategy: single}\n")
    assert offered(shared, gpus) == {"nvidia.com/gpu": 12}
    assert planned("flags: {migStrategy: single}", gpus).fixed == {"GPU-0", "GPU-1"}


@pytest.mark.parametrize("gpus", [(cut(0, "1g.10gb@0", "2g.20gb@2"),), (cut(0, "1g.10gb@0"), GPUS[1])])
def test_single_on_a_node_that_is_not_alike_offers_each_under_its_own_name_and_says_so(
    gpus: tuple[SeenGpu, ...],
) -> None:
    text = "flags: {migStrategy: single}"
    assert "nvidia.com/mig-1g.10gb" in offered(text, gpus)
    assert "cut alike" in planned(text, gpus).notes[0]


def test_none_offers_nothing_of_a_gpu_in_mig_mode_and_the_others_go_on() -> None:
    gpus = (cut(0, "1g.10gb@0"), GPUS[1])
    assert offered("flags: {migStrategy: none}", gpus) == {"nvidia.com/gpu": 1}
    assert "GPU-0" in planned("flags: {migStrategy: none}", gpus).notes[0]


def test_mig_mode_without_any_slice_offers_nothing_and_stops_nobody() -> None:
    for strategy in ("none", "single", "mixed"):
        assert offered(f"flags: {{migStrategy: {strategy}}}", (cut(0), GPUS[1])) == {"nvidia.com/gpu": 1}


def test_a_gpu_in_mig_mode_is_not_shared_as_a_whole_and_that_is_said() -> None:
    gpus = (cut(0, "1g.10gb@0"), GPUS[1])
    made = planned(sliced("name: gpu, replicas: 2, devices: [0, 1], rename: half"), gpus)
    assert any("GPU-0 is in MIG mode" in n for n in made.notes)


def test_a_list_that_the_kubelet_would_drop_is_refused() -> None:
    assert "60000 at most" in refused(sliced("name: gpu, replicas: 30000"))
    assert offered(sliced("name: gpu, replicas: 10000")) == {"nvidia.com/gpu": 30_000}


@pytest.mark.parametrize(
    ("way", "said", "refuses"),
    [("timeSlicing", "", False), ("timeSlicing", "true", True), ("mps", "", True), ("mps", "false", False)],
)
def test_more_than_one_is_refused_by_default_under_mps_only(way: str, said: str, refuses: bool) -> None:
    more = f"    failRequestsGreaterThanOne: {said}\n" if said else ""
    made = planned(sliced("name: gpu, replicas: 4", way=way, more=more))
    gpus = assemble(GPUS, {}, {}, frozenset(), Wish(20, made))
    assert gpus[0].sold.strategy is (Strategy.MPS if way == "mps" else Strategy.TIME_SLICING)
    terms = Terms(refuse_more_than_one=made.refuse_more_than_one, mps=lambda *_: Grant())
    answer = grant(["GPU-0::0", "GPU-0::1"], gpus, terms)
    assert isinstance(answer, Denial) is refuses


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("version: v1", Delivery(cdi=False, envvar=True)),
        ("flags: {plugin: {deviceListStrategy: cdi-cri}}", Delivery()),
        ("flags: {plugin: {deviceListStrategy: [volume-mounts]}}", Delivery(cdi=False, mounts=True)),
        (
            "flags: {gdsEnabled: true, plugin: {deviceListStrategy: cdi-annotations, cdiAnnotationPrefix: x/}}",
            Delivery(cdi=False, annotations="x/", extras=frozenset({"gds"})),
        ),
        (
            "flags: {plugin: {passDeviceSpecs: true, deviceIDStrategy: index}}\nimex: {channelIDs: [0]}",
            Delivery(cdi=False, envvar=True, nodes=True, by_index=True, imex_channels=(0,)),
        ),
    ],
)
def test_the_ways_in_which_devices_reach_containers(text: str, ways: Delivery) -> None:
    assert delivery(read(text, "f")) == ways
