"""One lane per GPU: its jobs run one after another in a thread of its own, and nobody waits for a lane that hangs."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

Job = Callable[[], str]


@dataclass
class _Run:
    done: threading.Event = field(default_factory=threading.Event)
    said: str = ""


class Lanes:
    """`run` gives each lane its job, waits a while, and reports; a lane still busy gets no second job."""

    def __init__(self, wait_seconds: float = 10.0) -> None:
        self._wait_seconds = wait_seconds
        self._running: dict[str, _Run] = {}

    def run(self, jobs: Mapping[str, Job]) -> dict[str, str]:
        """What each job said, by lane; for a lane that is still busy, that it is."""
        for lane, job in jobs.items():
            current = self._running.get(lane)
            if current is None or current.done.is_set():
                self._running[lane] = self._start(lane, job)
        deadline = time.monotonic() + self._wait_seconds  # one for all: it must not grow with each that hangs
        return {lane: self._result(self._running[lane], deadline) for lane in jobs}

    def _result(self, run: _Run, deadline: float) -> str:
        if run.done.wait(max(0.0, deadline - time.monotonic())):
            return run.said
        return "the hardware has not answered yet"

    def _start(self, lane: str, job: Job) -> _Run:
        run = _Run()

        def body() -> None:
            try:
                run.said = job()
            except Exception:  # a lane that broke says so and takes the next job
                log.exception("lane %s: unexpected error, going on", lane)
                run.said = "unexpected error, see the log"
            finally:
                run.done.set()

        # A daemon: a driver call that never returns must not keep the process from ending.
        threading.Thread(target=body, name=f"gpu-{lane}", daemon=True).start()
        return run


class Inline:
    """Lanes without threads, for tests: each job runs to its end in turn."""

    def run(self, jobs: Mapping[str, Job]) -> dict[str, str]:
        return {lane: job() for lane, job in jobs.items()}
