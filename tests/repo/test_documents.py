"""The documents agree with the code: rooms, metrics, flags, annotations, links and commands."""

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import names
from fallow.__main__ import COMMANDS, parser

ROOT = Path(__file__).parents[2]
ROOMS = ("gpu", "cluster", "policies", "scheduler", "mig_manager", "device_plugin", "idle", "fallow", "nvml_double")
METRIC = re.compile(r'"(fallow_[a-z_]+)"')


def declared(room: str) -> set[str]:
    return {m for path in (ROOT / room).glob("*.py") for m in METRIC.findall(path.read_text()) if m.count("_") > 1}


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_page_and_its_metrics_are_on_it(room: str) -> None:
    page = (ROOT / room / "README.md").read_text()
    # Tables between markers are looked up, not read.
    told = re.sub(r"<!-- (.+?) -->.*?<!-- end of \1 -->", "", page, flags=re.DOTALL)
    assert len(told.splitlines()) < 90, "a room's page is one screen"
    missing = {m for m in declared(room) if m not in page}
    assert not missing, f"not in {room}/README.md: {sorted(missing)}"


@pytest.mark.parametrize("room", ROOMS)
def test_metrics_are_named_after_their_room_in_base_units(room: str) -> None:
    prefixes = (
        (f"fallow_{room}_", "fallow_planner_", "fallow_agent_") if room == "mig_manager" else (f"fallow_{room}_",)
    )
    for metric in declared(room):
        assert metric.startswith(prefixes), metric
        assert not re.search(r"_(ms|millis|mib|percent|minutes)\b", metric), metric


def flags(command: str) -> Iterator[argparse.Action]:
    sub = next(a for a in parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    yield from (a for a in sub.choices[command]._actions if a.option_strings and a.dest != "help")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_a_help_text_and_is_in_the_page(command: str) -> None:
    page = (ROOT / "fallow" / "README.md").read_text()
    for action in flags(command):
        assert action.help, action.option_strings
        assert f"`{action.option_strings[0]}`" in page, f"{action.option_strings[0]} of fallow {command}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_flags_and_a_run(command: str) -> None:
    module = importlib.import_module(COMMANDS[command].module)
    assert callable(module.add_flags) and callable(module.run)


def test_annotations_are_documented() -> None:
    pages = "".join(p.read_text() for p in ROOT.glob("**/README.md") if ".venv" not in p.parts)
    for annotation in (names.PROMISE, names.CLAIM, names.CAPACITY, names.ROLE, names.KIND):
        assert annotation in pages, annotation


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / r / "README.md" for r in ROOMS)]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_commands_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("tests/*/README.md")]:
        for target in re.findall(r"make ([a-z][a-z-]+)(?=[`\s])", page.read_text()):
            assert target in targets or target in ("a", "sense"), f"{page.relative_to(ROOT)}: make {target}"
