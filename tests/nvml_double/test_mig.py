"""MIG on the double, through the real pynvml: the rules and error codes of the driver."""

import ctypes
import os
import signal
import subprocess
import sys

import pynvml as nvml
import pytest

from gpu import catalogue
from nvml_double.control import Machine, model_keys
from tests.machine import library


def gpu(index: int = 0):
    return nvml.nvmlDeviceGetHandleByIndex(index)


def code(call, *args) -> int:
    with pytest.raises(nvml.NVMLError) as caught:
        call(*args)
    return caught.value.value


def create(handle, profile: int, start: int, size: int):
    place = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, ctypes.byref(place))


def full(instance) -> object:
    """A compute instance as large as the GPU instance."""
    for index in range(9):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0)
        except nvml.NVMLError:
            continue
        if info.instanceCount == 1:
            return nvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
    raise AssertionError("no full-size compute profile")


@pytest.mark.parametrize("key", model_keys())
def test_every_placement_of_every_profile_of_every_model(machine, key: str) -> None:
    machine(key)
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    for profile in catalogue.model(key).profiles:
        for start in profile.starts:
            instance = create(handle, profile.profile_id, start, profile.size)
            compute = full(instance)
            info = nvml.nvmlComputeInstanceGetInfo(compute)
            assert nvml.nvmlDeviceGetName(info.device).endswith(f"MIG {profile.name}")
            assert nvml.nvmlDeviceGetAttributes(info.device).memorySizeMB == profile.memory_mib
            assert code(nvml.nvmlGpuInstanceDestroy, instance) == nvml.NVML_ERROR_IN_USE
            nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)


def test_what_overlaps_or_passes_the_limit_is_refused(machine) -> None:
    machine("h100-80gb")
    handle = gpu()
    assert code(create, handle, 19, 0, 1) == nvml.NVML_ERROR_NOT_SUPPORTED  # MIG is off
    nvml.nvmlDeviceSetMigMode(handle, 1)
    create(handle, 9, 4, 4)
    assert code(create, handle, 19, 5, 1) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    assert code(create, handle, 19, 9, 1) == nvml.NVML_ERROR_INVALID_ARGUMENT  # no such start
    create(handle, 20, 0, 1)
    assert code(create, handle, 20, 1, 1) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES  # one +me per GPU
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19) == 3


def test_all_media_engines_leave_only_profiles_without(machine) -> None:
    machine("rtxpro6000-96gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    create(handle, 65, 0, 3)
    assert code(create, handle, 14, 3, 3) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    create(handle, 67, 3, 3)


def test_a_slice_made_anew_is_another_device(machine) -> None:
    machine("h100-80gb")
    handle = gpu()
    nvml.nvmlDeviceSetMigMode(handle, 1)
    seen = set()
    for _ in range(3):
        instance = create(handle, 19, 0, 1)
        compute = full(instance)
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlComputeInstanceGetInfo(compute).device)
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
        seen.add(uuid)
        nvml.nvmlComputeInstanceDestroy(compute)
        assert code(nvml.nvmlDeviceGetHandleByUUID, uuid) == nvml.NVML_ERROR_NOT_FOUND
        nvml.nvmlGpuInstanceDestroy(instance)
    assert len(seen) == 3


def test_a_process_keeps_its_slice_and_the_mode(machine) -> None:
    double: Machine = machine("h100-80gb")
    handle = gpu()
    double.add_process(0, 4711)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == nvml.NVML_ERROR_IN_USE
    double.clear_processes(0)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == nvml.NVML_SUCCESS
    instance = create(handle, 19, 3, 1)
    compute = full(instance)
    gi = nvml.nvmlGpuInstanceGetInfo(instance).id
    double.add_process(0, 4711, 512, gi, 0)
    assert [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [4711]
    assert code(nvml.nvmlComputeInstanceDestroy, compute) == nvml.NVML_ERROR_IN_USE
    assert code(nvml.nvmlDeviceSetMigMode, handle, 0) == nvml.NVML_ERROR_IN_USE
    assert code(nvml.nvmlDeviceGetUtilizationRates, handle) == nvml.NVML_ERROR_NOT_SUPPORTED


def test_ampere_needs_a_reset_that_another_session_forbids(machine) -> None:
    double: Machine = machine("a100-40gb")
    other = subprocess.Popen(
        [sys.executable, "-c", "import ctypes,sys,pynvml;pynvml.nvmlInit();print(1,flush=True);sys.stdin.read()"],
        env={**os.environ, **double.environment(library())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None
        other.stdout.readline()
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == nvml.NVML_ERROR_IN_USE
        assert nvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
        other.send_signal(signal.SIGKILL)
        other.wait()
    # A session whose process was killed is no client any more.
    assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == nvml.NVML_SUCCESS


def test_ampere_needs_a_reset_that_an_own_event_set_forbids(machine) -> None:
    machine("a100-40gb", "h100-80gb")
    events = nvml.nvmlEventSetCreate()
    for index in range(2):
        nvml.nvmlDeviceRegisterEvents(gpu(index), nvml.nvmlEventTypeXidCriticalError, events)
    assert nvml.nvmlDeviceSetMigMode(gpu(0), 1) == nvml.NVML_ERROR_IN_USE
    assert nvml.nvmlDeviceSetMigMode(gpu(1), 1) == nvml.NVML_SUCCESS  # from Hopper on there is no reset
    nvml.nvmlEventSetFree(events)
    assert nvml.nvmlDeviceSetMigMode(gpu(0), 1) == nvml.NVML_SUCCESS


def test_in_a_virtual_machine_ampere_waits_for_a_reboot(machine) -> None:
    double: Machine = machine("a100-40gb")
    double.set(0, passthrough=True)
    assert nvml.nvmlDeviceGetVirtualizationMode(gpu()) == nvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
    assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == nvml.NVML_ERROR_RESET_REQUIRED
    assert nvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
    double.reboot()
    assert nvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]


@pytest.mark.parametrize(("key", "mode"), [("h100-80gb", [0, 0]), ("a100-40gb", [1, 1])])
def test_a_reboot_takes_slices_and_on_hopper_the_mode(machine, key: str, mode: list[int]) -> None:
    double: Machine = machine(key)
    nvml.nvmlDeviceSetMigMode(gpu(), 1)
    create(gpu(), 19, 0, 1)
    double.reboot()
    assert nvml.nvmlDeviceGetMigMode(gpu()) == mode
    assert double.slices(0) == {}
