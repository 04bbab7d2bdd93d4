"""CDI specs: exactly the nodes of one slice, renewed in one step, stale ones gone."""

import json
from pathlib import Path

from device_plugin.cdi import ci_minor, gi_minor, renew, spec
from device_plugin.devices import NodeGpu
from gpu.hardware import SeenGpu, SeenSlice
from gpu.node import Mode
from tests.builders import layout, model

PIECE = layout("1g.10gb@0")[0]


def sliced(uuid: str = "GPU-0", minor: int = 0) -> NodeGpu:
    seen = SeenGpu(uuid, 0, minor, "", "", model(), mig=True)
    return NodeGpu(seen, Mode.SLICED, (SeenSlice(PIECE, 2, 0, "MIG-a"), SeenSlice(PIECE, 3, 0, "MIG-b")))


def test_minor_numbers_are_the_drivers() -> None:
    # Seen on an H100: gpu0 gi2 -> 21, its ci0 -> 22, gi3 -> 30, ci0 -> 31; the last of all is gpu31 gi14 ci7 -> 4322.
    assert (gi_minor(0, 2), ci_minor(0, 2, 0), gi_minor(0, 3), ci_minor(0, 3, 0)) == (21, 22, 30, 31)
    assert ci_minor(31, 14, 7) == 4322


def test_a_slice_gets_its_own_capabilities_and_no_others() -> None:
    made = spec(sliced(minor=0), "/dev", lambda _: True)
    assert made is not None
    nodes = {d["name"]: [n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in made["devices"]}
    common = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0"]
    assert nodes == {
        "MIG-a": [*common, "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"],
        "MIG-b": [*common, "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"],
    }


def test_nodes_that_do_not_exist_are_left_out_and_the_environment_hook_is_kept_out() -> None:
    made = spec(NodeGpu(SeenGpu("GPU-0", 0, 5, "", "", model())), "/dev", lambda p: p.endswith("nvidia5"))
    assert made is not None
    (device,) = made["devices"]
    assert [n["path"] for n in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia5"]
    assert device["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_a_gpu_that_offers_nothing_has_no_spec() -> None:
    seen = SeenGpu("GPU-0", 0, 0, "", "", model(), mig=True)
    assert spec(NodeGpu(seen, Mode.SLICED), "/dev", lambda _: True) is None


def test_renewing_replaces_removes_and_leaves_strangers_alone(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text("not ours")
    renew(tmp_path, [sliced("GPU-0"), sliced("GPU-1")], "/dev")
    first = (tmp_path / "fallow-GPU-0.json").stat()
    renew(tmp_path, [sliced("GPU-0")], "/dev")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fallow-GPU-0.json", "nvidia.yaml"]
    assert (tmp_path / "fallow-GPU-0.json").stat().st_ino == first.st_ino, "an equal spec is left alone"
    assert json.loads((tmp_path / "fallow-GPU-0.json").read_text())["kind"] == "fallow.dev/gpu"
    renew(tmp_path, [], "/dev")
    assert [p.name for p in tmp_path.iterdir()] == ["nvidia.yaml"]
