"""The conditions of a GpuNode, written only when they change: `Ready` (the node's loop is at work), `RecutStuck`, and
those that others on the node hand in."""

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from cluster.cache import Cache
from cluster.client import GPUNODES, Client
from cluster.clock import Clock
from cluster.errors import ApiError
from gpu.recut import Phase, Recut

log = logging.getLogger(__name__)


class Conditions:
    """Not thread-safe; belongs to one loop."""

    def __init__(self, node: str, client: Client, cache: Cache, clock: Clock) -> None:
        self._node, self._client, self._cache, self._clock = node, client, cache, clock
        self._shown: list[dict[str, Any]] | None = None

    def show(self, records: Mapping[str, Recut], others: Iterable[Mapping[str, str]] = ()) -> None:
        fresh = [*wanted(records), *(dict(c) for c in others)]
        old = self._shown if self._shown is not None else self._published()
        if [_facts(c) for c in old] == [_facts(c) for c in fresh]:
            self._shown = old
            return
        dated = [_dated(c, old, self._clock.now()) for c in fresh]
        try:
            self._client.patch(GPUNODES, self._node, {"status": {"conditions": dated}}, subresource="status")
            self._shown = dated
        except ApiError as error:
            log.warning("conditions of GpuNode %s not written: %s", self._node, error)

    def _published(self) -> list[dict[str, Any]]:
        status = (self._cache.gpunode(self._node) or {}).get("status") or {}
        return [dict(c) for c in status.get("conditions") or () if isinstance(c, Mapping)]


def wanted(records: Mapping[str, Recut]) -> list[dict[str, Any]]:
    """The conditions that these records call for, without their times. Pure."""
    stuck = {gpu: r for gpu, r in sorted(records.items()) if r.phase is Phase.STUCK}
    message = "; ".join(f"GPU {gpu}: {r.message}" for gpu, r in stuck.items())
    return [
        {"type": "Ready", "status": "True", "reason": "AtWork", "message": "the node's agent is at work"},
        {
            "type": "RecutStuck",
            "status": "True" if stuck else "False",
            "reason": "Stuck" if stuck else "NoneStuck",
            "message": message[:1024],
        },
    ]


def _facts(condition: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in condition.items() if k != "lastTransitionTime"}


def _dated(condition: dict[str, Any], old: list[dict[str, Any]], now: float) -> dict[str, Any]:
    """The time is that of the last change of `status`, as everywhere in Kubernetes."""
    same = (c for c in old if c.get("type") == condition["type"] and c.get("status") == condition["status"])
    since = next((c["lastTransitionTime"] for c in same if c.get("lastTransitionTime")), None)
    return {**condition, "lastTransitionTime": since or datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
