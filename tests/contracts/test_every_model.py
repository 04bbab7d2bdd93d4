"""Every model, every profile, every start: both hardware doors, one after the other."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu import catalogue, fake
from gpu.hardware import Hardware
from gpu.layout import Slice
from nvml_double.control import Machine
from tests.machine import library

KEYS = sorted(catalogue.models())


@pytest.fixture(params=["python", "nvml"])
def hardware(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """One GPU of each model, in the order of KEYS."""
    path = tmp_path / "gpus"
    if request.param == "python":
        fake.create(path, KEYS)
        door: Hardware = fake.FakeHardware(path)
    else:
        from gpu.nvml import NvmlHardware

        ctypes.CDLL(str(library()))
        monkeypatch.setenv("FALLOW_NVML_STATE", str(Machine.create(path, KEYS).path))
        door = NvmlHardware()
    yield door
    door.close()


def test_the_tables_are_those_of_the_catalogue(hardware: Hardware) -> None:
    for seen, key in zip(hardware.gpus(), KEYS, strict=True):
        known = catalogue.model(key)
        assert set(seen.model.profiles) == set(known.profiles), key
        shape = (seen.model.axis, seen.model.memory_mib, seen.model.needs_reset)
        assert shape == (known.axis, known.memory_mib, known.needs_reset), key


@pytest.mark.parametrize("index", range(len(KEYS)), ids=KEYS)
def test_every_place_can_be_cut_and_joined(hardware: Hardware, index: int) -> None:
    gpu = hardware.gpus()[index].uuid
    hardware.set_mig(gpu, True)
    for profile in catalogue.model(KEYS[index]).profiles:
        for start in profile.starts:
            made = hardware.cut(gpu, Slice(profile, start))
            assert made.uuid is not None
            assert made.uuid.startswith("MIG-")
            assert hardware.read(gpu).slices == (made,)
            hardware.join(gpu, Slice(profile, start))
    assert hardware.read(gpu).layout == ()
