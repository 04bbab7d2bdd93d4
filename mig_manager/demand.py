"""Who waits for something that no GPU is at present: the reason to re-cut.

kube-scheduler refuses a pod for lack of a resource before any extender is asked, so demand is read from the pods that
wait, not from refusals. A pod that would find a place as things are (or as re-cuts under way will leave them) is no
demand. Pure: never looks at a clock and never changes anything.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gpu.node import Mode, Snapshot
from gpu.placement import PodRequest, Reason, Refusal, Want
from gpu.scoring import Scoring
from gpu.seating import Seated, place_all

_NO_RECUT_HELPS = {
    Reason.NO_GPUS,
    Reason.TOO_MANY_GPUS,
    Reason.NO_SUCH_PROFILE,
    Reason.NOT_ALLOWED,
    Reason.BAD_REQUEST,
}


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests that have waited long enough for a re-cut, most important first.

    `after` are the books with everybody seated who needs no re-cut: what a plan may build on.
    """

    waiting: tuple[PodRequest, ...]
    after: Snapshot

    @property
    def counts(self) -> dict[str, int]:
        """How much of each kind is asked for: profile name, `whole` or `shared` (units)."""
        counts: Counter[str] = Counter()
        for request in self.waiting:
            for want in request.wants:
                counts[kind(want)] += want.amount
        return dict(sorted(counts.items()))

    def __str__(self) -> str:
        return ", ".join(f"{n} x {name}" for name, n in self.counts.items()) or "nothing"


def kind(want: Want) -> str:
    return want.profile if want.mode is Mode.SLICED else want.mode.value


def find(snapshot: Snapshot, pending: Iterable[PodRequest], patience_seconds: float, scoring: Scoring) -> Demand:
    """`snapshot` is the outlook: the books as re-cuts under way will leave them. `scoring.now` is the time."""
    seated: Seated = place_all(snapshot, pending, scoring)
    waiting = (
        request
        for request, refusal in seated.refused
        if _may_help(refusal) and scoring.now - request.since >= patience_seconds
    )
    return Demand(tuple(waiting), seated.after)


def items(request: PodRequest) -> dict[Want, int]:
    """The request in single pieces: one whole GPU, one slice of a profile, or k units that lie on one GPU."""
    pieces: Counter[Want] = Counter()
    for want in request.wants:
        if want.mode is Mode.SHARED:
            pieces[want] += 1
        else:
            pieces[Want(want.mode, 1, want.profile)] += want.amount
    return dict(pieces)


def _may_help(refusal: Refusal) -> bool:
    return refusal.reason not in _NO_RECUT_HELPS
