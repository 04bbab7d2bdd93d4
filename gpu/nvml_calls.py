"""Calls into NVML as faults of our door: what its numbers mean and what cures them. Beside `nvml.py` and
`nvml_facts.py` the only file that imports pynvml."""

from collections.abc import Callable
from typing import Any

import pynvml as nvml

from gpu.hardware import FaultKind, GpuFault

KINDS = {
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
CURES = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver; a container gets libnvidia-ml.so.1 from its host",
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the NVIDIA driver on this machine (modprobe nvidia)",
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded: reboot, or reload it, then start again",
    nvml.NVML_ERROR_NO_PERMISSION: "run as root",
}


def initialize() -> None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        cure = CURES.get(error.value, "nvidia-smi says more")
        raise GpuFault(FaultKind.UNAVAILABLE, f"nvmlInit ({error}; {cure})", code=error.value) from error


def call(name: str, gpu: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except nvml.NVMLError as error:
        raise faulted(name, gpu, error) from error


def faulted(name: str, gpu: str, error: Any) -> GpuFault:
    return GpuFault(KINDS.get(error.value, FaultKind.OTHER), name, gpu, error.value)
