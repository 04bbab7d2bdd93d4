"""The policy file as it is in force: checked whole, swapped at once, and the last good one kept.

Every fault names its line. A broken edit changes nothing.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cluster import names
from cluster.client import CONFIGMAPS, Client
from cluster.events import Events
from cluster.watch import Watcher
from policies import document, metrics
from policies.document import DocumentError, Fault
from policies.model import Policy

log = logging.getLogger(__name__)

PolicyError = DocumentError


def read_policy(text: str) -> Policy:
    """The policy this text states. Raises PolicyError with every fault in it."""
    return document.read(text, Policy, names.POLICY_KEY, "version: v1")


class Policies:
    """The policy in force. `current` is swapped whole, so readers need no lock."""

    def __init__(self) -> None:
        self.current = Policy()
        self.problem = ""
        self.known = False
        """A good text has been read, or it is certain that there is none. Until then `current` is a guess."""
        self.on_change: list[Callable[[Policy], None]] = []
        self._lock = threading.Lock()

    def take(self, configmap: Mapping[str, Any] | None) -> bool:
        """Read the newest ConfigMap (None: it is gone). True when the policy in force has changed."""
        try:
            fresh = read_policy(_text_of(configmap))
        except PolicyError as error:
            self._refuse(str(error))
            return False
        with self._lock:
            changed, self.current, self.problem, self.known = fresh != self.current, fresh, "", True
        metrics.loads.labels("applied").inc()
        metrics.valid.set(1)
        if changed:
            for call in self.on_change:
                call(fresh)
        return changed

    def listed(self) -> None:
        """The first look is over. No ConfigMap: the defaults are what is wanted."""
        with self._lock:
            self.known = self.known or not self.problem

    def ready(self) -> str:
        """Empty when `current` is what the operator wants, else why that is not known."""
        if self.known:
            return ""
        return f"no good policy is known: {self.problem}" if self.problem else "policy not yet looked up"

    def _refuse(self, problem: str) -> None:
        with self._lock:
            self.problem = problem
        log.error("policy not changed: %s", problem)
        metrics.loads.labels("refused").inc()
        metrics.valid.set(0)


def follow(client: Client, policies: Policies, events: Events, namespace: str) -> Watcher:
    """Watch the one ConfigMap and tell on it, by an Event, what became of each edit."""

    def take(event: str, configmap: dict[str, Any]) -> None:
        changed = policies.take(None if event == "DELETED" else configmap)
        about = {"apiVersion": "v1", "kind": "ConfigMap", **configmap}
        if policies.problem:
            events.write(
                about, names.POLICY_INVALID, f"{policies.problem}; the last good policy stays in force", warning=True
            )
        elif changed:
            events.write(about, names.POLICY_APPLIED, "the policy is in force")

    return Watcher(
        client,
        CONFIGMAPS,
        take,
        on_listed=policies.listed,
        namespace=namespace,
        fieldSelector=f"metadata.name={names.POLICY_CONFIGMAP}",
    )


def _text_of(configmap: Mapping[str, Any] | None) -> str:
    if configmap is None:
        raise _missing("is gone")
    data = configmap.get("data") or {}
    if names.POLICY_KEY not in data:
        raise _missing(f"has no key {names.POLICY_KEY}")
    return str(data[names.POLICY_KEY])


def _missing(what: str) -> PolicyError:
    return PolicyError(names.POLICY_KEY, (Fault(None, "", f"ConfigMap {names.POLICY_CONFIGMAP} {what}"),))
