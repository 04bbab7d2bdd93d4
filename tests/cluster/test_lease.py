"""One leader at a time, and none that goes on after its lease."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from cluster.client import LEASES, Client
from cluster.errors import NotFound
from cluster.fake import FakeApi
from cluster.lease import Lease, Terms


class Stepped:
    """A clock that stands until it is moved; whoever waits sleeps until then."""

    def __init__(self) -> None:
        self._now, self._moved = 100.0, threading.Condition()

    def now(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        with self._moved:
            return self._now

    def advance(self, seconds: float) -> None:
        with self._moved:
            self._now += seconds
            self._moved.notify_all()

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        with self._moved:
            end = self._now + seconds
            while self._now < end and not stop.is_set():
                self._moved.wait(0.005)  # the event has no bell of its own here
            return stop.is_set()


class Replica:
    """One candidate; its `lead` waits until it is told to stop."""

    def __init__(self, client: Client, clock: Stepped, name: str) -> None:
        self.clock, self.stop = clock, threading.Event()
        self.leads, self.ended = threading.Event(), threading.Event()
        self.terms: list[int] = []
        self.lease = Lease(client, clock, "default", "planner", name)
        self.thread = threading.Thread(target=self.lease.run, args=(self._lead, self.stop), daemon=True)

    def start(self) -> "Replica":
        self.thread.start()
        return self

    def _lead(self, lost: threading.Event, term: int) -> None:
        self.terms.append(term)
        self.leads.set()
        assert lost.wait(20)
        self.ended.set()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


def stepping(clock: Stepped, true: Callable[[], Any], seconds: float = 2.0) -> None:
    """Move the clock step by step until something is so."""
    for _ in range(400):
        if true():
            return
        clock.advance(seconds)
        threading.Event().wait(0.01)
    pytest.fail("never came true")


def holder(client: Client) -> str:
    try:
        return str(client.get(LEASES, "planner", "default")["spec"]["holderIdentity"])
    except NotFound:
        return ""


@pytest.fixture
def clock() -> Stepped:
    return Stepped()


def test_the_first_leads_and_hands_over_when_it_stops(client: Client, clock: Stepped) -> None:
    first = Replica(client, clock, "a").start()
    assert first.leads.wait(10)
    spec = client.get(LEASES, "planner", "default")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("a", 1, 15)
    first.end()
    assert first.ended.is_set()
    assert holder(client) == ""
    second = Replica(client, clock, "b").start()
    assert second.leads.wait(10)
    assert (first.terms, second.terms) == ([1], [2])
    second.end()


def test_a_standby_waits_the_whole_duration_by_its_own_clock(client: Client, clock: Stepped) -> None:
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "leaseTransitions": 4}
    spec["renewTime"] = "1999-01-01T00:00:00.000000Z"  # says nothing to another host
    client.create(LEASES, {"metadata": {"name": "planner"}, "spec": spec}, "default")
    lease = Lease(client, clock, "default", "planner", "b")
    assert lease._try() is None
    clock.advance(14.9)
    assert lease._try() is None
    clock.advance(0.1)
    held = lease._try()
    assert held is not None
    assert held["spec"]["leaseTransitions"] == 5


def test_a_holder_that_renews_keeps_others_waiting(client: Client, clock: Stepped) -> None:
    first = Replica(client, clock, "a").start()
    assert first.leads.wait(10)
    other = Lease(client, clock, "default", "planner", "b")
    for _ in range(5):
        before = client.get(LEASES, "planner", "default")["spec"]["renewTime"]
        stepping(clock, lambda b=before: client.get(LEASES, "planner", "default")["spec"]["renewTime"] != b)
        assert other._try() is None
    assert not first.ended.is_set()
    first.end()


def test_a_leader_that_cannot_renew_stops_before_the_lease_ends(api: FakeApi, client: Client, clock: Stepped) -> None:
    leader = Replica(client, clock, "a").start()
    assert leader.leads.wait(10)
    began = clock.monotonic()
    api.fail("get", "leases", 500, times=10_000)
    stepping(clock, leader.ended.is_set, 1.0)
    assert clock.monotonic() - began < 15.0
    leader.end()


def test_a_request_that_hangs_does_not_keep_a_leader_on(api: FakeApi, client: Client, clock: Stepped) -> None:
    leader = Replica(client, clock, "a").start()
    assert leader.leads.wait(10)
    gate = api.hold("replace", "leases")
    began = clock.monotonic()
    stepping(clock, gate.reached.is_set, 0.5)
    stepping(clock, leader.ended.is_set, 1.0)
    assert clock.monotonic() - began < 15.0
    gate.open.set()
    leader.end()


def test_a_lease_taken_by_hand_is_obeyed(client: Client, clock: Stepped) -> None:
    leader = Replica(client, clock, "a").start()
    assert leader.leads.wait(10)
    client.patch(LEASES, "planner", {"spec": {"holderIdentity": "b"}}, "default")
    stepping(clock, leader.ended.is_set, 0.5)
    leader.end()
    assert holder(client) == "b"


def test_a_restart_under_the_same_name_begins_a_new_term(client: Client, clock: Stepped) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 7}
    client.create(LEASES, {"metadata": {"name": "planner"}, "spec": spec}, "default")
    again = Replica(client, clock, "a").start()
    assert again.leads.wait(10)
    assert again.terms == [8]
    again.end()


def test_two_who_see_the_lease_free_do_not_both_get_it(api: FakeApi, client: Client, clock: Stepped) -> None:
    spec = {"holderIdentity": "", "leaseDurationSeconds": 15, "leaseTransitions": 1}
    client.create(LEASES, {"metadata": {"name": "planner"}, "spec": spec}, "default")
    one, two = (Lease(client, clock, "default", "planner", name) for name in "ab")
    api.on_nth("replace", "leases", 1, lambda _: two._try())
    assert one._try() is None
    assert holder(client) == "b"


def test_work_that_does_not_stop_ends_the_program_and_keeps_the_lease(client: Client, clock: Stepped) -> None:
    stop, never, leads = threading.Event(), threading.Event(), threading.Event()

    def deaf(lost: threading.Event, term: int) -> None:
        leads.set()
        never.wait(20)

    lease = Lease(client, clock, "default", "planner", "a", Terms(0.3, 0.2, 0.1))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            lease.run(deaf, stop)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert leads.wait(10)
    stop.set()
    thread.join(10)
    never.set()
    assert "did not stop in time" in str(failed[0])
    assert holder(client) == "a"


@pytest.mark.parametrize("terms", [(15, 15, 2), (15, 10, 10), (10, 15, 2), (15, 10, 0)])
def test_terms_under_which_two_could_lead_are_refused(terms: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        Terms(*terms)
