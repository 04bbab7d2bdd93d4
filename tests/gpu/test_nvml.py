"""The real hardware door where there is no driver, and where the driver says yes and does nothing."""

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from gpu.hardware import FaultKind, GpuFault
from gpu.layout import Slice
from gpu.nvml import NvmlHardware, _full_size, _numa_node, model_key
from nvml_double.control import Machine
from tests.machine import library


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    ctypes.CDLL(str(library()))
    path = tmp_path / "gpus.state"
    monkeypatch.setenv("FALLOW_NVML_STATE", str(path))
    return Machine.create(path, ["h100-80gb", "a100-40gb"])


@pytest.fixture
def hardware(machine: Machine) -> Iterator[NvmlHardware]:
    door = NvmlHardware()
    yield door
    door.close()


def test_without_a_driver_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ctypes.CDLL(str(library()))
    monkeypatch.setenv("FALLOW_NVML_STATE", "/nowhere")
    with pytest.raises(GpuFault) as caught:
        NvmlHardware()
    assert caught.value.kind is FaultKind.UNAVAILABLE
    assert "nvmlInit" in str(caught.value)
    assert "modprobe nvidia" in str(caught.value)


def test_a_model_goes_by_its_product_name(hardware: NvmlHardware) -> None:
    assert [g.model.key for g in hardware.gpus()] == ["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB"]
    assert model_key(" NVIDIA RTX PRO 6000 (Blackwell) ") == "NVIDIA-RTX-PRO-6000-Blackwell"


def test_the_numa_node_is_what_sysfs_says(tmp_path: Path) -> None:
    for bus_id, text in (("0000:18:00.0", "1\n"), ("0000:af:00.0", "-1\n"), ("0000:2a:00.0", "rubbish")):
        (tmp_path / bus_id).mkdir()
        (tmp_path / bus_id / "numa_node").write_text(text)
    nodes = [_numa_node(f"00000000:{bus}:00.0", tmp_path) for bus in ("18", "AF", "2A", "99")]
    assert nodes == [1, None, None, None]


def test_a_change_of_mode_that_waits_for_a_reset_is_no_success(machine: Machine, hardware: NvmlHardware) -> None:
    gpu = machine.uuids()[1]
    machine.set(1, passthrough=True)
    with pytest.raises(GpuFault) as caught:
        hardware.set_mig(gpu, True)
    assert (caught.value.kind, caught.value.code) == (FaultKind.RESET_REQUIRED, pynvml.NVML_ERROR_RESET_REQUIRED)
    assert not hardware.read(gpu).mig
    machine.reboot()
    assert hardware.read(gpu).mig


def test_a_pending_mode_that_is_no_longer_wanted_is_cleared(machine: Machine, hardware: NvmlHardware) -> None:
    gpu = machine.uuids()[1]
    machine.set(1, passthrough=True)
    with pytest.raises(GpuFault):
        hardware.set_mig(gpu, True)
    hardware.set_mig(gpu, False)
    machine.reboot()
    assert not hardware.read(gpu).mig


def test_success_without_change_is_told(hardware: NvmlHardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceSetMigMode", lambda handle, mode: pynvml.NVML_SUCCESS)
    with pytest.raises(GpuFault) as caught:
        hardware.set_mig(hardware.gpus()[0].uuid, True)
    assert caught.value.kind is FaultKind.RESET_REQUIRED


def test_a_gpu_that_knows_no_mig_is_whole(hardware: NvmlHardware, machine: Machine) -> None:
    with machine.of_gpu(0) as raw:
        raw.profile_count = 0
    gpu = machine.uuids()[0]
    seen = hardware.read(gpu)
    assert (seen.mig, seen.model.can_be_cut, seen.fault) == (False, False, "")
    hardware.set_mig(gpu, False)
    with pytest.raises(GpuFault) as caught:
        hardware.set_mig(gpu, True)
    assert caught.value.kind is FaultKind.NOT_SUPPORTED


def test_a_join_that_stopped_half_way_is_done_again(hardware: NvmlHardware, machine: Machine) -> None:
    gpu = machine.uuids()[0]
    hardware.set_mig(gpu, True)
    piece = Slice(hardware.read(gpu).model.profiles[0], 0)
    hardware.cut(gpu, piece)
    machine.fault("nvmlGpuInstanceDestroy", fail=pynvml.NVML_ERROR_IN_USE)
    with pytest.raises(GpuFault):
        hardware.join(gpu, piece)
    assert not hardware.read(gpu).whole_slices
    hardware.join(gpu, piece)
    assert hardware.read(gpu).layout == ()


def test_an_unreadable_gpu_is_marked_and_hides_no_other(hardware: NvmlHardware, machine: Machine) -> None:
    hardware.gpus()
    machine.fault("nvmlDeviceGetMigMode", fail=pynvml.NVML_ERROR_UNKNOWN)
    first, second = hardware.gpus()
    assert (first.fault, second.fault) == (FaultKind.OTHER.value, "")
    assert [g.fault for g in hardware.gpus()] == ["", ""]


def test_a_wait_that_fails_is_a_fault_and_the_next_listens_again(hardware: NvmlHardware, machine: Machine) -> None:
    hardware.events(0)
    machine.fault("nvmlEventSetWait_v2", fail=pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(GpuFault):
        hardware.events(0)
    assert hardware.events(0) == ()
    machine.xid(1, 79)
    assert [(e.gpu, e.code) for e in hardware.events(0.2)] == [(machine.uuids()[1], 79)]


def test_a_gpu_that_fell_off_the_bus_is_still_named_by_its_last_event(hardware: NvmlHardware, machine: Machine) -> None:
    hardware.events(0)
    machine.xid(0, 79)
    machine.lose(0)
    assert [(e.gpu, e.code) for e in hardware.events(0.2)] == [(machine.uuids()[0], 79)]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_driver_that_went_away_is_found_again(hardware: NvmlHardware, machine: Machine, code: int) -> None:
    before = hardware.gpus()
    hardware.events(0)
    machine.fault("nvmlDeviceGetCount_v2", fail=code)
    assert hardware.gpus() == before
    machine.xid(1, 79)
    hardware.events(0)  # what happened meanwhile was not heard
    machine.xid(1, 94)
    assert [e.code for e in hardware.events(1.0)] == [94]


def test_a_driver_that_stays_away_is_asked_again_later(hardware: NvmlHardware, machine: Machine) -> None:
    before = hardware.gpus()
    machine.fault("nvmlDeviceGetCount_v2", fail=pynvml.NVML_ERROR_UNINITIALIZED)
    machine.fault("nvmlInitWithFlags", fail=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(GpuFault) as caught:
        hardware.gpus()
    assert caught.value.kind is FaultKind.UNAVAILABLE
    assert hardware.gpus() == before


def test_a_closed_door_stays_closed(hardware: NvmlHardware) -> None:
    hardware.close()
    with pytest.raises(GpuFault) as caught:
        hardware.gpus()
    assert caught.value.kind is FaultKind.UNAVAILABLE


def test_a_gpu_that_is_no_longer_listed_is_lost(hardware: NvmlHardware, machine: Machine) -> None:
    first, second = hardware.gpus()
    with machine.state() as state:
        state.gpu_count = 1
    assert [(g.uuid, g.fault) for g in hardware.gpus()] == [(first.uuid, ""), (second.uuid, FaultKind.LOST.value)]
    assert hardware.read(second.uuid).fault == FaultKind.LOST.value


def test_ampere_changes_its_mode_although_we_hear_its_events(hardware: NvmlHardware, machine: Machine) -> None:
    gpu = machine.uuids()[1]
    stop = threading.Event()
    heard: list[int] = []

    def hear() -> None:
        while not stop.is_set():
            heard.extend(e.code for e in hardware.events(30.0))

    hardware.events(0)
    hearing = threading.Thread(target=hear, daemon=True)
    hearing.start()
    for on in (True, False, True):
        hardware.set_mig(gpu, on)
    stop.set()
    machine.xid(1, 79)  # it is heard again afterwards
    hearing.join(timeout=30)
    assert (hardware.read(gpu).mig, heard) == (True, [79])


def test_a_slice_that_somebody_divided_is_no_slice_of_ours(hardware: NvmlHardware, machine: Machine) -> None:
    gpu = machine.uuids()[0]
    hardware.set_mig(gpu, True)
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    piece = Slice(next(p for p in hardware.read(gpu).model.profiles if p.name == "3g.40gb"), 0)
    place = ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(0, 4))
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, piece.profile.profile_id, place)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)  # 1c.3g.40gb
    (seen,) = hardware.read(gpu).slices
    assert (seen.slice, seen.uuid) == (piece, None)
    with pytest.raises(GpuFault) as caught:
        hardware.cut(gpu, piece)
    assert caught.value.kind is FaultKind.NO_ROOM
    hardware.join(gpu, piece)
    assert hardware.cut(gpu, piece).uuid


def test_of_compute_profiles_that_take_it_all_the_first_one_is_made() -> None:
    def profile(number: int, slices: int, multiprocessors: int) -> SimpleNamespace:
        return SimpleNamespace(id=number, sliceCount=slices, multiprocessorCount=multiprocessors)

    # A whole GPU, whose last one is for several GPUs and not everywhere to be had; a 1g with double memory.
    assert [p.id for p in _full_size([profile(0, 1, 14), profile(4, 7, 98), profile(8, 7, 98)])] == [4, 8]
    assert [p.id for p in _full_size([profile(0, 1, 16), profile(7, 1, 26)])] == [7]


def test_tables_that_the_driver_tells_only_in_mig_mode_are_read_then(
    hardware: NvmlHardware, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.fault("nvmlDeviceGetGpuInstanceProfileInfoV", fail=pynvml.NVML_ERROR_NOT_SUPPORTED, times=18)
    assert not hardware.gpus()[0].model.can_be_cut
    assert "switch it on once" in caplog.text
    machine.fault("nvmlDeviceGetGpuInstanceProfileInfoV", fail=pynvml.NVML_ERROR_INVALID_ARGUMENT)
    assert not hardware.gpus()[0].model.can_be_cut  # not asked again while the mode is the same
    machine.clear_faults()
    machine.mode(0, mig=True)
    assert hardware.gpus()[0].model.can_be_cut
