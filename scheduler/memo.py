"""Remembers how nodes stand towards a class of request, and asks again only about nodes that changed.

Node values never change, so an unchanged value has an unchanged answer, until the moment that `good_until` names.
The memo gives the same answers as asking every node every time. One thread only.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import is_

from gpu.node import NodeGpus, PodRef, Snapshot
from gpu.placement import PodRequest, Want, place
from gpu.scoring import Scoring, good_until
from scheduler.decide import Standing

Key = tuple[tuple[Want, ...], Scoring]

NOBODY = PodRef("", "", "")
"""Answers are kept for a class of pods, so they are asked for no pod in particular."""


@dataclass(slots=True)
class _Remembered:
    """One class: its standing, the nodes it was read from, and when which of them must be asked again."""

    request: PodRequest
    now: float
    nodes: tuple[NodeGpus, ...] = ()
    standing: Standing = field(default_factory=Standing)
    moments: dict[str, float] = field(default_factory=dict)
    queue: list[tuple[float, str]] = field(default_factory=list)


class Memo:
    """Keeps the `limit` classes that were asked for last: whoever asks for odd sizes must not fill the memory."""

    def __init__(self, limit: int = 64) -> None:
        self._classes: OrderedDict[Key, _Remembered] = OrderedDict()
        self._limit = limit

    def standing(self, snapshot: Snapshot, request: PodRequest, scoring: Scoring) -> Standing:
        """How the nodes of this snapshot stand towards a pod that has no placement in it yet. Do not change it."""
        key = _key(request, scoring)
        kept = self._classes.get(key)
        if kept is None or scoring.now < kept.now:  # the clock was set back: moments already passed may come again
            kept = self._classes[key] = _Remembered(PodRequest(NOBODY, key[0]), scoring.now)
        self._classes.move_to_end(key)
        if len(self._classes) > self._limit:
            self._classes.popitem(last=False)
        _refresh(kept, snapshot, scoring)
        return kept.standing


def _key(request: PodRequest, scoring: Scoring) -> Key:
    wants = tuple(sorted(request.wants, key=lambda w: (w.mode, w.profile, -w.amount)))
    return wants, replace(scoring, now=0.0)


def _refresh(kept: _Remembered, snapshot: Snapshot, scoring: Scoring) -> None:
    asked: dict[str, NodeGpus] = {}
    if snapshot.nodes is not kept.nodes:
        gone, changed = _difference(kept.nodes, snapshot.nodes)
        for name in gone:
            kept.standing.drop(name)
            kept.moments.pop(name, None)
        asked = {n.name: n for n in changed}
    for name in _due(kept, scoring.now):
        asked.setdefault(name, snapshot.by_name[name])
    for name, node in asked.items():
        kept.standing.put(name, place(node, kept.request, scoring))
        _remember_moment(kept, name, good_until(node, scoring))
    kept.nodes, kept.now = snapshot.nodes, scoring.now


def _difference(old: tuple[NodeGpus, ...], new: tuple[NodeGpus, ...]) -> tuple[Iterable[str], Iterable[NodeGpus]]:
    """Names that are gone and nodes that are new or another value."""
    if len(old) == len(new):
        same = list(map(is_, old, new))
        pairs = [(old[i], new[i]) for i in _where_false(same)]
        if all(a.name == b.name for a, b in pairs):
            return (), [b for a, b in pairs if a != b]
    before = {n.name: n for n in old}
    return before.keys() - {n.name for n in new}, [n for n in new if before.get(n.name) is not n]


def _where_false(flags: list[bool]) -> Iterator[int]:
    at = -1
    for _ in range(flags.count(False)):
        at = flags.index(False, at + 1)
        yield at


def _due(kept: _Remembered, now: float) -> list[str]:
    due = []
    while kept.queue and kept.queue[0][0] <= now:
        moment, name = heapq.heappop(kept.queue)
        if kept.moments.get(name) == moment:
            del kept.moments[name]
            due.append(name)
    return due


def _remember_moment(kept: _Remembered, name: str, moment: float) -> None:
    kept.moments.pop(name, None)
    if moment != float("inf"):
        kept.moments[name] = moment
        heapq.heappush(kept.queue, (moment, name))
