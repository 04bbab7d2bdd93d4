"""Rubbish in facts is told of once, on its object, by the active replica alone, and hides nothing else."""

from typing import Any

from cluster import names
from cluster.cache import Cache
from cluster.clock import ManualClock
from cluster.unreadable import Unreadable
from tests.builders import gpu, gpunode_object, pod


class Said:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def write(self, about: dict[str, Any], reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((about["kind"], about["metadata"]["name"], message))


class Lease:
    holding = True


def filled(*pods: dict[str, Any], wanted: dict[str, Any] | None = None) -> Cache:
    cache = Cache(ManualClock())
    cache.take("nodes", "ADDED", {"metadata": {"name": "n1"}})
    cache.take("gpunodes", "ADDED", gpunode_object("n1", gpu("GPU-0"), gpu("GPU-1"), wanted=wanted))
    for each in pods:
        cache.take("pods", "ADDED", each)
    return cache


def test_rubbish_is_told_once_and_the_rest_is_read() -> None:
    cache = filled(
        pod("half", asks={names.WHOLE: "500m"}),
        pod("typo", asks={"nvidia.com/mig-1g10gb": "1"}),
        pod("forged", node="n1", annotations={names.PROMISE: '{"v":9}'}),
        pod("good", asks={names.WHOLE: "1"}),
        wanted={"GPU-0": {"generation": "soon", "mode": "sliced"}},
    )
    cache.snapshot()
    said = Said()
    unreadable = Unreadable(cache, said, Lease())  # type: ignore[arg-type]
    assert unreadable.tick() == "4 facts cannot be read"
    assert {(kind, name) for kind, name, _ in said.events} == {
        ("GpuNode", "n1"),
        ("Pod", "half"),
        ("Pod", "typo"),
    }
    sentences = {name: sentence for _, name, sentence in said.events}
    assert "'500m' is no whole number; ask for 1, 2, 3" in sentences["half"]
    assert "write it as NVIDIA does" in sentences["typo"]
    assert "spec.gpus.GPU-0" in " ".join(s for _, _, s in said.events)
    unreadable.tick()
    assert len(said.events) == 4
    assert [r.pod.name for r in cache.pending()] == ["good"]
    # What is wanted of GPU-0 cannot be read, so it is closed; its neighbour is not.
    assert [g.closed for g in cache.snapshot().nodes[0].gpus] == [True, False]


def test_it_is_told_again_when_it_comes_back_and_only_by_the_active_replica() -> None:
    rubbish, good = pod("p", asks={names.WHOLE: "500m"}), pod("p", asks={names.WHOLE: "1"})
    cache, said, lease = filled(rubbish), Said(), Lease()
    unreadable = Unreadable(cache, said, lease)  # type: ignore[arg-type]
    lease.holding = False
    unreadable.tick()
    assert said.events == []
    lease.holding = True
    unreadable.tick()
    cache.take("pods", "MODIFIED", good)
    assert unreadable.tick() == ""
    cache.take("pods", "MODIFIED", rubbish)
    unreadable.tick()
    assert len(said.events) == 2
