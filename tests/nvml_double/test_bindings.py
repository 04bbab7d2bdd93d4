"""Other NVML clients see what our door sees: NVIDIA's own Go bindings, and nvitop's Python API."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu.hardware import SeenGpu
from gpu.layout import parse_slice
from gpu.nvml import NvmlHardware
from nvml_double.control import Machine

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).with_name("go")
NVITOP = """
import json
from nvitop import Device
print(json.dumps([
    {
        "uuid": d.uuid(), "name": d.name(), "memory_mib": d.memory_total() // 2**20, "mig": d.is_mig_mode_enabled(),
        "slices": [{"uuid": m.uuid(), "gi": m.gpu_instance_id(), "memory_mib": m.memory_total() // 2**20}
                   for m in d.mig_devices()],
    }
    for d in Device.all()
]))
"""


@pytest.fixture(scope="session")
def go_client() -> Path:
    """The Go client, built once. Without Go the test is skipped, and fails under CI=true."""
    go = shutil.which("go")
    if go is None:
        reason = "NVIDIA's Go bindings need Go: https://go.dev/dl"
        if os.environ.get("CI") == "true":
            pytest.fail(f"under CI this must not be skipped: {reason}")
        pytest.skip(reason)
    target = ROOT / "build" / "nvml-list"
    env = {**os.environ, "CGO_ENABLED": "1"}
    done = subprocess.run(
        [go, "build", "-o", str(target), "."], cwd=SOURCES, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


def cut(hardware: NvmlHardware) -> tuple[SeenGpu, ...]:
    """GPU 0 cut in three, GPU 1 in MIG mode and empty, GPU 2 whole."""
    gpus = hardware.gpus()
    for gpu in gpus[:2]:
        hardware.set_mig(gpu.uuid, True)
    for text in ("1g.10gb@0", "2g.20gb@2", "3g.40gb@4"):
        hardware.cut(gpus[0].uuid, parse_slice(text, gpus[0].model))
    return hardware.gpus()


def ours(gpus: tuple[SeenGpu, ...]) -> list[dict[str, Any]]:
    return [
        {
            "uuid": g.uuid,
            "name": g.name,
            "memory_mib": g.model.memory_mib,
            "mig": g.mig,
            "slices": sorted(
                ({"uuid": s.uuid, "gi": s.gi, "memory_mib": s.slice.profile.memory_mib} for s in g.slices),
                key=lambda s: s["gi"],
            ),
        }
        for g in gpus
    ]


def seen_by(command: list[str], env: dict[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    for gpu in found:
        gpu["slices"].sort(key=lambda s: s["gi"])
        gpu.pop("minor", None)
    return found


def test_nvidias_go_bindings_and_nvitop_list_the_same_gpus_and_slices(double: Path, machine, go_client: Path) -> None:
    made: Machine = machine("h100-80gb", "h100-80gb", "a100-40gb")
    hardware = NvmlHardware()
    wanted = ours(cut(hardware))
    hardware.close()
    assert [len(g["slices"]) for g in wanted] == [3, 0, 0]
    assert seen_by([str(go_client)], made.environment(double)) == wanted
    assert seen_by([sys.executable, "-c", NVITOP], made.environment(double)) == wanted


def test_gpm_samples_tell_how_busy_a_gpu_and_a_slice_are(double: Path, machine) -> None:
    import pynvml as nvml

    from nvml_double import wear

    made: Machine = machine("h100-80gb", "a100-40gb")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice == 1
    assert nvml.nvmlGpmQueryDeviceSupport(nvml.nvmlDeviceGetHandleByIndex(1)).isSupportedDevice == 0
    made.set(0, busy=0.6, memory_busy=0.3)
    assert gpm(nvml, lambda sample: nvml.nvmlGpmSampleGet(handle, sample)) == [60.0, 30.0]
    made.set(0, busy=0.0)
    hardware = NvmlHardware()
    uuid = hardware.gpus()[0].uuid
    hardware.set_mig(uuid, True)
    gi = hardware.cut(uuid, parse_slice("3g.40gb@4", hardware.read(uuid).model)).gi
    wear.busy_instance(made, 0, gi, 0.8)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert gpm(nvml, lambda sample: nvml.nvmlGpmMigSampleGet(handle, gi, sample))[0] == 80.0
    hardware.close()


def gpm(nvml: Any, take: Any) -> list[float]:
    """SM activity and DRAM bandwidth between two samples, percent."""
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        take(sample)
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 3
    asked.sample1, asked.sample2 = samples
    for place, metric in enumerate((2, 10, 99)):
        asked.metrics[place].metricId = metric
    nvml.nvmlGpmMetricsGet(asked)
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
    assert asked.metrics[2].nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED
    return [asked.metrics[0].value, asked.metrics[1].value]
