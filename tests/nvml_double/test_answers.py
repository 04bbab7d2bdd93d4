"""Smaller answers that programs rely on: versions of structures, lists in two calls, kinds of handles, capacities."""

import ctypes

import pynvml as nvml
import pytest

from gpu import catalogue
from nvml_double.control import Machine, model_keys


def code(call, *args) -> int:
    with pytest.raises(nvml.NVMLError) as caught:
        call(*args)
    return caught.value.value


def cut(index: int, *texts: str) -> list:
    """Slices such as `1g.10gb@0` of an H100, each with its full-size compute instance."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    made = []
    for text in texts:
        name, start = text.split("@")
        profile = catalogue.model("h100-80gb").profile(name)
        assert profile is not None
        place = ctypes.byref(nvml.c_nvmlGpuInstancePlacement_t(int(start), profile.size))
        instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.profile_id, place)
        full = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile.compute]
        made.append(nvml.nvmlGpuInstanceCreateComputeInstance(instance, full))
    return made


def test_a_structure_of_an_unknown_version_is_refused(machine) -> None:
    machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    library = nvml.nvmlLib
    for name, structure in (
        ("nvmlDeviceGetMemoryInfo_v2", nvml.c_nvmlMemory_v2_t()),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", nvml.c_nvmlGpuInstanceProfileInfo_v2_t()),
        ("nvmlDeviceGetGpuInstanceProfileInfoByIdV", nvml.c_nvmlGpuInstanceProfileInfo_v2_t()),
    ):
        function, first = getattr(library, name), () if "Memory" in name else (0 if name.endswith("InfoV") else 19,)
        for version in (0, 0x03000098):
            structure.version = version
            assert function(handle, *first, ctypes.byref(structure)) == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_indexes_of_mig_devices_have_holes(machine) -> None:
    machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
    computes = cut(0, "1g.10gb@0", "1g.10gb@1", "1g.10gb@2")
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    last = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 2)
    uuid = nvml.nvmlDeviceGetUUID(last)
    nvml.nvmlComputeInstanceDestroy(computes[1])
    assert code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 1) == nvml.NVML_ERROR_NOT_FOUND
    assert code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 7) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 2)) == uuid
    assert nvml.nvmlDeviceGetIndex(last) == 2


def test_a_mig_device_knows_its_place(machine) -> None:
    made: Machine = machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    (compute,) = cut(0, "3g.40gb@4")
    device = nvml.nvmlComputeInstanceGetInfo(compute).device
    assert nvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
    assert nvml.nvmlDeviceIsMigDeviceHandle(handle).value == 0
    gi = nvml.nvmlDeviceGetGpuInstanceId(device)
    assert (gi, nvml.nvmlDeviceGetComputeInstanceId(device)) == (1, 0)
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert nvml.nvmlDeviceGetUUID(parent) == made.uuids()[0]
    old_form = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{made.uuids()[0]}/{gi}/0")
    assert nvml.nvmlDeviceGetUUID(old_form) == nvml.nvmlDeviceGetUUID(device)
    attributes = nvml.nvmlDeviceGetAttributes(device)
    assert (attributes.gpuInstanceSliceCount, attributes.multiprocessorCount) == (3, 60)
    assert nvml.nvmlDeviceGetMemoryInfo(device).total == attributes.memorySizeMB * 2**20


def test_a_handle_of_another_kind_is_an_invalid_argument(machine) -> None:
    machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    (compute,) = cut(0, "1g.10gb@0")
    info = nvml.nvmlComputeInstanceGetInfo(compute)
    for call, wrong in (
        (nvml.nvmlGpuInstanceGetInfo, handle),
        (nvml.nvmlGpuInstanceDestroy, compute),
        (nvml.nvmlComputeInstanceDestroy, info.gpuInstance),
        (nvml.nvmlDeviceGetMigMode, info.device),
        (nvml.nvmlDeviceGetUUID, info.gpuInstance),
        (nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle),
    ):
        assert code(call, wrong) == nvml.NVML_ERROR_INVALID_ARGUMENT
    nvml.nvmlComputeInstanceDestroy(compute)
    for gone in (compute, info.device):
        call = nvml.nvmlComputeInstanceDestroy if gone is compute else nvml.nvmlDeviceGetUUID
        assert code(call, gone) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_process_lists_come_in_two_calls(machine) -> None:
    made: Machine = machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    function, count = nvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3, ctypes.c_uint(0)
    assert function(handle, ctypes.byref(count), None) == nvml.NVML_SUCCESS
    for pid in (11, 12, 13):
        made.add_process(0, pid, 100)
    assert function(handle, ctypes.byref(count), None) == nvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 3
    assert [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [11, 12, 13]
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == []


def test_a_mig_device_lists_its_own_processes(machine) -> None:
    made: Machine = machine("h100-80gb")
    devices = [nvml.nvmlComputeInstanceGetInfo(c).device for c in cut(0, "1g.10gb@0", "1g.10gb@1")]
    for pid, device in zip((11, 12), devices, strict=True):
        made.add_process(0, pid, 100 * pid, nvml.nvmlDeviceGetGpuInstanceId(device), 0)
    assert [[p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(d)] for d in devices] == [[11], [12]]
    assert [nvml.nvmlDeviceGetMemoryInfo(d).used // 2**20 for d in devices] == [1100, 1200]


def test_memory_in_both_versions(machine) -> None:
    made: Machine = machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    made.add_process(0, 4711, 18000)
    assert nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used == 18000 * 2**20
    made.set(0, memory_used_mib=81559)  # more than the driver leaves
    first, second = (nvml.nvmlDeviceGetMemoryInfo(handle, version=v) for v in (None, nvml.nvmlMemory_v2))
    assert (first.total, first.free, first.used) == (second.total, 0, second.total)
    assert second.total == second.used + second.free + second.reserved


@pytest.mark.parametrize("key", model_keys())
def test_capacity_is_what_can_then_be_created(machine, key: str) -> None:
    machine(key)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    for profile in catalogue.model(key).profiles:
        capacity = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile.profile_id)
        made = [nvml.nvmlDeviceCreateGpuInstance(handle, profile.profile_id) for _ in range(capacity)]
        assert capacity == profile.limit
        assert code(nvml.nvmlDeviceCreateGpuInstance, handle, profile.profile_id) == 23
        assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile.profile_id) == 0
        for instance in made:
            nvml.nvmlGpuInstanceDestroy(instance)


def test_compute_instances_share_a_gpu_instance(machine) -> None:
    machine("h100-80gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(handle, 9)  # 3g.40gb
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 3
    place = ctypes.byref(nvml.c_nvmlComputeInstancePlacement_t(1, 1))
    middle = nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, place)
    assert nvml.nvmlComputeInstanceGetInfo(middle).placement.start == 1
    assert code(nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement, instance, 0, place) == 23
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 2
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 2) == 0
    assert nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0).name == "MIG 1c.3g.40gb"


def test_a_lost_gpu_is_lost_to_every_handle(machine) -> None:
    made: Machine = machine("h100-80gb")
    (compute,) = cut(0, "1g.10gb@0")
    info = nvml.nvmlComputeInstanceGetInfo(compute)
    made.lose(0)
    for call, handle in (
        (nvml.nvmlComputeInstanceGetInfo, compute),
        (nvml.nvmlGpuInstanceGetInfo, info.gpuInstance),
        (nvml.nvmlDeviceGetUUID, info.device),
        (nvml.nvmlDeviceGetHandleByUUID, made.uuids()[0]),
        (nvml.nvmlDeviceGetHandleByIndex, 0),
    ):
        assert code(call, handle) == nvml.NVML_ERROR_GPU_IS_LOST


@pytest.mark.parametrize(("key", "resetless"), [("h100-80gb", 1), ("a100-40gb", 0)])
def test_field_values_answer_one_by_one(machine, key: str, resetless: int) -> None:
    machine(key)
    ids = [184, 199, 230, 142, 143, 144, 145, 9999]
    fields = nvml.nvmlDeviceGetFieldValues(nvml.nvmlDeviceGetHandleByIndex(0), ids)
    missing = nvml.nvmlLib.nvmlDeviceGetFieldValues(nvml.nvmlDeviceGetHandleByIndex(0), 2, None)
    assert missing == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert [f.nvmlReturn for f in fields] == [0] * 7 + [nvml.NVML_ERROR_NOT_SUPPORTED]
    assert [f.value.uiVal for f in fields[:7]] == [resetless, 1, 0, 0, 0, 0, 0]


def test_topology_and_links(machine) -> None:
    machine(*["h100-80gb"] * 5, "rtxpro6000-96gb")
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(6)]
    levels = [nvml.nvmlDeviceGetTopologyCommonAncestor(handles[0], h) for h in handles]
    assert levels == [0, 10, 40, 40, 50, 50]
    assert nvml.nvmlDeviceGetP2PStatus(handles[0], handles[1], nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0
    assert nvml.nvmlDeviceGetP2PStatus(handles[0], handles[5], nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 5
    assert nvml.nvmlDeviceGetNvLinkState(handles[0], 17) == 1
    assert code(nvml.nvmlDeviceGetNvLinkState, handles[5], 0) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handles[0], 0) == 2
    assert list(nvml.nvmlDeviceGetMemoryAffinity(handles[4], 1, 0)) == [2]
    nvml.nvmlDeviceSetMigMode(handles[0], 1)
    assert nvml.nvmlDeviceGetNvLinkState(handles[0], 0) == 0


def test_a_cleared_pending_mode(machine) -> None:
    made: Machine = machine("a100-40gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    made.add_process(0, 4711)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == nvml.NVML_ERROR_IN_USE
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    assert nvml.nvmlDeviceSetMigMode(handle, 0) == nvml.NVML_SUCCESS
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]
