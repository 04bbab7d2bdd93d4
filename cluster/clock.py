"""Time comes in as an argument: a clock that programs use and one that tests move."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds that never go back; for deadlines and leases."""

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Sleep, but not beyond `stop`; True when stopped."""


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        return stop.wait(seconds)


class ManualClock:
    """Stands still until it is moved; waiting moves it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        self.advance(seconds)
        return stop.is_set()
