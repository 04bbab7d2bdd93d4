"""The node's GPUs as they are advertised at this moment: one owner, one lock, no call to anybody under it."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from device_plugin import devices
from device_plugin.devices import Device, NodeGpu
from device_plugin.health import Health, on_read, on_xid
from device_plugin.sale import Wish
from gpu.hardware import HardwareEvent, SeenGpu
from gpu.node import Gpu
from gpu.recut import Shape


class NodeState:
    """Values in, values out. `version` grows with every change that the kubelet must hear of. `lack` says why a GPU
    that is sound must not be given out all the same; it is asked under the lock and must only look something up."""

    def __init__(self, lack: Callable[[NodeGpu], str] = lambda _: "") -> None:
        self._lack = lack
        self._changed = threading.Condition()
        self._gpus: dict[str, NodeGpu] = {}
        self._health: dict[str, Health] = {}
        self._busy: frozenset[str] = frozenset()
        self._edits: dict[str, int] = {}
        self.version = 0

    def gpus(self) -> tuple[NodeGpu, ...]:
        with self._changed:
            return tuple(sorted(self._gpus.values(), key=lambda g: (g.seen.index, g.uuid)))

    def gpu(self, uuid: str) -> NodeGpu | None:
        with self._changed:
            return self._gpus.get(uuid)

    def lists(self) -> tuple[int, dict[str, tuple[Device, ...]]]:
        """The version, and what each resource name offers."""
        with self._changed:
            return self.version, devices.lists(self.gpus())

    def wait(self, seen: int, timeout_seconds: float) -> int:
        """Block until the version is above `seen` or the time is over; the version now."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > seen, timeout_seconds)
            return self.version

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def edits(self) -> Mapping[str, int]:
        """How often each GPU has been changed by a re-cut; to be asked before the hardware is read for `take`."""
        with self._changed:
            return dict(self._edits)

    def take(
        self,
        seen: tuple[SeenGpu, ...],
        remembered: Mapping[str, Gpu],
        wish: Wish,
        now: float,
        edits: Mapping[str, int],
    ) -> None:
        """A fresh look at the hardware. A GPU that vanished stays, unhealthy: pods may still refer to it.

        A GPU that a re-cut has changed since `edits` is left alone: what was read of it is from before.
        """
        with self._changed:
            lost = (
                replace(g.seen, fault="the driver no longer shows this GPU")
                for u, g in self._gpus.items()
                if u not in {s.uuid for s in seen}
            )
            looked = (*seen, *lost)
            for gpu in looked:
                self._health[gpu.uuid] = on_read(self._health.get(gpu.uuid, Health()), gpu.fault, now)
            fresh = {g.uuid: g for g in devices.assemble(looked, self._gpus, remembered, self._busy, wish)}
            late = {u: self._gpus[u] for u in self._gpus if self._edits.get(u, 0) != edits.get(u, 0)}
            self._put(fresh | late)

    def take_event(self, event: HardwareEvent, now: float) -> None:
        """An XID; one that names no GPU concerns them all."""
        with self._changed:
            for uuid in [event.gpu] if event.gpu in self._gpus else list(self._gpus):
                self._health[uuid] = on_xid(self._health.get(uuid, Health()), event.code, now)
            self._put(self._gpus)

    def renew(self) -> None:
        """What the GPUs lack may have changed."""
        with self._changed:
            self._put(self._gpus)

    def recutting(self, uuid: str, *, busy: bool) -> None:
        """A GPU being re-cut keeps the shape it is advertised in until its re-cut says otherwise."""
        with self._changed:
            self._busy = self._busy | {uuid} if busy else self._busy - {uuid}
            self._edits[uuid] = self._edits.get(uuid, 0) + 1

    def is_recutting(self, uuid: str) -> bool:
        with self._changed:
            return uuid in self._busy

    def withhold(self, uuid: str, target: Shape) -> None:
        self._edit(uuid, lambda g: replace(g, withheld=g.lacking(target)))

    def release(self, uuid: str) -> None:
        self._edit(uuid, lambda g: replace(g, withheld=frozenset()))

    def reshape(self, gpu: NodeGpu) -> None:
        """Offer the GPU as its re-cut has made it (see devices.shaped)."""
        self._edit(gpu.uuid, lambda _: gpu)

    def close(self, uuid: str) -> None:
        """Withhold every id of this GPU."""
        self._edit(uuid, lambda g: replace(g, withheld=frozenset(g.shares)))

    def sell(self, uuid: str, wish: Wish) -> None:
        """Offer the GPU as it is to be sold, nothing withheld."""
        self._edit(uuid, lambda g: replace(devices.wanted(g, wish), withheld=frozenset()))

    def _edit(self, uuid: str, edit: Callable[[NodeGpu], NodeGpu]) -> None:
        with self._changed:
            if uuid in self._gpus:
                self._edits[uuid] = self._edits.get(uuid, 0) + 1
                self._put({**self._gpus, uuid: edit(self._gpus[uuid])})

    def _with_health(self, gpu: NodeGpu) -> NodeGpu:
        health = self._health.get(gpu.uuid, Health())
        problem = health.problem or self._lack(gpu)
        return replace(gpu, healthy=health.healthy and not problem, problem=problem)

    def _put(self, fresh: Mapping[str, NodeGpu]) -> None:
        gpus = {u: self._with_health(g) for u, g in fresh.items()}
        before = devices.lists(self._gpus.values())
        changed = gpus != self._gpus
        self._gpus = gpus
        if changed and devices.lists(gpus.values()) != before:
            self.version += 1
            self._changed.notify_all()
