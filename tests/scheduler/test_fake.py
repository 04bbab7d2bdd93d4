"""The stand-in for kube-scheduler, against the API double and the real extender application."""

import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cluster import names
from cluster.cache import Cache
from cluster.client import GPUNODES, NODES, PODS, Client
from cluster.clock import SystemClock
from cluster.fake import FakeApi
from cluster.watch import Watcher
from gpu.node import Gpu
from policies.model import Policy
from scheduler.app import Extender as OurExtender
from scheduler.app import application
from scheduler.bind import Binder
from scheduler.fake import Extender, KubeScheduler
from scheduler.fake_fit import quantity, requests_of
from scheduler.promises import Promises
from scheduler.serve import Tls, listen, server
from tests import builders as b


class World:
    """API double, our extender on a socket, and the stand-in, all in this process."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.client = Client.connect(api.kubeconfig(folder / "kubeconfig"))
        self.clock, self.policy = SystemClock(), Policy()
        self.cache = Cache(self.clock)
        kinds = (PODS, NODES, GPUNODES)
        self._watchers = [
            Watcher(
                self.client, k, lambda e, o, k=k: self.cache.take(k.plural, e, o),
                on_listed=lambda k=k: self.cache.listed(k.plural),
            ).start()
            for k in kinds
        ]  # fmt: skip
        promises = Promises(self.cache, self.clock)
        binder = Binder(self.client, self.cache, promises, lambda: self.policy, self.clock)
        ours = OurExtender(promises, binder, lambda: self.policy, self.clock, self.cache.ready)
        self._server, sock = server(application(ours), Tls()), listen("127.0.0.1:0", Tls())
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[sock]))
        self._thread.start()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._scheduler = KubeScheduler(self.client, Extender(url), backoff=(0.05, 0.1))

    def start(self) -> "World":
        for watcher in self._watchers:
            watcher.listed.wait(10)
        self._scheduler.start()
        return self

    def stop(self) -> None:
        self._scheduler.stop()
        for watcher in self._watchers:
            watcher.stop()
        self._server.should_exit = True
        self._thread.join(10)

    def node(self, name: str, allocatable: dict[str, str], *gpus: Gpu) -> None:
        self.client.create(
            NODES,
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}},
        )
        obj = b.gpunode_object(name, *gpus)
        self.client.create(GPUNODES, obj)
        self.client.patch(GPUNODES, name, {"status": obj["status"]}, subresource="status")

    def pod(self, name: str, asks: dict[str, str], **spec: Any) -> None:
        self.client.create(PODS, b.pod(name, asks=asks, **spec), "default")

    def condition(self, name: str) -> dict[str, Any]:
        conditions = self.client.get(PODS, name, "default")["status"].get("conditions") or [{}]
        return conditions[0]

    def node_of(self, name: str) -> str:
        return self.client.get(PODS, name, "default")["spec"].get("nodeName", "")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakeApi() as api:
        world = World(api, tmp_path)
        yield world
        world.stop()


def _until(true: Any) -> None:
    pause = threading.Event()
    assert any(true() or pause.wait(0.02) for _ in range(500)), "never came true"


def test_pods_are_placed_through_the_extender_and_told_why_not(world: World) -> None:
    world.node("n1", {"nvidia.com/gpu.shared": "40"}, b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=20))
    world.node("n2", {"nvidia.com/gpu": "1"}, b.gpu("GPU-2"))
    world.start()
    for name in ("a", "b", "c"):
        world.pod(name, {"nvidia.com/gpu.shared": "13"})
    _until(lambda: [world.node_of(n) for n in "ab"] == ["n1", "n1"])
    _until(lambda: world.condition("c").get("reason") == "Unschedulable")
    assert world.condition("c")["message"] == (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu.shared, "
        "1 no shared GPU with that many free units on one GPU."
    )
    world.client.delete(PODS, "a", "default", grace=0)
    _until(lambda: world.node_of("c") == "n1")
    world.pod("whole", {"nvidia.com/gpu": "1"})
    _until(lambda: world.node_of("whole") == "n2")
    assert names.PROMISE in world.client.get(PODS, "whole", "default")["metadata"]["annotations"]


def test_lack_of_allocatable_never_reaches_the_extender_and_new_capacity_wakes_the_pod(world: World) -> None:
    world.node("n1", {"cpu": "1"}, b.gpu("GPU-0", "1g.10gb@0"))
    world.start()
    world.pod("s", {"nvidia.com/mig-1g.10gb": "1"})
    _until(lambda: "Insufficient nvidia.com/mig-1g.10gb" in world.condition("s").get("message", ""))
    world.client.patch(NODES, "n1", {"status": {"allocatable": {"nvidia.com/mig-1g.10gb": "1"}}}, subresource="status")
    _until(lambda: world.node_of("s") == "n1")


def test_other_pods_are_bound_plainly_and_other_schedulers_left_alone(world: World) -> None:
    world.node("n1", {"cpu": "1", "pods": "5"}, b.gpu("GPU-0"))
    world.node("n2", {"cpu": "1", "pods": "0"})
    world.start()
    world.pod("foreign", {"cpu": "100m"}, schedulerName="default-scheduler")
    world.pod("large", {"cpu": "1100m"})
    world.pod("plain", {"cpu": "1"})
    _until(lambda: world.node_of("plain") == "n1")
    _until(lambda: world.condition("large").get("reason") == "Unschedulable")
    assert world.node_of("foreign") == ""


@pytest.mark.parametrize(
    ("text", "amount"),
    [("100m", "0.1"), ("2", "2"), ("1Ki", "1024"), ("3M", "3000000"), ("1.5Gi", "1610612736")],
)
def test_quantities(text: str, amount: str) -> None:
    assert quantity(text) == Decimal(amount)


def test_init_containers_count_as_the_largest() -> None:
    pod = b.pod("p", asks={"cpu": "1"}, initContainers=[{"resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}])
    assert requests_of(pod) == {"pods": 1, "cpu": 3, "memory": 2**30}
