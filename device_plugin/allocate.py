"""Which device ids to like, and what a container gets for the ids it was given.

Pure. The kubelet never says for which pod it asks. `prefer` steers it to what was promised to a pod of that size;
`grant` turns ids into what a container gets and needs no pod's name, so it cannot give the wrong one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from device_plugin import cdi
from device_plugin.delivery import Delivery, Grant, Named, deliver
from device_plugin.devices import UNIT, NodeGpu, owner
from device_plugin.sale import Strategy
from gpu.node import Placement, Share


@dataclass(frozen=True, slots=True)
class Denial:
    """Why these ids are not handed out, in words for the pod's status."""

    why: str


def _no_mps(gpu: str, units: int, replicas: int, memory_mib: int) -> Grant | Denial:
    return Denial(f"GPU {gpu} is shared by MPS, and no MPS control daemon runs here")


@dataclass(frozen=True)
class Terms:
    """How this node hands out: the ways, resources of which a container may have one only, where device nodes are,
    whether a path exists, and what a client of MPS gets (for GPU, units, replicas, and memory in MiB)."""

    delivery: Delivery = field(default_factory=Delivery)
    refuse_more_than_one: frozenset[str] = frozenset()
    dev_root: str = "/dev"
    exists: Callable[[str], bool] = bool
    mps: Callable[[str, int, int, int], Grant | Denial] = _no_mps


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
    by_uuid = {g.uuid: g for g in gpus}
    shares = {i: s for g in gpus for i, s in g.shares.items()}
    usable = [i for i in available if i in shares]
    mine = [
        [s for s in p.shares if s.gpu in by_uuid and by_uuid[s.gpu].name_of(s) == wanted_resource]
        for p in sorted(promises, key=lambda p: (len(p.shares), p.at, p.pod.uid))
    ]
    # A promise of exactly this size first. A larger one may be asked for by an init container, which hands its units
    # on to the container that they were promised to.
    for exact in (True, False):
        for promised in mine:
            if (ids := _promised(usable, must, size, promised, shares, exact=exact)) is not None:
                return ids
    return _tightest(usable, must, size, shares, gpus)


def grant(ids: Sequence[str], gpus: Iterable[NodeGpu], terms: Terms) -> Grant | Denial:
    """The answer to one container's Allocate."""
    gpus = tuple(gpus)
    if not ids:
        return Denial("no device was named")
    if twice := next((i for i in ids if ids.count(i) > 1), None):
        return Denial(f"device {twice} is named twice")
    held: list[tuple[str, NodeGpu]] = []
    for id_ in ids:
        gpu = owner(gpus, id_)
        if gpu is None:
            return Denial(f"device {id_} is not here (any more)")
        if id_ in gpu.withheld:
            return Denial(f"device {id_} is being re-cut")
        if trouble := gpu.trouble(id_):
            return Denial(f"device {id_} is unhealthy: {trouble}")
        held.append((id_, gpu))
    return _together(held, terms) or _given(held, terms)


def _together(held: Sequence[tuple[str, NodeGpu]], terms: Terms) -> Denial | None:
    """Units of one container are all of one device; and where the administrator says so, there is only one."""
    shared = {id_.partition(UNIT)[0] for id_, gpu in held if gpu.shares[id_].units}
    if len(shared) > 1:
        return Denial("units of one container must be on one GPU")
    many = next((r for id_, gpu in held if (r := gpu.resource(id_)) in terms.refuse_more_than_one), "")
    if many and len(held) > 1:
        return Denial(
            f"a container may ask for one {many} at most: more units give no more of the GPU here "
            "(failRequestsGreaterThanOne in the device plugin's configuration)"
        )
    return None


def _given(held: Sequence[tuple[str, NodeGpu]], terms: Terms) -> Grant | Denial:
    named = {id_.partition(UNIT)[0]: gpu for id_, gpu in held}
    devices = [
        Named(name, gpu.seen.index if name == gpu.uuid else None, cdi.device_nodes(gpu, name))
        for name, gpu in sorted(named.items())
    ]
    granted = deliver(devices, terms.delivery, terms.dev_root, terms.exists)
    env = {"FALLOW_DEVICES": ",".join(d.name for d in devices)}
    first, gpu = held[0]
    sold = gpu.sold_id(first)
    if gpu.shares[first].units:
        env["FALLOW_UNITS"] = f"{len(held)}/{sold.replicas}"
    if sold.strategy is not Strategy.MPS:
        return granted.with_env(env)
    client = terms.mps(gpu.uuid, len(held), sold.replicas, gpu.seen.model.memory_mib)
    return client if isinstance(client, Denial) else granted.with_env({**env, **client.env}, client.mounts)


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
            ids = sorted((i for i in usable if replace(shares[i], units=share.units) == share), key=_unit_order)
        else:
            ids = [i for wanted in mine for i in usable if shares[i] == wanted]
        if len(ids) >= size and all(i in ids for i in must):
            return tuple(_with(must, ids)[:size])
    return None


def _tightest(
    usable: Sequence[str], must: Sequence[str], size: int, shares: dict[str, Share], gpus: Sequence[NodeGpu]
) -> tuple[str, ...]:
    """Nothing was promised: units together on the fullest GPU that has enough, else GPU by GPU, fullest first."""
    free: dict[str, list[str]] = {}
    for id_ in usable:  # units lie together on one GPU or one slice
        free.setdefault(id_.partition(UNIT)[0] if shares[id_].units else shares[id_].gpu, []).append(id_)
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
