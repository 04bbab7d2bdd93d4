"""What the re-cut loop sees and does on its node, put together from the device plugin, the driver and the watches.

Wiring: gathers facts and hands acts on. Whether somebody still uses what goes is asked three times, of the API, of the
kubelet and of the driver; whoever does not answer counts as a user.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster import names
from cluster.cache import Cache
from device_plugin.claims import Held
from device_plugin.devices import NodeGpu, shaped
from device_plugin.state import NodeState
from gpu.hardware import FaultKind, GpuFault, Hardware, SeenGpu
from gpu.node import Mode, Placement, Share, Stage
from gpu.recut import Shape
from mig_manager import apply
from mig_manager.moment import Seen


@dataclass(frozen=True)
class Parts:
    """The parts of one node's agent.

    `held` asks the kubelet; `write_spec` writes the CDI spec of a GPU (raises OSError); `publish` has the inventory
    written soon, and `published` says whether it has been; `units` is the policy's number of units.
    """

    node: str
    hardware: Hardware
    state: NodeState
    cache: Cache
    held: Callable[[], tuple[Held, ...]]
    write_spec: Callable[[NodeGpu], None]
    publish: Callable[[], None]
    published: Callable[[], bool]
    units: Callable[[], int]


class Hands:
    """Implements mig_manager.agent.NodeHands."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def gpus(self) -> tuple[str, ...]:
        return tuple(g.uuid for g in self._parts.state.gpus())

    def see(self, gpu: str, target: Shape) -> Seen:
        known = self._known(gpu)
        seen = self._parts.hardware.read(gpu)
        placements = self._placements()
        going = known.lacking(target)
        return Seen(
            mig=seen.mig,
            layout=seen.layout,
            complete=seen.whole_slices,
            advertised=known.shape,
            holders=(
                *_names(placements, Stage.CLAIMED, gpu, known, target),
                *self._kubelet_users(going),
                *self._process_users(seen, known, target),
            ),
            unstarted=_names(placements, Stage.PROMISED, gpu, known, target),
            withheld=going <= known.withheld,
            node_agrees=self._node_agrees(),
            short=bool(known.withheld),
            fault=seen.fault,
        )

    def withhold(self, gpu: str, target: Shape) -> None:
        self._parts.state.recutting(gpu, busy=True)
        self._parts.state.withhold(gpu, target)

    def release(self, gpu: str) -> None:
        self._parts.state.release(gpu)
        self._parts.state.recutting(gpu, busy=False)

    def apply(self, gpu: str, target: Shape) -> None:
        self._parts.state.recutting(gpu, busy=True)
        apply.towards(self._parts.hardware, gpu, target)

    def advertise(self, gpu: str, shape: Shape) -> None:
        seen = self._parts.hardware.read(gpu)
        if seen.fault:
            raise GpuFault(FaultKind.LOST, f"reading ({seen.fault})", gpu)
        fresh = shaped(self._known(gpu), seen, shape, self._parts.units())
        try:
            self._parts.write_spec(fresh)
        except OSError as error:
            raise GpuFault(FaultKind.OTHER, f"writing the CDI spec ({error})", gpu) from error
        self._parts.state.reshape(fresh)
        self._parts.state.recutting(gpu, busy=False)
        self._parts.publish()

    def _known(self, gpu: str) -> NodeGpu:
        known = self._parts.state.gpu(gpu)
        if known is None:
            raise GpuFault(FaultKind.NOT_FOUND, "looking at", gpu)
        return known

    def _placements(self) -> tuple[Placement, ...]:
        node = self._parts.cache.snapshot().by_name.get(self._parts.node)
        return node.seats if node else ()

    def _kubelet_users(self, going: frozenset[str]) -> tuple[str, ...]:
        if not going:
            return ()
        try:
            held = self._parts.held()
        except ConnectionError as error:
            return (f"unknown users ({error})",)
        return tuple(sorted({f"{h.namespace}/{h.pod}" for h in held if going & set(h.ids)}))

    def _process_users(self, seen: SeenGpu, known: NodeGpu, target: Shape) -> tuple[str, ...]:
        if seen.fault:
            return ()
        all_of_it = seen.mig is not (target.mode is Mode.SLICED) or known.mode is not target.mode
        gone = {s.gi for s in seen.slices if s.slice not in target.layout}
        if not all_of_it and not gone:
            return ()
        return tuple(f"process {p.pid}" for p in self._parts.hardware.processes(seen.uuid) if all_of_it or p.gi in gone)

    def _node_agrees(self) -> bool:
        node = self._parts.cache.node(self._parts.node) or {}
        return self._parts.published() and node_shows(node, self._parts.state)


def node_shows(node: Mapping[str, Any], state: NodeState) -> bool:
    """Whether the Node's allocatable is what is advertised now."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    shown = {name: int(n) for name, n in allocatable.items() if names.is_ours(name) and str(n).isdecimal()}
    offered = {name: sum(d.healthy for d in devices) for name, devices in state.lists()[1].items()}
    return all(shown.get(name, 0) == offered.get(name, 0) for name in shown.keys() | offered.keys())


def _names(placements: Iterable[Placement], stage: Stage, gpu: str, known: NodeGpu, target: Shape) -> tuple[str, ...]:
    return tuple(
        sorted(
            str(p.pod)
            for p in placements
            if p.stage is stage and any(s.gpu == gpu and _goes(s, known, target) for s in p.shares)
        )
    )


def _goes(share: Share, known: NodeGpu, target: Shape) -> bool:
    return known.mode is not target.mode or (share.slice is not None and share.slice not in target.layout)
