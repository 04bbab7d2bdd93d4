"""One active replica by a Lease, as client-go does it.

A candidate takes over only after the lease has not changed for its whole duration by the candidate's OWN monotonic
clock: timestamps of other hosts are never compared. A holder that cannot renew stops acting before others may start.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cluster.client import LEASES, Client
from cluster.clock import Clock
from cluster.errors import ApiError, Conflict, NotFound

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """Seconds, with client-go's defaults; renewing must end well before the lease does."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class Lease:
    """`run` calls `lead(lost, term)` while this replica holds the lease; `lost` is set when it must stop.

    `term` is the lease's number of transitions: a fence that goes into every order.
    """

    def __init__(
        self, client: Client, clock: Clock, namespace: str, name: str, identity: str, terms: Terms | None = None
    ) -> None:
        self._client, self._clock = client, clock
        self._namespace, self._name, self._identity = namespace, name, identity
        self._terms = terms or Terms()
        self._seen_version = ""
        self._seen_at = 0.0
        self.holding = False

    def run(self, lead: Callable[[threading.Event, int], None], stop: threading.Event) -> None:
        while not stop.is_set():
            held = self._try()
            if held is None:
                self._clock.wait(self._terms.retry, stop)
                continue
            self._lead(held, lead, stop)

    def _lead(self, held: dict[str, Any], lead: Callable[[threading.Event, int], None], stop: threading.Event) -> None:
        lost = threading.Event()
        term = int(held["spec"].get("leaseTransitions") or 0)
        log.info("leading: lease %s, term %d", self._name, term)
        self.holding = True
        worker = threading.Thread(target=self._work, args=(lead, lost, term), name="leader", daemon=True)
        worker.start()
        renewed = self._clock.monotonic()
        while not stop.is_set() and worker.is_alive():
            self._clock.wait(self._terms.retry, stop)
            if self._try() is not None:
                renewed = self._clock.monotonic()
            elif self._clock.monotonic() - renewed > self._terms.renew_deadline or self._taken_by_other():
                log.warning("lease %s lost", self._name)
                break
        lost.set()
        self.holding = False
        worker.join(self._terms.duration - self._terms.renew_deadline)
        if worker.is_alive():
            log.error("the leader's loop did not stop in time after losing lease %s", self._name)
        self._release()

    def _work(self, lead: Callable[[threading.Event, int], None], lost: threading.Event, term: int) -> None:
        try:
            lead(lost, term)
        except Exception:
            log.exception("leading ended unexpectedly")

    def _taken_by_other(self) -> bool:
        return bool(self._holder) and self._holder != self._identity

    _holder = ""

    def _try(self) -> dict[str, Any] | None:
        """The lease as we hold it after acquiring or renewing, or None."""
        try:
            lease = self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            return self._create()
        except ApiError as error:
            log.warning("cannot read lease %s: %s", self._name, error)
            return None
        spec = lease.get("spec") or {}
        self._holder = str(spec.get("holderIdentity") or "")
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock.monotonic()
        mine = self._holder == self._identity
        expired = self._clock.monotonic() - self._seen_at >= float(spec.get("leaseDurationSeconds") or 0)
        if not mine and self._holder and not expired:
            return None
        return self._write(lease, new_term=not mine)

    def _create(self) -> dict[str, Any] | None:
        meta = {"name": self._name, "namespace": self._namespace}
        lease = {"apiVersion": LEASES.api, "kind": "Lease", "metadata": meta, "spec": self._spec(1, _now())}
        try:
            return self._remember(self._client.create(LEASES, lease, self._namespace))
        except ApiError as error:
            log.info("lease %s not created: %s", self._name, error)
            return None

    def _write(self, lease: dict[str, Any], *, new_term: bool) -> dict[str, Any] | None:
        old = lease.get("spec") or {}
        transitions = int(old.get("leaseTransitions") or 0) + (1 if new_term else 0)
        acquired = _now() if new_term else old.get("acquireTime") or _now()
        try:
            return self._remember(self._client.replace(LEASES, {**lease, "spec": self._spec(transitions, acquired)}))
        except Conflict:
            return None
        except ApiError as error:
            log.warning("cannot renew lease %s: %s", self._name, error)
            return None

    def _remember(self, lease: dict[str, Any]) -> dict[str, Any]:
        self._seen_version, self._seen_at = lease["metadata"]["resourceVersion"], self._clock.monotonic()
        self._holder = self._identity
        return lease

    def _spec(self, transitions: int, acquired: str) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._terms.duration),
            "acquireTime": acquired,
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }

    def _release(self) -> None:
        """Hand over at once on a clean exit instead of making the other replica wait."""
        try:
            lease = self._client.get(LEASES, self._name, self._namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                self._client.replace(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except ApiError as error:
            log.info("lease %s not released: %s", self._name, error)


def _now() -> str:
    """Kubernetes' MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
