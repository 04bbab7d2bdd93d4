"""What the GPUs of one state file are and do: for tests, the demonstration and the command."""

import ctypes
import difflib
import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nvml_double import layout
from nvml_double.layout import Gpu, State
from nvml_double.library import DoubleError, build, calls, compiler
from nvml_double.models import BUSY_CELSIUS, IDLE_CELSIUS, IDLE_MW, NO_ID, fill, model, model_keys

__all__ = ["DoubleError", "Machine", "build", "compiler", "model_keys"]

XID_EVENT = 0x8
_LONGEST_SECONDS = 86_400


class Machine:
    """The GPUs in one state file. Every method may be called while clients use them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.state():
            """Looks whether the file is one of ours."""

    @classmethod
    def create(cls, path: Path, models: Sequence[str], seed: int = 0) -> "Machine":
        """GPUs of these models, such as `h100-80gb`; the same seed gives the same UUIDs. Raises DoubleError."""
        _check_number("seed", seed, 0)
        if not 1 <= len(models) <= layout.GPUS:
            raise DoubleError(f"{len(models)} GPUs: a machine has 1 to {layout.GPUS}")
        state = State(magic=layout.MAGIC, version=layout.VERSION, size=ctypes.sizeof(State), gpu_count=len(models))
        state.driver = b"580.95.05"
        for index, name in enumerate(models):
            fill(state.gpus[index], model(name), index, seed)
        temporary = path.with_name(f"{path.name}.new")
        try:
            temporary.write_bytes(bytes(state))
            temporary.replace(path)
        except OSError as error:
            raise DoubleError(f"cannot write {path}: {error.strerror}") from error
        return cls(path)

    def environment(self, library: Path) -> dict[str, str]:
        """What makes a program see these GPUs."""
        return {"LD_LIBRARY_PATH": str(library.parent), "FALLOW_NVML_STATE": str(self.path)}

    def uuids(self) -> tuple[str, ...]:
        with self.state() as state:
            return tuple(state.gpus[i].uuid.decode() for i in range(state.gpu_count))

    def set(
        self,
        gpu: int,
        *,
        busy: float | None = None,
        memory_busy: float | None = None,
        memory_used_mib: int | None = None,
        passthrough: bool | None = None,
    ) -> None:
        """Activity as shares between 0 and 1. Raises DoubleError for anything a GPU could not show.

        `passthrough`: the GPU is lent to this virtual machine, which cannot reset it.
        """
        for name, share in (("busy", busy), ("memory busy", memory_busy)):
            if share is not None and not 0 <= share <= 1:
                raise DoubleError(f"{name} {100 * share:g}%: expected 0 to 100")
        with self.of_gpu(gpu) as raw:
            if memory_used_mib is not None and not 0 <= memory_used_mib * 2**20 <= raw.memory_bytes:
                raise DoubleError(f"{memory_used_mib} MiB used: GPU {gpu} has {raw.memory_bytes // 2**20} MiB")
            if busy is not None:
                _count_energy(raw)
                raw.busy = round(100 * busy)
                raw.power_mw = IDLE_MW + round((raw.power_limit_mw - IDLE_MW) * busy)
                raw.temperature = IDLE_CELSIUS + round((BUSY_CELSIUS - IDLE_CELSIUS) * busy)
            if memory_busy is not None:
                raw.memory_busy = round(100 * memory_busy)
            if memory_used_mib is not None:
                raw.memory_used = memory_used_mib * 2**20
            if passthrough is not None:
                raw.passthrough = int(passthrough)

    def add_process(
        self, gpu: int, pid: int, memory_mib: int = 100, gi: int | None = None, ci: int | None = None
    ) -> None:
        """Outside MIG without `gi`; in a GPU instance its compute instance 0 unless told otherwise."""
        _check_number("a pid", pid, 1)
        if ci is not None and gi is None:
            raise DoubleError("--ci goes with its --gi: a compute instance is in a GPU instance")
        with self.of_gpu(gpu) as raw:
            _check_number("MiB of a process on this GPU", memory_mib, 0, raw.memory_bytes // 2**20)
            _check_instance(raw, gpu, gi, 0 if ci is None else ci)
            vacant = next((p for p in raw.processes if not p.used), None)
            if vacant is None:
                raise DoubleError(f"a GPU holds at most {layout.PROCESSES} processes")
            vacant.pid, vacant.memory_bytes, vacant.used = pid, memory_mib * 2**20, 1
            vacant.gi, vacant.ci = (
                (NO_ID if gi is None else gi),
                (0 if ci is None and gi is not None else NO_ID if ci is None else ci),
            )

    def clear_processes(self, gpu: int) -> None:
        with self.of_gpu(gpu) as raw:
            for process in raw.processes:
                process.used = 0

    def lose(self, gpu: int, lost: bool = True) -> None:
        """The GPU falls off the bus, or comes back."""
        with self.of_gpu(gpu) as raw:
            raw.lost = int(lost)

    def mode(self, gpu: int, mig: bool) -> None:
        """MIG mode as if the GPU had always been in it: no rule is asked, but slices keep it on."""
        with self.of_gpu(gpu) as raw:
            if not raw.profile_count:
                raise DoubleError(f"GPU {gpu} cannot be cut")
            if not mig and any(g.used for g in raw.instances):
                raise DoubleError(f"GPU {gpu} is cut: MIG mode stays on while there are slices")
            raw.mig = raw.mig_pending = int(mig)

    def xid(self, gpu: int, code: int, gi: int | None = None) -> None:
        """Reported to every client that listens; without `gi` it may concern the whole GPU."""
        _check_number("an XID", code, 0)
        with self.state() as state:
            if not 0 <= gpu < state.gpu_count:
                raise DoubleError(f"no GPU {gpu}: this machine has {state.gpu_count}")
            _check_instance(state.gpus[gpu], gpu, gi, None)
            state.event_sequence += 1
            event = state.events[state.event_sequence % layout.EVENTS]
            event.type, event.data, event.gpu = XID_EVENT, code, gpu
            event.gi, event.ci = NO_ID if gi is None else gi, NO_ID
            event.sequence = state.event_sequence

    def fault(
        self, call: str, *, fail: int | None = None, hang: float | None = None, kill: str | None = None, times: int = 1
    ) -> None:
        """The next `times` calls of this C name fail with a code, hang so many seconds, or kill their caller.

        `kill` is `before` or `after`: by SIGKILL, before or after the call has done its work.
        """
        if sum(x is not None for x in (fail, hang, kill)) != 1 or kill not in (None, "before", "after"):
            raise DoubleError("a fault is one of: fail=CODE, hang=SECONDS, kill='before' or 'after'")
        if call not in calls():
            near = difflib.get_close_matches(call, calls(), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise DoubleError(f"the double has no call {call!r}: give its C name{hint}")
        _check_number("times", times, 1)
        _check_number("an error code", 1 if fail is None else fail, 1)
        if hang is not None and not 0 <= hang <= _LONGEST_SECONDS:
            raise DoubleError(f"a hang of {hang} s: expected a number of seconds, 0 to {_LONGEST_SECONDS}")
        kind = layout.FAIL if fail is not None else layout.HANG if hang is not None else 0
        kind = kind or (layout.KILL_BEFORE if kill == "before" else layout.KILL_AFTER)
        with self.state() as state:
            vacant = next((f for f in state.faults if not f.times), None)
            if vacant is None:
                raise DoubleError(f"at most {layout.FAULTS} faults may be waiting: clear some")
            vacant.call, vacant.kind, vacant.code, vacant.seconds = call.encode(), kind, fail or 0, hang or 0.0
            vacant.times = times

    def faults(self) -> tuple[str, ...]:
        """Those still waiting, in words."""
        words = {layout.KILL_BEFORE: "kills its caller before", layout.KILL_AFTER: "kills its caller after"}
        words |= {layout.FAIL: "fails with {0.code}", layout.HANG: "hangs for {0.seconds:g} s"}
        with self.state() as state:
            waiting = [(f.call.decode(), words[f.kind].format(f), f.times) for f in state.faults if f.times]
        return tuple(f"{call} {what}, {times} more" for call, what, times in waiting)

    def clear_faults(self) -> None:
        with self.state() as state:
            for fault in state.faults:
                fault.times = 0

    def reboot(self) -> None:
        """Slices and processes are lost on every GPU, MIG mode where the driver holds it (Hopper and newer).

        A pending mode takes effect where the GPU itself stores it (Ampere).
        """
        with self.state() as state:
            for raw in list(state.gpus)[: state.gpu_count]:
                raw.energy_mj, raw.energy_at = 0, time.time()
                # A reset finishes pending remappings and starts volatile counters anew; a failed remapping stays.
                raw.compute_mode = raw.recovery_action = raw.remap_pending = raw.ecc_uncorrected = 0
                ctypes.memset(ctypes.addressof(raw.instances), 0, ctypes.sizeof(raw.instances))
                ctypes.memset(ctypes.addressof(raw.processes), 0, ctypes.sizeof(raw.processes))
                raw.mig = raw.mig_pending = raw.mig_pending if raw.needs_reset else 0

    def slices(self, gpu: int) -> dict[str, str]:
        """`1g.10gb@0` -> UUID of its MIG device, "" while it has no compute instance."""
        with self.of_gpu(gpu) as raw:
            return {
                f"{raw.profiles[g.profile].name.decode()}@{g.start}": next(
                    (c.uuid.decode() for c in g.compute if c.used), ""
                )
                for g in raw.instances
                if g.used
            }

    def show(self) -> str:
        """All GPUs as text, one a line."""
        lines = []
        for index in range(len(self.uuids())):
            cut = ", ".join(sorted(self.slices(index))) or "none"
            with self.of_gpu(index) as raw:
                mode = "on" if raw.mig else "off"
                lost = "  LOST" if raw.lost else ""
                busy = f"{raw.busy}% busy, {raw.memory_used // 2**20} MiB used"
                lines.append(
                    f"{index}  {raw.uuid.decode()}  {raw.name.decode()}  {busy}  MIG {mode}, slices: {cut}{lost}"
                )
        return "\n".join(lines)

    @contextmanager
    def of_gpu(self, index: int) -> Iterator[Gpu]:
        """One GPU, to be changed, under the lock. Raises DoubleError when there is none with this index."""
        with self.state() as state:
            if not 0 <= index < state.gpu_count:
                raise DoubleError(f"no GPU {index}: this machine has {state.gpu_count}")
            yield state.gpus[index]

    @contextmanager
    def state(self) -> Iterator[State]:
        """The state under the lock that clients take too."""
        try:
            file = open(self.path, "r+b")  # noqa: SIM115 - closed below; only opening it may fail as "make one"
        except OSError as error:
            raise DoubleError(f"{self.path}: {error.strerror}; make one with `fallow-nvml-double create`") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            raw = file.read()
            if len(raw) != ctypes.sizeof(State):
                raise DoubleError(f"{self.path}: not a state file of this version; make a new one")
            state = State.from_buffer_copy(raw)
            if bytes(state.magic) != layout.MAGIC or state.version != layout.VERSION:
                raise DoubleError(f"{self.path}: not a state file of this version; make a new one")
            yield state
            if bytes(state) != raw:
                # In place: clients have this very file mapped.
                file.seek(0)
                file.write(bytes(state))
                file.flush()


def _check_number(what: str, value: int, least: int, most: int = 2**31 - 1) -> None:
    if not least <= value <= most:
        raise DoubleError(f"{what}: {value} is not between {least} and {most}")


def _check_instance(raw: Gpu, gpu: int, gi: int | None, ci: int | None) -> None:
    """Whether that GPU instance, and in it that compute instance, is there."""
    if gi is None:
        return
    if not 0 <= gi < layout.INSTANCES or not raw.instances[gi].used:
        raise DoubleError(f"GPU {gpu} has no GPU instance {gi}")
    if ci is not None and (not 0 <= ci < layout.COMPUTE or not raw.instances[gi].compute[ci].used):
        raise DoubleError(f"GPU instance {gi} of GPU {gpu} has no compute instance {ci}")


def _count_energy(raw: Gpu) -> None:
    """What was used at the old power, so that the counter never runs backwards."""
    now = time.time()
    raw.energy_mj += round(max(0.0, now - raw.energy_at) * raw.power_mw)
    raw.energy_at = now
