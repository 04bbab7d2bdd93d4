"""Does this request fit on this node, and where best? The one fitting function; everybody asks it.

A fit names exact shares. A refusal is an answer, not an exception: its reason is a closed word that reaches the
pod's event, the metric's label and the planner alike. Never changes anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpu.layout import Slice
from gpu.node import Gpu, Mode, NodeGpus, Placement, PodRef, Share, SoldAs, Stage
from gpu.scoring import Scoring, score


class Reason(StrEnum):
    """Why a node cannot take a pod, in words for the person who reads the pod's event."""

    NO_GPUS = "node has no GPUs managed by Fallow"
    UNHEALTHY = "all its GPUs are unhealthy"
    HELD = "its GPUs are being re-cut"
    NO_WHOLE_FREE = "not enough free whole GPUs"
    TOO_MANY_GPUS = "fewer GPUs than the pod asks for"
    NO_SLICE_FREE = "no free slice of that profile"
    NO_SUCH_PROFILE = "no GPU that can be cut to that profile"
    NO_UNITS_TOGETHER = "no shared GPU with that many free units on one GPU"
    NO_SHARED_GPU = "no GPU is shared at present"
    TOO_MANY_UNITS = "asks for more units than one GPU is shared into"
    IN_FLIGHT = "another pod's share there is still being handed out"
    NOT_ALLOWED = "the pod may not run on this node"
    FITS_NOT_BEST = "fits, but another node fits better"
    BAD_REQUEST = "the pod's GPU request cannot be read"

    @property
    def may_change(self) -> bool:
        """Whether waiting can help: pods leave, GPUs are re-cut or recover."""
        return self not in _FINAL


_FINAL = {
    Reason.NO_GPUS,
    Reason.TOO_MANY_GPUS,
    Reason.NO_SUCH_PROFILE,
    Reason.TOO_MANY_UNITS,
    Reason.NOT_ALLOWED,
    Reason.BAD_REQUEST,
}


@dataclass(frozen=True, slots=True)
class Want:
    """What one container asks: `amount` whole GPUs, slices of `profile`, or units of one GPU."""

    mode: Mode
    amount: int
    profile: str = ""

    def __str__(self) -> str:
        if self.mode is Mode.SLICED:
            return f"{self.amount} x {self.profile}"
        return f"{self.amount} {'units of one GPU' if self.mode is Mode.SHARED else 'whole GPU(s)'}"


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for, one want per container. `since` in seconds since the epoch.

    `barred` names nodes that it may not use. Who is only asked about nodes that were chosen for the pod already, as
    the extender is, leaves it empty.
    """

    pod: PodRef
    wants: tuple[Want, ...]
    priority: int = 0
    since: float = 0.0
    barred: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return ", ".join(str(w) for w in self.wants)


@dataclass(frozen=True, slots=True)
class Fit:
    placement: Placement
    score: float


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    detail: str = ""


Answer = Fit | Refusal

_VISITS = 64
"""Seats tried for a pod with several shared containers: all of them on three GPUs for three containers. Whoever
writes a pod with many odd containers must not be able to stall the scheduler; past the bound the node refuses."""


def place(node: NodeGpus, request: PodRequest, scoring: Scoring) -> Answer:
    """The best placement of this pod on this node, or why there is none."""
    if node.name in request.barred:
        return Refusal(Reason.NOT_ALLOWED)
    if refusal := _hopeless(node, request.wants):
        return refusal
    shares: tuple[Share, ...] = ()
    total = 0.0
    for want in sorted(request.wants, key=lambda w: (w.mode, w.profile, -w.amount)):
        answer = _seat_want(node, request.pod, shares, want, scoring)
        if isinstance(answer, Refusal):
            return _retry_shared(node, request, scoring) or answer
        shares, total = (*shares, *answer[0]), total + answer[1]
    placement = Placement(request.pod, node.name, shares, Stage.PROMISED, scoring.now)
    return Fit(placement, total / len(request.wants))


def in_flight(node: NodeGpus, pod: PodRef, scoring: Scoring) -> tuple[Placement, ...]:
    """Promises on this node that the kubelet is still to hand out, other than this pod's own."""
    return tuple(
        p
        for p in node.placements
        if p.stage is Stage.PROMISED and p.pod.uid != pod.uid and scoring.now < p.at + scoring.promise_seconds
    )


def _hopeless(node: NodeGpus, wants: tuple[Want, ...]) -> Refusal | None:
    if not wants:
        return Refusal(Reason.BAD_REQUEST, "the pod asks for no GPU")
    if not node.gpus:
        return Refusal(Reason.NO_GPUS)
    if not any(g.healthy for g in node.gpus):
        return Refusal(Reason.UNHEALTHY)
    whole = sum(w.amount for w in wants if w.mode is Mode.WHOLE)
    there = sum(_sold_as_whole(g) for g in node.gpus)
    if whole > there:
        return Refusal(Reason.TOO_MANY_GPUS, f"{whole} asked, {there} here")
    return next((r for w in wants if (r := _never(node, w))), None)


def _sold_as_whole(gpu: Gpu) -> int:
    """How many `nvidia.com/gpu` this GPU is or could become: one, unless its units or slices carry that name."""
    if gpu.mode is Mode.SHARED and gpu.sold is SoldAs.WHOLE:
        return gpu.units
    as_whole = [max(1, t.units) for t in gpu.terms if t.sold is SoldAs.WHOLE]
    return sum(as_whole) if gpu.mode is Mode.SLICED and as_whole else 1


def _never(node: NodeGpus, want: Want) -> Refusal | None:
    """Refusals that no waiting changes: nothing here could ever be that large."""
    if want.mode is Mode.SLICED and not any(g.model.profile(want.profile) for g in node.gpus):
        return Refusal(Reason.NO_SUCH_PROFILE, want.profile)
    return None


def _seat_want(
    node: NodeGpus, pod: PodRef, shares: tuple[Share, ...], want: Want, scoring: Scoring
) -> tuple[tuple[Share, ...], float] | Refusal:
    """The best shares for one want beside those already chosen for this pod."""
    ranked = sorted(
        ((score(node, node.by_uuid[s.gpu], s, scoring), s) for s in _candidates(node, want, shares)),
        key=lambda c: (-c[0], node.by_uuid[c[1].gpu].index, c[1].slice.start if c[1].slice else 0),
    )
    # Units come in one share, all on one GPU; everything else in as many shares as are asked for.
    pieces = [c for c in ranked if not c[1].units]
    if len(pieces) >= want.amount:
        chosen = pieces[: want.amount]
        return tuple(s for _, s in chosen), sum(p for p, _ in chosen) / want.amount
    together = [c for c in ranked if c[1].units]
    if not together:
        return _refusal(node, want)
    best = next((c for c in together if not _collides(node, pod, c[1], scoring)), None)
    return Refusal(Reason.IN_FLIGHT) if best is None else ((best[1],), best[0])


def _candidates(node: NodeGpus, want: Want, shares: tuple[Share, ...]) -> Iterator[Share]:
    for gpu in node.gpus:
        if not gpu.takes_pods or not node.use(gpu).only(gpu.mode):
            continue
        mine = [s for s in shares if s.gpu == gpu.uuid]
        if gpu.mode is Mode.SLICED:
            yield from _slices(node, gpu, want, mine)
        elif gpu.asked_as is not want.mode:
            continue
        elif gpu.mode is Mode.SHARED:
            if node.free_units(gpu) - sum(s.units for s in mine) >= want.amount:
                yield Share(gpu.uuid, units=want.amount)
        elif not node.use(gpu).whole and not mine:
            yield Share(gpu.uuid)


def _slices(node: NodeGpus, gpu: Gpu, want: Want, mine: Sequence[Share]) -> Iterator[Share]:
    """Free slices of the profile (of any, where slices are sold as whole GPUs), or so many units of a shared one."""
    for piece, free in node.free_parts(gpu).items():
        taken = sum(s.units for s in mine if s.slice == piece)
        if _answers(gpu, piece, want) and free - taken >= want.amount:
            yield Share(gpu.uuid, piece, want.amount)
    for piece in node.free_slices(gpu):
        if _answers(gpu, piece, want) and all(s.slice != piece for s in mine):
            yield Share(gpu.uuid, piece)


def _answers(gpu: Gpu, piece: Slice, want: Want) -> bool:
    """Whether this slice carries the resource name that is asked for."""
    sold = gpu.terms_of(piece).sold if gpu.terms else SoldAs.OWN
    if want.mode is Mode.WHOLE:
        return sold is SoldAs.WHOLE
    return want.mode is Mode.SLICED and sold is SoldAs.OWN and piece.profile.name == want.profile


def _refusal(node: NodeGpus, want: Want) -> Refusal:
    usable = [g for g in node.gpus if g.healthy]
    if any(g.closed and g.asked_as is want.mode for g in usable) or (
        want.mode is Mode.SLICED and any(s.profile.name == want.profile for g in usable for s in g.held)
    ):
        return Refusal(Reason.HELD)
    if want.mode is Mode.WHOLE:
        return Refusal(Reason.NO_WHOLE_FREE)
    if want.mode is Mode.SLICED:
        return Refusal(Reason.NO_SLICE_FREE, want.profile)
    shared = [g for g in usable if g.asked_as is Mode.SHARED]
    if not shared:
        return Refusal(Reason.NO_SHARED_GPU)
    if want.amount > max(g.units for g in shared):
        return Refusal(Reason.TOO_MANY_UNITS, f"{want.amount} asked")
    return Refusal(Reason.NO_UNITS_TOGETHER)


def _collides(node: NodeGpus, pod: PodRef, share: Share, scoring: Scoring) -> bool:
    """Another promise in flight for other units on another GPU or slice: the kubelet could mix the two up.

    It hands out devices without saying for which pod, so two such promises never travel together.
    """
    return any(
        other.units and (other.gpu, other.slice) != (share.gpu, share.slice) and other.units != share.units
        for promise in in_flight(node, pod, scoring)
        for other in promise.shares
    )


def _retry_shared(node: NodeGpus, request: PodRequest, scoring: Scoring) -> Fit | None:
    """Several containers with shares: the best GPU for the first may leave no room for the next, so try all."""
    shared = [w for w in request.wants if w.mode is Mode.SHARED]
    if len(shared) < 2:
        return None
    rest = tuple(w for w in request.wants if w.mode is not Mode.SHARED)
    base: tuple[Share, ...] = ()
    if rest:
        fit = place(node, replace(request, wants=rest), scoring)
        if isinstance(fit, Refusal):
            return None
        base = fit.placement.shares
    wants = tuple(sorted(shared, key=lambda w: -w.amount))
    found = _search(node, request.pod, base, wants, scoring, budget=[_VISITS])
    if found is None:
        return None
    total = sum(score(node, node.by_uuid[s.gpu], s, scoring) for s in found)
    return Fit(Placement(request.pod, node.name, found, Stage.PROMISED, scoring.now), total / len(found))


def _search(
    node: NodeGpus,
    pod: PodRef,
    shares: tuple[Share, ...],
    wants: tuple[Want, ...],
    scoring: Scoring,
    *,
    budget: list[int],
) -> tuple[Share, ...] | None:
    """Largest want first, tightest GPU first, stepping back while the budget lasts."""
    if not wants:
        return shares
    for share in sorted(_candidates(node, wants[0], shares), key=lambda s: _left(node, s, shares)):
        if _collides(node, pod, share, scoring) or budget[0] <= 0:
            continue
        budget[0] -= 1
        if found := _search(node, pod, (*shares, share), wants[1:], scoring, budget=budget):
            return found
    return None


def _left(node: NodeGpus, share: Share, shares: tuple[Share, ...]) -> int:
    return node.free_units(node.by_uuid[share.gpu]) - sum(s.units for s in shares if s.gpu == share.gpu)
