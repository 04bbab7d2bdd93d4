"""`fallow-nvml-double`: builds the NVML double and says what its GPUs are and do."""

import argparse
import re
import sys
from pathlib import Path

from nvml_double import wear
from nvml_double.control import DoubleError, Machine, build, model_keys
from nvml_double.layout import GPUS

BUILD_DIR = Path("build/nvml-double")


NVML_ERRORS = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "IN_USE": 19,
    "INSUFFICIENT_RESOURCES": 23,
    "UNKNOWN": 999,
}
"""Those that a client may have to live with, as in nvml.h."""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return int(args.act(args) or 0)
    except DoubleError as error:
        print(f"fallow-nvml-double: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fallow-nvml-double", description=__doc__)
    acts = parser.add_subparsers(required=True, metavar="ACT")

    def act(name: str, does: str, run: object, *, state: bool = True) -> argparse.ArgumentParser:
        sub = acts.add_parser(name, help=does, description=does, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        sub.set_defaults(act=run)
        if state:
            sub.add_argument("--state", type=Path, default=Path("gpus.state"), help="the state file of the machine")
        return sub

    sub = act("build", "compile the library and print where it is", _build, state=False)
    sub.add_argument("directory", type=Path, nargs="?", default=BUILD_DIR, help="where to")
    sub = act("create", "a new machine", _create)
    sub.add_argument("gpus", nargs="+", help=f'such as "2xh100-80gb" a100-40gb; models: {", ".join(model_keys())}')
    sub.add_argument("--seed", type=int, default=0, help="other numbers give other UUIDs")
    sub = _of_gpu(act("set", "activity and memory of a GPU", _set))
    sub.add_argument("--busy", type=float, default=None, help="percent of the time a kernel runs")
    sub.add_argument("--memory-busy", type=float, default=None, help="percent of the time memory is read or written")
    sub.add_argument("--memory-used", type=int, default=None, help="MiB")
    sub.add_argument(
        "--passthrough", action=argparse.BooleanOptionalAction, help="lent to a virtual machine: no resets"
    )
    sub = _of_gpu(act("process", "a process on a GPU", _process))
    sub.add_argument("--pid", type=int, default=None, help="its process id")
    sub.add_argument("--memory", type=int, default=100, help="MiB it uses")
    sub.add_argument("--gi", type=int, default=None, help="GPU instance it runs in")
    sub.add_argument("--ci", type=int, default=None, help="compute instance it runs in")
    sub.add_argument("--clear", action="store_true", help="remove all processes of the GPU instead")
    sub = _of_gpu(act("xid", "report an XID error", _xid))
    sub.add_argument("code", type=int, help="the XID")
    sub.add_argument("--gi", type=int, default=None, help="GPU instance it concerns")
    _of_gpu(act("lose", "the GPU falls off the bus", lambda a: Machine(a.state).lose(a.gpu)))
    _of_gpu(act("restore", "it comes back", lambda a: Machine(a.state).lose(a.gpu, lost=False)))
    sub = _of_gpu(act("wear", "signs of wear of a GPU", _wear))
    sub.add_argument("--recovery", type=int, default=None, help="recovery action that its driver demands, 0 to 7")
    sub.add_argument("--remap-pending", action=argparse.BooleanOptionalAction, help="rows wait for a reset")
    sub.add_argument("--remap-failed", action=argparse.BooleanOptionalAction, help="rows could not be remapped")
    sub.add_argument("--uncorrectable", type=int, default=None, help="uncorrectable memory errors since the start")
    sub.add_argument(
        "--limits-memory", action=argparse.BooleanOptionalAction, help="its driver limits memory by cgroup"
    )
    sub = _of_gpu(act("instance", "how busy one GPU instance is", _instance))
    sub.add_argument("gi", type=int, help="the GPU instance")
    sub.add_argument("busy", type=float, help="percent of the time a kernel runs in it")
    sub = act("driver", "another version of the driver", lambda a: wear.driver(Machine(a.state), a.version))
    sub.add_argument("version", help="such as 580.95.05")
    sub = act("fault", "make a call of the library go wrong", _fault)
    sub.add_argument("call", help="its C name, such as nvmlDeviceCreateGpuInstanceWithPlacement")
    sub.add_argument("--fail", type=_code, default=None, help="NVML error it answers with, such as IN_USE or 19")
    sub.add_argument("--hang", type=float, default=None, help="seconds it takes")
    sub.add_argument(
        "--kill", choices=["before", "after"], default=None, help="kill its caller before or after it acts"
    )
    sub.add_argument("--times", type=int, default=1, help="how often")
    sub = act("faults", "the faults that wait", _faults)
    sub.add_argument("--clear", action="store_true", help="remove them all")
    sub = _of_gpu(act("mode", "MIG mode, as if it had always been so", _mode))
    sub.add_argument("mig", choices=["on", "off"], help="what it is")
    act("reboot", "instances are lost, and MIG mode where the driver holds it", lambda a: Machine(a.state).reboot())
    act("show", "all GPUs as text", lambda a: print(Machine(a.state).show()))
    return parser


def _of_gpu(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
    sub.add_argument("--gpu", type=int, default=0, help="index of the GPU")
    return sub


def _build(args: argparse.Namespace) -> None:
    print(build(args.directory))


def _create(args: argparse.Namespace) -> None:
    print(Machine.create(args.state, _models(args.gpus), args.seed).show())


def _models(texts: list[str]) -> list[str]:
    """`2xh100-80gb` is two of them. Raises DoubleError before it would list more than a machine can have."""
    models: list[str] = []
    for text in texts:
        match = re.fullmatch(r"(?:(\d{1,9})x)?(.+)", text.strip())
        if match is None:
            raise DoubleError(f"{text!r}: expected a GPU model, or a number of them such as 2xh100-80gb")
        count = int(match[1] or 1)
        if not 1 <= count <= GPUS:
            raise DoubleError(f"{text}: a machine has 1 to {GPUS} GPUs")
        models += [match[2]] * count
    return models


def _set(args: argparse.Namespace) -> None:
    percent = {k: None if v is None else v / 100 for k, v in (("busy", args.busy), ("memory_busy", args.memory_busy))}
    Machine(args.state).set(args.gpu, memory_used_mib=args.memory_used, passthrough=args.passthrough, **percent)


def _wear(args: argparse.Namespace) -> None:
    machine = Machine(args.state)
    signs = ("recovery", "remap_pending", "remap_failed", "uncorrectable")
    wear.wear(machine, args.gpu, **{sign: getattr(args, sign) for sign in signs})
    if args.limits_memory is not None:
        wear.can(machine, args.gpu, limit_memory=args.limits_memory)


def _instance(args: argparse.Namespace) -> None:
    wear.busy_instance(Machine(args.state), args.gpu, args.gi, args.busy / 100)


def _process(args: argparse.Namespace) -> None:
    machine = Machine(args.state)
    if args.clear:
        machine.clear_processes(args.gpu)
    elif args.pid is None:
        raise DoubleError("give --pid PID, or --clear")
    else:
        machine.add_process(args.gpu, args.pid, args.memory, args.gi, args.ci)


def _faults(args: argparse.Namespace) -> None:
    machine = Machine(args.state)
    if args.clear:
        machine.clear_faults()
    for line in machine.faults():
        print(line)


def _mode(args: argparse.Namespace) -> None:
    Machine(args.state).mode(args.gpu, args.mig == "on")


def _xid(args: argparse.Namespace) -> None:
    Machine(args.state).xid(args.gpu, args.code, args.gi)


def _code(text: str) -> int:
    """An NVML error by name, as nvml.h has it without `NVML_ERROR_`, or by number."""
    name = text.upper().removeprefix("NVML_ERROR_")
    if name in NVML_ERRORS:
        return NVML_ERRORS[name]
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number or one of {', '.join(NVML_ERRORS)}")


def _fault(args: argparse.Namespace) -> None:
    Machine(args.state).fault(args.call, fail=args.fail, hang=args.hang, kill=args.kill, times=args.times)


if __name__ == "__main__":
    sys.exit(main())
