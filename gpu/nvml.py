"""The real hardware door, through NVML. The only file that imports pynvml.

Everything is keyed by UUID: indexes and handles change. Layouts are read from GPU instances, because one without a
compute instance is no MIG device and still occupies its place. One lost GPU never hides the others.
"""

import ctypes
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml as nvml

from gpu.hardware import FaultKind, GpuFault, GpuProcess, HardwareEvent, Reading, SeenGpu, SeenSlice
from gpu.layout import Slice
from gpu.profiles import GpuModel, MigProfile

log = logging.getLogger(__name__)

SOURCE = "nvml-utilization"
"""Says only that some kernel ran during the driver's sample period: coarse."""

_KINDS = {
    nvml.NVML_ERROR_NO_PERMISSION: FaultKind.NO_PERMISSION,
    nvml.NVML_ERROR_NOT_SUPPORTED: FaultKind.NOT_SUPPORTED,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND: FaultKind.NOT_SUPPORTED,
    nvml.NVML_ERROR_NOT_FOUND: FaultKind.NOT_FOUND,
    nvml.NVML_ERROR_GPU_NOT_FOUND: FaultKind.NOT_FOUND,
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
_WAIT_SECONDS = 0.5
"""The longest single wait for events: a door that is closed meanwhile is noticed after this time."""
_LOOKS = 5
_GONE = (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_FOUND)
"""What the driver says of a handle whose slice was destroyed between two calls."""


class NvmlHardware:
    """Implements gpu.hardware.Hardware. Raises GpuFault UNAVAILABLE at once when there is no driver."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._hearing = threading.Lock()
        self._closed = False
        self._handles: dict[str, Any] = {}
        self._known: dict[int, SeenGpu] = {}
        self._models: dict[str, GpuModel] = {}
        self._unread: dict[int, str] = {}
        self._events: Any = None
        self._heard: set[str] = set()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise GpuFault(FaultKind.UNAVAILABLE, f"nvmlInit ({error})", code=error.value) from error

    def _ready(self) -> None:
        """A forked child cannot use its parent's session: it opens one of its own."""
        if os.getpid() != self._pid:
            self._open()

    def gpus(self) -> tuple[SeenGpu, ...]:
        self._ready()
        count = _call("nvmlDeviceGetCount", "", nvml.nvmlDeviceGetCount)
        return tuple(gpu for index in range(count) if (gpu := self._look(index)) is not None)

    def read(self, gpu: str) -> SeenGpu:
        self._ready()
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
        # A change that only waits for a reset is revoked too: otherwise the next reboot would make it.
        if _mig_modes(gpu, handle) == [wanted, wanted]:
            return
        status = _call("nvmlDeviceSetMigMode", gpu, nvml.nvmlDeviceSetMigMode, handle, wanted)
        if status:
            raise GpuFault(_KINDS.get(status, FaultKind.OTHER), "nvmlDeviceSetMigMode (activation)", gpu, status)
        # The call can succeed while nothing changed, and it may have reset the device.
        self._forget()
        if _mig_modes(gpu, self._handle(gpu))[0] != wanted:
            raise GpuFault(FaultKind.RESET_REQUIRED, "nvmlDeviceSetMigMode (pending)", gpu)

    def cut(self, gpu: str, piece: Slice) -> SeenSlice:
        handle = self._handle(gpu)
        if not self._knows(gpu, piece):
            raise GpuFault(FaultKind.NOT_SUPPORTED, f"cutting {piece}", gpu)
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
        handle = self._handle(gpu)
        if not self._knows(gpu, piece):
            return
        instance = self._instance(gpu, handle, piece)
        if instance is None:
            return
        for compute in list(_compute_instances(gpu, instance)):
            _call("nvmlComputeInstanceDestroy", gpu, nvml.nvmlComputeInstanceDestroy, compute)
        _call("nvmlGpuInstanceDestroy", gpu, nvml.nvmlGpuInstanceDestroy, instance)

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        handle = self._handle(gpu)
        found: dict[tuple[int, int | None], GpuProcess] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for raw in _running(gpu, handle, f"nvmlDeviceGet{kind}RunningProcesses"):
                gi = None if raw.gpuInstanceId in (None, _NO_ID) else int(raw.gpuInstanceId)
                memory = None if raw.usedGpuMemory is None else int(raw.usedGpuMemory) // 2**20
                found.setdefault((raw.pid, gi), GpuProcess(int(raw.pid), memory, gi))
        return tuple(found[key] for key in sorted(found, key=str))

    def activity(self, gpu: str) -> Reading:
        handle = self._handle(gpu)
        rates = _call("nvmlDeviceGetUtilizationRates", gpu, nvml.nvmlDeviceGetUtilizationRates, handle)
        return Reading(rates.gpu / 100, rates.memory / 100, _memory_used(gpu, handle) // 2**20, SOURCE)

    def events(self, timeout_seconds: float) -> tuple[HardwareEvent, ...]:
        """What happened since the first call. A GPU that is lost is heard again when it has come back.

        Raises GpuFault NOT_SUPPORTED where the driver reports no events, UNAVAILABLE once the door is closed.
        """
        self._ready()
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            with self._hearing:
                if self._closed:
                    raise GpuFault(FaultKind.UNAVAILABLE, "nvmlEventSetWait after close")
                found = self._hear(min(left, _WAIT_SECONDS))
            if found or time.monotonic() >= deadline:
                return found

    def close(self) -> None:
        """Waits until the thread that hears events has noticed: the driver must not lose a set it waits on."""
        self._closed = True
        if os.getpid() != self._pid:
            return  # the session is the parent's
        with self._hearing:
            self._unlisten()
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError as error:
                log.debug("nvmlShutdown: %s", error)

    def _hear(self, timeout_seconds: float) -> tuple[HardwareEvent, ...]:
        events = self._listening()
        try:
            raw = nvml.nvmlEventSetWait(events, int(timeout_seconds * 1000))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return ()
            self._unlisten()
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                # The next look says which one. The others are listened to at once, so that nothing is missed; the
                # pause keeps a driver that goes on answering so from being asked without end.
                self._listening()
                time.sleep(timeout_seconds)
                return ()
            raise _fault("nvmlEventSetWait", "", error) from error
        gi = None if raw.gpuInstanceId == _NO_ID else int(raw.gpuInstanceId)
        return (HardwareEvent(self._name(raw.device), int(raw.eventData), gi),)

    def _name(self, device: Any) -> str:
        """The UUID behind a handle; "" when nobody can tell, so that it may concern any GPU.

        A GPU that fell off the bus does not say its name any more, but its handle was seen while it could.
        """
        try:
            return str(_call("nvmlDeviceGetUUID", "", nvml.nvmlDeviceGetUUID, device))
        except GpuFault:
            with self._lock:
                return next((u for u, handle in self._handles.items() if _address(handle) == _address(device)), "")

    def _listening(self) -> Any:
        """The event set; GPUs that can be read and are not in it yet are added."""
        if self._events is None:
            self._events = _call("nvmlEventSetCreate", "", nvml.nvmlEventSetCreate)
            self.gpus()
        with self._lock:
            healthy = {g.uuid for g in self._known.values() if g.index not in self._unread}
        for gpu in sorted(healthy - self._heard):
            try:
                nvml.nvmlDeviceRegisterEvents(self._handle(gpu), nvml.nvmlEventTypeXidCriticalError, self._events)
            except (nvml.NVMLError, GpuFault) as error:
                # Lost, or unable to report: the others are heard all the same.
                log.warning("GPU %s: its events cannot be heard: %s", gpu, error)
            self._heard.add(gpu)
        return self._events

    def _unlisten(self) -> None:
        events, self._events = self._events, None
        self._heard.clear()
        if events is not None:
            try:
                nvml.nvmlEventSetFree(events)
            except nvml.NVMLError as error:
                log.debug("nvmlEventSetFree: %s", error)

    def _look(self, index: int) -> SeenGpu | None:
        """The GPU at this index; as last known, with the fault, when it cannot be read now."""
        try:
            seen = self._read(index)
        except GpuFault as fault:
            self._note_unread(index, fault)
            known = self._known.get(index)
            return None if known is None else replace(known, mig=False, slices=(), fault=fault.kind.value)
        with self._lock:
            self._known[index] = seen
            self._unread.pop(index, None)
        return seen

    def _note_unread(self, index: int, fault: GpuFault) -> None:
        """Said once per fault: a GPU that was never read has no UUID and shows nowhere else."""
        with self._lock:
            said = self._unread.get(index) == str(fault)
            self._unread[index] = str(fault)
            known = self._known.get(index)
            if known is not None:
                self._heard.discard(known.uuid)
        if not said:
            log.warning("GPU %d cannot be read: %s", index, fault)

    def _read(self, index: int) -> SeenGpu:
        handle = _call("nvmlDeviceGetHandleByIndex", str(index), nvml.nvmlDeviceGetHandleByIndex, index)
        uuid = _call("nvmlDeviceGetUUID", str(index), nvml.nvmlDeviceGetUUID, handle)
        with self._lock:
            self._handles[uuid] = handle
        name = _call("nvmlDeviceGetName", uuid, nvml.nvmlDeviceGetName, handle)
        bus_id = _call("nvmlDeviceGetPciInfo", uuid, nvml.nvmlDeviceGetPciInfo, handle).busId
        mig = bool(_mig_modes(uuid, handle)[0])
        model = self._model(uuid, handle, name)
        return SeenGpu(
            uuid=uuid,
            index=index,
            minor=_call("nvmlDeviceGetMinorNumber", uuid, nvml.nvmlDeviceGetMinorNumber, handle),
            bus_id=bus_id,
            name=name,
            model=model,
            mig=mig,
            slices=_slices(uuid, handle, model) if mig else (),
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
        self._ready()
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

    def _knows(self, gpu: str, piece: Slice) -> bool:
        """Whether this GPU has that very profile: another model's may have the same id and mean another size."""
        with self._lock:
            model = self._models.get(gpu)
        own = (model or self.read(gpu).model).profile(piece.profile.name)
        wanted = piece.profile
        return own is not None and (own.profile_id, own.size) == (wanted.profile_id, wanted.size)

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


def _mig_modes(gpu: str, handle: Any) -> list[int]:
    """The mode now, and the one after the next reset. Off on a GPU that knows no MIG."""
    try:
        return list(_call("nvmlDeviceGetMigMode", gpu, nvml.nvmlDeviceGetMigMode, handle))
    except GpuFault as fault:
        if fault.kind is FaultKind.NOT_SUPPORTED:
            return [0, 0]
        raise


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _running(gpu: str, handle: Any, name: str) -> list[Any]:
    """A list of processes. Only that of compute must be there: not every GPU and driver keeps the others."""
    try:
        return list(_call(name, gpu, getattr(nvml, name), handle))
    except GpuFault as fault:
        if fault.kind is FaultKind.NOT_SUPPORTED and name != "nvmlDeviceGetComputeRunningProcesses":
            return []
        raise


def _memory_used(gpu: str, handle: Any) -> int:
    """Bytes that programs use. Version 1, for old drivers, counts what the driver itself reserves as well."""
    ask, name = nvml.nvmlDeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo"
    try:
        return int(_call(name, gpu, ask, handle, nvml.nvmlMemory_v2).used)
    except GpuFault as fault:
        if fault.code not in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
            raise
        return int(_call(name, gpu, ask, handle).used)


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


def _slices(gpu: str, handle: Any, model: GpuModel) -> tuple[SeenSlice, ...]:
    """All slices. One destroyed by somebody else while they are listed is no fault of the GPU: look again."""
    for _ in range(_LOOKS - 1):
        try:
            return tuple(_slices_now(gpu, handle, model))
        except GpuFault as fault:
            if fault.code not in _GONE:
                raise
    return tuple(_slices_now(gpu, handle, model))


def _slices_now(gpu: str, handle: Any, model: GpuModel) -> Iterator[SeenSlice]:
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


def _numa_node(bus_id: str, sysfs: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The host's NUMA node by sysfs, which writes the PCI domain in four digits; None where it is unknown."""
    path = sysfs / bus_id[-12:].lower() / "numa_node"
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
