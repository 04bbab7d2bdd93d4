"""The cgroups of one node: made before its kubelet starts, and afterwards the list of what still runs on it.

A container outlives its kubelet, its containerd and even a killed shim, but it cannot leave its cgroup.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1 = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "hugetlb")
V2 = ("cpu", "cpuset", "memory", "pids", "hugetlb")
"""What a kubelet insists on, where the kernel has it."""


def make(name: str, root: Path = ROOT) -> None:
    """The node's top group, of version 2 or in each hierarchy of version 1. Raises OSError."""
    if (root / "cgroup.controllers").exists():
        (root / name).mkdir(exist_ok=True)
        there = (root / "cgroup.controllers").read_text().split()
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in V2 if c in there))
        return
    for controller in (root / c for c in V1 if (root / c).is_dir()):
        (controller / name).mkdir(exist_ok=True)
    if (root / "cpuset").is_dir():
        # A new cpuset is empty, and nothing can be put into it until it has processors and memory.
        for file in ("cpuset.cpus", "cpuset.mems"):
            (root / "cpuset" / name / file).write_text((root / "cpuset" / file).read_text())


def end(name: str, seconds: float = 5.0, root: Path = ROOT) -> None:
    """Kill whatever runs in the node's groups and remove them; as much of that as can be had within the time."""
    deadline = time.monotonic() + seconds
    while (tops := _tops(name, root)) and time.monotonic() < deadline:
        for group in (g for top in tops for g in _below(top)):
            _thaw(group)
            for pid in processes(group):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                group.rmdir()
        time.sleep(0.01)


def processes(group: Path) -> list[int]:
    """Empty for a group that is gone."""
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _thaw(group: Path) -> None:
    """A frozen process of version 1 does not even notice SIGKILL."""
    with contextlib.suppress(OSError):
        if (state := group / "freezer.state").exists():
            state.write_text("THAWED")


def _tops(name: str, root: Path) -> list[Path]:
    return [g for g in (root / name, *(h / name for h in sorted(root.iterdir()))) if g.is_dir()]


def _below(top: Path) -> Iterator[Path]:
    """Deepest first, itself last."""
    for path, _, _ in os.walk(top, topdown=False):
        yield Path(path)
