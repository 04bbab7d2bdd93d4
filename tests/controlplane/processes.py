"""What a cluster has started, recorded on disk: processes by pid and start time, shims, mounts, cgroups, network.

Cleaning up goes by this record alone, so a run that was killed is cleaned up by the next one, and nothing that somebody
else started is ever touched.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.controlplane import cgroups

Entry = Mapping[str, str]


class ClusterError(RuntimeError):
    """The cluster cannot be had, or a part of it has ended: which, and the end of its log."""


def start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat: tells a process from a later one with the same number; "" when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


class Record:
    """The record of one cluster, in `<directory>/record.json`. Thread-safe: a test may kill from a thread."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "record.json"
        self._entries: list[Entry] = json.loads(self._path.read_text()) if self._path.exists() else []
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Run a program in a session of its own, its output in `log`; its pid."""
        with log.open("ab") as out:
            child = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**_environment(), **(env or {})},
                cwd=cwd,
            )
        self._children[child.pid] = child
        self.add(kind="process", name=name, pid=str(child.pid), started=start_time(child.pid))
        return child.pid

    def add(self, **entry: str) -> None:
        """Before the thing is made: undoing what never came to be does nothing."""
        with self._lock:
            self._entries.append(entry)
            self._save()

    def alive(self, pid: int) -> bool:
        child = self._children.get(pid)
        return (child is None or child.poll() is None) and bool(start_time(pid))

    def programs(self) -> dict[str, bool]:
        """Every recorded program, in the order of their start, and whether it still runs."""
        return {e["name"]: self._is(int(e["pid"]), e) for e in list(self._entries) if e["kind"] == "process"}

    def stop(self, pid: int, how: int = signal.SIGTERM, seconds: float = 5.0) -> None:
        """End one recorded process and wait; harder when it does not listen."""
        entry = next((e for e in list(self._entries) if e.get("pid") == str(pid)), None)
        if entry is not None:
            self._end(entry, how, seconds)
            self._forget(entry)

    def clean(self) -> None:
        """Undo everything recorded, last first."""
        for entry in reversed(list(self._entries)):
            match entry["kind"]:
                case "process":
                    self._end(entry, signal.SIGTERM, 5.0)
                case "shims":
                    _end_shims(entry["path"])
                case "mounts":
                    _unmount_below(entry["path"])
                case "netns":
                    _quiet("ip", "netns", "del", entry["name"])
                case "link":
                    _quiet("ip", "link", "del", entry["name"])
                case "cgroup":
                    cgroups.end(entry["name"])
            self._forget(entry)
        self._path.unlink(missing_ok=True)

    def _end(self, entry: Entry, how: int, seconds: float) -> None:
        pid = int(entry["pid"])
        for number, patience in ((how, seconds), (signal.SIGKILL, 5.0)):
            if not self._is(pid, entry):
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)  # a process that a test has stopped hears nothing else
            deadline = time.monotonic() + patience
            while self._is(pid, entry) and time.monotonic() < deadline:
                time.sleep(0.02)
        if child := self._children.pop(pid, None):
            child.wait(timeout=5)

    def _is(self, pid: int, entry: Entry) -> bool:
        if child := self._children.get(pid):
            child.poll()
        return start_time(pid) == entry["started"] != ""

    def _forget(self, entry: Entry) -> None:
        with self._lock:
            if entry in self._entries:
                self._entries.remove(entry)
                self._save()

    def _save(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._entries, indent=1))
        temporary.replace(self._path)


def wait(
    ready: Callable[[], bool],
    seconds: float,
    what: str,
    log: Path | None = None,
    alive: Callable[[], bool] = lambda: True,
) -> None:
    """Until `ready`. Raises ClusterError with the end of the log when time is up, or at once when it is not alive."""
    deadline = time.monotonic() + seconds
    while not ready():
        if not alive():
            raise ClusterError(f"{what} has ended{_tail(log)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} not ready after {seconds:.0f} s{_tail(log)}")
        time.sleep(0.05)


def _environment() -> dict[str, str]:
    """Without proxies: there is no way to one from the cluster's network, and no program of it should ask one."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


def _tail(log: Path | None) -> str:
    return f"; the end of {log}:\n{log.read_text(errors='replace')[-3000:]}" if log and log.exists() else ""


def _end_shims(directory: str) -> None:
    """The containerd shims that serve this node: they outlive containerd, and name its socket."""
    for proc in Path("/proc").iterdir():
        if proc.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (proc / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[0].endswith("containerd-shim-runc-v2") and f"{directory}/containerd.sock" in words:
                    os.kill(int(proc.name), signal.SIGKILL)


def _unmount_below(path: str) -> None:
    """Lazily, deepest first: what a kubelet or containerd mounted under a directory of ours."""
    mounts = [line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m == path or m.startswith(path + "/")), key=len, reverse=True):
        _quiet("umount", "-l", mount)


def _quiet(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
