"""The GPUs of one node and who holds what on them: the books.

Values only: a trial is a new value (`node.holding(placement)`), to undo it forget the new one.
Nothing here is stored anywhere; the books are folded from Kubernetes objects each time they change.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from gpu.layout import Layout, Slice, occupied, openings
from gpu.profiles import GpuModel, MigProfile
from gpu.share import NOTHING, Use, plus
from gpu.share import Activity as Activity
from gpu.share import Mode as Mode
from gpu.share import Placement as Placement
from gpu.share import PodRef as PodRef
from gpu.share import Share as Share
from gpu.share import SoldAs as SoldAs
from gpu.share import Stage as Stage


@dataclass(frozen=True, slots=True)
class Terms:
    """How one slice is sold, when not as usual: in `units` (0: to one pod at a time), and under whose name."""

    slice: Slice
    units: int = 0
    sold: SoldAs = SoldAs.OWN


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the books see it.

    `units` is how many units it is advertised as while shared, `sold` under whose name it is while not sliced, and
    `terms` how slices are sold that are not sold as usual. `held` are slices closed to new pods because a plan will
    remove them, `sick` those that are unhealthy; `closed` closes the whole GPU (its mode will change, or another owner
    is at work on it). `fixed`: a configuration file decides what it is, so it is never re-cut.
    """

    uuid: str
    index: int
    model: GpuModel
    mode: Mode = Mode.WHOLE
    layout: Layout = ()
    units: int = 0
    held: frozenset[Slice] = frozenset()
    closed: bool = False
    healthy: bool = True
    activity: Activity | None = None
    sold: SoldAs = SoldAs.OWN
    terms: tuple[Terms, ...] = ()
    sick: frozenset[Slice] = frozenset()
    fixed: bool = False

    @property
    def asked_as(self) -> Mode | None:
        """What a pod must ask for to get this GPU or units of it; None when only kube-scheduler can place it there."""
        return {SoldAs.OWN: self.mode, SoldAs.WHOLE: Mode.WHOLE, SoldAs.OTHER: None}[self.sold]

    def terms_of(self, piece: Slice) -> Terms:
        return next((t for t in self.terms if t.slice == piece), Terms(piece))

    @property
    def takes_pods(self) -> bool:
        return self.healthy and not self.closed


@dataclass(frozen=True)
class NodeGpus:
    """All GPUs of one node with the placements on them."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    placements: tuple[Placement, ...] = ()

    @cached_property
    def by_uuid(self) -> dict[str, Gpu]:
        return {g.uuid: g for g in self.gpus}

    @cached_property
    def seats(self) -> tuple[Placement, ...]:
        """The placements as they can really be: a promise whose place a claim has taken sits elsewhere."""
        return _seated(self)

    @cached_property
    def _uses(self) -> dict[str, Use]:
        uses: dict[str, Use] = {}
        for placement in self.seats:
            for share in placement.shares:
                uses[share.gpu] = plus(uses.get(share.gpu, NOTHING), share)
        return uses

    def use(self, gpu: Gpu) -> Use:
        return self._uses.get(gpu.uuid, NOTHING)

    @cached_property
    def fullness_of(self) -> dict[str, float]:
        """How much of each GPU is taken, between 0 and 1, by UUID."""
        return {g.uuid: _fullness(g, self.use(g)) for g in self.gpus}

    @cached_property
    def fullness(self) -> float:
        """Mean over the GPUs; a node without any counts as full."""
        return sum(self.fullness_of.values()) / len(self.gpus) if self.gpus else 1.0

    def free_slices(self, gpu: Gpu) -> Layout:
        """Slices that are cut, open to new pods and held by nobody, by start.

        A slice on whose place somebody holds one that is gone by now is not free either.
        """
        taken = occupied(self.use(gpu).slices)
        return tuple(s for s in gpu.layout if not s.mask & taken and _open(gpu, s) and not gpu.terms_of(s).units)

    def free_parts(self, gpu: Gpu) -> dict[Slice, int]:
        """Free units of each shared slice that is open to new pods and has any; empty where no slice is shared."""
        if not gpu.terms:
            return {}
        use = self.use(gpu)
        gone = occupied(use.slices - frozenset(gpu.layout))
        pieces = (s for s in gpu.layout if not s.mask & gone and _open(gpu, s))
        return {s: free for s in pieces if (free := gpu.terms_of(s).units - use.parts_of(s)) > 0}

    def free_units(self, gpu: Gpu) -> int:
        return max(0, gpu.units - self.use(gpu).units) if gpu.mode is Mode.SHARED else 0

    def openings(self, gpu: Gpu, profile: MigProfile) -> Layout:
        """Starts where this profile could be cut beside what the GPU is cut into now."""
        return openings(gpu.layout, profile) if gpu.mode is Mode.SLICED else ()

    def has_room(self, share: Share) -> bool:
        """Whether exactly this share is free and open to pods."""
        gpu = self.by_uuid.get(share.gpu)
        if gpu is None or not gpu.takes_pods or gpu.mode is not share.mode or not self.use(gpu).only(gpu.mode):
            return False
        if share.slice is not None and share.units:
            return share.units <= self.free_parts(gpu).get(share.slice, 0)
        if share.slice is not None:
            return share.slice in self.free_slices(gpu)
        return share.units <= self.free_units(gpu) if share.units else self.use(gpu).idle

    def placement_of(self, uid: str) -> Placement | None:
        return next((p for p in self.placements if p.pod.uid == uid), None)

    def holding(self, placement: Placement) -> "NodeGpus":
        """With this placement, in the place of any other of the same pod."""
        others = tuple(p for p in self.placements if p.pod.uid != placement.pod.uid)
        return replace(self, placements=(*others, placement))

    def without(self, uid: str) -> "NodeGpus":
        return replace(self, placements=tuple(p for p in self.placements if p.pod.uid != uid))

    def with_gpu(self, gpu: Gpu) -> "NodeGpus":
        return replace(self, gpus=tuple(gpu if g.uuid == gpu.uuid else g for g in self.gpus))

    def with_layout(self, uuid: str, mode: Mode, layout: Layout = (), units: int = 0) -> "NodeGpus":
        """As if that GPU had been re-cut: open again, nothing held."""
        gpu = self.by_uuid[uuid]
        return self.with_gpu(replace(gpu, mode=mode, layout=layout, units=units, held=frozenset(), closed=False))


@dataclass(frozen=True)
class Snapshot:
    """All nodes at one moment (`at`, seconds since the epoch)."""

    nodes: tuple[NodeGpus, ...] = ()
    at: float = 0.0

    @cached_property
    def by_name(self) -> dict[str, NodeGpus]:
        return {n.name: n for n in self.nodes}

    def with_node(self, node: NodeGpus) -> "Snapshot":
        return replace(self, nodes=tuple(node if n.name == node.name else n for n in self.nodes))


def _open(gpu: Gpu, piece: Slice) -> bool:
    return piece not in gpu.held and piece not in gpu.sick


def _fullness(gpu: Gpu, use: Use) -> float:
    if use.whole:
        return 1.0
    if use.units:
        return min(1.0, use.units / max(1, gpu.units))
    return min(1.0, sum(s.profile.size for s in use.slices) / max(1, gpu.model.axis))


def _seated(node: NodeGpus) -> tuple[Placement, ...]:
    """Claims stand. Promises follow in the order they were made; one that collides moves to an equal free place.

    The kubelet may hand one pod the slice that another was promised. Until the second pod is claimed too, its
    promise must not let anybody else have what is left for it.
    """
    seated: list[Placement] = [p for p in node.placements if p.stage is Stage.CLAIMED]
    uses: dict[str, Use] = {}
    for placement in seated:
        for share in placement.shares:
            uses[share.gpu] = plus(uses.get(share.gpu, NOTHING), share)
    for placement in sorted((p for p in node.placements if p.stage is Stage.PROMISED), key=lambda p: (p.at, p.pod.uid)):
        shares = []
        for share in placement.shares:
            seat = _seat(node, uses, share)
            uses[seat.gpu] = plus(uses.get(seat.gpu, NOTHING), seat)
            shares.append(seat)
        seated.append(replace(placement, shares=tuple(shares)))
    return tuple(seated)


def _seat(node: NodeGpus, uses: dict[str, Use], share: Share) -> Share:
    if _fits(node, uses, share):
        return share
    return next((s for s in _equal_places(node, share) if _fits(node, uses, s)), share)


def _fits(node: NodeGpus, uses: dict[str, Use], share: Share) -> bool:
    gpu = node.by_uuid.get(share.gpu)
    if gpu is None or gpu.mode is not share.mode:
        return False
    use = uses.get(share.gpu, NOTHING)
    if share.slice is not None and share.units:
        return share.slice in gpu.layout and use.parts_of(share.slice) + share.units <= gpu.terms_of(share.slice).units
    if share.slice is not None:
        return share.slice in gpu.layout and share.slice not in use.slices
    return use.units + share.units <= gpu.units if share.units else not use.whole


def _equal_places(node: NodeGpus, share: Share) -> Iterable[Share]:
    for gpu in node.gpus:
        if gpu.mode is not share.mode:
            continue
        if share.slice is None:
            yield replace(share, gpu=gpu.uuid)
            continue
        for piece in gpu.layout:
            if piece.profile.name == share.slice.profile.name:
                yield Share(gpu.uuid, piece, share.units)
