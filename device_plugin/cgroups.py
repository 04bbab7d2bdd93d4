"""Which pod a process belongs to, and where a pod's cgroup is: as the kubelet names them, by pod UID."""

import re
from collections.abc import Iterable
from pathlib import Path

_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
"""`pod<uid>` (cgroupfs driver) or `kubepods-burstable-pod<uid with underscores>.slice` (systemd driver)."""
_PARENTS = (
    "kubepods.slice",
    "kubepods.slice/kubepods-burstable.slice",
    "kubepods.slice/kubepods-besteffort.slice",
    "kubepods",
    "kubepods/burstable",
    "kubepods/besteffort",
)


def uid_in(text: str) -> str:
    """The pod UID in the text of /proc/PID/cgroup, "" when there is none."""
    found = _POD.search(text)
    return found[1].replace("_", "-") if found else ""


class Cgroups:
    """`proc` and `root` are /proc and /sys/fs/cgroup of the host (the agent shares its pid namespace)."""

    def __init__(self, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._root = proc, root

    def pods_of(self, pids: Iterable[int]) -> dict[int, str]:
        """Pod UIDs by process; without those that have ended or belong to no pod."""
        found = {}
        for pid in pids:
            try:
                uid = uid_in((self._proc / str(pid) / "cgroup").read_text())
            except OSError:
                continue
            if uid:
                found[pid] = uid
        return found

    def of_pod(self, uid: str) -> str:
        """The path of the pod's cgroup, "" when it is not there (yet)."""
        for parent in _PARENTS:
            for name in (f"pod{uid}", f"{parent.rpartition('/')[2][:-6]}-pod{uid.replace('-', '_')}.slice"):
                place = self._root / parent / name
                if place.is_dir():
                    return str(place)
        return ""
