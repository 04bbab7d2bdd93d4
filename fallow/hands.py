"""What the re-cut loop sees and does on its node, put together from the device plugin, the driver and the watches.

Wiring: gathers facts and hands acts on. Whether somebody still uses what goes is asked three times, of the API, of the
kubelet and of the driver; whoever does not answer counts as a user.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.cache import Cache
from device_plugin import users
from device_plugin.claims import Held
from device_plugin.devices import NodeGpu, shaped
from device_plugin.state import NodeState
from gpu.hardware import FaultKind, GpuFault, Hardware, SeenGpu
from gpu.node import Stage
from gpu.recut import Shape
from mig_manager import apply
from mig_manager.moment import Seen


@dataclass(frozen=True)
class Parts:
    """The parts of one node's agent.

    `held` asks the kubelet; `offer` writes the CDI spec of a GPU and then offers it (raises OSError); `publish` has the
    inventory written soon, and `published` says whether it has been; `units` is the policy's number of units;
    `conditions` are what else the GpuNode is to say.
    """

    node: str
    hardware: Hardware
    state: NodeState
    cache: Cache
    held: Callable[[], tuple[Held, ...]]
    offer: Callable[[NodeGpu], None]
    publish: Callable[[], None]
    published: Callable[[], bool]
    units: Callable[[], int]
    conditions: Callable[[], tuple[Mapping[str, str], ...]]


class Hands:
    """Implements mig_manager.agent.NodeHands."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def gpus(self) -> tuple[str, ...]:
        return tuple(g.uuid for g in self._parts.state.gpus())

    def see(self, gpu: str, target: Shape) -> Seen:
        known = self._known(gpu)
        seen = self._parts.hardware.read(gpu)
        going = known.lacking(target)
        books = self._parts.cache.snapshot().by_name.get(self._parts.node)
        return Seen(
            mig=seen.mig,
            layout=seen.layout,
            complete=seen.whole_slices,
            advertised=known.shape,
            holders=(
                *users.in_books(books, Stage.CLAIMED, known, target),
                *self._kubelet_users(going),
                *self._process_users(seen, known, target),
            ),
            unstarted=users.in_books(books, Stage.PROMISED, known, target),
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
        try:
            self._parts.offer(shaped(self._known(gpu), seen, shape, self._parts.units()))
        except OSError as error:
            raise GpuFault(FaultKind.OTHER, f"writing the CDI spec ({error})", gpu) from error
        self._parts.state.recutting(gpu, busy=False)
        self._parts.publish()

    def conditions(self) -> tuple[Mapping[str, str], ...]:
        return self._parts.conditions()

    def _known(self, gpu: str) -> NodeGpu:
        known = self._parts.state.gpu(gpu)
        if known is None:
            raise GpuFault(FaultKind.NOT_FOUND, "looking at", gpu)
        return known

    def _kubelet_users(self, going: frozenset[str]) -> tuple[str, ...]:
        try:
            return users.in_kubelet(self._parts.held(), going) if going else ()
        except ConnectionError as error:
            return (f"unknown users ({error})",)

    def _process_users(self, seen: SeenGpu, known: NodeGpu, target: Shape) -> tuple[str, ...]:
        if seen.fault:
            return ()
        return users.in_driver(seen, known, target, self._parts.hardware.processes(seen.uuid))

    def _node_agrees(self) -> bool:
        node = self._parts.cache.node(self._parts.node) or {}
        return self._parts.published() and users.node_shows(node, self._parts.state.lists()[1])
