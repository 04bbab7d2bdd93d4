"""Binding against the API double over HTTP: lost replies, conflicts, races; nothing is ever promised twice."""

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.cache import KINDS, Cache
from cluster.client import PODS, Client
from cluster.clock import ManualClock
from cluster.fake import FakeApi
from cluster.names import PROMISE
from policies.model import Placing, Policy
from scheduler.bind import BOUND, Binder
from scheduler.promises import Promises
from scheduler.wire import BindCall
from tests import builders as b

EIGHT = {"nvidia.com/gpu.shared": "8"}


class World:
    """An API double, a cache that is fed by hand (so that the watch can be late), and a binder."""

    def __init__(self, api: FakeApi, client: Client) -> None:
        self.api, self.client, self.clock = api, client, ManualClock()
        self.cache = Cache(self.clock)
        for kind in KINDS:
            self.cache.listed(kind)
        for name in ("n1", "n2"):
            self.cache.take("nodes", "ADDED", {"metadata": {"name": name}})
            self.cache.take("gpunodes", "ADDED", b.gpunode_object(name, b.gpu("GPU-0", units=20)))
        self.promises = Promises(self.cache, self.clock)
        self.policy = Policy(placing=Placing(scorer="pack"))
        self.binder = Binder(client, self.cache, self.promises, lambda: self.policy, self.clock)

    def pod(self, name: str, asks: dict[str, str] | None = None, *, shown: bool = True) -> BindCall:
        pod = self.client.create(PODS, b.pod(name, asks=EIGHT if asks is None else asks), "default")
        if shown:
            self.cache.take("pods", "ADDED", pod)
        return BindCall("default", name, pod["metadata"]["uid"], "n1")

    def stored(self, name: str) -> dict:
        return self.client.get(PODS, name, "default")

    def promised(self, name: str) -> dict:
        return json.loads(self.stored(name)["metadata"]["annotations"][PROMISE])

    def show(self, name: str) -> None:
        self.cache.take("pods", "MODIFIED", self.stored(name))


@pytest.fixture(scope="module")
def server() -> Iterator[FakeApi]:
    with FakeApi() as api:
        yield api


@pytest.fixture
def world(server: FakeApi, tmp_path: Path) -> Iterator[World]:
    client = Client.connect(server.kubeconfig(tmp_path / "kubeconfig"))
    yield World(server, client)
    for pod in client.list(PODS)["items"]:
        client.delete(PODS, pod["metadata"]["name"], "default", grace=0)


def test_node_and_promise_go_in_one_binding(world: World) -> None:
    assert world.binder.bind(world.pod("p1")) == BOUND
    assert world.stored("p1")["spec"]["nodeName"] == "n1"
    assert world.promised("p1")["shares"] == [{"gpu": "GPU-0", "units": 8}]
    world.show("p1")
    assert world.promises.snapshot() is world.cache.snapshot(), "the watch has taken over"


def test_a_pod_the_watch_has_not_shown_is_read_from_the_server(world: World) -> None:
    assert world.binder.bind(world.pod("p1", shown=False)) == BOUND
    assert world.promised("p1")["shares"] == [{"gpu": "GPU-0", "units": 8}]


def test_a_pod_without_a_gpu_is_bound_plainly(world: World) -> None:
    assert world.binder.bind(world.pod("plain", {"cpu": "1"})) == BOUND
    assert PROMISE not in world.stored("plain")["metadata"]["annotations"]


def test_no_room_is_an_answer_and_leaves_nothing_behind(world: World) -> None:
    for name in ("p1", "p2"):
        assert world.binder.bind(world.pod(name)) == BOUND
    outcome = world.binder.bind(world.pod("p3"))
    assert outcome.word == "refused"
    assert outcome.error == "node n1: no shared GPU with that many free units on one GPU"
    assert "nodeName" not in world.stored("p3")["spec"]


def test_an_unreadable_request_is_told_to_its_author(world: World) -> None:
    outcome = world.binder.bind(world.pod("bad", {"nvidia.com/gpu.shared": "1500m"}))
    assert outcome.word == "refused"
    assert "container main, nvidia.com/gpu.shared: '1500m' is no whole number" in outcome.error


def test_repeating_a_bind_is_harmless(world: World) -> None:
    call = world.pod("p1")
    assert world.binder.bind(call) == BOUND
    assert world.binder.bind(call) == BOUND, "before the watch has shown it"
    world.show("p1")
    assert world.binder.bind(call) == BOUND, "and after"
    elsewhere = world.binder.bind(BindCall(call.namespace, call.name, call.uid, "n2"))
    assert elsewhere.error == "the pod is bound to node n1 already"
    world.promises.snapshot()
    assert len(world.promises) == 0


def test_bound_elsewhere_is_found_out_from_the_server(world: World) -> None:
    call = world.pod("p1")
    world.client.bind("default", "p1", call.uid, "n2", {})
    assert world.binder.bind(call).word == "failed"
    assert len(world.promises) == 0


def test_a_lost_reply_is_looked_up(world: World) -> None:
    call = world.pod("p1")
    world.api.lose_reply("bind", "pods")
    assert world.binder.bind(call) == BOUND
    assert world.stored("p1")["spec"]["nodeName"] == "n1"


def test_when_nobody_can_tell_the_promise_stands_until_it_ends(world: World) -> None:
    call = world.pod("p1")
    world.api.lose_reply("bind", "pods")
    world.api.fail("get", "pods", 500, times=1)
    assert world.binder.bind(call).word == "failed"
    assert len(world.promises) == 1
    free = world.promises.snapshot().by_name["n1"]
    assert free.free_units(free.gpus[0]) == 12
    world.show("p1")
    assert world.binder.bind(call) == BOUND
    world.promises.snapshot()
    assert len(world.promises) == 0


@pytest.mark.parametrize("code", [403, 422, 429])
def test_a_certain_failure_withdraws_the_promise(world: World, code: int) -> None:
    world.api.fail("bind", "pods", code)
    assert world.binder.bind(world.pod("p1")).word == "refused"
    assert len(world.promises) == 0


def test_a_pod_that_went_or_was_replaced_is_not_bound(world: World) -> None:
    call = world.pod("p1")
    world.client.delete(PODS, "p1", "default", grace=0)
    assert "does not exist any more" in world.binder.bind(call).error
    world.pod("p1", shown=False)
    assert world.binder.bind(call).word == "failed", "the uid is a precondition"
    assert "nodeName" not in world.stored("p1")["spec"]
    unseen = BindCall("default", "p1", "uid-of-long-ago", "n1")
    assert "has been replaced" in world.binder.bind(unseen).error
    assert len(world.promises) == 0


@pytest.mark.parametrize("seed", range(3))
def test_two_binds_at_once_never_promise_one_share_twice(world: World, seed: int) -> None:
    """More pods than fit, from many threads, with a watch that is late and replies that get lost."""
    luck = random.Random(seed)
    calls = [world.pod(f"p{i}", {"nvidia.com/gpu.shared": str(luck.randint(3, 9))}) for i in range(16)]
    for _ in range(3):
        world.api.lose_reply("bind", "pods")
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.002):
            world.show(f"p{luck.randrange(16)}")

    late = threading.Thread(target=watch)
    late.start()
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(world.binder.bind, calls * 2))
    watching.set()
    late.join()
    for number in range(16):
        world.show(f"p{number}")
    bound = [i for i in range(16) if world.stored(f"p{i}")["spec"].get("nodeName")]
    units = sum(s["units"] for i in bound for s in world.promised(f"p{i}")["shares"])
    assert 10 < units <= 20
    assert len(bound) == len({i % 16 for i, o in enumerate(outcomes) if o == BOUND})
    books = world.promises.snapshot().by_name["n1"]
    assert books.use(books.gpus[0]).units == units
