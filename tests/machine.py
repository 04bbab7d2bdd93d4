"""The GPUs of one pretend node, as a test sets them: the NVML double, under the real pynvml."""

import os
from pathlib import Path

import pytest

from nvml_double import control

MODELS = ("h100-80gb", "h100-80gb")


def library() -> Path:
    """The double, built once. Without a C compiler the test is skipped, and fails under CI=true."""
    if control.compiler() is None:
        reason = "the NVML double needs a C compiler: apt-get install gcc"
        if os.environ.get("CI") == "true":
            pytest.fail(f"under CI this must not be skipped: {reason}")
        pytest.skip(reason)
    return control.build(Path(__file__).parents[1] / "build" / "nvml-double")


class Machine:
    """GPUs of one node, in a file at `path`; `flags` and `env` are how an agent is started on it."""

    def __init__(self, path: Path, name: str) -> None:
        self.double = control.Machine.create(path, MODELS, seed=sum(name.encode()))
        self.flags = ["--hardware=nvml", "--sample-seconds=0.5"]
        self.env = self.double.environment(library())

    @property
    def uuids(self) -> tuple[str, ...]:
        return self.double.uuids()

    def slice_uuid(self, index: int, piece: str) -> str | None:
        """The UUID of the slice at that place: another one once the slice has been made anew."""
        return self.double.slices(index).get(piece)

    def busy(self, index: int, share: float) -> None:
        self.double.set(index, busy=share)

    def kill_agent_at(self, call: str, when: str) -> None:
        """The agent dies by SIGKILL at its next call of this NVML function, `before` or `after` it took effect."""
        self.double.fault(call, kill=when)

    def quiet(self) -> None:
        self.double.clear_faults()
        for index in range(len(self.uuids)):
            self.busy(index, 0.0)
            self.double.clear_processes(index)
