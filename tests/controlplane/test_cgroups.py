"""The groups of a node, on trees of files that look like those of the two versions of cgroups."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane import cgroups


def test_version_2_hands_down_what_a_kubelet_insists_on(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids rdma\n")
    cgroups.make("node", tmp_path)
    assert (tmp_path / "node").is_dir()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"


def test_version_1_has_a_group_in_every_hierarchy_and_a_cpuset_that_can_be_used(tmp_path: Path) -> None:
    for controller in ("cpu", "cpuset", "freezer"):
        (tmp_path / controller).mkdir()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    cgroups.make("node", tmp_path)
    assert {p.parent.name for p in tmp_path.glob("*/node")} == {"cpu", "cpuset", "freezer"}
    assert (tmp_path / "cpuset" / "node" / "cpuset.cpus").read_text() == "0-1\n"


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/freezer/cgroup.procs", os.W_OK), reason="needs the freezer, as root")
def test_even_what_is_frozen_ends_with_its_group() -> None:
    name = f"fallow-test-{os.getpid()}"
    cgroups.make(name)
    inner = cgroups.ROOT / "freezer" / name / "pod"
    inner.mkdir()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (inner / "cgroup.procs").write_text(str(child.pid))
        (inner / "freezer.state").write_text("FROZEN")
        cgroups.end(name)
        assert child.wait(timeout=5) == -9
    finally:
        child.kill()
        child.communicate()
    cgroups.end(name)  # the group of a process that nobody has waited for stays until somebody does
    assert not list(cgroups.ROOT.glob(f"*/{name}"))
