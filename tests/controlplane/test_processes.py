"""Only what is on record is ended, and all of it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.processes import ClusterError, Record, start_time, wait

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    child = subprocess.Popen(WAITS)
    yield child
    child.kill()
    child.wait()


def test_a_later_run_ends_what_an_earlier_one_has_started(tmp_path: Path) -> None:
    earlier = Record(tmp_path)
    pid = earlier.start("program", WAITS, tmp_path / "log")
    later = Record(tmp_path)
    assert later.programs() == {"program": True}
    later.clean()
    assert start_time(pid) == "" and not earlier.alive(pid)
    assert Record(tmp_path).programs() == {}


def test_a_process_that_has_got_the_number_of_one_on_record_is_left_alone(
    tmp_path: Path, stranger: "subprocess.Popen[bytes]"
) -> None:
    record = Record(tmp_path)
    record.add(kind="process", name="program", pid=str(stranger.pid), started="1")
    assert record.programs() == {"program": False}
    record.clean()
    assert stranger.poll() is None


def test_a_program_does_not_see_the_proxies_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    record = Record(tmp_path)
    pid = record.start("env", ["env"], tmp_path / "log", env={"OURS": "1"})
    wait(lambda: not record.alive(pid), 5, "env")
    said = (tmp_path / "log").read_text().splitlines()
    assert "OURS=1" in said and not [line for line in said if "proxy" in line.lower()]


def test_waiting_for_something_that_has_ended_fails_at_once_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no such flag")
    with pytest.raises(ClusterError, match=r"(?s)program has ended.*no such flag"):
        wait(lambda: False, 60, "program", log, lambda: False)
