"""`fallow config FILE`: checks a configuration of NVIDIA's device plugin before it is applied."""

import argparse
import sys
from pathlib import Path

import yaml

from device_plugin.config.read import read
from device_plugin.config.table import EFFECTS
from policies.document import DocumentError


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", help="a configuration, or a ConfigMap manifest with one or several; - reads standard input"
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0: good; 1: faults, each named on standard error; 2: the file cannot be read."""
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"{args.file}: {error}", file=sys.stderr)
        return 2
    good = True
    for name, inside in _inside(args.file, text).items():
        try:
            config = read(inside, name)
        except DocumentError as error:
            good = False
            for fault in error.faults:
                print(f"{name}: {fault}", file=sys.stderr)
            continue
        print(f"{name}: good")
        for path, value in _set(config.model_dump(by_alias=True, exclude_unset=True, mode="json")):
            print(f"  {path}: {value}\n      {EFFECTS[path]}")
    return 0 if good else 1


def _inside(file: str, text: str) -> dict[str, str]:
    """The configurations inside a ConfigMap manifest by their keys, or the text itself."""
    try:
        manifest = yaml.safe_load(text)
    except yaml.YAMLError:
        return {file: text}
    if isinstance(manifest, dict) and manifest.get("kind") == "ConfigMap":
        return {f"{file}, {key}": str(value) for key, value in (manifest.get("data") or {}).items()}
    return {file: text}


def _set(values: object, path: str = "") -> list[tuple[str, object]]:
    """The keys that the file sets, with their values; those of a list stand once for each entry."""
    if isinstance(values, dict):
        return [pair for key, value in values.items() for pair in _set(value, f"{path}.{key}" if path else key)]
    if path not in EFFECTS and isinstance(values, list):
        return [pair for value in values for pair in _set(value, path)]
    return [(path, values)]
