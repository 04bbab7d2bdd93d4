"""Reads the activity of every GPU through the hardware door at a steady pace."""

from collections.abc import Iterable

from gpu.hardware import GpuFault, Hardware
from gpu.node import Activity
from idle import metrics


def sample(hardware: Hardware, gpus: Iterable[str], now: float) -> dict[str, Activity]:
    """One reading per GPU that can be measured now; `now` in seconds since the epoch.

    A GPU that cannot be measured (NVML knows no utilisation in MIG mode) is left out, and so counts as busy.
    """
    readings = {}
    for gpu in gpus:
        try:
            reading = hardware.activity(gpu)
        except GpuFault as fault:
            metrics.failures.labels(gpu, fault.kind.name.lower()).inc()
            metrics.forget(gpu)
            continue
        metrics.busy.labels(gpu, reading.source).set(reading.busy)
        metrics.memory.labels(gpu).set(reading.memory_used_mib * 2**20)
        readings[gpu] = Activity(reading.busy, now, reading.source)
    return readings
