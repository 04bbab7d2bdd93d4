"""Events for people: what Fallow did or could not do, written beside the object it concerns.

The same event on the same object within ten minutes is counted up, not written again; a burst is cut off. Never a
channel for data, never a reason to fail: what cannot be written is logged.
"""

import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cluster import metrics, names
from cluster.client import EVENTS, Client
from cluster.clock import Clock
from cluster.errors import ApiError, Conflict, NotFound

log = logging.getLogger(__name__)

SAME_SECONDS = 600.0
PER_MINUTE = 60


class Events:
    """Writes as `component`; thread-safe."""

    def __init__(self, client: Client, clock: Clock, component: str) -> None:
        self._client, self._clock, self._component = client, clock, component
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[int, float]] = {}
        self._recent: list[float] = []

    def write(self, about: Mapping[str, Any], reason: str, message: str, *, warning: bool = False) -> None:
        """`about` is the object concerned, with apiVersion, kind and metadata."""
        involved = _reference(about)
        key = hashlib.sha256(repr((sorted(involved.items()), reason, message, self._component)).encode()).hexdigest()
        count = self._count(key)
        if not count:
            metrics.events.labels("dropped").inc()
            return
        namespace = str(involved.get("namespace") or "default")
        name = f"{involved['name']}.{key[:16]}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if warning else "Normal",
            "count": count,
            "firstTimestamp": _now(),
            "lastTimestamp": _now(),
            "reportingComponent": f"{names.GROUP}/{self._component}",
            "reportingInstance": os.uname().nodename,
            "source": {"component": f"fallow-{self._component}"},
        }
        try:
            self._send(event, name, namespace, count)
            metrics.events.labels("written").inc()
        except ApiError as error:
            metrics.events.labels("failed").inc()
            log.warning("event %s about %s not written: %s", reason, involved["name"], error)

    def _send(self, event: dict[str, Any], name: str, namespace: str, count: int) -> None:
        again = {"count": count, "lastTimestamp": event["lastTimestamp"]}
        try:
            self._client.create(EVENTS, event, namespace)
        except Conflict:
            try:
                self._client.patch(EVENTS, name, again, namespace)
            except NotFound:
                log.debug("event %s expired meanwhile", name)

    def _count(self, key: str) -> int:
        """How often this event has happened lately; 0 when it must not be written now."""
        now = self._clock.monotonic()
        with self._lock:
            self._recent = [t for t in self._recent if now - t < 60]
            if len(self._recent) >= PER_MINUTE:
                return 0
            self._recent.append(now)
            self._counts = {k: v for k, v in self._counts.items() if now - v[1] < SAME_SECONDS}
            count = self._counts.get(key, (0, 0.0))[0] + 1
            self._counts[key] = (count, now)
            return count


def _reference(about: Mapping[str, Any]) -> dict[str, Any]:
    meta = about.get("metadata") or {}
    reference = {
        "apiVersion": about.get("apiVersion"),
        "kind": about.get("kind"),
        "name": meta.get("name"),
        "namespace": meta.get("namespace"),
        "uid": meta.get("uid"),
    }
    return {k: v for k, v in reference.items() if v}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
