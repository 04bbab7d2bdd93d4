"""Keeps shared GPU memory to what was promised: sets the driver's limit where there is one, watches everywhere else."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster import names
from cluster.cache import Cache
from cluster.client import Client
from cluster.clock import Clock
from cluster.errors import ApiError, Conflict, NotFound
from cluster.events import Events
from device_plugin import guard, metrics
from device_plugin.cgroups import Cgroups
from device_plugin.devices import NodeGpu
from device_plugin.guard import Excess, Place, Watch
from gpu.hardware import FaultKind, GpuFault, GpuProcess, Hardware
from gpu.node import Mode, Placement, Stage
from policies.model import Sharing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Office:
    """What the guard works with: where objects are looked up, written and told of."""

    node: str
    client: Client
    cache: Cache
    events: Events
    clock: Clock


class MemoryGuard:
    """`tick` belongs to one thread, `condition` may be asked by any."""

    def __init__(
        self,
        office: Office,
        hardware: Hardware,
        cgroups: Cgroups,
        gpus: Callable[[], Iterable[NodeGpu]],
        rules: Callable[[], Sharing],
    ) -> None:
        self._office, self._hardware, self._cgroups = office, hardware, cgroups
        self._gpus, self._rules = gpus, rules
        self._watches: dict[Place, Watch] = {}
        self._over: dict[Place, Excess] = {}
        self._limited: dict[tuple[str, str], int] = {}
        self._without_limits: set[str] = set()

    def tick(self) -> str:
        """One look at who uses what; returns what was found, in words."""
        books = self._office.cache.snapshot().by_name.get(self._office.node)
        claimed = [p for p in books.seats if p.stage is Stage.CLAIMED] if books else []
        shared = [p for p in claimed if guard.together(p.shares)]
        gpus = {g.uuid: g for g in self._gpus() if any(s.gpu == g.uuid for p in shared for s in p.shares)}
        self._limit(shared, gpus)
        processes = self._processes(gpus)
        pods = self._cgroups.pods_of({p.pid for seen in processes.values() for p in seen})
        rules = self._rules()
        over = guard.excesses(shared, gpus.values(), processes, pods, rules.memory_tolerance)
        self._over = {p: e for p, e in self._over.items() if p.gpu in gpus and p.gpu not in processes} | over
        grace, now = rules.memory_grace_seconds, self._office.clock.now()
        self._watches, due = guard.judge(self._watches, over, frozenset(processes), grace, now)
        self._watches = {p: w for p, w in self._watches.items() if any(p.uid == s.pod.uid for s in shared)}
        for excess in due:
            if not self._act(excess, rules.on_memory_excess):
                place = Place(excess.pod.uid, excess.share.gpu, excess.share.slice)
                self._watches[place] = replace(self._watches[place], acted=False)
        metrics.memory_excess.set(sum(e.used_mib - e.promised_mib for e in over.values()) * 2**20)
        metrics.memory_offenders.set(len(over))
        return "; ".join(f"{e.pod} {e}" for e in over.values())

    def condition(self) -> Mapping[str, str]:
        """Of the GpuNode: who has been over for long enough to be reported."""
        late = [self._over[p] for p, w in self._watches.items() if w.acted and p in self._over]
        said = "; ".join(f"pod {e.pod} {e}" for e in sorted(late, key=str))
        return {
            "type": "SharesKept",
            "status": "False" if late else "True",
            "reason": "MemoryAboveShare" if late else "WithinPromise",
            "message": said[:1024],
        }

    def _processes(self, gpus: Mapping[str, NodeGpu]) -> dict[str, tuple[GpuProcess, ...]]:
        found = {}
        for uuid in gpus:
            try:
                found[uuid] = self._hardware.processes(uuid)
            except GpuFault as fault:
                log.debug("memory of GPU %s is not watched now: %s", uuid, fault)
        return found

    def _act(self, excess: Excess, action: str) -> bool:
        """Say it, and evict if that is the policy; False when it must be tried again."""
        pod = next((p for p in self._office.cache.pods_on(self._office.node) if _uid(p) == excess.pod.uid), None)
        if pod is None:
            return True  # it is gone already
        evicting = action == "evict"
        reason = names.EVICTED_FOR_MEMORY if evicting else names.MEMORY_ABOVE_SHARE
        if evicting:
            try:
                self._office.client.evict(excess.pod.namespace, excess.pod.name, excess.pod.uid)
            except (NotFound, Conflict):
                return True
            except ApiError as error:
                log.warning("pod %s %s, and cannot be evicted: %s", excess.pod, excess, error)
                self._office.events.write(pod, names.MEMORY_ABOVE_SHARE, f"It {excess}", warning=True)
                return False
        metrics.memory_actions.labels(action).inc()
        log.warning("pod %s %s%s", excess.pod, excess, "; it is evicted" if evicting else "")
        self._office.events.write(pod, reason, f"It {excess}", warning=True)
        return True

    def _limit(self, shared: Iterable[Placement], gpus: Mapping[str, NodeGpu]) -> None:
        """The driver's own limit, once for each pod and GPU; as soon as the pod's cgroup is there."""
        wanted: dict[tuple[str, str], int] = {}
        for placement in shared:
            for share in guard.together(placement.shares):
                gpu = gpus.get(share.gpu)
                limit = guard.promised_mib(gpu, share) if gpu is not None and gpu.mode is Mode.SHARED else None
                if limit:
                    wanted[placement.pod.uid, share.gpu] = limit
        self._limited = {key: mib for key, mib in self._limited.items() if key in wanted}
        for (uid, name), mib in wanted.items():
            if name in self._without_limits or self._limited.get((uid, name)) == mib:
                continue
            if place := self._cgroups.of_pod(uid):
                self._set_limit(uid, name, place, mib)

    def _set_limit(self, uid: str, gpu: str, place: str, mib: int) -> None:
        try:
            self._hardware.limit_memory(gpu, place, mib)
        except GpuFault as fault:
            if fault.kind is FaultKind.NOT_SUPPORTED:
                self._without_limits.add(gpu)
            else:
                log.warning("no memory limit for pod %s on GPU %s: %s", uid, gpu, fault)
            return
        self._limited[uid, gpu] = mib
        log.info("the driver keeps pod %s to %d MiB of GPU %s", uid, mib, gpu)


def _uid(pod: Mapping[str, Any]) -> str:
    return str((pod.get("metadata") or {}).get("uid", ""))
