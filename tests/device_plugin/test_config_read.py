"""NVIDIA's configuration file: accepted as it is, and every fault in it named with key and line at once."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from device_plugin.config import table
from device_plugin.config.choose import NotChosen, choose
from device_plugin.config.model import Config
from device_plugin.config.read import ENVIRONMENT, overlay, read
from policies.document import DocumentError

FULL = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  nvidiaDriverRoot: /run/nvidia/driver
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
  gfd: {sleepInterval: 1m30s}
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
      - name: gpu
        replicas: 10
        devices: [0, "1:0", GPU-0aa]
imex: {channelIDs: [0]}
"""


def faults(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(DocumentError) as caught:
        read(text, "config.yaml")
    return [(f.line, f.path, f.problem) for f in caught.value.faults]


def test_every_section_is_read() -> None:
    config = read(FULL, "config.yaml")
    assert config.flags.mig_strategy == "mixed"
    assert config.flags.plugin.device_list_strategy == ("envvar", "cdi-cri")
    (entry,) = config.sharing.time_slicing.resources  # type: ignore[union-attr]
    assert (entry.name, entry.devices) == ("nvidia.com/gpu", ("0", "1:0", "GPU-0aa"))


def test_a_gpu_and_mig_index_is_a_text_though_yaml_would_make_a_number_of_it() -> None:
    text = "sharing: {timeSlicing: {resources: [{name: mig-1g.10gb, replicas: 2, devices: [1:0]}]}}"
    (entry,) = read(text, "f").sharing.time_slicing.resources  # type: ignore[union-attr]
    assert entry.devices == ("1:0",)


def test_all_faults_at_once_in_the_order_of_their_lines() -> None:
    found = faults(
        "flags:\n  migStrateg: none\n  plugin:\n    deviceListStrategy: [envvar, bla]\nsharing:\n  timeSlicing:\n"
        "    resources:\n    - name: foo\n      replicas: 1\n      devices: 0\n  mps:\n    resources: []\n"
    )
    assert [(line, path) for line, path, _ in found] == [
        (2, "flags.migStrateg"),
        (4, "flags.plugin.deviceListStrategy.1"),
        (8, "sharing.timeSlicing.resources.0.name"),
        (9, "sharing.timeSlicing.resources.0.replicas"),
        (10, "sharing.timeSlicing.resources.0.devices"),
        (12, "sharing.mps.resources"),
    ]
    assert "did you mean `migStrategy`" in found[0][2]


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("version: v2\n", "version", "'v1'"),
        ("sharing: {timeSlicing: {resources: []}}\n", "sharing.timeSlicing.resources", "empty"),
        (
            "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n"
            "  mps: {resources: [{name: gpu, replicas: 2}]}\n",
            "sharing",
            "exclude each other",
        ),
        ("sharing: {mps: {resources: [{name: mig-1g.10gb, replicas: 2}]}}\n", "sharing", "whole GPUs"),
        (
            "flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n",
            "",
            "with flags.migStrategy single",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, rename: kubernetes.io/gpu}]}}\n",
            "sharing.timeSlicing.resources.0.rename",
            "keeps that domain",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, rename: mig-1g.10gb}]}}\n",
            "sharing.timeSlicing.resources.0.rename",
            "pass for slices",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [two]}]}}\n",
            "sharing.timeSlicing.resources.0.devices",
            "names no device",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: true}]}}\n",
            "sharing.timeSlicing.resources.0.replicas",
            "valid integer",
        ),
        ("flags: {deviceDiscoveryStrategy: tegra}\n", "flags.deviceDiscoveryStrategy", "no NVML"),
        ("flags: {plugin: {deviceListStrategy: []}}\n", "flags.plugin.deviceListStrategy", "empty"),
        ("flags: {gfd: {sleepInterval: soon}}\n", "flags.gfd.sleepInterval", "no duration"),
        ("flags: {nvidiaDriverRoot: run}\n", "flags.nvidiaDriverRoot", "pattern"),
        ("imex: {channelIDs: [3]}\n", "imex.channelIDs", "channel 0 only"),
        ("flags:\n  migStrategy: none\nflags:\n  migStrategy: single\n", "flags", "twice"),
    ],
)
def test_what_is_refused(text: str, path: str, says: str) -> None:
    assert any(where == path and says in problem for _, where, problem in faults(text)), faults(text)


@pytest.mark.parametrize(
    "text", ["flags:\nsharing:\n  timeSlicing:\n", '{"version": "v1", "flags": {"migStrategy": "none"}}']
)
def test_empty_sections_and_json_are_fine(text: str) -> None:
    read(text, "f")


KEYS = {k.path: k for k in table.every_key()}
SCALARS = {
    "flags.migStrategy": st.sampled_from(["none", "single", "mixed"]),
    "flags.failOnInitError": st.booleans(),
    "flags.gdsEnabled": st.booleans(),
    "flags.plugin.passDeviceSpecs": st.booleans(),
    "flags.plugin.deviceIDStrategy": st.sampled_from(["uuid", "index"]),
    "flags.plugin.deviceListStrategy": st.lists(
        st.sampled_from(["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]), min_size=1, unique=True
    ),
    "flags.plugin.sharedDevicesAllocationPolicy": st.sampled_from(["distributed", "packed"]),
    "imex.channelIDs": st.sampled_from([[], [0]]),
}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in values.items():
        *sections, key = path.split(".")
        here = made
        for section in sections:
            here = here.setdefault(section, {})
        here[key] = value
    return made


@given(st.fixed_dictionaries({}, optional=SCALARS))
def test_what_is_written_is_what_is_read(values: dict[str, Any]) -> None:
    config = read(yaml.safe_dump({"version": "v1", **nested(values)}), "f")
    assert config.model_dump(by_alias=True, exclude_unset=True, mode="json") == {"version": "v1", **nested(values)}


@given(st.sampled_from(sorted(KEYS)), st.integers(0, 30))
def test_a_misspelt_key_is_named_with_its_line(path: str, blank_lines: int) -> None:
    *sections, key = path.split(".")
    listed = {"resources"} if "sharing" in sections else {"gpus", "mig"}
    inner: Any = {f"{key}x": 1}
    for section in reversed(sections):
        inner = {section: [inner] if section in listed else inner}
    text = "\n" * blank_lines + yaml.safe_dump(inner, default_flow_style=False)
    line = next(n for n, said in enumerate(text.splitlines(), 1) if f"{key}x:" in said)
    assert any(where and where.endswith(f"{key}x") and at == line for at, where, _ in faults(text)), text


def test_environment_variables_go_before_the_file_and_a_bad_one_is_named() -> None:
    config = overlay(
        read(FULL, "f"), {"MIG_STRATEGY": "single", "DEVICE_LIST_STRATEGY": "envvar,volume-mounts", "X": "y"}
    )
    assert config.flags.mig_strategy == "single"
    assert config.flags.plugin.device_list_strategy == ("envvar", "volume-mounts")
    assert config.flags.nvidia_driver_root == "/run/nvidia/driver"
    with pytest.raises(DocumentError, match="PASS_DEVICE_SPECS"):
        overlay(config, {"PASS_DEVICE_SPECS": "perhaps"})


def test_every_variable_names_a_key_that_there_is() -> None:
    assert set(ENVIRONMENT.values()) <= set(KEYS)


def test_the_table_in_the_readme_is_that_of_the_model() -> None:
    assert set(table.EFFECTS) == set(KEYS)
    assert table.README.read_text("utf-8") == table.into_readme(), "python -m device_plugin.config.table"


@pytest.mark.parametrize(
    ("label", "default", "there", "chosen"),
    [
        ("a", "b", "abc", "a"),
        ("", "b", "abc", "b"),
        ("", "", ("default", "x"), "default"),
        ("", "", "z", "z"),
        ("q", "b", "abc", None),
        ("", "q", "abc", None),
        ("", "", "abc", None),
    ],
)
def test_the_label_chooses_then_the_default_then_what_is_called_so_or_the_only_one(
    label: str, default: str, there: str | tuple[str, ...], chosen: str | None
) -> None:
    found = choose(label, default, dict.fromkeys(there, ""))
    assert isinstance(found, NotChosen) if chosen is None else found == chosen


def test_defaults_are_nvidias() -> None:
    flags = Config().flags
    assert (flags.plugin.device_list_strategy, flags.plugin.device_id_strategy) == (("envvar",), "uuid")
    assert flags.fail_on_init_error and not flags.plugin.pass_device_specs
