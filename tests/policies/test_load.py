"""The policy file: what is refused, on which line, and what stays in force."""

import json

import jsonschema
import pytest
import yaml

from policies import schema
from policies.load import Policies, PolicyError, read_policy
from policies.model import Policy


def configmap(text: str) -> dict:
    return {"metadata": {"name": "fallow-policy"}, "data": {"policy.yaml": text}}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", None, "empty"),
        ("- a\n", 1, "expected keys"),
        ("placing: [\n", 2, "no valid YAML"),
        ("version: v1\nplacing:\n  scorer: foo\n", 3, "no scorer 'foo'; choose one of least_stranded"),
        ("version: v1\nplacing:\n  scorr: pack\n", 3, "did you mean `scorer`"),
        ("recutting:\n  tries: 3\n  foo: 1\n", 3, "known are cooldownSeconds"),
        ("version: v1\nsharing:\n  unitsPerGpu: 0\n", 3, "greater than or equal to 1"),
        ("sharing:\n  unitsPerGpu: twenty\n", 2, "valid integer"),
        ("sharing: 3\n", 1, "dictionary"),
        ("version: v2\n", 1, "'v1'"),
        ("version: v1\n\nversion: v1\n", 3, "twice"),
        ("placing:\n  scorer: pack\n  scorer: pack\n", 3, "twice"),
        ("recutting:\n  modes:\n    - whole\n    - bla\n", 4, "'whole', 'shared' or 'sliced'"),
        ("version: v1\n---\nversion: v1\n", 2, "another document"),
        ("a: &a 1\nb: *a\n", 2, "aliases"),
        ("x: !!python/object:os.system {}\n", 1, "no valid YAML"),
        ("x" * 300_000, None, "longer than"),
        ("version: v1\nsharing:\n  unitsPerGpu: true\n", 3, "valid integer"),
        ('sharing:\n  unitsPerGpu: "20"\n', 2, "valid integer"),
        ("recutting:\n  enabled: 1\n", 2, "valid boolean"),
        ("version: v1\nplacing:\n  scorer: 2024-13-45\n", 3, "is no value"),
        ("a: " + "[" * 5000, None, "no valid YAML"),
    ],
)
def test_a_fault_names_its_line(text: str, line: int | None, says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(text)
    assert caught.value.line == line
    assert says in str(caught.value)


def test_all_faults_are_named_at_once_in_the_order_of_their_lines() -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy("placing:\n  scorr: pack\nsharing:\n  unitsPerGpu: 0\nrecutting:\n  tries: x\n  tries: 2\n")
    assert [(f.line, f.path) for f in caught.value.faults] == [
        (2, "placing.scorr"),
        (4, "sharing.unitsPerGpu"),
        (7, "tries"),
    ]


def test_a_broken_edit_changes_nothing_and_a_good_one_takes_effect() -> None:
    policies, seen = Policies(), []
    policies.on_change.append(seen.append)
    assert policies.take(configmap("placing:\n  scorer: pack\n"))
    assert not policies.take(configmap("placing:\n  scorer: nonsense\n"))
    assert policies.current.placing.scorer == "pack"
    assert "line 2" in policies.problem
    assert not policies.take(None)
    assert policies.current.placing.scorer == "pack"
    assert policies.take(configmap("sharing:\n  unitsPerGpu: 10\n"))
    assert policies.problem == ""
    assert [p.sharing.units_per_gpu for p in seen] == [20, 10]


def test_the_shipped_defaults_are_the_models_defaults() -> None:
    assert read_policy(schema.PATH.with_name("defaults.yaml").read_text()) == Policy()


def test_the_schema_is_current_and_accepts_the_defaults() -> None:
    assert schema.PATH.read_text() == schema.text(), "run `python -m policies.schema`"
    jsonschema.validate(yaml.safe_load(schema.PATH.with_name("defaults.yaml").read_text()), json.loads(schema.text()))


def test_every_key_is_in_the_readme() -> None:
    readme = schema.PATH.with_name("README.md").read_text()
    for name, section in Policy.model_fields.items():
        inside = getattr(section.annotation, "model_fields", None)
        keys = [f"{name}.{f.alias}" for f in inside.values()] if inside else [name]
        for key in keys:
            assert f"`{key}`" in readme, key


def test_what_is_wanted_is_known_only_after_a_good_text_or_none_at_all() -> None:
    policies = Policies()
    assert policies.ready() == "policy not yet looked up"
    policies.listed()
    assert policies.ready() == "", "no ConfigMap: the defaults are what is wanted"
    broken = Policies()
    broken.take(configmap("placing:\n  scorer: nonsense\n"))
    broken.listed()
    assert "line 2" in broken.ready()
    broken.take(configmap("recutting:\n  enabled: false\n"))
    assert broken.ready() == ""
    broken.take(configmap("placing: 3\n"))
    assert broken.ready() == "", "from then on the last good one is in force"
