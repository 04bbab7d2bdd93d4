"""What goes wrong on request, and that nothing else does: other processes, killed clients, other NVML programs."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pynvml as nvml
import pytest

from nvml_double import layout
from nvml_double.__main__ import main
from nvml_double.control import DoubleError, Machine


def run(double: Path, machine: Machine, script: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **machine.environment(double)}
    code = f"import pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n{script}"
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_call_fails_as_often_as_told(machine) -> None:
    made: Machine = machine("h100-80gb")
    made.fault("nvmlDeviceGetName", fail=nvml.NVML_ERROR_UNKNOWN, times=2)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(2):
        with pytest.raises(nvml.NVMLError):
            nvml.nvmlDeviceGetName(handle)
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(("when", "mode"), [("before", [0, 0]), ("after", [1, 1])])
def test_a_call_kills_its_caller_and_the_state_stays_good(double: Path, machine, when: str, mode: list[int]) -> None:
    made: Machine = machine("h100-80gb")
    made.fault("nvmlDeviceSetMigMode", kill=when)
    assert run(double, made, "n.nvmlDeviceSetMigMode(h, 1)").returncode == -signal.SIGKILL
    # The dead client held the lock; nobody waits for it.
    assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(0)) == mode


def test_two_processes_see_the_same_gpus(double: Path, machine) -> None:
    made: Machine = machine("h100-80gb")
    assert run(double, made, "n.nvmlDeviceSetMigMode(h, 1); n.nvmlDeviceCreateGpuInstance(h, 19)").returncode == 0
    assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(0)) == [1, 1]
    assert list(made.slices(0)) == ["1g.10gb@6"]


def test_a_lost_gpu_hides_no_other(machine) -> None:
    made: Machine = machine("h100-80gb", "h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    made.lose(0)
    for call in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetUtilizationRates):
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            call(handle)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1)) == made.uuids()[1]
    made.lose(0, lost=False)
    assert nvml.nvmlDeviceGetUUID(handle) == made.uuids()[0]


def test_an_xid_reaches_who_listens(machine) -> None:
    made: Machine = machine("h100-80gb")
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait(events, 10)
    made.xid(0, 79)
    event = nvml.nvmlEventSetWait(events, 1000)
    assert (event.eventData, event.gpuInstanceId) == (79, 0xFFFFFFFF)
    nvml.nvmlEventSetFree(events)


def test_a_file_of_another_version_is_refused_by_both_sides(double: Path, machine) -> None:
    made: Machine = machine("h100-80gb")
    raw = bytearray(made.path.read_bytes())
    raw[layout.State.version.offset] = 99
    made.path.write_bytes(raw)
    with pytest.raises(DoubleError, match="not a state file of this version"):
        Machine(made.path)
    done = run(double, made, "")
    assert "NVMLError_LibRmVersionMismatch" in done.stderr


def test_a_missing_file_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--state", str(tmp_path / "none")]) == 1
    assert "fallow-nvml-double create" in capsys.readouterr().err


def test_the_command_makes_a_machine_and_sets_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(tmp_path / "gpus")
    assert main(["create", "--state", state, "2xH100-80GB", "a100-40gb"]) == 0
    assert main(["set", "--state", state, "--gpu", "0", "--busy", "83"]) == 0
    capsys.readouterr()
    assert main(["show", "--state", state]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "NVIDIA H100 80GB HBM3  83% busy" in lines[0]
    assert main(["create", "--state", state, "b9000"]) == 1
    assert "known are" in capsys.readouterr().err


def test_structures_have_the_sizes_that_c_has() -> None:
    # The build itself asserts each size; this says that the header states all of them.
    for structure in layout.STRUCTURES:
        assert f"sizeof(struct {structure.__name__}) == {ctypes.sizeof(structure)}" in layout.header()


def test_nvitop_shows_the_right_picture(double: Path, machine) -> None:
    made: Machine = machine("h100-80gb", "a100-40gb")
    made.set(1, busy=0.83, memory_used_mib=20000)
    script = "n.nvmlDeviceSetMigMode(h, 1)\ng = n.nvmlDeviceCreateGpuInstance(h, 9)\n"
    assert run(double, made, script + "n.nvmlGpuInstanceCreateComputeInstance(g, 2)").returncode == 0
    env = {**os.environ, **made.environment(double), "TERM": "dumb", "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "nvitop", "--once", "--no-unicode"]
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
    lines = shown.splitlines()
    assert any("H100 80GB HBM3" in x and "Enabled" in x for x in lines)
    assert any("3g.40gb @ GI/CI: 1/0" in x for x in lines)
    assert any("20000MiB / 40.00GiB" in x and "83%" in x for x in lines)
