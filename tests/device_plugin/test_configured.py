"""The configuration in force: chosen by label, changed while running, and never lost to a broken edit or a restart."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import names
from device_plugin.configured import NodeConfig
from gpu.hardware import SeenGpu
from tests.builders import model

GPUS = (SeenGpu("GPU-0", 0, 0, "", "", model()),)
SHARED = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: %d}]}}\n"


class Rig:
    def __init__(self, directory: Path) -> None:
        self.keep, self.path = directory / "keep", directory / "configs"
        self.keep.mkdir()
        self.path.mkdir()
        self.label, self.told = "", list[tuple[str, str]]()

    def fresh(self, path: Path | None = None, environment: dict[str, str] | None = None) -> NodeConfig:
        tell: Callable[[str, str, bool], None] = lambda reason, text, _: self.told.append((reason, text))  # noqa: E731
        return NodeConfig(path or self.path, "", lambda: self.label, self.keep, tell, environment or {})


def replicas(config: NodeConfig) -> int:
    config.look(GPUS)
    plan = config.current.plan.gpus.get("GPU-0")
    return plan.whole.replicas if plan and plan.whole else 1


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_nothing_given_leaves_everything_to_the_policy(rig: Rig) -> None:
    config = rig.fresh()
    assert config.ready()
    config.look(GPUS)
    assert not config.ready()
    assert config.current.config is None
    assert config.current.delivery.cdi
    assert rig.told == []


def test_the_label_chooses_and_a_changed_label_changes_it(rig: Rig) -> None:
    (rig.path / "ten").write_text(SHARED % 10)
    (rig.path / "four").write_text(SHARED % 4)
    (rig.path / "..data").mkdir()
    config = rig.fresh()
    config.look(GPUS)
    assert "four, ten" in config.ready()
    rig.label = "ten"
    assert replicas(config) == 10
    rig.label = "four"
    assert replicas(config) == 4
    rig.label = "gone"
    assert replicas(config) == 4
    assert config.condition()["status"] == "False"
    assert [reason for reason, _ in rig.told] == [
        names.CONFIG_INVALID, names.CONFIG_APPLIED, names.CONFIG_APPLIED, names.CONFIG_INVALID,
    ]  # fmt: skip


def test_a_broken_edit_changes_nothing_is_said_once_and_a_good_one_takes_effect(rig: Rig) -> None:
    file = rig.path / "config.yaml"
    file.write_text(SHARED % 10)
    config = rig.fresh()
    assert replicas(config) == 10
    file.write_text("version: v1\nsharin: {}\nflags: {migStrategy: bla}\n")
    assert replicas(config) == 10
    assert replicas(config) == 10
    (reason, said) = rig.told[-1]
    assert len(rig.told) == 2
    assert reason == names.CONFIG_INVALID
    assert "line 2" in said and "did you mean `sharing`" in said and "line 3" in said
    assert "config.yaml stays in force" in said
    file.write_text(SHARED % 4)
    assert replicas(config) == 4
    assert config.condition()["status"] == "True"


def test_a_fault_that_only_shows_on_this_nodes_gpus_names_its_line(rig: Rig) -> None:
    (rig.path / "c").write_text("version: v1\n" + SHARED.replace("{name", "\n  {name") % 59_999)
    more = (*GPUS, SeenGpu("GPU-1", 1, 1, "", "", model()))
    config = rig.fresh()
    config.look(more)
    assert "c, line 3, sharing.timeSlicing.resources.0" in config.ready()


def test_the_last_good_one_outlives_a_restart_with_a_broken_text(rig: Rig) -> None:
    file = rig.path / "config.yaml"
    file.write_text(SHARED % 10)
    replicas(rig.fresh())
    file.write_text("nonsense: true\n")
    config = rig.fresh()
    assert replicas(config) == 10
    assert not config.ready()
    assert "config.yaml stays in force" in rig.told[-1][1]


def test_who_never_had_a_good_one_is_not_ready_until_it_has(rig: Rig) -> None:
    file = rig.path / "config.yaml"
    file.write_text("nonsense: true\n")
    config = rig.fresh()
    config.look(GPUS)
    assert "unknown key" in config.ready()
    file.write_text(SHARED % 2)
    assert replicas(config) == 2
    assert not config.ready()


def test_a_file_that_is_gone_or_no_text_is_a_fault_and_a_single_file_needs_no_label(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(SHARED % 3)
    config = rig.fresh(file)
    assert replicas(config) == 3
    file.write_bytes(b"\xff\xfe\x00")
    assert replicas(config) == 3
    file.unlink()
    assert replicas(config) == 3
    assert config.condition()["status"] == "False"


def test_nvidias_variables_alone_are_a_configuration(rig: Rig) -> None:
    config = rig.fresh(environment={"DEVICE_LIST_STRATEGY": "volume-mounts", "MIG_STRATEGY": "none", "HOME": "/"})
    config.look(GPUS)
    assert config.current.delivery.mounts
    assert config.current.plan.fixed == {"GPU-0"}
