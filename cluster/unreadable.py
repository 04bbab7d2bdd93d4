"""Tells people about facts that cannot be read: an event on the object, once, and a count for the alarm.

What cannot be read is left out of the books and closed to pods; it must not be passed over in silence.
"""

import logging
from typing import Protocol

from cluster import names
from cluster.cache import Cache
from cluster.events import Events
from cluster.metrics import unreadable

log = logging.getLogger(__name__)

_KINDS = {True: ("v1", "Pod"), False: (f"{names.GROUP}/{names.VERSION}", "GpuNode")}


class Holder(Protocol):
    """Something of which one replica is the active one."""

    @property
    def holding(self) -> bool: ...


class Unreadable:
    """`tick` belongs to one thread; only the active replica speaks, or every replica would say it."""

    def __init__(self, cache: Cache, events: Events, lease: Holder) -> None:
        self._cache, self._events, self._lease = cache, events, lease
        self._told: set[str] = set()

    def tick(self) -> str:
        """How many facts cannot be read, in a sentence; empty when all can."""
        problems = self._cache.problems()
        unreadable.set(len(problems))
        if not self._lease.holding:
            return ""
        for obj, sentence in problems:
            if sentence not in self._told:
                version, kind = _KINDS["containers" in (obj.get("spec") or {})]
                about = {"apiVersion": version, "kind": kind, "metadata": obj.get("metadata")}
                self._events.write(about, names.FACT_UNREADABLE, sentence, warning=True)
                log.warning("%s", sentence)
        self._told = {sentence for _, sentence in problems}
        return f"{len(problems)} facts cannot be read" if problems else ""
