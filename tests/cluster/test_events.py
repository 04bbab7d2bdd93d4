"""Events for people: counted, cut off in a burst, and never a reason to fail."""

import logging

import pytest

from cluster import events as room
from cluster.client import EVENTS, NODES, Client
from cluster.clock import ManualClock
from cluster.events import Events
from cluster.fake import FakeApi


def about(client: Client) -> dict[str, object]:
    return client.create(NODES, {"metadata": {"name": "n1"}})


def counts(client: Client) -> list[tuple[str, int]]:
    return sorted((e["message"], e["count"]) for e in client.list(EVENTS, "default")["items"])


def test_the_same_event_is_counted_for_ten_minutes(client: Client) -> None:
    clock = ManualClock()
    events, node = Events(client, clock, "test"), about(client)
    for _ in range(3):
        events.write(node, "Tried", "once more")
    assert counts(client) == [("once more", 3)]
    clock.advance(room.SAME_SECONDS)
    events.write(node, "Tried", "once more")
    assert counts(client) == [("once more", 1)]


def test_a_burst_is_cut_off_and_a_minute_later_goes_on(client: Client) -> None:
    clock = ManualClock()
    events, node = Events(client, clock, "test"), about(client)
    for number in range(room.PER_MINUTE + 5):
        events.write(node, "Tried", f"number {number:03d}")
    assert len(counts(client)) == room.PER_MINUTE
    clock.advance(60)
    events.write(node, "Tried", "later")
    assert ("later", 1) in counts(client)


def test_what_cannot_be_written_is_logged(api: FakeApi, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    node = about(client)
    api.fail("create", "events", 403)
    caplog.set_level(logging.WARNING)
    Events(client, ManualClock(), "test").write(node, "Tried", "in vain")
    assert "event Tried about n1 not written" in caplog.text


def test_an_event_that_expired_meanwhile_is_no_failure(api: FakeApi, client: Client) -> None:
    events, node = Events(client, ManualClock(), "test"), about(client)
    events.write(node, "Tried", "m")
    api.fail("patch", "events", 404)
    events.write(node, "Tried", "m")
