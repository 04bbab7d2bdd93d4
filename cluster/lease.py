"""One active replica by a Lease, as client-go does it.

A candidate takes over only after the lease has not changed for its whole duration by the candidate's OWN monotonic
clock: timestamps of other hosts are never compared. A holder counts its time from before each request was sent, and a
watchdog of its own tells it to stop acting before others may start, whatever hangs.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any

from cluster import metrics
from cluster.client import LEASES, Client
from cluster.clock import Clock
from cluster.errors import ApiError, Conflict, NotFound

log = logging.getLogger(__name__)

Lead = Callable[[threading.Event, int], None]


@dataclass(frozen=True)
class Terms:
    """Seconds, with client-go's defaults. What lies between `renew_deadline` and `duration` is the time that a leader
    has to stop in. Raises ValueError where a leader could act after its lease is over."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise ValueError(f"lease terms must rise: retry < renew_deadline < duration, not {self}")


class Lease:
    """`run` calls `lead(lost, term)` while this replica holds the lease; `lost` is set when it must stop.

    `term` is the lease's number of transitions: a fence that goes into every order. Each leadership has its own.
    """

    def __init__(
        self, client: Client, clock: Clock, namespace: str, name: str, identity: str, terms: Terms | None = None
    ) -> None:
        self._terms = terms or Terms()
        # One request that hangs must leave time for another.
        self._client, self._clock = client.within(self._terms.renew_deadline / 2), clock
        self._namespace, self._name, self._identity = namespace, name, identity
        self._seen_version, self._seen_at, self._holder = "", 0.0, ""
        self._renewed_at = 0.0
        self.holding = False

    def run(self, lead: Lead, stop: threading.Event) -> None:
        """Raises RuntimeError when `lead` goes on after it was told to stop: then only the end of the program helps."""
        while not stop.is_set():
            held = self._try()
            if held is not None:
                self._lead(held, lead, stop)
            self._clock.wait(self._terms.retry, stop)

    def _lead(self, held: dict[str, Any], lead: Lead, stop: threading.Event) -> None:
        lost, term = threading.Event(), int(held["spec"]["leaseTransitions"])
        log.info("leading: lease %s, term %d", self._name, term)
        self._hold(True)
        worker = _start("leader", lambda: self._work(lead, lost, term))
        watchdog = _start("lease-watchdog", lambda: self._watchdog(lost))
        self._renew(term, worker, lost, stop)
        lost.set()
        self._hold(False)
        watchdog.join()
        worker.join(self._terms.duration - self._terms.renew_deadline)
        if worker.is_alive():
            # Not released: the others must wait the lease out. And not led again beside what still runs.
            raise RuntimeError(f"the leader's work did not stop in time after the end of lease {self._name}")
        self._release()

    def _renew(self, term: int, worker: threading.Thread, lost: threading.Event, stop: threading.Event) -> None:
        """Until the lease is lost, the work has ended or the program stops."""
        while worker.is_alive() and not lost.is_set():
            if self._clock.wait(self._terms.retry, stop):
                return
            held = self._try()
            taken = held is None and self._holder not in ("", self._identity)
            if taken or (held is not None and held["spec"]["leaseTransitions"] != term):
                log.warning("lease %s was taken from us", self._name)
                return

    def _watchdog(self, lost: threading.Event) -> None:
        while (left := self._renewed_at + self._terms.renew_deadline - self._clock.monotonic()) > 0:
            if self._clock.wait(left, lost):
                return
        log.warning("lease %s could not be renewed in %g s: stopping", self._name, self._terms.renew_deadline)
        lost.set()

    def _work(self, lead: Lead, lost: threading.Event, term: int) -> None:
        try:
            lead(lost, term)
        except Exception:
            metrics.loop_failures.labels("leader").inc()
            log.exception("leading ended unexpectedly")

    def _hold(self, holding: bool) -> None:
        self.holding = holding
        metrics.lease_held.labels(self._name).set(holding)

    def _try(self) -> dict[str, Any] | None:
        """The lease as we hold it after acquiring or renewing, or None."""
        try:
            lease = self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            return self._write(None)
        except ApiError as error:
            log.warning("cannot read lease %s: %s", self._name, error)
            return None
        spec = lease.get("spec") or {}
        self._holder = str(spec.get("holderIdentity") or "")
        self._see(lease)
        expired = self._clock.monotonic() - self._seen_at >= float(spec.get("leaseDurationSeconds") or 0)
        if self._holder not in ("", self._identity) and not expired:
            return None
        return self._write(lease)

    def _write(self, lease: dict[str, Any] | None) -> dict[str, Any] | None:
        """Create or replace the lease as ours; the resourceVersion guards against another who does the same."""
        asked_at = self._clock.monotonic()
        meta = {"name": self._name, "namespace": self._namespace}
        body = lease or {"apiVersion": LEASES.api, "kind": "Lease", "metadata": meta}
        ours = {**body, "spec": {**(body.get("spec") or {}), **self._spec(body.get("spec") or {})}}
        try:
            held = self._client.replace(LEASES, ours) if lease else self._client.create(LEASES, ours, self._namespace)
        except Conflict:
            return None
        except ApiError as error:
            log.warning("cannot write lease %s: %s", self._name, error)
            return None
        self._holder, self._renewed_at = self._identity, asked_at
        self._see(held)
        return held

    def _see(self, lease: dict[str, Any]) -> None:
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock.monotonic()

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        """A lease that carries our name from before (a restart under the same identity) begins a new term too."""
        going_on = self.holding and old.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": ceil(self._terms.duration),
            "acquireTime": (old.get("acquireTime") if going_on else None) or _now(),
            "renewTime": _now(),
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if going_on else 1),
        }

    def _release(self) -> None:
        """Hand over at once instead of making the other replica wait."""
        try:
            lease = self._client.get(LEASES, self._name, self._namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                self._client.replace(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except ApiError as error:
            log.info("lease %s not released: %s", self._name, error)


def _start(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _now() -> str:
    """Kubernetes' MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
