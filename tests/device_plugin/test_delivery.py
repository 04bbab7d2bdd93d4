"""Every way of NVIDIA's plugin, alone and together."""

from hypothesis import given
from hypothesis import strategies as st

from device_plugin.delivery import Delivery, Mount, Named, Node, deliver

GPU = Named("GPU-0", 3, ("nvidiactl", "nvidia3"))
SLICE = Named("MIG-a", None, ("nvidiactl", "nvidia4", "nvidia-caps/nvidia-cap66"))


def everything(path: str) -> bool:
    return True


def test_marker_mounts_carry_the_ids_and_the_variable_points_to_them() -> None:
    got = deliver([GPU, SLICE], Delivery(cdi=False, mounts=True, imex_channels=(0,)), "/dev", everything)
    assert got.env == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    assert got.mounts == tuple(
        Mount(f"/var/run/nvidia-container-devices/{name}", "/dev/null") for name in ("GPU-0", "MIG-a", "imex/0")
    )


def test_indexes_are_given_for_whole_gpus_and_uuids_for_slices() -> None:
    got = deliver([GPU, SLICE], Delivery(cdi=False, envvar=True, by_index=True), "/dev", everything)
    assert got.env == {"NVIDIA_VISIBLE_DEVICES": "3,MIG-a"}


def test_annotations_carry_the_same_names_as_cdi() -> None:
    got = deliver([GPU, SLICE], Delivery(annotations="cdi.k8s.io/"), "/dev", everything)
    assert got.annotations == {"cdi.k8s.io/fallow-device-plugin": "fallow.dev/gpu=GPU-0,fallow.dev/gpu=MIG-a"}
    assert got.cdi == ("fallow.dev/gpu=GPU-0", "fallow.dev/gpu=MIG-a")


def test_extras_are_asked_for_by_name() -> None:
    ways = Delivery(cdi=False, envvar=True, extras=frozenset({"gds", "mofed"}), imex_channels=(0,))
    env = deliver([GPU], ways, "/dev", everything).env
    assert env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
        "NVIDIA_IMEX_CHANNELS": "0",
    }


def test_device_nodes_are_those_below_the_root_that_exist_each_once() -> None:
    got = deliver([GPU, SLICE], Delivery(nodes=True), "/host/dev/", lambda p: p != "/host/dev/nvidia4")
    assert got.nodes == tuple(
        Node(f"/dev/{p}", f"/host/dev/{p}") for p in ("nvidiactl", "nvidia3", "nvidia-caps/nvidia-cap66")
    )


@given(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["", "cdi.k8s.io/"]))
def test_no_way_names_a_device_that_was_not_asked_for(
    cdi: bool, envvar: bool, mounts: bool, nodes: bool, prefix: str
) -> None:
    ways = Delivery(cdi=cdi, annotations=prefix, envvar=envvar, mounts=mounts, nodes=nodes)
    got = deliver([SLICE], ways, "/dev", everything)
    text = repr(got)
    assert "GPU-0" not in text and "nvidia3" not in text
    assert ("MIG-a" in text) == (cdi or envvar or mounts or bool(prefix))
