"""The door to real GPUs: what may be asked of them and what can go wrong.

`nvml.py` is the real one, `fake.py` the double in Python; both keep the same rules and raise the same faults.
Every act compares first and may be repeated: cutting a slice that is already there returns it,
joining one that is gone does nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from gpu.layout import Layout, Slice, canonical
from gpu.profiles import GpuModel


class FaultKind(StrEnum):
    LOST = "the GPU has fallen off the bus"
    IN_USE = "somebody still uses it"
    NO_ROOM = "something else occupies that place"
    NOT_SUPPORTED = "this GPU or driver cannot do that"
    NO_PERMISSION = "the caller lacks the privilege"
    RESET_REQUIRED = "the GPU must be reset first"
    NOT_FOUND = "no such GPU or slice"
    TIMEOUT = "the driver did not answer in time"
    UNAVAILABLE = "the driver or its library cannot be reached"
    OTHER = "the driver reported an error"


class GpuFault(Exception):
    """Something the hardware refused or broke. `call` is the driver call, `code` its own number."""

    def __init__(self, kind: FaultKind, call: str, gpu: str = "", code: int | None = None) -> None:
        number = "" if code is None else f" (code {code})"
        super().__init__(f"{call}{f' on {gpu}' if gpu else ''}: {kind.value}{number}")
        self.kind, self.call, self.gpu, self.code = kind, call, gpu, code


@dataclass(frozen=True, slots=True)
class SeenSlice:
    """A slice as the driver shows it. `uuid` and `ci` are None while its compute instance is missing."""

    slice: Slice
    gi: int
    ci: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """One GPU as the driver shows it at this moment. `fault` says why the rest may be old or empty."""

    uuid: str
    index: int
    minor: int
    bus_id: str
    name: str
    model: GpuModel
    mig: bool = False
    slices: tuple[SeenSlice, ...] = ()
    numa: int | None = None
    fault: str = ""

    @property
    def layout(self) -> Layout:
        return canonical(s.slice for s in self.slices)

    @property
    def whole_slices(self) -> bool:
        """No slice is half made (a GPU instance without its compute instance)."""
        return all(s.uuid for s in self.slices)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; `gi` is None outside MIG, `memory_mib` None where the driver does not tell."""

    pid: int
    memory_mib: int | None
    gi: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """Activity over the driver's own sample period: shares of time between 0 and 1."""

    busy: float
    memory_busy: float
    memory_used_mib: int
    source: str


@dataclass(frozen=True, slots=True)
class HardwareEvent:
    """An XID (`code`) on a GPU; `gi` None means it may concern the whole of it; `gpu` "" means any."""

    gpu: str
    code: int
    gi: int | None


class Ancestor(IntEnum):
    """The nearest thing two GPUs have in common on PCIe (NVML's numbers): the smaller, the nearer."""

    BOARD = 0
    SWITCH = 10
    SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50


@dataclass(frozen=True, slots=True)
class Link:
    """How two GPUs reach each other. `nvlinks` counts the NVLinks between them: direct ones, or those that both have
    into an NVSwitch fabric (the smaller number). `p2p`: the driver lets them read each other's memory."""

    nvlinks: int
    ancestor: Ancestor
    p2p: bool


@dataclass(frozen=True)
class Topology:
    """Links by pair of UUIDs, smaller UUID first. A pair that could not be asked about is missing."""

    links: Mapping[tuple[str, str], Link]

    def between(self, a: str, b: str) -> Link | None:
        return self.links.get((a, b) if a < b else (b, a))


class Recovery(StrEnum):
    """What the driver says must be done before the GPU works again (NVML field 230)."""

    NONE = "none"
    GPU_RESET = "a reset of the GPU"
    NODE_REBOOT = "a reboot of the node"
    DRAIN_P2P = "a drain of its peer traffic"
    DRAIN_AND_RESET = "a drain and a reset of the GPU"
    RECOVER_IMEX = "a recovery of the IMEX domain"
    BUS_RESET = "a reset of the bus"
    SYSTEM_REBOOT = "a reboot of the system"


@dataclass(frozen=True, slots=True)
class Checkup:
    """Signs of a worn or broken GPU. What the GPU does not support is None, and no sign of anything.

    `uncorrectable` counts memory errors since the driver was loaded.
    """

    remap_pending: bool | None = None
    remap_failed: bool | None = None
    uncorrectable: int | None = None
    recovery: Recovery | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """What a GPU is, beyond its MIG tables. `compute` is CUDA's compute capability; `display` that a display may be
    driven (compute mode otherwise); `fabric` is `<cluster uuid>.<clique>` in a multi-node NVLink domain, else ""."""

    architecture: str
    compute: tuple[int, int]
    memory_mib: int
    display: bool = False
    fabric: str = ""
    mig_capable: bool = False


@dataclass(frozen=True, slots=True)
class Engines:
    """The parts of one slice, as nvmlDeviceGetAttributes has them."""

    memory_mib: int
    multiprocessors: int
    gi_slices: int
    ci_slices: int
    copy: int
    decoder: int
    encoder: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions: of the driver (`570.86.15`) and of the CUDA it brings (major, minor)."""

    version: str
    cuda: tuple[int, int]


class Hardware(Protocol):
    """Raises GpuFault from every method; `gpus` never raises for one bad GPU but marks it with `fault`."""

    def gpus(self) -> tuple[SeenGpu, ...]:
        """All GPUs of this machine, by index. Raises GpuFault UNAVAILABLE when the driver is not there."""

    def read(self, gpu: str) -> SeenGpu: ...

    def set_mig(self, gpu: str, on: bool) -> None:
        """Switch MIG mode; IN_USE or RESET_REQUIRED when that cannot be done now. Already so: does nothing."""

    def cut(self, gpu: str, piece: Slice) -> SeenSlice:
        """Create the slice with its full-size compute instance at its named start.

        NO_ROOM when something else stands there. A half-made slice at that place is completed.
        """

    def join(self, gpu: str, piece: Slice) -> None:
        """Destroy the slice; IN_USE when a process is on it. Gone already: does nothing."""

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]: ...

    def activity(self, gpu: str) -> Reading:
        """NOT_SUPPORTED where the driver cannot measure (NVML utilisation in MIG mode)."""

    def driver(self) -> Driver: ...

    def product(self, gpu: str) -> Product: ...

    def engines(self, gpu: str) -> Mapping[int, Engines]:
        """Of every complete slice, by its GPU instance id; empty outside MIG mode."""

    def checkup(self, gpu: str) -> Checkup: ...

    def topology(self) -> Topology:
        """How the GPUs reach each other. Never raises for one bad GPU: its pairs are missing."""

    def set_exclusive(self, gpu: str, on: bool) -> None:
        """Compute mode EXCLUSIVE_PROCESS (as MPS wants it) or DEFAULT. Already so: does nothing."""

    def limit_memory(self, gpu: str, cgroup: str, limit_mib: int) -> None:
        """The driver's own ceiling for the processes of a cgroup (its path below the cgroup file system, absolute).

        NOT_SUPPORTED on drivers older than R615 and on GPUs in MIG mode.
        """

    def events(self, timeout_seconds: float) -> tuple[HardwareEvent, ...]:
        """What happened since the last call; empty after the time-out, and at once when the door is closed."""

    def close(self) -> None: ...
