"""Which device ids to like, and what a container gets for the ids it was given.

Pure. The kubelet never says for which pod it asks. `prefer` steers it to what was promised to a pod of that size;
`grant` turns ids into CDI names and needs no pod's name, so it cannot give the wrong one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.facts import resource_of
from device_plugin.devices import UNIT, NodeGpu, owner
from gpu.node import Mode, Placement, Share

CDI_KIND = "fallow.dev/gpu"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container gets: environment variables and CDI device names."""

    env: dict[str, str]
    cdi: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Denial:
    """Why these ids are not handed out, in words for the pod's status."""

    why: str


def prefer(
    available: Sequence[str],
    must: Sequence[str],
    size: int,
    wanted_resource: str,
    gpus: Iterable[NodeGpu],
    promises: Iterable[Placement],
) -> tuple[str, ...]:
    """`size` of the available ids: the promised ones if a promise of that size is outstanding, else the tightest.

    `promises` are the placements of pods bound to this node that have not been handed their devices yet.
    """
    gpus = tuple(gpus)
    shares = {i: s for g in gpus for i, s in g.shares.items()}
    usable = [i for i in available if i in shares]
    mine = [
        [s for s in p.shares if resource_of(s) == wanted_resource]
        for p in sorted(promises, key=lambda p: (len(p.shares), p.at, p.pod.uid))
    ]
    # A promise of exactly this size first. A larger one may be asked for by an init container, which hands its units
    # on to the container that they were promised to.
    for exact in (True, False):
        for promised in mine:
            if (ids := _promised(usable, must, size, promised, shares, exact=exact)) is not None:
                return ids
    return _tightest(usable, must, size, shares, gpus)


def grant(ids: Sequence[str], gpus: Iterable[NodeGpu]) -> Grant | Denial:
    """The answer to one container's Allocate."""
    gpus = tuple(gpus)
    if not ids:
        return Denial("no device was named")
    owners = {i: owner(gpus, i) for i in ids}
    for id_, gpu in owners.items():
        if gpu is None:
            return Denial(f"device {id_} is not here (any more)")
        if id_ in gpu.withheld:
            return Denial(f"device {id_} is being re-cut")
        if not gpu.healthy:
            return Denial(f"device {id_} is unhealthy: {gpu.problem or 'see the events of its GpuNode'}")
    held = [g for g in owners.values() if g is not None]
    if held[0].mode is Mode.SHARED and len({g.uuid for g in held}) > 1:
        return Denial("units of one container must be on one GPU")
    devices = sorted({i.partition(UNIT)[0] for i in ids})
    env = {"FALLOW_DEVICES": ",".join(devices)}
    if held[0].mode is Mode.SHARED:
        env["FALLOW_UNITS"] = f"{len(ids)}/{held[0].units}"
    return Grant(env, tuple(f"{CDI_KIND}={d}" for d in devices))


def _promised(
    usable: Sequence[str],
    must: Sequence[str],
    size: int,
    mine: Sequence[Share],
    shares: dict[str, Share],
    *,
    exact: bool,
) -> tuple[str, ...] | None:
    for share in mine:
        if share.units:
            if share.units < size or (exact and share.units != size):
                continue
            ids = sorted((i for i in usable if shares[i].gpu == share.gpu and shares[i].units), key=_unit_order)
        else:
            ids = [i for wanted in mine for i in usable if shares[i] == wanted]
        if len(ids) >= size and all(i in ids for i in must):
            return tuple(_with(must, ids)[:size])
    return None


def _tightest(
    usable: Sequence[str], must: Sequence[str], size: int, shares: dict[str, Share], gpus: Sequence[NodeGpu]
) -> tuple[str, ...]:
    """Nothing was promised: units together on the fullest GPU that has enough, else GPU by GPU, fullest first."""
    free: dict[str, list[str]] = {g.uuid: [] for g in gpus}
    for id_ in usable:
        free[shares[id_].gpu].append(id_)
    groups = sorted((ids for ids in free.values() if ids), key=lambda ids: (len(ids), _order(gpus, shares, ids[0])))
    for group in groups:
        group.sort(key=lambda i: (shares[i].slice.start if shares[i].slice else 0, _unit_order(i)))  # type: ignore[union-attr]
    if any(shares[i].units for i in usable):
        enough = [g for g in groups if len(_with(must, g)) >= size and all(m in g for m in must)]
        groups = enough[:1] or groups
    return tuple(_with(must, [i for group in groups for i in group])[:size])


def _with(must: Sequence[str], ids: Sequence[str]) -> list[str]:
    return [*must, *(i for i in ids if i not in must)]


def _unit_order(id_: str) -> int:
    number = id_.partition(UNIT)[2]
    return int(number) if number.isdecimal() else 0


def _order(gpus: Sequence[NodeGpu], shares: dict[str, Share], id_: str) -> int:
    return next((g.seen.index for g in gpus if g.uuid == shares[id_].gpu), 0)
