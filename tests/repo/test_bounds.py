"""Files and functions stay small; the few exceptions stand here with their reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("gpu", "cluster", "policies", "scheduler", "mig_manager", "device_plugin", "idle", "fallow", "nvml_double")
FILE_LINES, FUNCTION_LINES = 300, 40

LONG_FILES = {
    "nvml_double/mig.c": "one subject of a C library; the bound is for Python",
    "nvml_double/ci.c": "the same",
    "nvml_double/device.c": "the same",
    "gpu/nvml.py": "one subject, the GPUs of one session; facts and calls are in files of their own",
}
LONG_FUNCTIONS = {
    "scheduler/app.py:application": "one route after another",
    "nvml_double/__main__.py:_parser": "a list of flags, read from top to bottom",
}


def sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in (".py", ".c", ".h") and "_pb2" not in path.name:
                yield path


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_files_are_short() -> None:
    long = {str(p.relative_to(ROOT)) for p in sources() if len(p.read_text().splitlines()) > FILE_LINES}
    assert long == set(LONG_FILES) & long, f"split these, or say why not: {sorted(long - set(LONG_FILES))}"


def test_functions_are_short() -> None:
    long = {name for p in sources() if p.suffix == ".py" for name, n in functions(p) if n > FUNCTION_LINES}
    assert long <= set(LONG_FUNCTIONS), f"split these, or say why not: {sorted(long - set(LONG_FUNCTIONS))}"


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "misc"])
def test_no_drawer_for_everything(word: str) -> None:
    assert not [p for p in sources() if p.stem == word or word in p.parts]


def test_a_package_says_its_duty_and_nothing_else() -> None:
    for room in ROOMS:
        body = ast.parse((ROOT / room / "__init__.py").read_text()).body
        assert len(body) == 1 and isinstance(body[0], ast.Expr), f"{room}/__init__.py holds more than its docstring"
