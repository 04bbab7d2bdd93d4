"""The planning loop against an API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cache import Cache
from cluster.client import EVENTS, GPUNODES, NODES, PODS, Client
from cluster.clock import ManualClock
from cluster.events import Events
from cluster.fake import FakeApi
from cluster.gpunode import read_gpunode, recut_out
from gpu.node import Mode
from gpu.recut import Phase, Recut, Shape
from mig_manager.planner import Planner
from policies.load import Policies
from policies.model import Policy, Recutting
from tests import builders

KINDS = {"pods": PODS, "nodes": NODES, "gpunodes": GPUNODES}
ONE = {"nvidia.com/mig-1g.10gb": "1"}


class Cluster:
    """An API server, a cache that is filled on demand, and one planner."""

    def __init__(self, api: FakeApi, config: Path) -> None:
        self.api, self.clock = api, ManualClock(2e9)
        self.client = Client.connect(api.kubeconfig(config))
        self.cache, self.policies = Cache(self.clock), Policies()
        self.policies.listed()
        events = Events(self.client, self.clock, "planner")
        self.planner = Planner(self.client, self.cache, self.policies, self.clock, events)

    def add(self, *gpus: Any, name: str = "n1", **spec: Any) -> None:
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec})
        obj = builders.gpunode_object(name, *gpus)
        made = self.client.create(GPUNODES, obj)
        self.client.replace(GPUNODES, {**made, "status": obj["status"]}, "status")

    def pod(self, name: str, asks: dict[str, str], **spec: Any) -> None:
        pod = builders.pod(name, asks=asks, **spec)
        del pod["metadata"]["uid"]
        self.client.create(PODS, pod, "default")

    def tick(self, *, watch: bool = True) -> str:
        if watch:
            for kind, of in KINDS.items():
                for obj in self.client.list(of)["items"]:
                    self.cache.take(kind, "MODIFIED", obj)
                self.cache.listed(kind)
        return self.planner.tick()

    def wanted(self, name: str = "n1") -> Any:
        return read_gpunode(self.client.get(GPUNODES, name)).wanted


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApi() as api:
        yield Cluster(api, tmp_path / "config")


def test_orders_a_cut_once_and_tells_everybody(cluster: Cluster) -> None:
    cluster.add(builders.gpu())
    assert cluster.tick() == "nobody waits for a GPU to be re-cut"
    cluster.pod("a", ONE)
    said = cluster.tick()
    assert said.startswith("1 pods gain a place: GPU-0 of n1 becomes sliced [1g.10gb@6] for 1 pod that waits")
    order = cluster.wanted()["GPU-0"]
    assert (order.generation, order.shape) == (1, Shape(Mode.SLICED, builders.layout("1g.10gb@6")))
    assert order.reason == "for 1 pod that waits for 1 x 1g.10gb: default/a"
    events = cluster.client.list(EVENTS)["items"]
    assert {(e["reason"], e["involvedObject"]["kind"]) for e in events} == {
        ("RecutStarted", "GpuNode"),
        ("RecutStarted", "Pod"),
    }
    assert cluster.tick(watch=False) == "waiting for the watch to show the last order"
    assert cluster.tick() == "nobody waits for a GPU to be re-cut"
    assert cluster.wanted()["GPU-0"].generation == 1


def test_the_fence_is_the_term_and_the_generation_goes_on(cluster: Cluster) -> None:
    cluster.add(builders.gpu())
    done = Recut(7, Phase.DONE, 1.0, Shape(Mode.WHOLE), Shape(Mode.WHOLE))
    cluster.client.patch(GPUNODES, "n1", {"status": {"recuts": {"GPU-0": recut_out(done)}}}, subresource="status")
    cluster.pod("a", ONE)
    cluster.planner._term = 4  # as `lead` sets it
    cluster.tick()
    assert (cluster.wanted()["GPU-0"].generation, cluster.wanted()["GPU-0"].fence) == (8, 4)


def test_books_that_are_old_are_refused_by_the_server(cluster: Cluster) -> None:
    cluster.add(builders.gpu())
    cluster.pod("a", ONE)
    cluster.policies.current = Policy(recutting=Recutting(enabled=False))
    assert cluster.tick() == "re-cutting is switched off by policy"
    cluster.policies.current = Policy()
    cluster.client.patch(GPUNODES, "n1", {"metadata": {"labels": {"somebody": "else"}}})
    assert cluster.tick(watch=False) == "not ordered: GpuNode n1 changed meanwhile"
    assert cluster.wanted() == {}
    assert cluster.tick().startswith("1 pods gain a place")


def test_a_lost_answer_is_not_taken_for_a_refusal(cluster: Cluster) -> None:
    cluster.add(builders.gpu("GPU-0"), builders.gpu("GPU-1"))
    cluster.pod("a", ONE)
    cluster.api.lose_reply("patch", "gpunodes")
    assert cluster.tick().startswith("not known whether ordered")
    assert cluster.tick(watch=False) == "waiting for the watch to show the last order"
    assert cluster.tick() == "nobody waits for a GPU to be re-cut"
    assert len(cluster.wanted()) == 1


def test_patience(cluster: Cluster) -> None:
    cluster.add(builders.gpu())
    cluster.pod("a", ONE)
    cluster.policies.current = Policy(recutting=Recutting(patience_seconds=7 * 24 * 3600.0))
    cluster.clock._now = 0.0
    assert cluster.tick() == "nobody waits for a GPU to be re-cut"


def test_not_ready_until_all_is_listed(cluster: Cluster) -> None:
    assert cluster.tick(watch=False).startswith("not ready: not yet listed")


def test_only_where_the_pod_may_run(cluster: Cluster) -> None:
    for i in range(4):
        cluster.add(builders.gpu(f"GPU-{i}"), name=f"n{i}")
    cluster.pod("a", ONE, nodeSelector={"kubernetes.io/hostname": "n2"})
    assert cluster.tick().startswith("1 pods gain a place: GPU-2 of n2 becomes sliced [1g.10gb@6]")
    assert not any(cluster.wanted(f"n{i}") for i in (0, 1, 3))
    assert cluster.tick() == "nobody waits for a GPU to be re-cut"


def test_nobody_is_served_where_none_may_run(cluster: Cluster) -> None:
    cluster.add(builders.gpu("GPU-0"), name="n0", unschedulable=True)
    cluster.add(builders.gpu("GPU-1"), name="n1", taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    cluster.pod("a", ONE)
    assert cluster.tick() == "nobody waits for a GPU to be re-cut"
    cluster.pod("b", ONE, tolerations=[{"key": "team", "operator": "Exists"}])
    assert cluster.tick().startswith("1 pods gain a place: GPU-1 of n1 becomes")
    assert not cluster.wanted("n0")


def test_pods_of_other_schedulers_wait_too(cluster: Cluster) -> None:
    cluster.add(builders.gpu())
    cluster.pod("a", ONE, schedulerName="default-scheduler")
    assert cluster.tick().startswith("1 pods gain a place")
