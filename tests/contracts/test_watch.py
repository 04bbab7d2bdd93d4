"""What Fallow relies on in lists and watches."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import client as door
from cluster.client import GPUNODES, PODS, Client
from cluster.clock import SystemClock
from cluster.errors import Refused
from cluster.watch import LISTED, Watcher, follow
from tests.contracts.conftest import Api
from tests.contracts.test_api import bound, pod


@contextlib.contextmanager
def watching(api: Api, version: str, **query: Any) -> Iterator[Iterator[tuple[str, str]]]:
    """Event and name of each event but bookmarks."""
    raw = api.client.watch(PODS, version, api.namespace, timeout_seconds=20, **query)
    with contextlib.closing(raw):
        yield ((e["type"], e["object"]["metadata"]["name"]) for e in raw if e["type"] != "BOOKMARK")


def version(api: Api) -> str:
    return str(api.client.list(PODS, api.namespace)["metadata"]["resourceVersion"])


def test_a_watch_tells_everything_after_its_version_in_order(api: Api) -> None:
    api.client.create(PODS, pod("before"), api.namespace)
    since = version(api)
    api.client.create(PODS, pod("a"), api.namespace)
    api.client.patch(PODS, "a", {"metadata": {"labels": {"n": "1"}}}, api.namespace)
    api.client.delete(PODS, "a", api.namespace)
    with watching(api, since) as events:
        assert next(events) == ("ADDED", "a")
        assert next(events) == ("MODIFIED", "a")
        assert next(events) == ("MODIFIED", "a")  # the deletionTimestamp, even of a pod that goes at once
        assert next(events) == ("DELETED", "a")


def test_a_watch_from_no_version_begins_with_what_is_there(api: Api) -> None:
    api.client.create(PODS, pod("a"), api.namespace)
    with watching(api, "") as events:
        assert next(events) == ("ADDED", "a")


def test_what_enters_or_leaves_a_selection_is_added_or_deleted(api: Api) -> None:
    since = version(api)
    with watching(api, since, fieldSelector="spec.nodeName=paper") as events:
        api.client.create(PODS, pod("other"), api.namespace)
        bound(api, "a")
        assert next(events) == ("ADDED", "a")
    with watching(api, since, labelSelector="n=1") as events:
        api.client.patch(PODS, "a", {"metadata": {"labels": {"n": "1"}}}, api.namespace)
        assert next(events) == ("ADDED", "a")
        api.client.patch(PODS, "a", {"metadata": {"labels": {"n": "2"}}}, api.namespace)
        assert next(events) == ("DELETED", "a")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"labelSelector": "app=a"}, {"one", "two"}),
        ({"labelSelector": "app==a,tier!=x"}, {"two"}),
        ({"labelSelector": "tier"}, {"one", "three"}),
        ({"labelSelector": "!tier"}, {"two"}),
        ({"labelSelector": "app in (a, b),tier notin (x)"}, {"two", "three"}),
        ({"fieldSelector": "metadata.name=two"}, {"two"}),
        ({"fieldSelector": "spec.schedulerName=nobody,metadata.name!=two"}, {"one", "three"}),
        ({"fieldSelector": "status.phase=Pending,spec.nodeName="}, {"one", "two", "three"}),
    ],
)
def test_selectors(api: Api, query: dict[str, str], found: set[str]) -> None:
    for name, labels in (
        ("one", {"app": "a", "tier": "x"}),
        ("two", {"app": "a"}),
        ("three", {"app": "b", "tier": "y"}),
    ):
        api.client.create(PODS, pod(name, labels=labels), api.namespace)
    items = api.client.list(PODS, api.namespace, **query)["items"]
    assert {i["metadata"]["name"] for i in items} == found


@pytest.mark.parametrize("query", [{"fieldSelector": "spec.containers=1"}, {"labelSelector": "a=(b"}])
def test_a_selector_that_is_none_is_refused(api: Api, query: dict[str, str]) -> None:
    with pytest.raises(Refused):
        api.client.list(PODS, api.namespace, **query)


def test_a_list_is_read_page_by_page_and_its_items_say_what_they_are(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PAGE", 2)
    for name in "abcde":
        api.client.create(PODS, pod(name), api.namespace)
    answer = api.client.list(PODS, api.namespace)
    assert [i["metadata"]["name"] for i in answer["items"]] == list("abcde")
    assert {(i["apiVersion"], i["kind"]) for i in answer["items"]} == {("v1", "Pod")}
    assert int(answer["metadata"]["resourceVersion"]) > 0


def test_follow_tells_objects_then_listed_then_changes(api: Api) -> None:
    api.client.create(PODS, pod("a"), api.namespace)
    stop = threading.Event()
    events = follow(api.client, PODS, stop, SystemClock(), namespace=api.namespace)
    event, obj = next(events)
    assert (event, obj["metadata"]["name"], obj["kind"]) == ("ADDED", "a", "Pod")
    assert next(events) == LISTED
    api.client.create(PODS, pod("b"), api.namespace)
    event, obj = next(events)
    assert (event, obj["metadata"]["name"], obj["kind"]) == ("ADDED", "b", "Pod")
    stop.set()
    api.client.create(PODS, pod("c"), api.namespace)
    for _ in events:
        pass


def test_a_watcher_stops_at_once_though_nothing_happens(api: Api) -> None:
    listed: list[Client] = []
    watcher = Watcher(api.client, GPUNODES, lambda e, o: None, on_listed=lambda: listed.append(api.client)).start()
    assert watcher.listed.wait(20)
    assert listed
    assert watcher.last_heard is not None
    watcher.stop(timeout_seconds=20)
    assert watcher._thread is not None
    assert not watcher._thread.is_alive()
