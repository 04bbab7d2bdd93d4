"""What a client may rely on beyond MIG's own rules: sessions, forks, handles, memory, events, as a driver answers."""

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
from tests.nvml_double.test_mig import code, create, full, gpu


def test_a_killed_client_that_had_forked_blocks_nobody(double: Path, machine) -> None:
    made: Machine = machine("h100-80gb")
    made.fault("nvmlDeviceGetName", kill="before")  # it dies with the lock in its hands
    script = (
        "import os, sys, pynvml as n\nn.nvmlInit()\n"
        "if os.fork() == 0:\n    sys.stdin.read(); os._exit(0)\n"
        "n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0))\n"
    )
    env = {**os.environ, **made.environment(double)}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdin=subprocess.PIPE) as client:
        assert client.wait(timeout=60) == -signal.SIGKILL
        # Its child still lives, waiting for the end of its input, and does not keep the lock.
        asked = threading.Thread(target=made.uuids, daemon=True)
        asked.start()
        asked.join(timeout=5)
        assert not asked.is_alive()


def test_a_forked_child_initializes_for_itself(machine) -> None:
    machine("h100-80gb")
    handle = gpu()
    child = os.fork()
    if child == 0:
        try:
            refused = code(nvml.nvmlDeviceGetUUID, handle) == nvml.NVML_ERROR_UNINITIALIZED
            nvml.nvmlInit()
            os._exit(0 if refused and nvml.nvmlDeviceGetUUID(gpu()) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_killed_client_is_no_client_even_before_it_is_reaped(double: Path, machine) -> None:
    made: Machine = machine("a100-40gb")
    script = "import pynvml, sys; pynvml.nvmlInit(); print(1, flush=True); sys.stdin.read()"
    env = {**os.environ, **made.environment(double)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdin=pipe, stdout=pipe) as client:
        assert client.stdout is not None
        client.stdout.readline()
        client.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == nvml.NVML_SUCCESS


def test_init_can_be_told_to_fail(machine) -> None:
    made: Machine = machine("h100-80gb")
    made.fault("nvmlInitWithFlags", fail=nvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert code(nvml.nvmlInit) == nvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert nvml.nvmlDeviceGetCount() == 1  # the first session goes on


def test_threads_may_initialize_and_shut_down_at_the_same_time(machine) -> None:
    machine("h100-80gb")
    problems: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(50):
                nvml.nvmlInit()
                nvml.nvmlDeviceGetUUID(gpu())
                nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            problems.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert nvml.nvmlDeviceGetCount() == 1


def test_mig_devices_keep_their_index_and_leave_holes(machine) -> None:
    machine("h100-80gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    instances = [create(handle, 19, start, 1) for start in range(3)]
    computes = [full(i) for i in instances]
    uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)) for i in range(3)]
    nvml.nvmlComputeInstanceDestroy(computes[1])
    assert code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 1) == nvml.NVML_ERROR_NOT_FOUND
    last = nvml.nvmlDeviceGetHandleByUUID(uuids[2])
    assert nvml.nvmlDeviceGetIndex(last) == 2
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 2)) == uuids[2]
    full(instances[1])
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)) != uuids[1]


def test_the_old_form_of_a_mig_uuid_is_understood(machine) -> None:
    made: Machine = machine("h100-80gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    instance = create(handle, 19, 0, 1)
    info = nvml.nvmlComputeInstanceGetInfo(full(instance))
    old = f"MIG-{made.uuids()[0]}/{nvml.nvmlGpuInstanceGetInfo(instance).id}/{info.id}"
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(old)) == nvml.nvmlDeviceGetUUID(info.device)


def test_remaining_capacity_keeps_the_profiles_limit(machine) -> None:
    machine("h100-80gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 20) == 1  # seven starts, once per GPU
    create(handle, 20, 0, 1)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 20) == 0


def test_compute_instances_stand_where_they_are_put(machine) -> None:
    machine("h100-80gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    instance = create(handle, 9, 0, 4)

    def put(start: int, size: int = 1):
        place = nvml.c_nvmlComputeInstancePlacement_t(start, size)
        return nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(place))

    assert nvml.nvmlComputeInstanceGetInfo(put(2)).placement.start == 2
    assert code(put, 2) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    assert code(put, 3) == nvml.NVML_ERROR_INVALID_ARGUMENT  # a 3g has compute slices 0 to 2
    assert code(put, 0, 2) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 2


def test_memory_never_underflows_and_adds_up(machine) -> None:
    made: Machine = machine("h100-80gb")
    made.set(0, memory_used_mib=81559)
    first = nvml.nvmlDeviceGetMemoryInfo(gpu())
    second = nvml.nvmlDeviceGetMemoryInfo(gpu(), version=nvml.nvmlMemory_v2)
    assert first.used + first.free == first.total
    assert second.reserved + second.used + second.free == second.total
    assert first.used == second.used + second.reserved


def test_energy_never_runs_backwards(machine) -> None:
    made: Machine = machine("h100-80gb")
    made.set(0, busy=1.0)
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    made.set(0, busy=0.0)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) >= before


def test_versions_that_nobody_knows_are_refused(machine) -> None:
    machine("h100-80gb")
    info = nvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    info.version = 0x09000098
    call = nvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
    assert call(gpu(), 0, ctypes.byref(info)) == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_a_process_is_listed_under_its_own_mig_device_only(machine) -> None:
    made: Machine = machine("h100-80gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    instance = create(handle, 9, 0, 4)
    devices = [
        nvml.nvmlComputeInstanceGetInfo(nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)).device for _ in range(2)
    ]
    made.add_process(0, 4711, 100, nvml.nvmlGpuInstanceGetInfo(instance).id, 1)
    assert [len(nvml.nvmlDeviceGetComputeRunningProcesses(d)) for d in devices] == [0, 1]


def test_an_xid_of_a_slice_names_no_compute_instance(machine) -> None:
    made: Machine = machine("h100-80gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    gi = nvml.nvmlGpuInstanceGetInfo(create(handle, 19, 0, 1)).id
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    made.xid(0, 43, gi=gi)
    event = nvml.nvmlEventSetWait(events, 1000)
    assert (event.gpuInstanceId, event.computeInstanceId) == (gi, 0xFFFFFFFF)
    made.lose(0)
    assert code(nvml.nvmlEventSetWait, events, 1000) == nvml.NVML_ERROR_GPU_IS_LOST
    nvml.nvmlEventSetFree(events)


def test_sixteen_gpus_have_sixteen_bus_addresses(machine) -> None:
    machine(*["h100-80gb"] * 16)
    for index in range(16):
        bus = nvml.nvmlDeviceGetPciInfo(gpu(index)).busId
        assert len(bus) == len("00000000:18:00.0")
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(bus)) == index


@pytest.mark.parametrize("call", ["nvmlDeviceGetNumaNodeId", "nvmlDeviceGetSamples"])
def test_what_it_cannot_measure_is_not_supported(machine, call: str) -> None:
    machine("h100-80gb")
    assert nvml._nvmlGetFunctionPointer(call)(gpu()) == nvml.NVML_ERROR_NOT_SUPPORTED
