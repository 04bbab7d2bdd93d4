"""The command `fallow`: one subcommand per program. Wires nothing itself; each subcommand's module does."""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand: what it is for, and the module with `add_flags(parser)` and `run(args) -> int`."""

    summary: str
    module: str


COMMANDS = {
    "scheduler": Command("the kube-scheduler extender: picks the node and the GPU", "fallow.scheduler"),
    "planner": Command("decides how GPUs should be cut, one active replica", "fallow.planner"),
    "agent": Command("device plugin and re-cutting on one node", "fallow.agent"),
    "certs": Command("makes the certificates between kube-scheduler and extender", "fallow.certs"),
    "config": Command("checks a configuration of the device plugin", "fallow.config"),
    "policy": Command("checks a policy file before it is applied", "fallow.policy"),
    "demo": Command("tells the whole story on doubles, without a GPU or a cluster", "fallow.demo"),
}


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    pass


def parser(only: str = "") -> argparse.ArgumentParser:
    """The whole command line; `only` loads the flags of that one subcommand (a program imports no other's room)."""
    top = argparse.ArgumentParser(
        prog="fallow", description="Finds idle GPU capacity in a Kubernetes cluster and puts work on it."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.summary, description=command.summary, formatter_class=_Formatter)
        if not only or name == only:
            import_module(command.module).add_flags(sub)
    return top


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    chosen = next((a for a in argv if a in COMMANDS), "")
    args = parser(chosen if chosen else "-").parse_args(argv)
    run: Callable[[argparse.Namespace], int] = import_module(COMMANDS[args.command].module).run
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
