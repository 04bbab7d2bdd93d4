"""How a device reaches its container: by CDI, by NVIDIA's environment variable, by its marker mounts, as device nodes.

Pure. The ways and their names are those of NVIDIA's device plugin (`deviceListStrategy` and its neighbours).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CDI_KIND = "fallow.dev/gpu"
CDI_KEY = "fallow-device-plugin"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MARKERS = "/var/run/nvidia-container-devices"
"""Where NVIDIA's container toolkit looks for marker mounts: one mount of /dev/null for each device."""
FABRIC = ("gds", "mofed", "gdrcopy")
"""Extras by their name in the environment: NVIDIA_GDS=enabled and so on."""


@dataclass(frozen=True, slots=True)
class Mount:
    container: str
    host: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """A device node: its path in the container and on the host."""

    container: str
    host: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """The ways in force. `annotations` is the prefix of CDI annotations, "" for none; `nodes` also passes device nodes
    (NVIDIA's passDeviceSpecs); `by_index` names whole GPUs by index where a way knows indexes; `extras` of FABRIC;
    `also` are further CDI names that every container gets."""

    cdi: bool = True
    annotations: str = ""
    envvar: bool = False
    mounts: bool = False
    nodes: bool = False
    by_index: bool = False
    extras: frozenset[str] = frozenset()
    imex_channels: tuple[int, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container gets."""

    env: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[Node, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    def with_env(self, env: Mapping[str, str], mounts: Iterable[Mount] = ()) -> "Grant":
        return Grant({**self.env, **env}, self.cdi, (*self.mounts, *mounts), self.nodes, self.annotations)


@dataclass(frozen=True, slots=True)
class Named:
    """A device to hand out: its CDI name (a UUID), the index of its GPU (None for a slice: NVML's own index of a slice
    changes with every re-cut), and its device nodes, relative to the root of devices."""

    name: str
    index: int | None
    nodes: Sequence[str]


def deliver(devices: Sequence[Named], ways: Delivery, dev_root: str, exists: Callable[[str], bool]) -> Grant:
    """The answer for these devices, each named once."""
    ids = [str(d.index) if ways.by_index and d.index is not None else d.name for d in devices]
    names = (*(f"{CDI_KIND}={d.name}" for d in devices), *ways.also)
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    if ways.envvar:
        env[VISIBLE] = ",".join(ids)
    if ways.mounts:
        env[VISIBLE] = MARKERS
        mounts += [Mount(f"{MARKERS}/{i}", "/dev/null") for i in (*ids, *(f"imex/{c}" for c in ways.imex_channels))]
    if ways.envvar or ways.mounts:
        env |= {f"NVIDIA_{extra.upper()}": "enabled" for extra in sorted(ways.extras)}
    if ways.envvar and ways.imex_channels:
        env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, ways.imex_channels))
    nodes = _nodes(devices, dev_root, exists) if ways.nodes else ()
    annotations = {f"{ways.annotations}{CDI_KEY}": ",".join(names)} if ways.annotations else {}
    return Grant(env, names if ways.cdi else (), tuple(mounts), nodes, annotations)


def _nodes(devices: Sequence[Named], dev_root: str, exists: Callable[[str], bool]) -> tuple[Node, ...]:
    """Those that exist: naming one that does not would fail the container."""
    root = dev_root.rstrip("/")
    wanted = dict.fromkeys(path for d in devices for path in d.nodes)
    return tuple(Node(f"/dev/{p}", f"{root}/{p}") for p in wanted if exists(f"{root}/{p}"))
