"""The real hardware door, through NVML. The only file that imports pynvml.

Everything is keyed by UUID: indexes and handles change. Layouts are read from GPU instances, because one without a
compute instance is no MIG device and still occupies its place. One lost GPU never hides the others.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml

from gpu.hardware import FaultKind, GpuFault, GpuProcess, HardwareEvent, Reading, SeenGpu, SeenSlice
from gpu.layout import Slice
from gpu.profiles import GpuModel, MigProfile

SOURCE = "nvml-utilization"
"""Says only that some kernel ran during the driver's sample period: coarse."""

_KINDS = {
    nvml.NVML_ERROR_NO_PERMISSION: FaultKind.NO_PERMISSION,
    nvml.NVML_ERROR_NOT_SUPPORTED: FaultKind.NOT_SUPPORTED,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND: FaultKind.NOT_SUPPORTED,
    nvml.NVML_ERROR_NOT_FOUND: FaultKind.NOT_FOUND,
    nvml.NVML_ERROR_GPU_IS_LOST: FaultKind.LOST,
    nvml.NVML_ERROR_IN_USE: FaultKind.IN_USE,
    nvml.NVML_ERROR_INSUFFICIENT_RESOURCES: FaultKind.NO_ROOM,
    nvml.NVML_ERROR_RESET_REQUIRED: FaultKind.RESET_REQUIRED,
    nvml.NVML_ERROR_TIMEOUT: FaultKind.TIMEOUT,
    nvml.NVML_ERROR_UNINITIALIZED: FaultKind.UNAVAILABLE,
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: FaultKind.UNAVAILABLE,
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: FaultKind.UNAVAILABLE,
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: FaultKind.UNAVAILABLE,
}
_NO_ID = 0xFFFFFFFF
_FIRST_RESETLESS = 8  # Hopper is 9; nothing that can be cut lies between
_MIG_PREFIX = "MIG "


class NvmlHardware:
    """Implements gpu.hardware.Hardware. Raises GpuFault UNAVAILABLE at once when there is no driver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[str, Any] = {}
        self._known: dict[int, SeenGpu] = {}
        self._models: dict[str, GpuModel] = {}
        self._events: Any = None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise GpuFault(FaultKind.UNAVAILABLE, f"nvmlInit ({error})", code=error.value) from error

    def gpus(self) -> tuple[SeenGpu, ...]:
        count = _call("nvmlDeviceGetCount", "", nvml.nvmlDeviceGetCount)
        return tuple(gpu for index in range(count) if (gpu := self._look(index)) is not None)

    def read(self, gpu: str) -> SeenGpu:
        for index, known in list(self._known.items()):
            if known.uuid == gpu:
                found = self._look(index)
                if found is not None and found.uuid == gpu:
                    return found
        found = next((g for g in self.gpus() if g.uuid == gpu), None)
        if found is None:
            raise GpuFault(FaultKind.NOT_FOUND, "nvmlDeviceGetHandleByUUID", gpu)
        return found

    def set_mig(self, gpu: str, on: bool) -> None:
        handle = self._handle(gpu)
        wanted = int(on)
        if _call("nvmlDeviceGetMigMode", gpu, nvml.nvmlDeviceGetMigMode, handle)[0] == wanted:
            return
        status = _call("nvmlDeviceSetMigMode", gpu, nvml.nvmlDeviceSetMigMode, handle, wanted)
        if status:
            raise GpuFault(_KINDS.get(status, FaultKind.OTHER), "nvmlDeviceSetMigMode (activation)", gpu, status)
        # The call can succeed while nothing changed, and it may have reset the device.
        self._forget()
        if _call("nvmlDeviceGetMigMode", gpu, nvml.nvmlDeviceGetMigMode, self._handle(gpu))[0] != wanted:
            raise GpuFault(FaultKind.RESET_REQUIRED, "nvmlDeviceSetMigMode (pending)", gpu)

    def cut(self, gpu: str, piece: Slice) -> SeenSlice:
        handle = self._handle(gpu)
        instance = self._instance(gpu, handle, piece)
        if instance is None:
            place = nvml.c_nvmlGpuInstancePlacement_t(piece.start, piece.profile.size)
            create = nvml.nvmlDeviceCreateGpuInstanceWithPlacement
            name = "nvmlDeviceCreateGpuInstanceWithPlacement"
            instance = _call(name, gpu, create, handle, piece.profile.profile_id, ctypes.byref(place))
        if not list(_compute_instances(gpu, instance)):
            profile = _full_compute_profile(gpu, instance)
            create = nvml.nvmlGpuInstanceCreateComputeInstance
            _call("nvmlGpuInstanceCreateComputeInstance", gpu, create, instance, profile)
        return _seen_slice(gpu, instance, piece)

    def join(self, gpu: str, piece: Slice) -> None:
        instance = self._instance(gpu, self._handle(gpu), piece)
        if instance is None:
            return
        for compute in list(_compute_instances(gpu, instance)):
            _call("nvmlComputeInstanceDestroy", gpu, nvml.nvmlComputeInstanceDestroy, compute)
        _call("nvmlGpuInstanceDestroy", gpu, nvml.nvmlGpuInstanceDestroy, instance)

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        handle = self._handle(gpu)
        found: dict[tuple[int, int | None], GpuProcess] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for raw in _call(name, gpu, getattr(nvml, name), handle):
                gi = None if raw.gpuInstanceId in (None, _NO_ID) else int(raw.gpuInstanceId)
                memory = None if raw.usedGpuMemory is None else int(raw.usedGpuMemory) // 2**20
                found[raw.pid, gi] = GpuProcess(int(raw.pid), memory, gi)
        return tuple(found[key] for key in sorted(found, key=str))

    def activity(self, gpu: str) -> Reading:
        handle = self._handle(gpu)
        rates = _call("nvmlDeviceGetUtilizationRates", gpu, nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _call("nvmlDeviceGetMemoryInfo", gpu, nvml.nvmlDeviceGetMemoryInfo, handle)
        return Reading(rates.gpu / 100, rates.memory / 100, int(memory.used) // 2**20, SOURCE)

    def events(self, timeout_seconds: float) -> tuple[HardwareEvent, ...]:
        """Raises GpuFault NOT_SUPPORTED where no GPU reports events."""
        if self._events is None:
            self._events = self._listen()
        try:
            raw = nvml.nvmlEventSetWait(self._events, int(timeout_seconds * 1000))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return ()
            self._events = None
            raise _fault("nvmlEventSetWait", "", error) from error
        try:
            gpu = _call("nvmlDeviceGetUUID", "", nvml.nvmlDeviceGetUUID, raw.device)
        except GpuFault:
            gpu = ""  # the GPU cannot even be named: it may concern any of them
        gi = None if raw.gpuInstanceId == _NO_ID else int(raw.gpuInstanceId)
        return (HardwareEvent(gpu, int(raw.eventData), gi),)

    def close(self) -> None:
        try:
            if self._events is not None:
                nvml.nvmlEventSetFree(self._events)
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return

    def _listen(self) -> Any:
        events = _call("nvmlEventSetCreate", "", nvml.nvmlEventSetCreate)
        for gpu in self.gpus():
            if gpu.fault:
                continue
            handle = self._handle(gpu.uuid)
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
                    raise _fault("nvmlDeviceRegisterEvents", gpu.uuid, error) from error
        return events

    def _look(self, index: int) -> SeenGpu | None:
        """The GPU at this index; as last known, with the fault, when it cannot be read now."""
        try:
            seen = self._read(index)
        except GpuFault as fault:
            known = self._known.get(index)
            if known is None:
                return None
            return SeenGpu(
                known.uuid,
                known.index,
                known.minor,
                known.bus_id,
                known.name,
                known.model,
                numa=known.numa,
                fault=fault.kind.value,
            )
        with self._lock:
            self._known[index] = seen
        return seen

    def _read(self, index: int) -> SeenGpu:
        handle = _call("nvmlDeviceGetHandleByIndex", str(index), nvml.nvmlDeviceGetHandleByIndex, index)
        uuid = _call("nvmlDeviceGetUUID", str(index), nvml.nvmlDeviceGetUUID, handle)
        with self._lock:
            self._handles[uuid] = handle
        name = _call("nvmlDeviceGetName", uuid, nvml.nvmlDeviceGetName, handle)
        bus_id = _call("nvmlDeviceGetPciInfo", uuid, nvml.nvmlDeviceGetPciInfo, handle).busId
        mig = _mig_mode(uuid, handle)
        model = self._model(uuid, handle, name)
        return SeenGpu(
            uuid=uuid,
            index=index,
            minor=_call("nvmlDeviceGetMinorNumber", uuid, nvml.nvmlDeviceGetMinorNumber, handle),
            bus_id=bus_id,
            name=name,
            model=model,
            mig=mig,
            slices=tuple(_slices(uuid, handle, model)) if mig else (),
            numa=_numa_node(bus_id),
        )

    def _model(self, uuid: str, handle: Any, name: str) -> GpuModel:
        """Read once per GPU and MIG session: profile tables are constant for as long as the mode is."""
        with self._lock:
            known = self._models.get(uuid)
        if known is not None:
            return known
        memory = _call("nvmlDeviceGetMemoryInfo", uuid, nvml.nvmlDeviceGetMemoryInfo, handle)
        profiles = tuple(_profiles(uuid, handle))
        axis = max((p.starts[-1] + p.size for p in profiles), default=0)
        model = GpuModel(model_key(name), int(memory.total) // 2**20, axis, profiles, _needs_reset(handle))
        with self._lock:
            self._models[uuid] = model
        return model

    def _handle(self, gpu: str) -> Any:
        with self._lock:
            handle = self._handles.get(gpu)
        if handle is None:
            handle = _call("nvmlDeviceGetHandleByUUID", gpu, nvml.nvmlDeviceGetHandleByUUID, gpu)
            with self._lock:
                self._handles[gpu] = handle
        return handle

    def _forget(self) -> None:
        with self._lock:
            self._handles.clear()
            self._models.clear()

    def _instance(self, gpu: str, handle: Any, piece: Slice) -> Any:
        """The GPU instance of exactly this slice, None when it is not there."""
        for instance, info in _gpu_instances(gpu, handle, piece.profile):
            if info.placement.start == piece.start:
                return instance
        return None


def model_key(name: str) -> str:
    """A product name as GPU feature discovery writes it in its label: `NVIDIA-H100-80GB-HBM3`."""
    return re.sub(r"[^A-Za-z0-9\-_.]", "", name.strip().replace(" ", "-"))


def _call(name: str, gpu: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except nvml.NVMLError as error:
        raise _fault(name, gpu, error) from error


def _fault(name: str, gpu: str, error: Any) -> GpuFault:
    return GpuFault(_KINDS.get(error.value, FaultKind.OTHER), name, gpu, error.value)


def _mig_mode(gpu: str, handle: Any) -> bool:
    try:
        return bool(_call("nvmlDeviceGetMigMode", gpu, nvml.nvmlDeviceGetMigMode, handle)[0])
    except GpuFault as fault:
        if fault.kind is FaultKind.NOT_SUPPORTED:
            return False
        raise


def _needs_reset(handle: Any) -> bool:
    """Asked of the device; where it does not know, the architecture tells (from Hopper on no reset is needed)."""
    try:
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED])
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            return not field.value.uiVal
        return bool(nvml.nvmlDeviceGetArchitecture(handle) < _FIRST_RESETLESS)
    except nvml.NVMLError:
        return True


def _profiles(gpu: str, handle: Any) -> Iterator[MigProfile]:
    """Every profile the driver knows. NOT_SUPPORTED is a hole, INVALID_ARGUMENT the end, whatever pynvml counts."""
    for index in range(256):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=2)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                continue
            if error.value in (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                return
            raise _fault("nvmlDeviceGetGpuInstanceProfileInfo", gpu, error) from error
        starts, size = _placements(gpu, handle, info.id)
        if starts:
            name = info.name.removeprefix(_MIG_PREFIX)
            yield MigProfile(name, info.id, size, info.sliceCount, int(info.memorySizeMB), starts, info.instanceCount)


def _placements(gpu: str, handle: Any, profile: int) -> tuple[tuple[int, ...], int]:
    count = ctypes.c_uint()
    ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    _call(name, gpu, ask, handle, profile, None, ctypes.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    _call(name, gpu, ask, handle, profile, places, ctypes.byref(count))
    found = list(places)[: count.value]
    return tuple(sorted(p.start for p in found)), found[0].size if found else 0


def _gpu_instances(gpu: str, handle: Any, profile: MigProfile) -> Iterator[tuple[Any, Any]]:
    count = ctypes.c_uint(profile.limit)
    found = (nvml.c_nvmlGpuInstance_t * profile.limit)()
    ask = nvml.nvmlDeviceGetGpuInstances
    _call("nvmlDeviceGetGpuInstances", gpu, ask, handle, profile.profile_id, found, ctypes.byref(count))
    for instance in list(found)[: count.value]:
        yield instance, _call("nvmlGpuInstanceGetInfo", gpu, nvml.nvmlGpuInstanceGetInfo, instance)


def _compute_profiles(gpu: str, instance: Any) -> Iterator[Any]:
    for index in range(256):
        try:
            yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0, version=2)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                continue
            if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT:
                return
            raise _fault("nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu, error) from error


def _full_compute_profile(gpu: str, instance: Any) -> int:
    """The compute profile that takes the whole instance: most slices, then most multiprocessors.

    A 1g with double memory has two of one slice on Hopper, and only the larger one is all of it.
    """
    profiles = list(_compute_profiles(gpu, instance))
    if not profiles:
        raise GpuFault(FaultKind.NOT_SUPPORTED, "nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu)
    return int(max(profiles, key=lambda p: (p.sliceCount, p.multiprocessorCount)).id)


def _compute_instances(gpu: str, instance: Any) -> Iterator[Any]:
    for profile in _compute_profiles(gpu, instance):
        limit = max(1, profile.instanceCount)
        count = ctypes.c_uint(limit)
        found = (nvml.c_nvmlComputeInstance_t * limit)()
        ask = nvml.nvmlGpuInstanceGetComputeInstances
        _call("nvmlGpuInstanceGetComputeInstances", gpu, ask, instance, profile.id, found, ctypes.byref(count))
        yield from list(found)[: count.value]


def _slices(gpu: str, handle: Any, model: GpuModel) -> Iterator[SeenSlice]:
    for profile in model.profiles:
        for instance, info in _gpu_instances(gpu, handle, profile):
            yield _seen_slice(gpu, instance, Slice(profile, info.placement.start))


def _seen_slice(gpu: str, instance: Any, piece: Slice) -> SeenSlice:
    gi = _call("nvmlGpuInstanceGetInfo", gpu, nvml.nvmlGpuInstanceGetInfo, instance).id
    for compute in _compute_instances(gpu, instance):
        info = _call("nvmlComputeInstanceGetInfo", gpu, nvml.nvmlComputeInstanceGetInfo, compute)
        # The MIG device's handle comes with it: looking it up by UUID takes some drivers seconds.
        uuid = _call("nvmlDeviceGetUUID", gpu, nvml.nvmlDeviceGetUUID, info.device)
        return SeenSlice(piece, int(gi), int(info.id), str(uuid))
    return SeenSlice(piece, int(gi), None, None)


def _numa_node(bus_id: str) -> int | None:
    """The host's NUMA node by sysfs, which writes the PCI domain in four digits; None where it is unknown."""
    path = Path("/sys/bus/pci/devices") / bus_id[-12:].lower() / "numa_node"
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
