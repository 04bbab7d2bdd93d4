"""What the watches have shown, folded: one NodeGpus per node, refolded only when that node changes.

Keeps nothing that could be lost: after a restart the same objects fold into the same books. Thread-safe; the one lock
is never held across a call to the API server.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from cluster import facts, names
from cluster.clock import Clock
from cluster.gpunode import NodeFacts, read_gpunode
from gpu.node import Gpu, NodeGpus, Placement, Snapshot
from gpu.placement import PodRequest

Object = Mapping[str, Any]
KINDS = ("pods", "nodes", "gpunodes")


class Cache:
    """Fed by watches through `take`; read through `snapshot` and its neighbours."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
        self._listed: set[str] = set()
        self._pods_of: dict[str, set[str]] = {}
        self._requests: dict[str, PodRequest] = {}
        self._problems: dict[str, tuple[str, ...]] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._folded: dict[str, NodeGpus] = {}
        self._dirty: set[str] = set()
        self._snapshot = Snapshot()
        self.version = 0

    def take(self, kind: str, event: str, obj: Object) -> None:
        """One watch event: `ADDED`, `MODIFIED` or `DELETED` of a pod, node or gpunode."""
        key = _key(kind, obj)
        with self._changed:
            old = self._objects[kind].get(key)
            if event == "DELETED":
                self._objects[kind].pop(key, None)
            else:
                self._objects[kind][key] = obj
            now = self._objects[kind].get(key)
            self._take_pod(key, old, now) if kind == "pods" else self._take_node(kind, key)
            self.version += 1
            self._changed.notify_all()

    def listed(self, kind: str) -> None:
        with self._changed:
            self._listed.add(kind)
            self._changed.notify_all()

    def ready(self) -> str:
        """Empty when every kind has been listed once, else what is missing."""
        missing = [kind for kind in KINDS if kind not in self._listed]
        return f"not yet listed: {', '.join(missing)}" if missing else ""

    def snapshot(self) -> Snapshot:
        """All nodes that have both a Node and a GpuNode. Unchanged nodes are the same values as before."""
        with self._changed:
            # Each name leaves the list before it is folded: one that cannot be must not hold up the others.
            dirty, self._dirty = self._dirty, set()
            if changed := [name for name in dirty if self._fold(name)]:
                self._snapshot = Snapshot(self._nodes_with(changed), self._clock.now())
            return self._snapshot

    def pending(self) -> tuple[PodRequest, ...]:
        """Requests of the pods that a scheduler may place now, oldest first."""
        with self._changed:
            return tuple(sorted(self._requests.values(), key=lambda r: (r.since, r.pod.uid)))

    def facts(self, node: str) -> NodeFacts | None:
        with self._changed:
            return self._facts.get(node)

    def gpunode(self, node: str) -> Object | None:
        with self._changed:
            return self._objects["gpunodes"].get(node)

    def gpunodes(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(sorted(self._objects["gpunodes"]))

    def node(self, name: str) -> Object | None:
        with self._changed:
            return self._objects["nodes"].get(name)

    def pod(self, uid: str) -> Object | None:
        with self._changed:
            return self._objects["pods"].get(uid)

    def pods_on(self, node: str) -> tuple[Object, ...]:
        """Pods bound to this node that have not ended."""
        with self._changed:
            return tuple(self._objects["pods"][uid] for uid in sorted(self._pods_of.get(node, ())))

    def problems(self) -> tuple[tuple[Object, str], ...]:
        """What cannot be read, each with the object it stands on and a sentence that names the place and the cure."""
        with self._changed:
            found = []
            for key in sorted(self._problems):
                kind, _, name = key.rpartition("/")
                obj = self._objects["gpunodes" if kind else "pods"].get(name)
                found += [(obj, sentence) for sentence in self._problems[key] if obj is not None]
            return tuple(found)

    def wait(self, timeout_seconds: float, seen: int) -> int:
        """Block until something changed after version `seen`, or the time is over; the version now."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > seen, timeout_seconds)
            return self.version

    def _take_pod(self, uid: str, old: Object | None, new: Object | None) -> None:
        for pod in (old, new):
            if pod is not None and (name := facts.bound_node(pod)):
                self._dirty.add(name)
                self._pods_of.setdefault(name, set()).discard(uid)
        if new is not None and facts.bound_node(new) and not facts.over(new):
            self._pods_of.setdefault(facts.bound_node(new), set()).add(uid)
        self._requests.pop(uid, None)
        self._problems.pop(uid, None)
        if new is None or not facts.waiting(new):
            return
        try:
            if request := facts.read_request(new):
                self._requests[uid] = request
        except facts.FactError as error:
            self._problems[uid] = (str(error),)

    def _take_node(self, kind: str, name: str) -> None:
        if kind == "nodes" and (name in self._objects["nodes"]) == (name in self._folded):
            return  # a Node's own fields do not enter the books, only that it exists
        self._dirty.add(name)
        if kind == "gpunodes":
            obj = self._objects["gpunodes"].get(name)
            if obj is None:
                self._facts.pop(name, None)
            else:
                self._facts[name] = read_gpunode(obj)

    def _nodes_with(self, changed: list[str]) -> tuple[NodeGpus, ...]:
        """All nodes by name. Sorting thousands of names anew for each bound pod would cost more than deciding."""
        nodes = list(self._snapshot.nodes)
        for name in changed:
            at = bisect_left(nodes, name, key=lambda n: n.name)
            if name not in self._folded or at == len(nodes) or nodes[at].name != name:
                return tuple(self._folded[n] for n in sorted(self._folded))  # some came or went
            nodes[at] = self._folded[name]
        return tuple(nodes)

    def _fold(self, name: str) -> bool:
        """Whether the books of this node are others than before."""
        node, before = self._facts.get(name), self._folded.get(name)
        if node is None or name not in self._objects["nodes"]:
            self._problems.pop(f"node/{name}", None)
            return self._folded.pop(name, None) is not None
        problems = list(node.problems)
        pods = (self._objects["pods"][uid] for uid in sorted(self._pods_of.get(name, ())))
        books = node.books(_placements(pods, node, problems))
        self._problems[f"node/{name}"] = tuple(problems)
        if before == books:
            return False
        self._folded[name] = books
        return True


def _placements(pods: Iterable[Object], node: NodeFacts, problems: list[str]) -> list[Placement]:
    gpus = {g.uuid: g for g in node.gpus}
    placements = []
    for pod in pods:
        try:
            placement = facts.read_placement(pod, gpus)
        except facts.FactError as error:
            problems.append(str(error))
            placement = _second_best(pod, gpus)
        if placement is not None:
            placements.append(placement)
    return placements


def _second_best(pod: Object, gpus: Mapping[str, Gpu]) -> Placement | None:
    """A claim that cannot be read must not free what was promised: the promise stands in for it."""
    meta = pod.get("metadata") or {}
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k != names.CLAIM}
    try:
        return facts.read_placement({**pod, "metadata": {**meta, "annotations": annotations}}, gpus)
    except facts.FactError:
        return None


def _key(kind: str, obj: Object) -> str:
    meta = obj.get("metadata") or {}
    return str(meta.get("uid") if kind == "pods" else meta.get("name"))
