"""How GPUs are sold follows the policy and the configuration file, but never under a pod: a unit is a promise."""

import logging
from collections.abc import Callable, Iterable

from device_plugin import devices
from device_plugin.claims import Held
from device_plugin.devices import NodeGpu
from device_plugin.sale import Wish
from device_plugin.state import NodeState
from gpu.node import Placement

log = logging.getLogger(__name__)


def pending(gpu: NodeGpu, wish: Wish) -> bool:
    """Whether this GPU is not sold yet as it is to be. Pure."""
    return not gpu.seen.fault and devices.wanted(gpu, wish) != gpu


def may_take(gpu: NodeGpu, wish: Wish, held: Iterable[Held], placements: Iterable[Placement]) -> bool:
    """Whether the GPU may be sold otherwise now: its ids stay the same, or nobody holds or is promised one. Pure."""
    goal = devices.wanted(gpu, wish)
    if {i: goal.resource(i) for i in goal.shares} == {i: gpu.resource(i) for i in gpu.shares}:
        return True
    ids = gpu.shares.keys()
    listed = any(i in ids for h in held for i in h.ids)
    return not listed and not any(s.gpu == gpu.uuid for p in placements for s in p.shares)


class Sharing:
    """Belongs to one thread. Two looks for each change: the ids are withheld after the first, for an Allocate may be
    on its way, and the GPU is sold anew after the second. `busy` GPUs are being re-cut: nobody else changes them."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._changing: set[str] = set()

    def follow(self, wish: Wish, held: Callable[[], tuple[Held, ...]], placements: Iterable[Placement]) -> None:
        """`held` asks the kubelet; when it does not answer, everything stays as it is."""
        stale = [g for g in self._state.gpus() if pending(g, wish) and not self._state.is_recutting(g.uuid)]
        if not stale and not self._changing:
            return
        try:
            listed, booked = held(), tuple(placements)
        except ConnectionError as error:
            log.info("GPUs are sold as before: %s", error)
            return
        free = {g.uuid for g in stale if may_take(g, wish, listed, booked)}
        for uuid in self._changing - free:
            self._state.release(uuid)
        for uuid in free & self._changing:
            self._state.sell(uuid, wish)
            log.info("GPU %s is sold anew: %s", uuid, _words(self._state.gpu(uuid)))
        for uuid in free - self._changing:
            self._state.close(uuid)
        self._changing = free - self._changing


def _words(gpu: NodeGpu | None) -> str:
    if gpu is None:
        return "gone"
    counts: dict[str, int] = {}
    for id_ in gpu.shares:
        counts[gpu.resource(id_)] = counts.get(gpu.resource(id_), 0) + 1
    return ", ".join(f"{n} x {name}" for name, n in sorted(counts.items())) or "nothing"
