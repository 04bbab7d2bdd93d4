"""Who still uses what a re-cut takes away: the most safety-relevant question of the house.

Pure. Asked three times, of the books, of the kubelet and of the driver; whoever does not answer counts as a user.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster import facts, names
from device_plugin.claims import Held
from device_plugin.devices import Device, NodeGpu
from gpu.hardware import GpuProcess, SeenGpu
from gpu.node import Mode, NodeGpus, Share, Stage
from gpu.recut import Shape


def in_books(node: NodeGpus | None, stage: Stage, gpu: NodeGpu, target: Shape) -> tuple[str, ...]:
    """Pods that hold (claimed) or are promised a share that `target` lacks."""
    if node is None:
        return ("unknown users (the books of this node are not there)",) if stage is Stage.CLAIMED else ()
    found = {
        str(p.pod)
        for p in node.seats
        if p.stage is stage and any(s.gpu == gpu.uuid and goes(s, gpu, target) for s in p.shares)
    }
    return tuple(sorted(found))


def in_kubelet(held: Iterable[Held], going: frozenset[str]) -> tuple[str, ...]:
    """Pods to which the kubelet has given one of the ids that go."""
    return tuple(sorted({f"{h.namespace}/{h.pod}" for h in held if going & set(h.ids)}))


def in_driver(seen: SeenGpu, gpu: NodeGpu, target: Shape, processes: Iterable[GpuProcess]) -> tuple[str, ...]:
    """Processes on what goes: on the whole GPU when its mode changes, else on the slices that `target` lacks."""
    all_of_it = seen.mig is not (target.mode is Mode.SLICED) or gpu.mode is not target.mode
    gone = {s.gi for s in seen.slices if s.slice not in target.layout}
    return tuple(f"process {p.pid}" for p in processes if all_of_it or p.gi in gone)


def goes(share: Share, gpu: NodeGpu, target: Shape) -> bool:
    """Whether this share of the GPU ends when it becomes `target`."""
    return gpu.mode is not target.mode or (share.slice is not None and share.slice not in target.layout)


def node_shows(node: Mapping[str, Any], lists: Mapping[str, Sequence[Device]]) -> bool:
    """Whether the Node's allocatable is what is advertised now."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    shown = {name: facts.quantity(n) for name, n in allocatable.items() if names.is_ours(name) or name in lists}
    offered = {name: sum(d.healthy for d in devices) for name, devices in lists.items()}
    return all((shown.get(name) or 0) == offered.get(name, 0) for name in shown.keys() | offered.keys())
