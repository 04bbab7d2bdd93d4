"""What the command and the control API refuse, each with words that name the thing and the cure."""

from pathlib import Path

import pynvml as nvml
import pytest

from nvml_double.__main__ import main
from nvml_double.control import DoubleError, Machine, model_keys
from nvml_double.library import calls


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda m: m.set(0, busy=-0.05), "0 to 100"),
        (lambda m: m.set(0, memory_busy=1.2), "0 to 100"),
        (lambda m: m.set(0, memory_used_mib=81560), "has 81559 MiB"),
        (lambda m: m.set(1, busy=0.5), "no GPU 1: this machine has 1"),
        (lambda m: m.xid(7, 79), "no GPU 7: this machine has 1"),
        (lambda m: m.xid(0, 79, gi=3), "no GPU instance 3"),
        (lambda m: m.add_process(0, 0), "a pid: 0 is not between 1 and"),
        (lambda m: m.add_process(0, 2**32), "a pid"),
        (lambda m: m.add_process(0, 4711, 81560), "between 0 and 81559"),
        (lambda m: m.add_process(0, 4711, ci=0), "goes with its --gi"),
        (lambda m: m.xid(0, -1), "an XID"),
        (lambda m: m.fault("nvmlDeviceGetName", fail=2**32), "an error code"),
        (lambda m: m.add_process(0, 4711, gi=3), "no GPU instance 3"),
        (lambda m: m.fault("nvmlDeviceGetNam", fail=3), "did you mean nvmlDeviceGetName"),
        (lambda m: m.fault("nvmlDeviceGetName", fail=3, times=0), "times: 0 is not"),
        (lambda m: m.fault("nvmlDeviceGetName", fail=3, hang=1.0), "one of"),
        (lambda m: m.fault("nvmlDeviceGetName", hang=float("nan")), "number of seconds"),
        (lambda m: m.set(0, busy=float("nan")), "0 to 100"),
    ],
)
def test_what_no_gpu_could_show_is_refused_in_words(tmp_path: Path, act, says: str) -> None:
    machine = Machine.create(tmp_path / "gpus", ["h100"])
    before = machine.path.read_bytes()
    with pytest.raises(DoubleError, match=says):
        act(machine)
    assert machine.path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "--state", str(tmp_path / "none" / "gpus"), "h100"]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ("0xh100", "1 to 16"),
        ("999999999xh100", "1 to 16"),
        ("9" * 30 + "xh100", "no GPU model"),
        (" ", "expected a GPU"),
    ],
)
def test_numbers_of_gpus_that_no_machine_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gpus: str, says: str
) -> None:
    assert main(["create", "--state", str(tmp_path / "gpus"), gpus]) == 1
    assert says in capsys.readouterr().err


def test_a_folder_where_nothing_can_be_built_is_named(double: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "/dev/null/library"]) == 1
    assert "cannot build in /dev/null/library" in capsys.readouterr().err


def test_the_same_seed_gives_the_same_uuids(tmp_path: Path) -> None:
    uuids = [Machine.create(tmp_path / str(n), ["h100"] * 2, seed).uuids() for n, seed in enumerate((1, 1, 2))]
    assert uuids[0] == uuids[1]
    assert not set(uuids[0]) & set(uuids[2])


def test_waiting_faults_are_listed_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(tmp_path / "gpus")]
    assert main(["create", *state, "h100"]) == 0
    assert main(["fault", *state, "nvmlDeviceGetName", "--fail", "15", "--times", "2"]) == 0
    assert main(["fault", *state, "nvmlDeviceSetMigMode", "--kill", "after"]) == 0
    capsys.readouterr()
    assert main(["faults", *state]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "nvmlDeviceGetName fails with 15, 2 more",
        "nvmlDeviceSetMigMode kills its caller after, 1 more",
    ]
    assert main(["faults", *state, "--clear"]) == 0
    assert capsys.readouterr().out == ""


def test_mode_is_set_without_asking_a_rule(machine) -> None:
    made: Machine = machine("a100-40gb")
    made.add_process(0, 4711)
    made.mode(0, mig=True)
    assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(0)) == [1, 1]


def test_every_call_that_can_be_named_is_exported(double: Path) -> None:
    import ctypes

    library = ctypes.CDLL(str(double))
    assert len(calls()) > 90
    assert [name for name in calls() if not hasattr(library, name)] == []


def test_no_model_has_a_profile_without_multiprocessors(machine) -> None:
    machine(*model_keys())
    for index in range(len(model_keys())):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for number in range(18):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
            except nvml.NVMLError_NotSupported:
                continue
            assert info.multiprocessorCount > 0, (index, info.name)
