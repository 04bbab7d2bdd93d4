"""From hardware events to healthy or not, and back again.

Pure. One bad GPU never stops the others. Health also goes up: after a fault a GPU is trusted again once it has read
well for a while and no new fault came.
"""

from dataclasses import dataclass, replace

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of the application, not of the GPU: the list that NVIDIA's device plugin and DRA driver ignore."""

QUIET_SECONDS = 60.0
"""How long a GPU must read well after its last fault. Ours: longer than a driver's own recovery from a reset."""

GOOD_READS = 3


@dataclass(frozen=True, slots=True)
class Health:
    """`since` is when the last fault was seen, seconds since the epoch; `good` reads in a row since then."""

    healthy: bool = True
    problem: str = ""
    since: float = 0.0
    good: int = 0


def on_xid(health: Health, xid: int, now: float) -> Health:
    if xid in APPLICATION_XIDS:
        return health
    return Health(False, f"XID {xid}", now)


def on_read(health: Health, fault: str, now: float) -> Health:
    """After each look at the GPU: `fault` in words, "" when it could be read."""
    if fault:
        return Health(False, fault, now)
    if health.healthy:
        return health
    good = health.good + 1
    if good >= GOOD_READS and now - health.since >= QUIET_SECONDS:
        return Health()
    return replace(health, good=good)
