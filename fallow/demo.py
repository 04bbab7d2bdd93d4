"""`fallow demo`: the whole story on doubles, on a machine with Python alone. Exit code 0 only if it came true."""

import argparse
import logging
import re
import tempfile
from pathlib import Path

from rich.console import Console

from fallow.stage import LocalStage, StageError
from fallow.story import Story, StoryError


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--svg", type=Path, default=None, help="also write what is shown as a picture")
    parser.add_argument("--keep", type=Path, default=None, help="keep logs and state in this new directory")


def run(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.ERROR)
    console = Console(width=100, record=args.svg is not None)
    if args.keep:
        args.keep.mkdir(parents=True)
        return _play(args.keep, console, args.svg)
    with tempfile.TemporaryDirectory(prefix="fallow-demo-") as directory:
        return _play(Path(directory), console, args.svg)


def _play(directory: Path, console: Console, svg: Path | None) -> int:
    try:
        with LocalStage(directory) as stage:
            console.print(
                f"Two nodes with two H100 each, on {stage.hardware}; an API server in memory, pretend kubelets,"
            )
            console.print("a stand-in for kube-scheduler, and the real fallow scheduler, planner and agents.")
            Story(stage, console).tell()
    except (StoryError, StageError) as error:
        console.print(f"\n[bold red]{error}[/bold red]")
        return 1
    console.print("[bold green]The story came true.[/bold green]")
    if svg:
        # Without the web fonts: a picture in a README must not call anybody.
        svg.write_text(re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="make demo"), flags=re.DOTALL))
    return 0
