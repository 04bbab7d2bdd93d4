"""Which node a pod gets, and why the others do not: the extender's decision.

Pure. A `Standing` says how every node stands towards one class of request (`memo.py` keeps one up to date);
`filter` and `rank` read the answer for the offered nodes off it. Nothing is reserved here.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu.node import NodeGpus
from gpu.placement import Answer, Fit, PodRequest, Reason, place
from gpu.scoring import Scoring
from policies.model import Policy


@dataclass(frozen=True, slots=True)
class Verdict:
    """The nodes that stay, and per node why the others go. Exact: one node and no reasons, or none and all reasons."""

    nodes: tuple[str, ...]
    refusals: Mapping[str, Reason]


@dataclass(slots=True)
class Standing:
    """How every known node stands towards one class of request: a score between 0 and 1, or a reason against."""

    scores: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, Reason] = field(default_factory=dict)
    ranked: list[tuple[float, str]] = field(default_factory=list)
    """(minus score, name) of all that fit: the best comes first, equal scores by name."""

    def put(self, name: str, answer: Answer) -> None:
        self.drop(name)
        if isinstance(answer, Fit):
            self.scores[name] = answer.score
            insort(self.ranked, (-answer.score, name))
        else:
            self.refusals[name] = answer.reason

    def drop(self, name: str) -> None:
        self.refusals.pop(name, None)
        score = self.scores.pop(name, None)
        if score is not None:
            del self.ranked[bisect_left(self.ranked, (-score, name))]

    def reason(self, name: str) -> Reason:
        """A node nobody has told us about has no GPUs of ours."""
        return self.refusals.get(name, Reason.NO_GPUS)

    def best(self, names: Sequence[str]) -> str:
        """The best fitting one of these, or "" when none fits."""
        if len(names) * 8 < len(self.ranked):
            return min(((-self.scores[n], n) for n in names if n in self.scores), default=(0.0, ""))[1]
        if self.ranked and self.ranked[0][1] in names:  # nearly always; making the set costs more than all the rest
            return self.ranked[0][1]
        offered = set(names)
        return next((name for _, name in self.ranked if name in offered), "")


def scoring_of(policy: Policy, now: float) -> Scoring:
    """What the policy says about choosing, at this moment (epoch seconds)."""
    placing = policy.placing
    return Scoring(placing.scorer, now, placing.stale_after_seconds, placing.promise_seconds)


def standing(nodes: Iterable[NodeGpus], request: PodRequest, scoring: Scoring) -> Standing:
    """Asked of every node anew."""
    found = Standing()
    for node in nodes:
        found.put(node.name, place(node, request, scoring))
    return found


def filter(standing: Standing, names: Sequence[str], policy: Policy) -> Verdict:
    """The answer to the scheduler's offer of these nodes."""
    if policy.placing.answer == "exact":
        if best := standing.best(names):
            return Verdict((best,), {})
        return Verdict((), {n: standing.reason(n) for n in names})
    fits = tuple(n for n in names if n in standing.scores)
    return Verdict(fits, {n: standing.reason(n) for n in names if n not in standing.scores})


def rank(standing: Standing, names: Iterable[str]) -> dict[str, int]:
    """The score of each offered node on the extender's scale, 0 to 10; what does not fit gets 0."""
    return {n: round(10 * min(1.0, max(0.0, standing.scores.get(n, 0.0)))) for n in names}
