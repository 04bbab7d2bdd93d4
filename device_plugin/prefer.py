"""Which of the free ids the kubelet should give to a container.

Pure. The kubelet never says for which pod it asks. It is steered to what was promised to a pod of that size; where
nothing was, to what strands least: units of the device that fits best, slices whose going leaves the most useful rest,
whole GPUs that are connected best.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from device_plugin import aligned
from device_plugin.aligned import Candidate
from device_plugin.devices import UNIT, NodeGpu
from gpu.hardware import Topology
from gpu.layout import Slice, canonical
from gpu.node import Placement, Share
from gpu.scoring import usefulness


@dataclass(frozen=True, slots=True)
class Asked:
    """What the kubelet asks for one container: `size` ids of `resource` out of `free`, those of `must` among them."""

    resource: str
    free: tuple[str, ...]
    must: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Steering:
    """What steers the choice: placements of pods bound to this node that have not been handed their devices yet, how
    GPUs are connected, and whether units come from the least taken device (`distribute`) or from the fullest."""

    promises: tuple[Placement, ...] = ()
    topology: Topology = field(default_factory=lambda: Topology({}))
    distribute: bool = False


def prefer(asked: Asked, gpus: Iterable[NodeGpu], steering: Steering) -> tuple[str, ...]:
    """The ids to like, those that must be first; fewer than `size` when there are no more."""
    if asked.size <= len(asked.must):
        return asked.must[: asked.size]
    node = _Node(gpus, asked, steering)
    # A promise of exactly this size first. A larger one may be asked for by an init container, which hands its units
    # on to the container that they were promised to.
    for exact in (True, False):
        for promised in node.promised():
            if ids := node.of_promise(promised, exact=exact):
                return node.fitted(ids)
    return node.fitted(node.free)


class _Node:
    """One question with what is known of the ids it is about."""

    def __init__(self, gpus: Iterable[NodeGpu], asked: Asked, steering: Steering) -> None:
        self._gpus = {g.uuid: g for g in gpus}
        self._asked, self._steering = asked, steering
        self._shares = {i: s for g in self._gpus.values() for i, s in g.shares.items()}
        self._pieces: dict[str, Slice] = {i: s.slice for i, s in self._shares.items() if s.slice is not None}
        known = dict.fromkeys((*asked.must, *asked.free))
        self.free = tuple(sorted((i for i in known if i in self._shares), key=self._order))

    def promised(self) -> list[list[Share]]:
        """Per promise, the smallest and oldest first, what of it is asked for by this resource name."""
        promises = sorted(self._steering.promises, key=lambda p: (len(p.shares), p.at, p.pod.uid))
        return [[s for s in p.shares if self._named(s) == self._asked.resource] for p in promises]

    def of_promise(self, promised: Sequence[Share], *, exact: bool) -> tuple[str, ...]:
        """The free ids that stand for what was promised; none where it is another size or what must be is not of it."""
        size, must = self._asked.size, set(self._asked.must)
        for share in promised:
            if share.units:
                fits = share.units == size if exact else share.units >= size
                ids = [i for i in self.free if replace(self._shares[i], units=share.units) == share]
            else:
                fits = len(promised) == size if exact else len(promised) >= size
                ids = [i for i in self.free if self._shares[i] in promised]
            if fits and len(ids) >= size and must <= set(ids):
                return tuple(ids)
        return ()

    def fitted(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        """The best of these ids. One name may stand for whole GPUs, slices and units: the smallest that will do."""
        size, must = self._asked.size, set(self._asked.must)
        units = tuple(i for i in ids if self._shares[i].units)
        slices = tuple(i for i in ids if self._shares[i].slice is not None and not self._shares[i].units)
        wholes = tuple(i for i in ids if self._shares[i].slice is None and not self._shares[i].units)
        devices = [g for g in self._devices(units) if len(g) >= size and must <= set(g)]
        if devices:
            return self._answer(devices[0])
        if len(slices) >= size and must <= set(slices):
            return self._answer(self._slices(slices))
        if len(wholes) >= size and must <= set(wholes):
            return self._wholes(wholes)
        # Too few of each. Allocate says so in words that the pod shows.
        return self._answer([*(i for group in self._devices(units) for i in group), *slices, *wholes])

    def _answer(self, ids: Sequence[str]) -> tuple[str, ...]:
        must = self._asked.must
        return (*must, *(i for i in ids if i not in must))[: self._asked.size]

    def _devices(self, units: Sequence[str]) -> list[list[str]]:
        """Units by the GPU or slice they are of: the best fit first, or the least taken."""
        free: dict[str, list[str]] = {}
        for id_ in units:
            free.setdefault(id_.partition(UNIT)[0], []).append(id_)
        if self._steering.distribute:
            return sorted(free.values(), key=lambda ids: (self._taken(ids), self._order(ids[0])))
        return sorted(free.values(), key=lambda ids: (len(ids), self._order(ids[0])))

    def _taken(self, free: Sequence[str]) -> int:
        gpu = self._gpus[self._shares[free[0]].gpu]
        return gpu.sold_id(free[0]).replicas - len(free)

    def _slices(self, ids: Sequence[str]) -> list[str]:
        """One after another, each time the slice whose going costs its GPU the least usefulness; of equals one of the
        fullest GPU. What is neither free here nor asked for by this name counts as taken: it will not be joined."""
        picked = [i for i in self._asked.must if i in ids]
        left = [i for i in ids if i not in picked]
        taken = {u: set(g.layout) for u, g in self._gpus.items()}
        for id_ in left:
            taken[self._shares[id_].gpu].discard(self._pieces[id_])

        def cost(id_: str) -> tuple[float, int, tuple[int, int, int]]:
            gpu, piece = self._gpus[self._shares[id_].gpu], self._pieces[id_]
            before = canonical(taken[gpu.uuid])
            after = canonical((*before, piece))
            rise = usefulness(before, gpu.seen.model) - usefulness(after, gpu.seen.model)
            return rise, -sum(s.profile.size for s in before), self._order(id_)

        while left and len(picked) < self._asked.size:
            best = min(left, key=cost)
            left.remove(best)
            picked.append(best)
            taken[self._shares[best].gpu].add(self._pieces[best])
        return picked

    def _wholes(self, ids: Sequence[str]) -> tuple[str, ...]:
        """By aligned.py. Models are numbered by memory, the smallest first (B118)."""
        gpus = [self._gpus[i] for i in ids]
        models = sorted({(g.seen.model.memory_mib, g.seen.model.key) for g in gpus})
        names = list(dict.fromkeys(key for _, key in models))
        free = [Candidate(g.uuid, g.seen.index, g.seen.numa, names.index(g.seen.model.key)) for g in gpus]
        return self._answer(aligned.best(free, self._asked.must, self._asked.size, self._steering.topology))

    def _named(self, share: Share) -> str:
        gpu = self._gpus.get(share.gpu)
        return gpu.name_of(share) if gpu else ""

    def _order(self, id_: str) -> tuple[int, int, int]:
        """By GPU, by place on it, by number of the unit."""
        share, number = self._shares[id_], id_.partition(UNIT)[2]
        start = share.slice.start if share.slice else 0
        return self._gpus[share.gpu].seen.index, start, int(number) if number.isdecimal() else 0
