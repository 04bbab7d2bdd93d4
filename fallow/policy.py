"""`fallow policy FILE`: checks a policy file before it is applied."""

import argparse
import sys
from pathlib import Path

import yaml

from cluster import names
from policies.load import PolicyError, read_policy


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a policy.yaml, or a ConfigMap manifest with that key; - reads standard input")


def run(args: argparse.Namespace) -> int:
    """Exit code 0: good; 1: a fault, named on standard error; 2: the file cannot be read."""
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"{args.file}: {error}", file=sys.stderr)
        return 2
    try:
        policy = read_policy(_inside(text))
    except PolicyError as error:
        for fault in error.faults:
            print(f"{args.file}: {fault}", file=sys.stderr)
        return 1
    print(f"{args.file}: good")
    print(yaml.safe_dump(policy.model_dump(by_alias=True, mode="json"), sort_keys=False), end="")
    return 0


def _inside(text: str) -> str:
    """The policy inside a ConfigMap manifest, or the text itself."""
    try:
        manifest = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(manifest, dict) and manifest.get("kind") == "ConfigMap":
        return str((manifest.get("data") or {}).get(names.POLICY_KEY, ""))
    return text
