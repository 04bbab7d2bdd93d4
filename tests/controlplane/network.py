"""A network namespace of the cluster's own, joined to the machine by one veth pair. Nothing of the host's network is
touched: one address on our own end of the pair is all that the host gains, and it goes with the namespace."""

import fcntl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.controlplane.processes import ClusterError, Record

LOCKS = Path("/run/fallow")


@dataclass(frozen=True)
class Network:
    """`inside` is the address of the API server and the nodes, `outside` that of the tests."""

    name: str
    inside: str
    outside: str

    @property
    def enter(self) -> tuple[str, ...]:
        # nsenter and not `ip netns exec`: that one remounts /sys and hides the cgroups.
        return ("nsenter", f"--net=/run/netns/{self.name}")


def reserve(ident: str) -> tuple[int, IO[str]]:
    """A number for the addresses that no other cluster has or is about to take, as long as the file stays open.

    A cluster that is left up after its starter has ended is seen by its address. Raises ClusterError.
    """
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    first = int(ident, 16) % 256
    for number in (n % 256 for n in range(first, first + 256)):
        file = (LOCKS / f"network-{number}").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        if f"10.90.{number}." not in Path("/proc/net/fib_trie").read_text():
            return number, file
        file.close()
    raise ClusterError("no free 10.90.N.0/24 for the cluster's network")


def create(record: Record, ident: str, number: int) -> Network:
    """`ident` makes the names unique, `number` (0 to 255) the addresses."""
    network = Network(f"fallow-{ident}", f"10.90.{number}.1", f"10.90.{number}.254")
    inner, outer = f"fi-{ident}", f"fo-{ident}"
    record.add(kind="netns", name=network.name)
    _run("ip", "netns", "add", network.name)
    record.add(kind="link", name=outer)
    _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", network.name)
    _run("ip", "addr", "add", f"{network.outside}/24", "dev", outer)
    _run("ip", "link", "set", outer, "up")
    for command in (
        ("ip", "addr", "add", f"{network.inside}/24", "dev", inner),
        ("ip", "link", "set", inner, "up"),
        ("ip", "link", "set", "lo", "up"),
        ("ip", "route", "add", "default", "via", network.outside),
    ):
        _run(*network.enter, *command)
    return network


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
