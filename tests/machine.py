"""The GPUs of one pretend node, as a test sets them: here the double in Python."""

from pathlib import Path

from gpu import fake
from gpu.fake import FakeHardware

MODELS = ("h100-80gb", "h100-80gb")


class Machine:
    """GPUs of one node, in a file at `path`; `flags` and `env` are how an agent is started on it."""

    def __init__(self, path: Path, name: str) -> None:
        if not path.exists():
            fake.create(path, MODELS, seed=sum(name.encode()))
        self._hardware = FakeHardware(path)
        self.flags = ["--hardware=fake", f"--fake-state={path}", "--sample-seconds=0.5"]
        self.env: dict[str, str] = {}

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(g.uuid for g in self._hardware.gpus())

    def layout(self, index: int) -> tuple[str, ...]:
        return tuple(str(s) for s in self._hardware.gpus()[index].layout)

    def slice_uuid(self, index: int, piece: str) -> str | None:
        """The UUID of the slice at that place: another one once the slice has been made anew."""
        return next((s.uuid for s in self._hardware.gpus()[index].slices if str(s.slice) == piece), None)

    def busy(self, index: int, share: float) -> None:
        self._hardware.set_busy(self.uuids[index], share)

    def kill_agent_at(self, call: str, when: str) -> None:
        """The agent dies by SIGKILL at its next call of this name (set_mig, cut, join), `before` or `after` it."""
        self._hardware.kill(call, when)

    def quiet(self) -> None:
        for index, uuid in enumerate(self.uuids):
            self.busy(index, 0.0)
            self._hardware.clear_processes(uuid)
