"""What the sampler measures, at its full rate."""

from prometheus_client import Counter, Gauge

busy = Gauge("fallow_idle_gpu_busy_ratio", "Measured share of time in which the GPU was busy", ["gpu", "source"])
memory = Gauge("fallow_idle_gpu_memory_used_bytes", "Memory in use on the GPU", ["gpu"])
failures = Counter("fallow_idle_sample_failures_total", "Readings that failed", ["gpu", "reason"])


def forget(gpu: str) -> None:
    """A GPU that can no longer be measured shows nothing: its last value would look like a new one."""
    for labels in [labels for labels in busy._metrics if labels[0] == gpu]:
        busy.remove(*labels)
