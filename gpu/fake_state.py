"""The state file of the double in Python: one file that several processes share, and the faults that wait in it.

An exclusive lock, on a file beside it, around every look and act, and the whole file replaced in one step, so a killed
process leaves the GPUs as they were.
"""

import copy
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu.hardware import FaultKind, GpuFault

Raw = dict[str, Any]


class StateFile:
    """Raises GpuFault UNAVAILABLE when the file is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def call(self, name: str = "") -> Iterator[Raw]:
        """The state under the lock; written back unless the call raised. `name` "" is a test's own."""
        fault = self._due(name) if name else {}
        _strike(fault, before=True)  # outside the lock: who hangs, hangs alone
        with self._locked() as state:
            before = copy.deepcopy(state)
            yield state
            if state != before:
                save(self._path, state)
            _strike(fault, before=False)

    def _due(self, call: str) -> Raw:
        """The oldest fault that waits for this call, counted down; empty when there is none."""
        with self._locked() as state:
            fault: Raw = next((f for f in state["faults"] if f["call"] == call), {})
            if fault:
                fault["times"] -= 1
                state["faults"] = [f for f in state["faults"] if f["times"] > 0]
                save(self._path, state)
        return fault

    @contextmanager
    def _locked(self) -> Iterator[Raw]:
        try:
            lock = open(self._path.with_name(f"{self._path.name}.lock"), "a+b")  # noqa: SIM115 - closed below
        except OSError as error:
            raise GpuFault(FaultKind.UNAVAILABLE, f"locking {self._path} ({error.strerror})") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                state: Raw = json.loads(self._path.read_bytes())
            except (OSError, ValueError) as error:
                raise GpuFault(FaultKind.UNAVAILABLE, f"reading {self._path} ({error})") from error
            yield state


def save(path: Path, state: Raw) -> None:
    """Replaced in one step: a process killed here leaves the old state or the new one."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(json.dumps(state))
    temporary.replace(path)


def _strike(fault: Raw, *, before: bool) -> None:
    if before and "kind" in fault:
        raise GpuFault(FaultKind[fault["kind"]], fault["call"])
    if before and "hang" in fault:
        time.sleep(fault["hang"])
    if fault.get("kill") == ("before" if before else "after"):
        os.kill(os.getpid(), signal.SIGKILL)
