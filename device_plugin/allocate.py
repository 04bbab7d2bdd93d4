"""What a container gets for the ids it was given.

Pure. `grant` needs no pod's name, so it cannot give the wrong one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from device_plugin import cdi
from device_plugin.delivery import Delivery, Grant, Named, deliver
from device_plugin.devices import UNIT, NodeGpu, owner
from device_plugin.sale import Strategy


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
