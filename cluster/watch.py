"""List, then watch; 410 means list again, and what vanished meanwhile is reported as deleted.

Three small nested generators: one watch, watches until the version is too old, lists and watches for ever. Nothing is
lost when the API server restarts: what happened meanwhile comes with the next watch or list.
"""

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from cluster import metrics
from cluster.client import Client, Kind
from cluster.clock import Clock, SystemClock
from cluster.errors import ApiError, Gone, Unreachable
from cluster.process import spawn

log = logging.getLogger(__name__)

Event = tuple[str, dict[str, Any]]
LISTED: Event = ("LISTED", {})
"""Comes once after every full list."""

_JITTER = random.Random()  # noqa: S311 - jitter; of our own, for the shared one belongs to the program
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
SOON_SECONDS = 20.0
"""A version that is good no more so soon after its list is a failure: lists, too, can be a storm."""
TRIES_OF_A_VERSION = 5
"""Watches from one version that may break off without a word before everything is listed anew."""
SHORT_SECONDS = 1.0
"""A watch that ends sooner, and without a word, has failed: asking again at once would be a storm."""


class Ear:
    """A watch as other threads may look at it: when it last heard something, and the means to end it at once."""

    def __init__(self, clock: Clock, stop: threading.Event | None = None, resource: str = "") -> None:
        self.clock, self.stop = clock, stop or threading.Event()
        self.heard_at: float | None = None
        self._gauge = metrics.heard.labels(resource) if resource else None
        self._lock = threading.Lock()
        self._hang_up: Callable[[], None] | None = None

    def heard(self) -> None:
        self.heard_at = self.clock.monotonic()
        if self._gauge is not None:
            self._gauge.set(self.clock.now())

    def opened(self, hang_up: Callable[[], None]) -> None:
        with self._lock:
            self._hang_up = hang_up
        self.heard()
        if self.stop.is_set():
            self.end()

    def end(self) -> None:
        self.stop.set()
        with self._lock:
            hang_up, self._hang_up = self._hang_up, None
        if hang_up is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended by itself
                hang_up()


def follow(
    client: Client,
    kind: Kind,
    stop: threading.Event,
    clock: Clock,
    *,
    namespace: str = "",
    ear: Ear | None = None,
    **selectors: str,
) -> Iterator[Event]:
    """Everything that happens to the objects of a kind, for ever: ADDED, MODIFIED, DELETED and LISTED."""
    return _Following(client, kind, ear or Ear(clock, stop), namespace, selectors).events()


class _Following:
    """What one `follow` knows: the objects, and the version they are as new as."""

    def __init__(self, client: Client, kind: Kind, ear: Ear, namespace: str, selectors: dict[str, Any]) -> None:
        self._client, self._kind, self._ear = client, kind, ear
        self._namespace, self._selectors = namespace, selectors
        self._known: dict[str, dict[str, Any]] = {}
        self._version = ""
        self._words = 0

    def events(self) -> Iterator[Event]:
        failures = 0
        while not self._ear.stop.is_set():
            listed_at, error = self._ear.clock.monotonic(), None
            try:
                yield from self._list()
                yield from self._watches()
            except ApiError as problem:
                error = problem
                log.warning("following %s: %s", self._kind.plural, problem)
                metrics.watch_failures.labels(self._kind.plural).inc()
            soon = self._ear.clock.monotonic() - listed_at < SOON_SECONDS
            failures = failures + 1 if soon else int(error is not None)
            if failures and not self._ear.stop.is_set():
                self._pause(failures, error)

    def _list(self) -> Generator[Event, None, None]:
        answer = self._client.list(self._kind, self._namespace, **self._selectors)
        metrics.lists.labels(self._kind.plural).inc()
        self._ear.heard()
        fresh = {_key(obj): obj for obj in answer["items"]}
        for key in [k for k in self._known if k not in fresh]:
            yield "DELETED", self._known.pop(key)
        for key, obj in fresh.items():
            old = self._known.get(key)
            self._known[key] = obj
            if old is None or _version(old) != _version(obj):
                yield ("ADDED" if old is None else "MODIFIED"), obj
        self._version = str((answer.get("metadata") or {}).get("resourceVersion", ""))
        yield LISTED

    def _watches(self) -> Iterator[Event]:
        """Watch after watch, until stopped or the version is good no more."""
        failures = 0
        while not self._ear.stop.is_set():
            words, began = self._words, self._ear.clock.monotonic()
            error: ApiError | None = None
            try:
                yield from self._watch()
            except Gone:
                return
            except ApiError as problem:
                error = problem
            if self._words != words:
                failures = 0
            elif error is None and self._ear.clock.monotonic() - began < SHORT_SECONDS:
                error = Unreachable(f"watch {self._kind.plural}", 200, "ShortWatch", "ended without a word")
            elif error is None:
                # Not even a bookmark in minutes: so a server is silent that has lost the versions it once gave (a
                # restored backup) and waits until it comes to ours.
                return
            if error is not None and not self._ear.stop.is_set():
                # The version may still be good: try it again before listing everything anew.
                failures += 1
                if failures >= TRIES_OF_A_VERSION:
                    raise error
                log.info("watch of %s broke off: %s", self._kind.plural, error)
                metrics.watch_failures.labels(self._kind.plural).inc()
                self._pause(failures, error)

    def _watch(self) -> Iterator[Event]:
        events = self._client.watch(
            self._kind, self._version, self._namespace, opened=self._ear.opened, **self._selectors
        )
        with contextlib.closing(events):
            for event in events:
                self._ear.heard()
                self._words += 1
                kind, obj = event["type"], event["object"]
                self._version = _version(obj) or self._version
                if kind != "BOOKMARK":
                    self._remember(kind, obj)
                    yield kind, obj
                if self._ear.stop.is_set():
                    return

    def _remember(self, event: str, obj: dict[str, Any]) -> None:
        if event == "DELETED":
            self._known.pop(_key(obj), None)
        else:
            self._known[_key(obj)] = obj

    def _pause(self, failures: int, error: ApiError | None) -> None:
        delay = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1] * _JITTER.uniform(0.7, 1.3)
        self._ear.clock.wait(max(delay, error.retry_after if error else 0.0), self._ear.stop)


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
        self._namespace, self._selectors = namespace, selectors
        self._ear = Ear(clock or SystemClock(), resource=kind.plural)
        self._thread: threading.Thread | None = None
        self.listed = threading.Event()

    @property
    def last_heard(self) -> float | None:
        """The clock's monotonic seconds when the API server last said something; None: never.

        A quiet server sends a bookmark about once a minute.
        """
        return self._ear.heard_at

    def start(self) -> "Watcher":
        self._thread = spawn(f"watch-{self._kind.plural}", self._run)
        return self

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Hangs up and waits for the thread, so that nothing is taken in afterwards."""
        self._ear.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        ear = self._ear
        for event, obj in follow(
            self._client, self._kind, ear.stop, ear.clock, namespace=self._namespace, ear=ear, **self._selectors
        ):
            if ear.stop.is_set():
                return
            if event == LISTED[0]:
                self._on_listed()
                self.listed.set()
                continue
            try:
                self._take(event, obj)
            except Exception:  # one object must not end the watch of all others
                metrics.loop_failures.labels(f"watch-{self._kind.plural}").inc()
                log.exception("cannot take in %s %s", self._kind.kind, obj["metadata"].get("name"))
