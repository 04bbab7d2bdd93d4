"""What this node advertises: GPUs as the kubelet's devices, under exactly one resource each.

Pure. An id lives as long as its slice, never longer: a whole GPU is its UUID, a unit of a shared one `UUID::n`, a
slice the UUID that the driver gave it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.facts import resource_of
from gpu.hardware import SeenGpu, SeenSlice
from gpu.layout import Layout, canonical
from gpu.node import Gpu, Mode, Share
from gpu.recut import Shape

UNIT = "::"


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """One GPU of this node as it is advertised.

    `slices` are those on offer; while a re-cut is at work the hardware may already have others. `withheld` are the ids
    that are kept out of the kubelet's lists.
    """

    seen: SeenGpu
    mode: Mode = Mode.WHOLE
    slices: tuple[SeenSlice, ...] = ()
    units: int = 0
    healthy: bool = True
    problem: str = ""
    withheld: frozenset[str] = frozenset()

    @property
    def uuid(self) -> str:
        return self.seen.uuid

    @property
    def layout(self) -> Layout:
        return canonical(s.slice for s in self.slices)

    @property
    def shape(self) -> Shape:
        return Shape(self.mode, self.layout if self.mode is Mode.SLICED else ())

    @property
    def shares(self) -> dict[str, Share]:
        """Every device id of this GPU with the share it stands for (one unit for a shared GPU)."""
        if self.mode is Mode.WHOLE:
            return {self.uuid: Share(self.uuid)}
        if self.mode is Mode.SHARED:
            return {f"{self.uuid}{UNIT}{n}": Share(self.uuid, units=1) for n in range(self.units)}
        return {s.uuid: Share(self.uuid, s.slice) for s in self.slices if s.uuid}

    def lacking(self, target: Shape) -> frozenset[str]:
        """The ids that go when this GPU becomes `target`."""
        if target.mode is not self.mode:
            return frozenset(self.shares)
        stay = set(target.layout)
        return frozenset(i for i, share in self.shares.items() if share.slice is not None and share.slice not in stay)

    def books(self) -> Gpu:
        """The same GPU as the books know it."""
        return Gpu(
            uuid=self.uuid,
            index=self.seen.index,
            model=self.seen.model,
            mode=self.mode,
            layout=self.layout if self.mode is Mode.SLICED else (),
            units=self.units if self.mode is Mode.SHARED else 0,
            healthy=self.healthy,
        )


@dataclass(frozen=True, slots=True)
class Device:
    id: str
    healthy: bool
    numa: int | None


def lists(gpus: Iterable[NodeGpu]) -> dict[str, tuple[Device, ...]]:
    """What each resource name offers, by name. Withheld ids are left out: the kubelet then refuses them at once."""
    offers: dict[str, list[Device]] = {}
    for gpu in gpus:
        for id_, share in gpu.shares.items():
            offers.setdefault(resource_of(share), [])
            if id_ not in gpu.withheld:
                offers[resource_of(share)].append(Device(id_, gpu.healthy, gpu.seen.numa))
    return {name: tuple(devices) for name, devices in offers.items()}


def owner(gpus: Iterable[NodeGpu], id_: str) -> NodeGpu | None:
    return next((g for g in gpus if id_ in g.shares), None)


def assemble(
    seen: Iterable[SeenGpu],
    before: Mapping[str, NodeGpu],
    remembered: Mapping[str, Gpu],
    busy: frozenset[str],
    units: int,
) -> tuple[NodeGpu, ...]:
    """The node's GPUs from what the driver shows now.

    `before` is what was advertised so far, `remembered` what the GpuNode says (after a restart). GPUs in `busy` are
    being re-cut: they keep the shape they were advertised in until the re-cut itself advertises another.
    `units` is how many a newly shared GPU gets.
    """
    return tuple(
        _busy(s, before.get(s.uuid), remembered.get(s.uuid))
        if s.uuid in busy
        else _settled(s, before.get(s.uuid), remembered.get(s.uuid), units)
        for s in seen
    )


def shaped(gpu: NodeGpu, seen: SeenGpu, shape: Shape, units: int) -> NodeGpu:
    """This GPU as it is advertised after a re-cut to `shape`, nothing withheld."""
    slices = tuple(s for s in seen.slices if s.slice in shape.layout) if shape.mode is Mode.SLICED else ()
    return replace(
        gpu,
        seen=seen,
        mode=shape.mode,
        slices=slices,
        units=units if shape.mode is Mode.SHARED else 0,
        withheld=frozenset(),
    )


def _settled(seen: SeenGpu, before: NodeGpu | None, remembered: Gpu | None, units: int) -> NodeGpu:
    """No re-cut is at work: what the hardware has is what there is; slices made by others are adopted."""
    base = before or NodeGpu(seen)
    if seen.fault:
        return replace(base, seen=_kept(seen, before))
    known = before.mode if before else remembered.mode if remembered else Mode.WHOLE
    mode = Mode.SLICED if seen.mig else Mode.WHOLE if known is Mode.SLICED else known
    number = (before.units if before else remembered.units if remembered else 0) or units
    slices = seen.slices if mode is Mode.SLICED else ()
    return replace(base, seen=seen, mode=mode, slices=slices, units=number if mode is Mode.SHARED else 0)


def _busy(seen: SeenGpu, before: NodeGpu | None, remembered: Gpu | None) -> NodeGpu:
    if before is not None:
        gone = () if seen.fault else tuple(s for s in before.slices if s not in seen.slices)
        return replace(before, seen=_kept(seen, before), slices=tuple(s for s in before.slices if s not in gone))
    if remembered is None:
        return NodeGpu(seen, Mode.SLICED if seen.mig else Mode.WHOLE)
    slices = tuple(s for s in seen.slices if s.slice in remembered.layout)
    back = NodeGpu(seen, remembered.mode, slices, remembered.units)
    # What the hardware no longer is must not be offered, whatever the record says.
    fits = seen.mig == (remembered.mode is Mode.SLICED)
    return back if fits else replace(back, withheld=frozenset(back.shares))


def _kept(seen: SeenGpu, before: NodeGpu | None) -> SeenGpu:
    """A GPU that cannot be read keeps what was known of it, with the fault."""
    return replace(before.seen, fault=seen.fault) if seen.fault and before else seen
