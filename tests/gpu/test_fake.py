"""The Python double beyond the contract that both doors share: shared by processes, whole after a kill."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpu import fake
from gpu.fake import FakeHardware
from gpu.hardware import GpuFault

SCRIPT = """
import sys
from pathlib import Path
from gpu.fake import FakeHardware
from gpu.hardware import GpuFault
from gpu.layout import parse_slice
hardware = FakeHardware(Path(sys.argv[1]))
(gpu,) = hardware.gpus()
hardware.cut(gpu.uuid, parse_slice("1g.10gb@0", gpu.model))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fake.create(tmp_path / "gpus.json", ["h100-80gb"], seed=1)
    return tmp_path / "gpus.json"


@pytest.fixture
def hardware(path: Path) -> FakeHardware:
    made = FakeHardware(path)
    made.set_mig(made.gpus()[0].uuid, True)
    return made


def run(path: Path) -> int:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", SCRIPT, str(path)], env=env, check=False, timeout=60).returncode


@pytest.mark.parametrize(("when", "slices"), [("before", 0), ("after", 1)])
def test_another_process_dies_in_the_act_and_the_state_stays_whole(
    hardware: FakeHardware, path: Path, when: str, slices: int
) -> None:
    hardware.kill("cut", when)
    assert run(path) == -signal.SIGKILL
    assert len(hardware.gpus()[0].slices) == slices
    assert run(path) == 0
    assert len(hardware.gpus()[0].slices) == 1


def test_what_hangs_hangs_alone(hardware: FakeHardware, path: Path) -> None:
    gpu = hardware.gpus()[0].uuid
    hardware.hang("read", 600)
    threading.Thread(target=hardware.read, args=(gpu,), daemon=True).start()
    while json.loads(path.read_text())["faults"]:
        """Until the thread has met the fault."""
    assert hardware.read(gpu).uuid == gpu


def test_closing_ends_a_wait_for_events(hardware: FakeHardware) -> None:
    waiting = threading.Thread(target=hardware.events, args=(60.0,), daemon=True)
    waiting.start()
    hardware.close()
    waiting.join(timeout=30)
    assert not waiting.is_alive()


def test_a_change_of_mode_that_waits_is_made_by_a_reboot_or_revoked(tmp_path: Path) -> None:
    fake.create(tmp_path / "gpus.json", ["a100-40gb"] * 2)
    hardware = FakeHardware(tmp_path / "gpus.json")
    first, second = (g.uuid for g in hardware.gpus())
    for gpu in (first, second):
        hardware.add_process(gpu, 4711)
        with pytest.raises(GpuFault):
            hardware.set_mig(gpu, True)
    hardware.set_mig(second, False)
    assert [g.mig for g in hardware.gpus()] == [False, False]
    hardware.reboot()
    assert [g.mig for g in hardware.gpus()] == [True, False]
