"""Whether pods keep to the memory of their shares: units of a GPU are a promise that the driver does not enforce.

Pure. Slices and MPS with one unit per container are walls; everything else that is shared is watched: what the
processes of a pod use on a GPU or a slice, against its part of it. The offender is named, never its victims.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from device_plugin.devices import NodeGpu
from gpu.hardware import GpuProcess
from gpu.layout import Slice
from gpu.node import Placement, PodRef, Share


@dataclass(frozen=True, slots=True)
class Excess:
    """A pod that uses more than its share of one GPU, or of one slice, promises it."""

    pod: PodRef
    share: Share
    promised_mib: int
    used_mib: int

    def __str__(self) -> str:
        return f"uses {self.used_mib} MiB of GPU memory; its share ({self.share}) promises {self.promised_mib} MiB"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an excess is: units of one pod on one GPU, or on one slice of it."""

    uid: str
    gpu: str
    slice: Slice | None


@dataclass(frozen=True, slots=True)
class Watch:
    """An excess that lasts: seen first at `since`, seconds since the epoch, and whether it has been acted upon."""

    since: float
    acted: bool = False


def promised_mib(gpu: NodeGpu, share: Share) -> int | None:
    """The memory that so many units promise; None for what the hardware divides itself and what is not shared."""
    if not share.units:
        return None
    if share.slice is None:
        return gpu.seen.model.memory_mib * share.units // gpu.units if gpu.units else None
    replicas = next((gpu.sold_slice(s).replicas for s in gpu.slices if s.slice == share.slice), 0)
    return share.slice.profile.memory_mib * share.units // replicas if replicas else None


def excesses(
    placements: Iterable[Placement],
    gpus: Iterable[NodeGpu],
    processes: Mapping[str, Sequence[GpuProcess]],
    pod_of: Mapping[int, str],
    tolerance: float,
) -> dict[Place, Excess]:
    """Who is over now. `processes` by GPU, a GPU that could not be asked is missing; `pod_of` pod UIDs by process.

    A process that the driver tells no memory of, or that belongs to no pod, counts for nobody.
    """
    by_uuid = {g.uuid: g for g in gpus if g.uuid in processes}
    found: dict[Place, Excess] = {}
    for pod, share in ((p.pod, s) for p in placements for s in together(p.shares)):
        gpu = by_uuid.get(share.gpu)
        promised = promised_mib(gpu, share) if gpu is not None else None
        if gpu is None or promised is None:
            continue
        mine = {pid for pid, uid in pod_of.items() if uid == pod.uid}
        used = _used(gpu, share.slice, processes[gpu.uuid], mine)
        if used > promised * (1 + tolerance):
            found[Place(pod.uid, gpu.uuid, share.slice)] = Excess(pod, share, promised, used)
    return found


def together(shares: Iterable[Share]) -> tuple[Share, ...]:
    """The same shares with the units of all containers on one GPU, or on one slice, added up."""
    units: dict[tuple[str, Slice | None], int] = {}
    for share in shares:
        if share.units:
            key = (share.gpu, share.slice)
            units[key] = units.get(key, 0) + share.units
    return tuple(Share(gpu, piece, n) for (gpu, piece), n in units.items())


def judge(
    before: Mapping[Place, Watch],
    now_over: Mapping[Place, Excess],
    asked: frozenset[str],
    seconds: float,
    now: float,
) -> tuple[dict[Place, Watch], tuple[Excess, ...]]:
    """The watches from now on, and the excesses to act upon: once for each that has lasted `seconds`.

    Of GPUs that could not be `asked` nothing is known: their watches stay.
    """
    watches = {p: w for p, w in before.items() if p.gpu not in asked}
    due = []
    for place, excess in now_over.items():
        watch = before.get(place, Watch(now))
        if not watch.acted and now - watch.since >= seconds:
            watch = Watch(watch.since, acted=True)
            due.append(excess)
        watches[place] = watch
    return watches, tuple(due)


def _used(gpu: NodeGpu, piece: Slice | None, processes: Iterable[GpuProcess], mine: set[int]) -> int:
    gis = {s.gi for s in gpu.seen.slices if s.slice == piece} if piece is not None else {None}
    return sum(p.memory_mib or 0 for p in processes if p.pid in mine and p.gi in gis)
