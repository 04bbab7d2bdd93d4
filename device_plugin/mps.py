"""Sharing by MPS: which control daemons a node needs, what they are told, and what a client gets.

Pure. One daemon for each shared GPU, so that one fault ends the clients of one GPU only (CUDA's MPS manual: a server
has no memory-fault isolation between its clients). Where every container has one unit, the daemon itself imposes the
limits; where a container may have several, its limits are in its environment, which its author can change: a fence for
friends, not for tenants.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from device_plugin.allocate import Denial
from device_plugin.delivery import Grant, Mount
from device_plugin.devices import NodeGpu
from device_plugin.sale import Strategy
from gpu.node import Mode

PIPE = "/mps/pipe"
"""Where a client finds the daemon's pipes."""
SHM = "/dev/shm"  # noqa: S108 - a mount point in the container, nothing is written here
MOST_CLIENTS = 48
"""Clients of one MPS server, by CUDA's MPS manual (Volta and later)."""
PROBE = "get_default_active_thread_percentage"
"""A question that every control daemon answers with a number; what NVIDIA's own readiness check asks."""
QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Daemon:
    """The control daemon of one GPU. `memory_mib` is the whole GPU's; `capped`: a container has one unit at most."""

    gpu: str
    replicas: int
    memory_mib: int
    capped: bool


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of one daemon, on the host."""

    pipe: str
    log: str
    shm: str


def places(root: str, gpu: str) -> Places:
    """`root` is NVIDIA's mpsRoot. All daemons of a node share its `shm`, which must be a tmpfs."""
    base = root.rstrip("/")
    return Places(f"{base}/{gpu}/pipe", f"{base}/{gpu}/log", f"{base}/shm")


def by_mps(gpu: NodeGpu) -> bool:
    """Whether this GPU is sold by MPS. Slices are not: the configuration refuses MPS on them, as NVIDIA does."""
    return gpu.mode is Mode.SHARED and gpu.sold.strategy is Strategy.MPS


def wanted(gpus: Iterable[NodeGpu], refuse_more_than_one: frozenset[str]) -> Mapping[str, Daemon]:
    """The daemons that should run, by GPU."""
    return {
        g.uuid: Daemon(g.uuid, g.units, g.seen.model.memory_mib, g.sold.resource in refuse_more_than_one)
        for g in gpus
        if by_mps(g)
    }


def orders(daemon: Daemon) -> tuple[str, ...]:
    """What a fresh daemon is told (commands of nvidia-cuda-mps-control). It sees one GPU, which is its device 0.

    A client can only tighten what the daemon has by default, so a capped one cannot take more than its unit.
    """
    units = 1 if daemon.capped else daemon.replicas
    return (
        f"set_default_device_pinned_mem_limit 0 {memory_mib(units, daemon.replicas, daemon.memory_mib)}M",
        f"set_default_active_thread_percentage {threads(units, daemon.replicas)}",
    )


def environment(daemon: Daemon, where: Places) -> Mapping[str, str]:
    """Of the daemon itself, and of every command sent to it."""
    return {
        "CUDA_VISIBLE_DEVICES": daemon.gpu,
        "CUDA_MPS_PIPE_DIRECTORY": where.pipe,
        "CUDA_MPS_LOG_DIRECTORY": where.log,
    }


def threads(units: int, replicas: int) -> int:
    """Percent of the multiprocessors' threads for so many units; at least 1."""
    return max(1, 100 * units // replicas)


def memory_mib(units: int, replicas: int, whole_mib: int) -> int:
    return whole_mib * units // replicas


def client(where: Places, units: int, replicas: int, whole_mib: int) -> Grant | Denial:
    """What a container with `units` of a GPU with `whole_mib` gets. Never without a limit: the CUDA library takes a
    limit that is missing or not a number for none."""
    limit = memory_mib(units, replicas, whole_mib)
    if limit < 1:
        return Denial(f"{units} of {replicas} units of {whole_mib} MiB would have no memory limit")
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": PIPE,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(threads(units, replicas)),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}M",
    }
    return Grant(env, mounts=(Mount(PIPE, where.pipe, read_only=False), Mount(SHM, where.shm, read_only=False)))
