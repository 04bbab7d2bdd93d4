"""Promises between the Binding and the watch: laid over what is known, dropped when it is known, never given twice."""

import pytest

from cluster.cache import KINDS, Cache
from cluster.clock import ManualClock
from cluster.facts import write_shares
from cluster.names import PROMISE
from gpu.node import NodeGpus
from gpu.placement import Answer, Fit, PodRequest, Reason, Refusal, place
from gpu.scoring import Scoring
from scheduler.promises import Promises
from tests import builders as b

SECONDS = 60.0


class World:
    """A cache with one node of two shared GPUs, and its promises."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cache = Cache(self.clock)
        for kind in KINDS:
            self.cache.listed(kind)
        for name in ("n1", "n2"):
            self.cache.take("nodes", "ADDED", {"metadata": {"name": name}})
            gpus = (b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=20))
            self.cache.take("gpunodes", "ADDED", b.gpunode_object(name, *gpus))
        self.promises = Promises(self.cache, self.clock)

    def make(self, request: PodRequest, node: str = "n1") -> Answer:
        def choose(books: NodeGpus) -> Answer:
            return place(books, request, Scoring("pack", self.clock.now()))

        return self.promises.make(request.pod, node, choose, SECONDS)

    def free(self, node: str = "n1", besides: str = "") -> int:
        books = self.promises.snapshot(besides).by_name[node]
        return sum(books.free_units(g) for g in books.gpus)

    def show(self, request: PodRequest, answer: Answer, event: str = "MODIFIED", **more: object) -> None:
        """The watch brings the pod, bound with its promise."""
        assert isinstance(answer, Fit)
        text = write_shares(answer.placement.shares, self.clock.now())
        pod = b.pod(request.pod.name, node=answer.placement.node, annotations={PROMISE: text}, **more)
        self.cache.take("pods", event, pod)


@pytest.fixture
def world() -> World:
    return World()


def _ask(n: int, pod: str = "p1") -> PodRequest:
    return b.request(b.units(n), pod=pod)


def test_a_promise_takes_its_share_at_once(world: World) -> None:
    assert isinstance(world.make(_ask(15)), Fit)
    assert world.free() == 25
    assert world.free(besides="uid-default-p1") == 40, "a pod is not in its own way"
    assert isinstance(world.make(_ask(15, "p2")), Fit)
    assert world.make(_ask(15, "p3")) == Refusal(Reason.NO_UNITS_TOGETHER)
    assert world.make(_ask(1, "p4"), "unheard-of") == Refusal(Reason.NO_GPUS)


def test_the_watch_takes_over_without_a_gap(world: World) -> None:
    world.cache.take("pods", "ADDED", b.pod("p1"))
    answer = world.make(_ask(15))
    world.promises.confirm("uid-default-p1", "n1")
    world.clock.advance(10 * SECONDS)
    assert world.free() == 25, "confirmed: it stands until the watch shows it"
    world.show(_ask(15), answer)
    assert world.free() == 25
    assert len(world.promises) == 0
    world.show(_ask(15), answer, phase="Succeeded")
    assert world.free() == 40


def test_a_promise_ends_when_withdrawn_or_by_time_or_with_its_pod(world: World) -> None:
    world.make(_ask(5, "a"))
    world.promises.withdraw("uid-default-a", "n1")
    assert world.free() == 40
    world.make(_ask(5, "b"))
    world.clock.advance(SECONDS)
    assert world.free() == 40
    world.cache.take("pods", "ADDED", b.pod("c"))
    world.make(_ask(5, "c"))
    world.promises.confirm("uid-default-c", "n1")
    world.cache.take("pods", "DELETED", b.pod("c"))
    assert world.free() == 40


def test_a_pod_the_watch_showed_only_later_is_missed_when_it_goes(world: World) -> None:
    world.make(_ask(5))
    world.cache.take("pods", "ADDED", b.pod("p1"))
    assert world.free() == 35
    world.cache.take("pods", "DELETED", b.pod("p1"))
    assert world.free() == 40


def test_a_repeated_bind_keeps_its_promise_and_another_node_keeps_the_doubtful_one(world: World) -> None:
    first = world.make(_ask(15))
    world.clock.advance(1)
    assert world.make(_ask(15)).placement == first.placement, "it may be written on the pod already"
    assert world.free() == 25
    world.make(_ask(15), "n2")
    assert (world.free("n1"), world.free("n2")) == (25, 25), "the first Binding may still come true"
    world.promises.withdraw("uid-default-p1", "n1")
    assert (world.free("n1"), world.free("n2")) == (40, 25)


def test_what_has_not_changed_keeps_its_identity(world: World) -> None:
    assert world.promises.snapshot() is world.promises.snapshot()
    world.make(_ask(5))
    before = world.promises.snapshot()
    assert world.promises.snapshot() is before
    world.make(_ask(5, "p2"), "n2")
    after = world.promises.snapshot()
    assert after.by_name["n1"] is before.by_name["n1"]
    assert after.by_name["n2"] is not before.by_name["n2"]


def test_a_node_that_went_takes_its_promises_out_of_the_books_only(world: World) -> None:
    world.make(_ask(5))
    gone = b.gpunode_object("n1")
    world.cache.take("gpunodes", "DELETED", gone)
    assert "n1" not in world.promises.snapshot().by_name
    world.cache.take("gpunodes", "ADDED", b.gpunode_object("n1", b.gpu("GPU-0", units=20), b.gpu("GPU-1", units=20)))
    assert world.free() == 35


def test_a_promise_whose_gpu_was_re_cut_is_made_anew(world: World) -> None:
    first = world.make(_ask(15))
    gpus = (b.gpu("GPU-0"), b.gpu("GPU-1", units=20))
    world.cache.take("gpunodes", "MODIFIED", b.gpunode_object("n1", *gpus))
    second = world.make(_ask(15))
    assert isinstance(first, Fit)
    assert isinstance(second, Fit)
    assert (first.placement.shares[0].gpu, second.placement.shares[0].gpu) == ("GPU-0", "GPU-1")
