"""What this node advertises: GPUs as the kubelet's devices, each device under exactly one resource.

Pure. An id lives as long as its slice, never longer: a whole GPU is its UUID, a unit of a shared one `UUID::n`, a
slice the UUID that the driver gave it (units of a shared slice are numbered like those of a GPU).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cluster import names
from cluster.facts import resource_of
from device_plugin.sale import GpuPlan, Sold, Strategy, Wish
from gpu.hardware import SeenGpu, SeenSlice
from gpu.layout import Layout, canonical
from gpu.node import Gpu, Mode, Share, SoldAs, Terms
from gpu.recut import Shape

UNIT = "::"


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """One GPU of this node as it is advertised.

    `slices` are those on offer; while a re-cut is at work the hardware may already have others. `plan` is what a
    configuration file says of it, as it is in force; `sick` are ids of slices (not of their units) that are unhealthy
    while the GPU is not. `withheld` are the ids that are kept out of the kubelet's lists.
    """

    seen: SeenGpu
    mode: Mode = Mode.WHOLE
    slices: tuple[SeenSlice, ...] = ()
    units: int = 0
    plan: GpuPlan | None = None
    fixed: bool = False
    healthy: bool = True
    problem: str = ""
    sick: Mapping[str, str] = field(default_factory=dict)
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
        """Every device id of this GPU with the share it stands for (one unit of what is shared)."""
        if self.mode is Mode.WHOLE:
            return {self.uuid: Share(self.uuid)}
        if self.mode is Mode.SHARED:
            return {f"{self.uuid}{UNIT}{n}": Share(self.uuid, units=1) for n in range(self.units)}
        return {id_: share for s in self.slices if s.uuid for id_, share in self._of_slice(s, s.uuid).items()}

    def _of_slice(self, piece: SeenSlice, uuid: str) -> dict[str, Share]:
        sold = self.sold_slice(piece)
        if sold.replicas < 2:
            return {uuid: Share(self.uuid, piece.slice)}
        return {f"{uuid}{UNIT}{n}": Share(self.uuid, piece.slice, 1) for n in range(sold.replicas)}

    @property
    def sold(self) -> Sold:
        """How this GPU is sold while it is not in MIG mode."""
        if self.plan is not None and self.plan.whole is not None:
            return replace(self.plan.whole, replicas=max(1, self.units))
        if self.mode is Mode.SHARED:
            return Sold(names.SHARED, self.units, Strategy.TIME_SLICING)
        return Sold(names.WHOLE)

    def sold_slice(self, piece: SeenSlice) -> Sold:
        plan, usual = self.plan, Sold(names.mig_resource(piece.slice.profile.name))
        if plan is None:
            return usual
        return plan.by_slice.get(piece.uuid or "") or plan.slices.get(piece.slice.profile.name) or usual

    def sold_id(self, id_: str) -> Sold:
        """How the device with this id, which must be of this GPU, is sold."""
        if self.mode is not Mode.SLICED:
            return self.sold
        return next(self.sold_slice(s) for s in self.slices if s.uuid == id_.partition(UNIT)[0])

    def resource(self, id_: str) -> str:
        """The resource name of the device with this id, which must be of this GPU."""
        return self.sold_id(id_).resource

    def name_of(self, share: Share) -> str:
        """The resource name that this share of the GPU is asked for by; as usual for a slice that is gone."""
        if share.slice is None:
            return self.sold.resource if share.mode is self.mode else resource_of(share)
        return next((self.sold_slice(s).resource for s in self.slices if s.slice == share.slice), resource_of(share))

    def trouble(self, id_: str) -> str:
        """Why the device with this id is unhealthy, "" when it is not."""
        if not self.healthy:
            return self.problem or "see the events of its GpuNode"
        return self.sick.get(id_.partition(UNIT)[0], "")

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
            sold=SoldAs.OWN
            if self.mode is Mode.SLICED
            else _sold_as(self.sold.resource, Share(self.uuid, None, self.units)),
            terms=tuple(t for s in self.slices if (t := self._terms(s)) != Terms(s.slice)) if self._sliced else (),
            sick=frozenset(s.slice for s in self.slices if s.uuid in self.sick) if self._sliced else frozenset(),
            fixed=self.fixed,
        )

    @property
    def _sliced(self) -> bool:
        return self.mode is Mode.SLICED

    def _terms(self, piece: SeenSlice) -> Terms:
        sold = self.sold_slice(piece)
        units = sold.replicas if sold.replicas > 1 else 0
        return Terms(piece.slice, units, _sold_as(sold.resource, Share(self.uuid, piece.slice)))


@dataclass(frozen=True, slots=True)
class Device:
    id: str
    healthy: bool
    numa: int | None


def lists(gpus: Iterable[NodeGpu]) -> dict[str, tuple[Device, ...]]:
    """What each resource name offers, by name. Withheld ids are left out: the kubelet then refuses them at once."""
    offers: dict[str, list[Device]] = {}
    for gpu in gpus:
        for id_ in gpu.shares:
            offer = offers.setdefault(gpu.resource(id_), [])
            if id_ not in gpu.withheld:
                offer.append(Device(id_, not gpu.trouble(id_), gpu.seen.numa))
    return {name: tuple(devices) for name, devices in offers.items()}


def owner(gpus: Iterable[NodeGpu], id_: str) -> NodeGpu | None:
    return next((g for g in gpus if id_ in g.shares), None)


def assemble(
    seen: Iterable[SeenGpu],
    before: Mapping[str, NodeGpu],
    remembered: Mapping[str, Gpu],
    busy: frozenset[str],
    wish: Wish,
) -> tuple[NodeGpu, ...]:
    """The node's GPUs from what the driver shows now.

    `before` is what was advertised so far, `remembered` what the GpuNode says (after a restart). GPUs in `busy` are
    being re-cut: they keep the shape they were advertised in until the re-cut itself advertises another. A GPU that
    nobody knows yet is sold as `wish` says at once; another keeps what it is until `sharing.py` finds it free.
    """
    return tuple(
        _busy(s, before.get(s.uuid), remembered.get(s.uuid))
        if s.uuid in busy
        else _settled(s, before.get(s.uuid), remembered.get(s.uuid), wish)
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


def wanted(gpu: NodeGpu, wish: Wish) -> NodeGpu:
    """The same GPU as it is to be sold: what a configuration file says goes before the policy."""
    plan = wish.plan.gpus.get(gpu.uuid)
    mode, units = gpu.mode, gpu.units
    if plan is not None and plan.whole is not None and mode is not Mode.SLICED:
        units = plan.whole.replicas if plan.whole.replicas > 1 else 0
        mode = Mode.SHARED if units else Mode.WHOLE
    elif mode is Mode.SHARED:
        units = wish.units
    goal = replace(gpu, mode=mode, units=units, plan=plan, fixed=gpu.uuid in wish.plan.fixed)
    return replace(goal, slices=_offered(goal, gpu.seen.slices)) if mode is Mode.SLICED else goal


def _offered(gpu: NodeGpu, slices: tuple[SeenSlice, ...]) -> tuple[SeenSlice, ...]:
    return () if gpu.plan is not None and gpu.plan.without_slices else slices


def _settled(seen: SeenGpu, before: NodeGpu | None, remembered: Gpu | None, wish: Wish) -> NodeGpu:
    """No re-cut is at work: what the hardware has is what there is; slices made by others are adopted."""
    base = before or NodeGpu(seen)
    if seen.fault:
        return replace(base, seen=_kept(seen, before))
    known = before.mode if before else remembered.mode if remembered else Mode.WHOLE
    mode = Mode.SLICED if seen.mig else Mode.WHOLE if known is Mode.SLICED else known
    number = (before.units if before else remembered.units if remembered else 0) or wish.units
    slices = _offered(base, seen.slices) if mode is Mode.SLICED else ()
    settled = replace(base, seen=seen, mode=mode, slices=slices, units=number if mode is Mode.SHARED else 0)
    if before is not None:
        return settled
    goal = wanted(settled, wish)
    # After a restart: the ids are those that pods may hold, so only what leaves them alone is taken over at once.
    return goal if remembered is None or goal.shares.keys() == settled.shares.keys() else settled


def _sold_as(resource: str, share: Share) -> SoldAs:
    if resource == resource_of(share):
        return SoldAs.OWN
    return SoldAs.WHOLE if resource == names.WHOLE else SoldAs.OTHER


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
