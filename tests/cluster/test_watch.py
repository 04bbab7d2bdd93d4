"""Following a kind through everything that happens to watches."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import watch
from cluster.client import NODES, Client
from cluster.clock import SystemClock
from cluster.errors import Unreachable
from cluster.fake import FakeApi
from cluster.watch import Ear, Watcher, follow


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BACKOFF_SECONDS", (0.001,) * len(watch.BACKOFF_SECONDS))


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear(SystemClock())
    yield ear
    ear.end()


def followed(client: Client, ear: Ear) -> Callable[[], tuple[str, str]]:
    events = follow(client, NODES, ear.stop, ear.clock, ear=ear)

    def take() -> tuple[str, str]:
        event, obj = next(events)
        return event, obj.get("metadata", {}).get("name", "")

    return take


def node(client: Client, name: str) -> dict[str, Any]:
    return client.create(NODES, {"metadata": {"name": name}})


def mark(client: Client, name: str, value: str) -> None:
    client.patch(NODES, name, {"metadata": {"labels": {"n": value}}})


def test_what_vanished_while_nobody_watched_is_deleted(api: FakeApi, client: Client, ear: Ear) -> None:
    for name in ("goes", "same", "stays"):
        node(client, name)
    take = followed(client, ear)
    assert [take() for _ in range(4)] == [("ADDED", "goes"), ("ADDED", "same"), ("ADDED", "stays"), ("LISTED", "")]
    client.delete(NODES, "goes")
    client.delete(NODES, "same")
    node(client, "same")
    mark(client, "stays", "2")
    api.compact()
    # `same` is another object under its old name.
    rest = [take() for _ in range(5)]
    assert sorted(rest[:2]) == [("DELETED", "goes"), ("DELETED", "same")]
    assert rest[2:] == [("ADDED", "same"), ("MODIFIED", "stays"), ("LISTED", "")]


def test_a_watch_that_breaks_goes_on_from_its_version(api: FakeApi, client: Client, ear: Ear) -> None:
    take = followed(client, ear)
    assert take() == ("LISTED", "")
    node(client, "a")
    assert take() == ("ADDED", "a")
    api.drop_connections()
    client.list(NODES)  # a fresh connection for what follows
    node(client, "b")
    assert take() == ("ADDED", "b")


def test_a_server_that_refuses_for_a_while_is_asked_again(api: FakeApi, client: Client, ear: Ear) -> None:
    node(client, "a")
    api.fail("list", "nodes", 503, times=3)
    api.fail("watch", "nodes", 500, times=watch.TRIES_OF_A_VERSION)
    take = followed(client, ear)
    assert [take(), take()] == [("ADDED", "a"), ("LISTED", "")]
    assert take() == ("LISTED", "")  # the version was tried often enough
    mark(client, "a", "1")
    assert take() == ("MODIFIED", "a")


def test_a_server_that_says_gone_for_ever_is_not_flooded(api: FakeApi, client: Client) -> None:
    class Waits(SystemClock):
        waited = 0

        def wait(self, seconds: float, stop: threading.Event) -> bool:
            self.waited += 1
            if self.waited == 5:
                stop.set()
            return stop.is_set()

    api.fail("watch", "nodes", 410, times=100)
    stop, clock = threading.Event(), Waits()
    assert list(follow(client, NODES, stop, clock)) == [watch.LISTED] * 5


def test_watches_that_end_without_a_word_are_failures(
    client: Client, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def silent(kind: Any, version: str, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        asked.append(version)
        yield from ()

    monkeypatch.setattr(client, "watch", silent)
    take = followed(client, ear)
    assert [take(), take()] == [("LISTED", ""), ("LISTED", "")]
    assert len(asked) == watch.TRIES_OF_A_VERSION


def test_a_long_watch_without_even_a_bookmark_ends_in_a_list(
    client: Client, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield from ()

    monkeypatch.setattr(client, "watch", silent)
    monkeypatch.setattr(watch, "SHORT_SECONDS", -1.0)
    take = followed(client, ear)
    assert [take(), take()] == [("LISTED", ""), ("LISTED", "")]


def test_an_event_that_cannot_be_read_is_a_broken_watch(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster import client as door

    for line in (b"{", b"[]", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": {}}'):
        monkeypatch.setattr(door, "lines", lambda *_, line=line: iter([line]))
        with pytest.raises(Unreachable):
            next(client.watch(NODES, "1"))


def test_a_server_that_starts_anew_is_found_again(tmp_path: Path, ear: Ear) -> None:
    first = FakeApi().start()
    client = Client.connect(first.kubeconfig(tmp_path / "k"))
    node(client, "old")
    take = followed(client, ear)
    assert [take(), take()] == [("ADDED", "old"), ("LISTED", "")]
    first.stop()
    with FakeApi(port=int(first.url.rpartition(":")[2])):
        node(client, "new")
        assert [take(), take(), take()] == [("DELETED", "old"), ("ADDED", "new"), ("LISTED", "")]


def test_bookmarks_are_heard_but_not_told(tmp_path: Path) -> None:
    heard, told = threading.Event(), []

    class Clock(SystemClock):
        times = 0

        def monotonic(self) -> float:
            self.times += 1
            if self.times > 12:
                heard.set()
            return super().monotonic()

    with FakeApi(bookmark_seconds=0.01) as api:
        client = Client.connect(api.kubeconfig(tmp_path / "k"))
        watcher = Watcher(client, NODES, lambda e, o: told.append(e), clock=Clock()).start()
        assert heard.wait(10)
        watcher.stop()
    assert told == []
    assert watcher.last_heard is not None


def test_one_object_that_cannot_be_taken_in_does_not_end_the_watch(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    good = threading.Event()

    def take(event: str, obj: dict[str, Any]) -> None:
        if obj["metadata"]["name"] == "bad":
            raise ValueError("no")
        good.set()

    watcher = Watcher(client, NODES, take).start()
    assert watcher.listed.wait(10)
    node(client, "bad")
    node(client, "good")
    assert good.wait(10)
    watcher.stop()
    assert "cannot take in Node bad" in caplog.text
