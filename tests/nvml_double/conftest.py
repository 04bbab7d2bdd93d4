"""The double, loaded into this process before pynvml asks for it by name."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from nvml_double.control import Machine
from tests.machine import library


@pytest.fixture(scope="session")
def double() -> Path:
    """Loaded by its path; the dynamic linker then finds it by its soname."""
    path = library()
    ctypes.CDLL(str(path))
    return path


@pytest.fixture
def machine(double: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    """`machine("h100-80gb", ...)`: these GPUs, with NVML initialized on them."""
    path = tmp_path / "gpus.state"

    def create(*models: str) -> Machine:
        made = Machine.create(path, models)
        monkeypatch.setenv("FALLOW_NVML_STATE", str(path))
        pynvml.nvmlInit()
        return made

    yield create
    if path.exists():
        pynvml.nvmlShutdown()
