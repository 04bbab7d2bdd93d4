"""The number of units of a shared GPU follows the policy, but never under a pod: a unit is what was promised."""

import logging
from collections.abc import Callable, Iterable

from device_plugin.claims import Held
from device_plugin.devices import NodeGpu
from device_plugin.state import NodeState
from gpu.node import Mode, Placement
from gpu.recut import Shape

log = logging.getLogger(__name__)


def may_take(gpu: NodeGpu, units: int, held: Iterable[Held], placements: Iterable[Placement]) -> bool:
    """Whether a shared GPU may take this new number: nobody holds or is promised units of the old one. Pure."""
    if gpu.units == units or not gpu.units:
        return False
    ids = gpu.shares.keys()
    listed = any(i in ids for h in held for i in h.ids)
    booked = any(s.gpu == gpu.uuid and s.units for p in placements for s in p.shares)
    return not listed and not booked


class Units:
    """Belongs to one thread. Two looks for each change: the ids are withheld after the first, for an Allocate may be
    on its way, and the number changes after the second."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._changing: set[str] = set()

    def follow(self, wanted: int, held: Callable[[], tuple[Held, ...]], placements: Iterable[Placement]) -> None:
        """`held` asks the kubelet; when it does not answer, everything stays as it is."""
        stale = [g for g in self._state.gpus() if g.mode is Mode.SHARED and g.units != wanted]
        if not stale and not self._changing:
            return
        try:
            listed, booked = held(), tuple(placements)
        except ConnectionError as error:
            log.info("units stay as they are: %s", error)
            return
        free = {g.uuid for g in stale if may_take(g, wanted, listed, booked)}
        for uuid in self._changing - free:
            self._state.release(uuid)
        for uuid in free & self._changing:
            self._state.set_units(uuid, wanted)
            log.info("GPU %s is now shared into %d units", uuid, wanted)
        for uuid in free - self._changing:
            self._state.withhold(uuid, Shape(Mode.WHOLE))
        self._changing = free - self._changing
