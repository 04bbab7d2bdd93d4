"""Many pods, one after another, each on its best node: what a cluster as a whole can take.

Asks `place` and nothing else. A node is asked once per kind of request and again only after somebody took a seat on
it, so the cost grows with nodes plus pods, not with nodes times pods; the answers are those of asking always.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpu.node import NodeGpus, Placement, PodRef, Snapshot, Stage
from gpu.placement import Answer, Fit, PodRequest, Reason, Refusal, Want, place
from gpu.scoring import Scoring

_HOPE = {
    Reason.TOO_MANY_UNITS: 1,
    Reason.TOO_MANY_GPUS: 2,
    Reason.NO_SUCH_PROFILE: 2,
    Reason.NOT_ALLOWED: 3,
    Reason.NO_GPUS: 4,
    Reason.BAD_REQUEST: 5,
}
"""Final refusals by how near they are to a fit; every other one can change by itself and is nearer."""

_Order = tuple[int, float, str]
_Kind = tuple[tuple[Want, ...], PodRef]
"""What is asked, and by whom if that matters."""

_NOBODY = PodRef("", "", "")


@dataclass(frozen=True, slots=True)
class Seated:
    """What became of several requests, asked one after another."""

    after: Snapshot
    placed: tuple[Placement, ...]
    refused: tuple[tuple[PodRequest, Refusal], ...]


class Asked:
    """What nodes have said under one scoring. Calls that share it ask nodes that both have only once."""

    def __init__(self, scoring: Scoring) -> None:
        self._scoring = scoring
        self._answers: dict[_Kind, _Answers] = {}

    def answers(self, kind: _Kind) -> "_Answers":
        if kind not in self._answers:
            wants, pod = kind
            self._answers[kind] = _Answers(PodRequest(pod, wants), self._scoring)
        return self._answers[kind]


def place_all(snapshot: Snapshot, requests: Iterable[PodRequest], asked: Asked | Scoring) -> Seated:
    """Seat the requests one by one, by priority and then by waiting time, each on its best node."""
    room = _Room(snapshot, Asked(asked) if isinstance(asked, Scoring) else asked)
    placed: list[Placement] = []
    refused: list[tuple[PodRequest, Refusal]] = []
    for request in sorted(requests, key=lambda r: (-r.priority, r.since, r.pod.uid)):
        answer = room.best(request)
        if isinstance(answer, Refusal):
            refused.append((request, answer))
            continue
        settled = replace(answer.placement, pod=request.pod, stage=Stage.CLAIMED)
        room.seat(settled)
        placed.append(settled)
    return Seated(replace(snapshot, nodes=tuple(room.nodes.values())), tuple(placed), tuple(refused))


def best_of(nodes: Iterable[NodeGpus], request: PodRequest, scoring: Scoring) -> Answer:
    """The best fit over these nodes, or the most hopeful refusal; ties by name."""
    answers = ((n.name, place(n, request, scoring)) for n in nodes)
    return min(answers, key=lambda a: _order(*a), default=("", Refusal(Reason.NO_GPUS)))[1]


def _order(name: str, answer: Answer) -> _Order:
    if isinstance(answer, Fit):
        return 0, -answer.score, name
    return 1 + _HOPE.get(answer.reason, 0), 0.0, name


@dataclass(slots=True)
class _Answers:
    """What the nodes say to one kind of request. Node values never change, so what one has said stands."""

    request: PodRequest
    scoring: Scoring
    said: dict[str, tuple[NodeGpus, Answer]] = field(default_factory=dict)

    def of(self, node: NodeGpus) -> Answer:
        said = self.said.get(node.name)
        if said is None or said[0] is not node:
            said = self.said[node.name] = node, place(node, self.request, self.scoring)
        return said[1]


class _Queue:
    """The nodes as they stand towards requests of one kind with the same barred nodes, the best one in front."""

    def __init__(self, answers: _Answers, barred: frozenset[str], nodes: dict[str, NodeGpus], seen: int) -> None:
        self._answers, self._barred, self._seen = answers, barred, seen
        self._orders = {name: _order(name, answers.of(node)) for name, node in nodes.items() if name not in barred}
        for name in sorted(n for n in barred if n in nodes)[:1]:  # the others would say the same
            self._orders[name] = _order(name, Refusal(Reason.NOT_ALLOWED))
        self._heap = list(self._orders.values())
        heapq.heapify(self._heap)

    def best(self, nodes: dict[str, NodeGpus], changed: list[str]) -> Answer:
        """`changed` names the nodes that changed since the beginning, in that order."""
        for name in set(changed[self._seen :]) - self._barred:
            self._orders[name] = _order(name, self._answers.of(nodes[name]))
            heapq.heappush(self._heap, self._orders[name])
        self._seen = len(changed)
        while self._heap and self._heap[0] != self._orders[self._heap[0][2]]:
            heapq.heappop(self._heap)  # from before that node changed
        if not self._heap:
            return Refusal(Reason.NO_GPUS)
        name = self._heap[0][2]
        return Refusal(Reason.NOT_ALLOWED) if name in self._barred else self._answers.of(nodes[name])


class _Room:
    """The nodes as the seats are taken, and how they stand towards every class of request met so far."""

    def __init__(self, snapshot: Snapshot, asked: Asked) -> None:
        self.nodes = {n.name: n for n in snapshot.nodes}
        self._asked = asked
        self._changed: list[str] = []
        self._queues: dict[tuple[_Kind, frozenset[str]], _Queue] = {}
        # A pod's own promise does not stand in its way, so its answers are its own.
        self._promised = {p.pod.uid for n in snapshot.nodes for p in n.placements if p.stage is Stage.PROMISED}

    def best(self, request: PodRequest) -> Answer:
        """The best fit, or the most hopeful refusal. The placement may name nobody in particular."""
        kind: _Kind = request.wants, request.pod if request.pod.uid in self._promised else _NOBODY
        queue = self._queues.get((kind, request.barred))
        if queue is None:
            queue = _Queue(self._asked.answers(kind), request.barred, self.nodes, len(self._changed))
            self._queues[kind, request.barred] = queue
        return queue.best(self.nodes, self._changed)

    def seat(self, placement: Placement) -> None:
        self.nodes[placement.node] = self.nodes[placement.node].holding(placement)
        self._changed.append(placement.node)
