"""What NVML tells of GPUs beyond their layout: products, engines, wear, links. Reads, and two small settings."""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml as nvml

from gpu.hardware import (
    Ancestor,
    Checkup,
    Driver,
    Engines,
    FaultKind,
    GpuFault,
    Link,
    Product,
    Recovery,
    Topology,
)
from gpu.nvml_calls import call

_ARCHITECTURES = {2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada-lovelace"}
_ARCHITECTURES |= {9: "hopper", 10: "blackwell", 13: "rubin"}
"""NVML's numbers with the names that GPU Feature Discovery gives them."""
_RECOVERY = dict(enumerate(Recovery))
"""Values of field 230, in NVML's order."""
_RECOVERY_FIELD = 230
_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_LINKS = 36
"""NVLinks of one GPU that are asked about; NVML_NVLINK_MAX_LINKS of its newest header."""
_TO_GPU, _TO_SWITCH = 0, 2
_READ = 0
"""Of nvmlDeviceGetP2PStatus; pynvml's own constant is a tuple by mistake."""
_DISPLAY_CLASS = "0x0300"
"""PCI class of a VGA controller; a GPU without display is a 3D controller, 0x0302."""


def driver() -> Driver:
    version = call("nvmlSystemGetDriverVersion", "", nvml.nvmlSystemGetDriverVersion)
    cuda = int(call("nvmlSystemGetCudaDriverVersion", "", nvml.nvmlSystemGetCudaDriverVersion_v2))
    return Driver(str(version), (cuda // 1000, cuda % 1000 // 10))


def product(gpu: str, handle: Any) -> Product:
    number = int(call("nvmlDeviceGetArchitecture", gpu, nvml.nvmlDeviceGetArchitecture, handle))
    compute = call("nvmlDeviceGetCudaComputeCapability", gpu, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = call("nvmlDeviceGetMemoryInfo", gpu, nvml.nvmlDeviceGetMemoryInfo, handle)
    bus = call("nvmlDeviceGetPciInfo", gpu, nvml.nvmlDeviceGetPciInfo, handle).busId
    return Product(
        architecture=_ARCHITECTURES.get(number, "undefined"),
        compute=(int(compute[0]), int(compute[1])),
        memory_mib=int(memory.total) // 2**20,
        display=_drives_display(bus),
        fabric=_fabric(gpu, handle),
        mig_capable=_known(lambda: call("nvmlDeviceGetMigMode", gpu, nvml.nvmlDeviceGetMigMode, handle)) is not None,
    )


def engines(gpu: str, handle: Any) -> Mapping[int, Engines]:
    return dict(_engines(gpu, handle))


def checkup(gpu: str, handle: Any) -> Checkup:
    rows = _known(lambda: call("nvmlDeviceGetRemappedRows", gpu, nvml.nvmlDeviceGetRemappedRows, handle))
    uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ask = nvml.nvmlDeviceGetTotalEccErrors
    errors = _known(lambda: call("nvmlDeviceGetTotalEccErrors", gpu, ask, handle, uncorrected, volatile))
    return Checkup(
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        uncorrectable=None if errors is None else int(errors),
        recovery=_recovery(gpu, handle),
    )


def topology(handles: Mapping[str, Any]) -> Topology:
    """Links between all pairs; those of a GPU that cannot be asked are missing."""
    ports = {}
    for gpu, handle in handles.items():
        try:
            ports[gpu] = _ports(gpu, handle)
        except GpuFault:
            continue
    links = {}
    for a, b in combinations(sorted(ports), 2):
        try:
            links[a, b] = _link(a, b, handles, ports)
        except GpuFault:
            continue
    return Topology(links)


def set_exclusive(gpu: str, handle: Any, *, on: bool) -> None:
    wanted = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if on else nvml.NVML_COMPUTEMODE_DEFAULT
    if call("nvmlDeviceGetComputeMode", gpu, nvml.nvmlDeviceGetComputeMode, handle) != wanted:
        call("nvmlDeviceSetComputeMode", gpu, nvml.nvmlDeviceSetComputeMode, handle, wanted)


def limit_memory(gpu: str, handle: Any, cgroup: str, limit_mib: int) -> None:
    """The hard limit is the ceiling, the soft one what is guaranteed before others fail; we set both alike."""
    if not hasattr(nvml, "nvmlDeviceSetMemoryLimits_v1"):
        raise GpuFault(FaultKind.NOT_SUPPORTED, "nvmlDeviceSetMemoryLimits_v1", gpu)
    limit = limit_mib * 2**20
    wanted = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=cgroup.encode(), softLimit=limit, hardLimit=limit)
    call("nvmlDeviceSetMemoryLimits_v1", gpu, nvml.nvmlDeviceSetMemoryLimits_v1, handle, wanted)


def _known(ask: Callable[[], Any]) -> Any:
    """None for what this GPU does not support: no sign of anything. Other faults go on. Raises GpuFault."""
    try:
        return ask()
    except GpuFault as fault:
        if fault.kind is FaultKind.NOT_SUPPORTED:
            return None
        raise


def _recovery(gpu: str, handle: Any) -> Recovery | None:
    (field,) = call("nvmlDeviceGetFieldValues", gpu, nvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_FIELD])
    return _RECOVERY.get(int(field.value.uiVal)) if field.nvmlReturn == nvml.NVML_SUCCESS else None


def _fabric(gpu: str, handle: Any) -> str:
    """A zero UUID means that the NVLink domain is this machine alone."""
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    ask = nvml.nvmlDeviceGetGpuFabricInfoV
    found = _known(lambda: call("nvmlDeviceGetGpuFabricInfoV", gpu, ask, handle, ctypes.byref(info)))
    if found is None or info.state != _COMPLETED or info.status != nvml.NVML_SUCCESS or not any(info.clusterUuid):
        return ""
    raw = bytes(info.clusterUuid).hex()
    return f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}.{info.cliqueId}"


def _engines(gpu: str, handle: Any) -> Iterator[tuple[int, Engines]]:
    count = int(call("nvmlDeviceGetMaxMigDeviceCount", gpu, nvml.nvmlDeviceGetMaxMigDeviceCount, handle))
    for index in range(count):
        try:
            ask = nvml.nvmlDeviceGetMigDeviceHandleByIndex
            device = call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, ask, handle, index)
            gi = int(call("nvmlDeviceGetGpuInstanceId", gpu, nvml.nvmlDeviceGetGpuInstanceId, device))
            found = call("nvmlDeviceGetAttributes", gpu, nvml.nvmlDeviceGetAttributes, device)
        except GpuFault as fault:
            if fault.kind is FaultKind.NOT_FOUND:
                continue  # indexes have holes, and a slice may go while it is asked about
            raise
        yield (
            gi,
            Engines(
                memory_mib=int(found.memorySizeMB),
                multiprocessors=int(found.multiprocessorCount),
                gi_slices=int(found.gpuInstanceSliceCount),
                ci_slices=int(found.computeInstanceSliceCount),
                copy=int(found.sharedCopyEngineCount),
                decoder=int(found.sharedDecoderCount),
                encoder=int(found.sharedEncoderCount),
                jpeg=int(found.sharedJpegCount),
                ofa=int(found.sharedOfaCount),
            ),
        )


def _ports(gpu: str, handle: Any) -> list[tuple[int, str]]:
    """Every active NVLink: the kind of what is at its other end, and the PCI address of a GPU there."""
    found = []
    for link in range(_LINKS):
        try:
            if not call("nvmlDeviceGetNvLinkState", gpu, nvml.nvmlDeviceGetNvLinkState, handle, link):
                continue
            ask = nvml.nvmlDeviceGetNvLinkRemoteDeviceType
            kind = int(call("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, ask, handle, link))
            far = ""
            if kind == _TO_GPU:
                info = call(
                    "nvmlDeviceGetNvLinkRemotePciInfo", gpu, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link
                )
                far = str(info.busId).lower()
        except GpuFault as fault:
            if fault.kind is FaultKind.NOT_SUPPORTED or fault.code == nvml.NVML_ERROR_INVALID_ARGUMENT:
                break  # there is no such link, nor any beyond it
            raise
        found.append((kind, far))
    return found


def _link(a: str, b: str, handles: Mapping[str, Any], ports: Mapping[str, list[tuple[int, str]]]) -> Link:
    pair = (handles[a], handles[b])
    ask = nvml.nvmlDeviceGetTopologyCommonAncestor
    level = int(call("nvmlDeviceGetTopologyCommonAncestor", a, ask, *pair))
    status = _known(lambda: call("nvmlDeviceGetP2PStatus", a, nvml.nvmlDeviceGetP2PStatus, *pair, _READ))
    bus = str(call("nvmlDeviceGetPciInfo", b, nvml.nvmlDeviceGetPciInfo, handles[b]).busId).lower()
    direct = sum(kind == _TO_GPU and far == bus for kind, far in ports[a])
    fabric = min(sum(kind == _TO_SWITCH for kind, _ in ports[gpu]) for gpu in (a, b))
    return Link(direct or fabric, Ancestor(level), status == nvml.NVML_P2P_STATUS_OK)


def _drives_display(bus_id: str, sysfs: Path = Path("/sys/bus/pci/devices")) -> bool:
    try:
        return (sysfs / bus_id[-12:].lower() / "class").read_text().startswith(_DISPLAY_CLASS)
    except OSError:
        return False
