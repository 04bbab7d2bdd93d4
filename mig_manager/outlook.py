"""The books as the re-cuts under way will leave them, and which GPUs may be re-cut next.

Without it the planner would re-cut a second GPU for pods that the first one is being re-cut for. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cluster.gpunode import NodeFacts
from gpu.node import Gpu, Mode, NodeGpus, Snapshot, Stage
from gpu.recut import Phase, Recut, Shape, Wanted

Key = tuple[str, str]
"""Node name and GPU UUID."""

MOST_REST_SECONDS = 3600.0
LEAST_REST_SECONDS = 1.0
"""After a re-cut that was rolled back, also when policy sets no cool-down."""


@dataclass(frozen=True)
class Outlook:
    """`movable` GPUs may be re-cut now; `resting` ones only a while after their last re-cut; `under_way` are at it."""

    snapshot: Snapshot
    movable: frozenset[Key] = frozenset()
    resting: frozenset[Key] = frozenset()
    under_way: frozenset[Key] = frozenset()


def outlook(
    snapshot: Snapshot, facts: Mapping[str, NodeFacts], cooldown_seconds: float, units: int, now: float
) -> Outlook:
    """`units` is what a GPU that becomes shared will be shared into."""
    sorts: dict[str, set[Key]] = {"movable": set(), "resting": set(), "under_way": set(), "closed": set()}
    nodes = []
    for node in snapshot.nodes:
        known = facts.get(node.name)
        expected = _settled(node)
        for gpu, wanted, recut in _orders(node, known):
            sorts[_sort(gpu, wanted, recut, cooldown_seconds, now)].add((node.name, gpu.uuid))
            if wanted is not None and under_way(wanted, recut) and gpu.healthy:
                shape = recut.target if recut and recut.generation == wanted.generation else wanted.shape
                expected = _as_if(expected, gpu.uuid, shape, units)
        nodes.append(expected)
    future = replace(snapshot, nodes=tuple(nodes))
    return Outlook(future, frozenset(sorts["movable"]), frozenset(sorts["resting"]), frozenset(sorts["under_way"]))


def under_way(wanted: Wanted | None, recut: Recut | None) -> bool:
    """The order has been given and not been answered with Done or Stuck yet."""
    answered = recut is not None and wanted is not None and recut.generation >= wanted.generation
    if wanted is None or answered:
        return recut is not None and not recut.phase.final
    return True


def rest_seconds(recut: Recut, cooldown_seconds: float) -> float:
    """How long a GPU is left alone after this re-cut, in seconds.

    After the second one in a row that was rolled back twice the cool-down, then twice that, an hour at most: what has
    failed again and again closes the GPU to new pods at each attempt. Whatever each was to become counts as one: what
    a GPU is wanted for changes with every pod that comes or goes, what keeps it from changing does not.
    """
    if not recut.failures:
        return cooldown_seconds
    doubled = max(cooldown_seconds, LEAST_REST_SECONDS) * 2.0 ** min(recut.failures - 1, 30)
    return max(cooldown_seconds, min(doubled, MOST_REST_SECONDS))


def shape_of(gpu: Gpu) -> Shape:
    return Shape(gpu.mode, gpu.layout if gpu.mode is Mode.SLICED else ())


def _orders(node: NodeGpus, known: NodeFacts | None) -> Iterator[tuple[Gpu, Wanted | None, Recut | None]]:
    wanted = (known.wanted if known else None) or {}
    recuts = (known.recuts if known else None) or {}
    for gpu in node.gpus:
        yield gpu, wanted.get(gpu.uuid), recuts.get(gpu.uuid)


def _sort(gpu: Gpu, wanted: Wanted | None, recut: Recut | None, cooldown_seconds: float, now: float) -> str:
    if under_way(wanted, recut):
        return "under_way"
    if not gpu.takes_pods or gpu.held or gpu.fixed:
        return "closed"
    if recut is not None and recut.phase is Phase.DONE and now - recut.since < rest_seconds(recut, cooldown_seconds):
        return "resting"
    return "movable"


def _settled(node: NodeGpus) -> NodeGpus:
    """Promises count as handed out: that two of them may not travel together says nothing about capacity."""
    if all(p.stage is Stage.CLAIMED for p in node.placements):
        return node
    return replace(node, placements=tuple(replace(p, stage=Stage.CLAIMED) for p in node.seats))


def _as_if(node: NodeGpus, uuid: str, shape: Shape, units: int) -> NodeGpus:
    return node.with_layout(uuid, shape.mode, shape.layout, units if shape.mode is Mode.SHARED else 0)
