"""List, then watch; 410 means list again, and what vanished meanwhile is reported as deleted.

Three small nested generators: one watch, watches until the version is too old, lists and watches for ever.
"""

import logging
import random
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from cluster.client import Client, Kind
from cluster.clock import Clock, SystemClock
from cluster.errors import ApiError, Gone

log = logging.getLogger(__name__)

Event = tuple[str, dict[str, Any]]
LISTED: Event = ("LISTED", {})
"""Comes once after every full list."""

BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


def follow(
    client: Client, kind: Kind, stop: threading.Event, clock: Clock, *, namespace: str = "", **selectors: str
) -> Iterator[Event]:
    """Everything that happens to the objects of a kind, for ever: ADDED, MODIFIED, DELETED and LISTED."""
    known: dict[str, dict[str, Any]] = {}
    failures = 0
    while not stop.is_set():
        try:
            version = yield from _list(client, kind, known, namespace, selectors)
            failures = 0
            yield from _watch_until_gone(client, kind, known, version, stop, clock, namespace, selectors)
        except ApiError as error:
            log.warning("following %s: %s", kind.plural, error)
            delay = max(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)], error.retry_after)
            failures += 1
            clock.wait(delay * random.uniform(0.7, 1.3), stop)  # noqa: S311 - jitter, not a secret


def _list(
    client: Client, kind: Kind, known: dict[str, dict[str, Any]], namespace: str, selectors: dict[str, Any]
) -> Generator[Event, None, str]:
    answer = client.list(kind, namespace, **selectors)
    fresh = {_key(obj): obj for obj in answer["items"]}
    for key in [k for k in known if k not in fresh]:
        yield "DELETED", known.pop(key)
    for key, obj in fresh.items():
        old = known.get(key)
        known[key] = obj
        if old is None or _version(old) != _version(obj):
            yield ("ADDED" if old is None else "MODIFIED"), obj
    yield LISTED
    return str((answer.get("metadata") or {}).get("resourceVersion", ""))


def _watch_until_gone(
    client: Client,
    kind: Kind,
    known: dict[str, dict[str, Any]],
    version: str,
    stop: threading.Event,
    clock: Clock,
    namespace: str,
    selectors: dict[str, Any],
) -> Iterator[Event]:
    failures = 0
    while not stop.is_set():
        try:
            for event in client.watch(kind, version, namespace, **selectors):
                failures = 0
                obj = event["object"]
                version = _version(obj) or version
                if event["type"] != "BOOKMARK":
                    _remember(known, event["type"], obj)
                    yield event["type"], obj
                if stop.is_set():
                    return
        except Gone:
            return
        except ApiError as error:
            # The version may still be good: try it again before listing everything anew.
            log.info("watch of %s broke off: %s", kind.plural, error)
            failures += 1
            if failures >= len(BACKOFF_SECONDS):
                raise
            clock.wait(BACKOFF_SECONDS[failures - 1] * random.uniform(0.7, 1.3), stop)  # noqa: S311 - jitter


def _remember(known: dict[str, dict[str, Any]], event: str, obj: dict[str, Any]) -> None:
    if event == "DELETED":
        known.pop(_key(obj), None)
    else:
        known[_key(obj)] = obj


def _key(obj: dict[str, Any]) -> str:
    meta = obj["metadata"]
    # The uid belongs to the key: an object deleted and made again under its name is another one.
    return f"{meta.get('namespace', '')}/{meta['name']}/{meta.get('uid', '')}"


def _version(obj: dict[str, Any]) -> str:
    return str((obj.get("metadata") or {}).get("resourceVersion") or "")


class Watcher:
    """A thread that hands every event of one kind to `take(event, obj)`; `listed` is set after the first list."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        take: Callable[[str, dict[str, Any]], None],
        *,
        on_listed: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        namespace: str = "",
        **selectors: str,
    ) -> None:
        self._client, self._kind, self._take, self._on_listed = client, kind, take, on_listed
        self._clock = clock or SystemClock()
        self._namespace, self._selectors = namespace, selectors
        self._stop = threading.Event()
        self.listed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{kind.plural}", daemon=True)

    def start(self) -> "Watcher":
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends with the next event or time-out; the thread is a daemon and holds nothing."""
        self._stop.set()

    def _run(self) -> None:
        events = follow(self._client, self._kind, self._stop, self._clock, namespace=self._namespace, **self._selectors)
        for event, obj in events:
            if (event, obj) == LISTED:
                self._on_listed()
                self.listed.set()
                continue
            try:
                self._take(event, obj)
            except Exception:  # one object must not end the watch of all others
                log.exception("cannot take in %s %s", self._kind.kind, obj.get("metadata", {}).get("name"))
