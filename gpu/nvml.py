"""The real hardware door, through NVML. Facts that are only read are in `nvml_facts.py`.

Everything is keyed by UUID: indexes and handles change. Layouts are read from GPU instances, because one without a
compute instance is no MIG device and still occupies its place. One lost GPU never hides the others.
"""

import ctypes
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml as nvml

from gpu import nvml_facts
from gpu.hardware import (
    Checkup,
    Driver,
    Engines,
    FaultKind,
    GpuFault,
    GpuProcess,
    HardwareEvent,
    Product,
    Reading,
    SeenGpu,
    SeenSlice,
    Topology,
)
from gpu.layout import Slice
from gpu.nvml_calls import KINDS, call, faulted, initialize
from gpu.profiles import GpuModel, MigProfile

log = logging.getLogger(__name__)

SOURCE = "nvml-utilization"
"""Says only that some kernel ran during the driver's sample period: coarse."""

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
        self._turn = threading.Lock()
        self._hearing = threading.Lock()
        self._closed = False
        self._session = 0
        self._handles: dict[str, Any] = {}
        self._known: dict[str, SeenGpu] = {}
        self._models: dict[tuple[str, bool], GpuModel] = {}
        self._unread: dict[int, str] = {}
        self._events: Any = None
        self._heard: set[str] = set()
        initialize()

    def _ready(self) -> None:
        """A forked child cannot use its parent's session: it opens one of its own."""
        if os.getpid() != self._pid:
            self._open()

    def gpus(self) -> tuple[SeenGpu, ...]:
        self._ready()
        session = self._session
        try:
            return self._look_at_all()
        except GpuFault as fault:
            if fault.kind is not FaultKind.UNAVAILABLE or self._closed:
                raise
        self._reopen(session)
        return self._look_at_all()

    def read(self, gpu: str) -> SeenGpu:
        self._ready()
        with self._lock:
            known = self._known.get(gpu)
        found = None if known is None else self._look(known.index)
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
        if _needs_reset(handle):
            with self._unheard():
                self._change_mode(gpu, handle, wanted)
        else:
            self._change_mode(gpu, handle, wanted)

    def _change_mode(self, gpu: str, handle: Any, wanted: int) -> None:
        status = call("nvmlDeviceSetMigMode", gpu, nvml.nvmlDeviceSetMigMode, handle, wanted)
        if status:
            raise GpuFault(KINDS.get(status, FaultKind.OTHER), "nvmlDeviceSetMigMode (activation)", gpu, status)
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
            instance = call(name, gpu, create, handle, piece.profile.profile_id, ctypes.byref(place))
        profiles = _full_size(_compute_profiles(gpu, instance))
        if not list(_compute_instances(gpu, instance, profiles)):
            create = nvml.nvmlGpuInstanceCreateComputeInstance
            call("nvmlGpuInstanceCreateComputeInstance", gpu, create, instance, profiles[0].id)
        return _seen_slice(gpu, instance, piece)

    def join(self, gpu: str, piece: Slice) -> None:
        handle = self._handle(gpu)
        if not self._knows(gpu, piece):
            return
        instance = self._instance(gpu, handle, piece)
        if instance is None:
            return
        for compute in list(_compute_instances(gpu, instance, _compute_profiles(gpu, instance))):
            call("nvmlComputeInstanceDestroy", gpu, nvml.nvmlComputeInstanceDestroy, compute)
        call("nvmlGpuInstanceDestroy", gpu, nvml.nvmlGpuInstanceDestroy, instance)

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
        rates = call("nvmlDeviceGetUtilizationRates", gpu, nvml.nvmlDeviceGetUtilizationRates, handle)
        return Reading(rates.gpu / 100, rates.memory / 100, _memory_used(gpu, handle) // 2**20, SOURCE)

    def driver(self) -> Driver:
        self._ready()
        return nvml_facts.driver()

    def product(self, gpu: str) -> Product:
        return nvml_facts.product(gpu, self._handle(gpu))

    def engines(self, gpu: str) -> Mapping[int, Engines]:
        return nvml_facts.engines(gpu, self._handle(gpu))

    def checkup(self, gpu: str) -> Checkup:
        return nvml_facts.checkup(gpu, self._handle(gpu))

    def topology(self) -> Topology:
        self._ready()
        with self._lock:
            known = list(self._known)
        handles = {}
        for gpu in known:
            with suppress(GpuFault):  # its pairs are missing, no more
                handles[gpu] = self._handle(gpu)
        return nvml_facts.topology(handles)

    def set_exclusive(self, gpu: str, on: bool) -> None:
        nvml_facts.set_exclusive(gpu, self._handle(gpu), on=on)

    def limit_memory(self, gpu: str, cgroup: str, limit_mib: int) -> None:
        nvml_facts.limit_memory(gpu, self._handle(gpu), cgroup, limit_mib)

    def events(self, timeout_seconds: float) -> tuple[HardwareEvent, ...]:
        """What happened since the first call. A GPU that is lost is heard again when it has come back.

        Empty at once when the door is closed. Raises GpuFault NOT_SUPPORTED where the driver reports no events.
        """
        self._ready()
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            with self._turn:
                pass  # whoever waits to stop the hearing goes first: alone, that lock would be taken again at once
            with self._hearing:
                found = () if self._closed else self._hear(min(left, _WAIT_SECONDS))
            if found or self._closed or time.monotonic() >= deadline:
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
            raise faulted("nvmlEventSetWait", "", error) from error
        gi = None if raw.gpuInstanceId == _NO_ID else int(raw.gpuInstanceId)
        return (HardwareEvent(self._name(raw.device), int(raw.eventData), gi),)

    def _name(self, device: Any) -> str:
        """The UUID behind a handle; "" when nobody can tell, so that it may concern any GPU.

        A GPU that fell off the bus does not say its name any more, but its handle was seen while it could.
        """
        try:
            return str(call("nvmlDeviceGetUUID", "", nvml.nvmlDeviceGetUUID, device))
        except GpuFault:
            with self._lock:
                return next((u for u, handle in self._handles.items() if _address(handle) == _address(device)), "")

    def _listening(self) -> Any:
        """The event set; GPUs that can be read and are not in it yet are added."""
        if self._events is None:
            self._look_at_all()
            self._events = call("nvmlEventSetCreate", "", nvml.nvmlEventSetCreate)
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

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        """Nobody hears events meanwhile: an event set is a client of the GPU too, and forbids its reset."""
        with self._turn, self._hearing:
            heard = self._events is not None
            self._unlisten()
            try:
                yield
            finally:
                if heard:
                    with suppress(GpuFault):  # then the next one to hear finds out
                        self._listening()

    def _reopen(self, session: int) -> None:
        """A session does not outlive its driver: open a new one, unless another thread has done so already."""
        with self._turn, self._hearing:
            if self._session != session or self._closed:
                return
            self._unlisten()
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
            self._forget()
            initialize()
            self._session += 1
            log.warning("the driver had gone away; NVML is initialized again")

    def _look_at_all(self) -> tuple[SeenGpu, ...]:
        """Every GPU of this session, and those of before that it does not list any more."""
        count = call("nvmlDeviceGetCount", "", nvml.nvmlDeviceGetCount)
        seen = [gpu for index in range(count) if (gpu := self._look(index)) is not None]
        there = {g.uuid for g in seen}
        with self._lock:
            gone = [g for g in self._known.values() if g.uuid not in there]
        return tuple(sorted((*seen, *(_faulty(g, FaultKind.LOST) for g in gone)), key=lambda g: (g.index, g.uuid)))

    def _look(self, index: int) -> SeenGpu | None:
        """The GPU at this index; as last known, with the fault, when it cannot be read now."""
        try:
            seen = self._read(index)
        except GpuFault as fault:
            known = self._note_unread(index, fault)
            return None if known is None else _faulty(known, fault.kind)
        with self._lock:
            self._known[seen.uuid] = seen
            self._unread.pop(index, None)
        return seen

    def _note_unread(self, index: int, fault: GpuFault) -> SeenGpu | None:
        """The GPU as last known there. Said once per fault: one that was never read has no UUID to show it by."""
        with self._lock:
            said = self._unread.get(index) == str(fault)
            self._unread[index] = str(fault)
            known = next((g for g in self._known.values() if g.index == index), None)
            if known is not None:
                self._heard.discard(known.uuid)
        if not said:
            log.warning("GPU %d cannot be read: %s", index, fault)
        return known

    def _read(self, index: int) -> SeenGpu:
        handle = _handle_at(index)
        uuid = call("nvmlDeviceGetUUID", str(index), nvml.nvmlDeviceGetUUID, handle)
        with self._lock:
            self._handles[uuid] = handle
        name = call("nvmlDeviceGetName", uuid, nvml.nvmlDeviceGetName, handle)
        bus_id = call("nvmlDeviceGetPciInfo", uuid, nvml.nvmlDeviceGetPciInfo, handle).busId
        mig = bool(_mig_modes(uuid, handle)[0])
        model = self._model(uuid, handle, name, mig)
        return SeenGpu(
            uuid=uuid,
            index=index,
            minor=call("nvmlDeviceGetMinorNumber", uuid, nvml.nvmlDeviceGetMinorNumber, handle),
            bus_id=bus_id,
            name=name,
            model=model,
            mig=mig,
            slices=_slices(uuid, handle, model) if mig else (),
            numa=_numa_node(bus_id),
        )

    def _model(self, uuid: str, handle: Any, name: str, mig: bool) -> GpuModel:
        """Read once per GPU and MIG mode: profile tables are constant for as long as the mode is.

        Some drivers tell them only while the mode is on (field 199 is 0): until then such a GPU cannot be cut.
        """
        with self._lock:
            known = self._models.get((uuid, mig))
        if known is not None:
            return known
        memory = call("nvmlDeviceGetMemoryInfo", uuid, nvml.nvmlDeviceGetMemoryInfo, handle)
        profiles = tuple(_profiles(uuid, handle))
        axis = max((p.starts[-1] + p.size for p in profiles), default=0)
        model = GpuModel(model_key(name), int(memory.total) // 2**20, axis, profiles, _needs_reset(handle))
        if not profiles and _knows_mig(handle):
            log.warning("GPU %s tells its MIG profiles only in MIG mode: switch it on once (nvidia-smi -mig 1)", uuid)
        with self._lock:
            self._models[uuid, mig] = model
        return model

    def _handle(self, gpu: str) -> Any:
        self._ready()
        with self._lock:
            handle = self._handles.get(gpu)
        if handle is None:
            handle = call("nvmlDeviceGetHandleByUUID", gpu, nvml.nvmlDeviceGetHandleByUUID, gpu)
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
            known = self._known.get(gpu)
        own = None if known is None else known.model.profile(piece.profile.name)
        own = own or self.read(gpu).model.profile(piece.profile.name)
        wanted = piece.profile
        return own is not None and (own.profile_id, own.size) == (wanted.profile_id, wanted.size)

    def _instance(self, gpu: str, handle: Any, piece: Slice) -> Any:
        """The GPU instance of exactly this slice, None when it is not there."""
        for instance, info in _gpu_instances(gpu, handle, piece.profile):
            if info.placement.start == piece.start:
                return instance
        return None


def _faulty(known: SeenGpu, kind: FaultKind) -> SeenGpu:
    """What is left to say of a GPU that cannot be read now."""
    return replace(known, mig=False, slices=(), fault=kind.value)


def model_key(name: str) -> str:
    """A product name as GPU feature discovery writes it in its label: `NVIDIA-H100-80GB-HBM3`."""
    return re.sub(r"[^A-Za-z0-9\-_.]", "", name.strip().replace(" ", "-"))


def _handle_at(index: int) -> Any:
    try:
        return call("nvmlDeviceGetHandleByIndex", str(index), nvml.nvmlDeviceGetHandleByIndex, index)
    except GpuFault as fault:
        if fault.code != nvml.NVML_ERROR_INVALID_ARGUMENT:
            raise
        # There are fewer GPUs than there were.
        raise GpuFault(FaultKind.LOST, fault.call, str(index), fault.code) from fault


def _mig_modes(gpu: str, handle: Any) -> list[int]:
    """The mode now, and the one after the next reset. Off on a GPU that knows no MIG."""
    try:
        return list(call("nvmlDeviceGetMigMode", gpu, nvml.nvmlDeviceGetMigMode, handle))
    except GpuFault as fault:
        if fault.kind is FaultKind.NOT_SUPPORTED:
            return [0, 0]
        raise


def _knows_mig(handle: Any) -> bool:
    try:
        nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False
    return True


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _running(gpu: str, handle: Any, name: str) -> list[Any]:
    """A list of processes. Only that of compute must be there: not every GPU and driver keeps the others."""
    try:
        return list(call(name, gpu, getattr(nvml, name), handle))
    except GpuFault as fault:
        if fault.kind is FaultKind.NOT_SUPPORTED and name != "nvmlDeviceGetComputeRunningProcesses":
            return []
        raise


def _memory_used(gpu: str, handle: Any) -> int:
    """Bytes that programs use. Version 1, for old drivers, counts what the driver itself reserves as well."""
    ask, name = nvml.nvmlDeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo"
    try:
        return int(call(name, gpu, ask, handle, nvml.nvmlMemory_v2).used)
    except GpuFault as fault:
        if fault.code not in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
            raise
        return int(call(name, gpu, ask, handle).used)


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
            raise faulted("nvmlDeviceGetGpuInstanceProfileInfo", gpu, error) from error
        starts, size = _placements(gpu, handle, info.id)
        if starts:
            name = info.name.removeprefix(_MIG_PREFIX)
            yield MigProfile(name, info.id, size, info.sliceCount, int(info.memorySizeMB), starts, info.instanceCount)


def _placements(gpu: str, handle: Any, profile: int) -> tuple[tuple[int, ...], int]:
    count = ctypes.c_uint()
    ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    call(name, gpu, ask, handle, profile, None, ctypes.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    call(name, gpu, ask, handle, profile, places, ctypes.byref(count))
    found = list(places)[: count.value]
    return tuple(sorted(p.start for p in found)), found[0].size if found else 0


def _gpu_instances(gpu: str, handle: Any, profile: MigProfile) -> Iterator[tuple[Any, Any]]:
    count = ctypes.c_uint(profile.limit)
    found = (nvml.c_nvmlGpuInstance_t * profile.limit)()
    ask = nvml.nvmlDeviceGetGpuInstances
    call("nvmlDeviceGetGpuInstances", gpu, ask, handle, profile.profile_id, found, ctypes.byref(count))
    for instance in list(found)[: count.value]:
        yield instance, call("nvmlGpuInstanceGetInfo", gpu, nvml.nvmlGpuInstanceGetInfo, instance)


def _compute_profiles(gpu: str, instance: Any) -> list[Any]:
    """Never empty: the smallest one is known to every instance, so without any the instance is gone."""
    found: list[Any] = []
    for index in range(256):
        try:
            found.append(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, 0, version=2))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                continue
            if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT and found:
                break
            raise faulted("nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu, error) from error
    return found


def _full_size(profiles: list[Any]) -> list[Any]:
    """Those that take the whole instance: most slices, then most multiprocessors; the driver's first one first.

    A 1g with double memory has two of one slice on Hopper, and only the larger one is all of it. A whole GPU may have
    two that are equal but for what they are optimized for.
    """
    full = max(((p.sliceCount, p.multiprocessorCount) for p in profiles), default=None)
    return [p for p in profiles if (p.sliceCount, p.multiprocessorCount) == full]


def _compute_instances(gpu: str, instance: Any, profiles: list[Any]) -> Iterator[Any]:
    for profile in profiles:
        limit = max(1, profile.instanceCount)
        count = ctypes.c_uint(limit)
        found = (nvml.c_nvmlComputeInstance_t * limit)()
        ask = nvml.nvmlGpuInstanceGetComputeInstances
        call("nvmlGpuInstanceGetComputeInstances", gpu, ask, instance, profile.id, found, ctypes.byref(count))
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
    """Half made while no compute instance takes all of it: one that somebody divided is not the slice we promise."""
    gi = call("nvmlGpuInstanceGetInfo", gpu, nvml.nvmlGpuInstanceGetInfo, instance).id
    for compute in _compute_instances(gpu, instance, _full_size(_compute_profiles(gpu, instance))):
        info = call("nvmlComputeInstanceGetInfo", gpu, nvml.nvmlComputeInstanceGetInfo, compute)
        # The MIG device's handle comes with it: looking it up by UUID takes some drivers seconds.
        uuid = call("nvmlDeviceGetUUID", gpu, nvml.nvmlDeviceGetUUID, info.device)
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
