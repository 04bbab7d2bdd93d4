"""Clients that share the GPUs: threads, forks, hanging and dying processes, sessions that come and go."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pynvml as nvml
import pytest

from nvml_double.control import Machine
from nvml_double.library import calls


def client(double: Path, machine: Machine, script: str) -> subprocess.Popen[str]:
    """A program that has opened NVML, and runs on when the test writes a line to it."""
    code = f"import os, sys, pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n{script}"
    env = {**os.environ, **machine.environment(double)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], env=env, text=True, **pipes)


def line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def test_a_hanging_call_hangs_alone(double: Path, machine) -> None:
    made: Machine = machine("h100-80gb")
    made.fault("nvmlDeviceGetUUID", hang=600)
    with client(double, made, "print('on', flush=True)\nn.nvmlDeviceGetUUID(h)") as other:
        assert line(other) == "on"
        # The fault may be taken by either, so it is asked by the other's own call only.
        while made.faults():
            nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0)) == made.uuids()[0]
        other.kill()


def test_a_fork_neither_has_the_session_nor_keeps_the_lock(double: Path, machine) -> None:
    made: Machine = machine("h100-80gb")
    script = """
child = os.fork()
if child == 0:
    try:
        n.nvmlDeviceGetCount()
    except n.NVMLError_Uninitialized:
        print("uninitialized", flush=True)
    n.nvmlInit()
    print(n.nvmlDeviceGetCount(), flush=True)
    sys.stdin.readline()
    os._exit(0)
n.nvmlDeviceSetMigMode(h, 1)
"""
    made.fault("nvmlDeviceSetMigMode", kill="after")
    with client(double, made, script) as parent:
        assert [line(parent), line(parent)] == ["uninitialized", "1"]
        assert parent.wait() == -signal.SIGKILL
        # The parent died with the lock while its child lives on.
        assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(0)) == [1, 1]
        assert parent.stdin is not None
        parent.stdin.write("\n")


def test_shutdown_while_other_threads_ask_is_an_answer(machine) -> None:
    machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    wrong: list[BaseException] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                nvml.nvmlDeviceGetUUID(handle)
            except nvml.NVMLError_Uninitialized:
                continue
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test must tell
                wrong.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        nvml.nvmlShutdown()
        nvml.nvmlInit()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_wait_for_events_ends_with_the_session(machine) -> None:
    machine("h100-80gb")
    events = nvml.nvmlEventSetCreate()
    ends: list[int] = []

    def wait() -> None:
        try:
            nvml.nvmlEventSetWait(events, 60_000)
        except nvml.NVMLError as error:
            ends.append(error.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    nvml.nvmlShutdown()
    waiting.join(timeout=30)
    nvml.nvmlInit()
    assert ends == [nvml.NVML_ERROR_UNINITIALIZED]


def test_a_fault_on_waiting_strikes_once_a_call(double: Path, machine) -> None:
    made: Machine = machine("h100-80gb")
    made.fault("nvmlEventSetWait_v2", kill="after")
    script = """
s = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError, s)
print("on", flush=True)
n.nvmlEventSetWait(s, 60000)
"""
    with client(double, made, script) as other:
        assert line(other) == "on"
        assert other.poll() is None
        made.xid(0, 79)
        assert other.wait(timeout=30) == -signal.SIGKILL
    assert made.faults() == ()


def test_init_counts_and_can_fail(machine) -> None:
    made: Machine = machine("h100-80gb")
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetCount() == 1
    made.fault("nvmlInitWithFlags", fail=nvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(nvml.NVMLError_NoPermission):
        nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 1


def test_null_pointers_are_refused(double: Path, machine) -> None:
    machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    # The whole GPU as one slice: its ids are 0, so what is asked by id 0 is there.
    instance = nvml.nvmlDeviceCreateGpuInstance(handle, 0)
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 4)
    handles = {"nvmlDevice": handle, "nvmlGpuInstance": instance, "nvmlComputeInstance": compute}
    answers = {nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_SUCCESS}
    library = ctypes.CDLL(str(double))
    for name in sorted(set(calls()) - {"nvmlShutdown", "nvmlInitWithFlags", "nvmlInit_v2"}):
        known = next((h for prefix, h in handles.items() if name.startswith(prefix)), None)
        no_handle = "GetCount" in name or "HandleBy" in name or name.endswith("Destroy")
        for first in (None,) if known is None or no_handle else (None, known):
            assert getattr(library, name)(first, None, None, None, None) in answers, name
