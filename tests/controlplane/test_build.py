"""What a person is told who lacks something, and that nothing is built twice. `go` is a script of the test's own."""

import fcntl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.controlplane import build

ROOT = Path(__file__).parents[2]
BUILDS = """
while [ "$1" != -o ]; do shift; done
echo built >> "$LOG"
echo program > "$2/program"
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Go":
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Go(tmp_path)


class Go:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.cache = directory / "cache" / "fallow" / "controlplane"

    def does(self, script: str, version: str = "go1.26.8") -> None:
        lines = ["#!/bin/sh", f'[ "$1" = env ] && echo {version} && exit']
        lines.append(script)
        (self._directory / "go").write_text("\n".join(lines))
        (self._directory / "go").chmod(0o755)

    @property
    def builds(self) -> int:
        log = self._directory / "log"
        return len(log.read_text().splitlines()) if log.exists() else 0


def test_without_go_the_version_that_is_needed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.CannotBuild, match=r"Go is missing: install Go 1\.26"):
        build.binaries()


def test_an_old_go_is_refused_by_name(go: Go) -> None:
    go.does("exit 1", version="go1.19.8")
    with pytest.raises(build.CannotBuild, match=r"Go 1\.26 or newer is needed, this is go1\.19\.8"):
        build.binaries()


def test_a_build_that_fails_says_why_and_leaves_nothing(go: Go) -> None:
    go.does("echo no such module >&2; exit 1")
    with pytest.raises(build.CannotBuild, match=r"(?s)building kubernetes failed.*no such module"):
        build.binaries()
    assert [p.name for p in go.cache.iterdir()] == ["kubernetes.lock"]


def test_what_is_built_is_found_again_and_the_leftovers_of_a_killed_build_are_not(go: Go) -> None:
    go.does(BUILDS)
    (go.cache / ".containerd-killed").mkdir(parents=True)
    part = next(p for p in build.PARTS if p.name == "containerd")
    assert build.built(part) == build.built(part)
    assert go.builds == 1
    assert not (go.cache / ".containerd-killed").exists()


def test_a_second_run_waits_for_the_first_and_says_so(go: Go) -> None:
    go.does(BUILDS)
    go.cache.mkdir(parents=True)
    with (go.cache / "containerd.lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        command = [sys.executable, "-c", "from tests.controlplane import build; build.built(build.PARTS[1])"]
        second = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        assert second.stderr.readline().startswith("another run is building containerd")
        assert go.builds == 0
    second.communicate(timeout=30)
    assert (second.returncode, go.builds) == (0, 1)


def test_another_wording_is_no_reason_to_build_again(go: Go) -> None:
    go.does(BUILDS)
    part = build.PARTS[1]
    assert build.built(part) == build.built(replace(part, says="the same, in other words"))
    assert build.built(part) != build.built(replace(part, flags=()))
