"""What a cluster has started, recorded on disk before it is needed: processes by pid and start time, mounts, network.

Cleaning up goes by this record alone, so a run that was killed is cleaned up by the next one, and nothing that somebody
else started is ever touched.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat: tells a process from a later one with the same number; "" when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


class Record:
    """The record of one cluster, in `<directory>/record.json`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "record.json"
        self._entries: list[dict[str, str]] = json.loads(self._path.read_text()) if self._path.exists() else []
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        namespace: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Run a program in a session of its own, its output in `log`; its pid. `namespace` is an nsenter prefix."""
        with log.open("ab") as out:
            child = subprocess.Popen(
                [*namespace, *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )
        self._children[child.pid] = child
        self.add(kind="process", name=name, pid=str(child.pid), started=start_time(child.pid))
        return child.pid

    def add(self, **entry: str) -> None:
        self._entries.append(entry)
        self._save()

    def alive(self, pid: int) -> bool:
        child = self._children.get(pid)
        return (child is None or child.poll() is None) and bool(start_time(pid))

    def pids(self) -> dict[str, int]:
        return {e["name"]: int(e["pid"]) for e in self._entries if e["kind"] == "process"}

    def stop(self, pid: int, how: int = signal.SIGTERM, seconds: float = 5.0) -> None:
        """End one recorded process and wait; harder when it does not listen."""
        entry = next((e for e in self._entries if e.get("pid") == str(pid)), None)
        if entry is not None:
            self._end(entry, how, seconds)
            self._entries.remove(entry)
            self._save()

    def clean(self) -> None:
        """Undo everything recorded, last first."""
        for entry in reversed(list(self._entries)):
            match entry["kind"]:
                case "process":
                    self._end(entry, signal.SIGTERM, 5.0)
                case "mounts":
                    unmount_below(entry["path"])
                case "netns":
                    _quiet("ip", "netns", "del", entry["name"])
                case "link":
                    _quiet("ip", "link", "del", entry["name"])
                case "cgroup":
                    _remove_cgroups(entry["name"])
            self._entries.remove(entry)
            self._save()
        self._path.unlink(missing_ok=True)

    def _end(self, entry: Mapping[str, str], how: int, seconds: float) -> None:
        pid = int(entry["pid"])
        for number, patience in ((how, seconds), (signal.SIGKILL, 5.0)):
            if not self._is(pid, entry):
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + patience
            while self._is(pid, entry) and time.monotonic() < deadline:
                time.sleep(0.02)
        if child := self._children.pop(pid, None):
            child.wait(timeout=5)

    def _is(self, pid: int, entry: Mapping[str, str]) -> bool:
        if child := self._children.get(pid):
            child.poll()
        return start_time(pid) == entry["started"] != ""

    def _save(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._entries, indent=1))
        temporary.replace(self._path)


def unmount_below(path: str) -> None:
    """Lazily, deepest first: what a kubelet or containerd mounted under a directory of ours."""
    mounts = [line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m == path or m.startswith(path + "/")), key=len, reverse=True):
        _quiet("umount", "-l", mount)


def shims(state: Path) -> list[int]:
    """Pids of the containerd shims that serve this node: they outlive containerd, and name its socket."""
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (proc / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[0].endswith("containerd-shim-runc-v2") and f"{state}/containerd.sock" in words:
                    found.append(int(proc.name))
    return found


def _remove_cgroups(name: str) -> None:
    for root in Path("/sys/fs/cgroup").iterdir():
        top = root / name
        if top.is_dir():
            for group in sorted((p for p in top.rglob("*") if p.is_dir()), key=lambda p: len(p.parts), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()
            with contextlib.suppress(OSError):
                top.rmdir()


def _quiet(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
