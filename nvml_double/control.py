"""Builds the double and sets what its GPUs are and do: for tests, the demonstration and the command."""

import ctypes
import fcntl
import hashlib
import json
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvml_double import layout
from nvml_double.layout import Gpu, State

HERE = Path(__file__).parent
SOURCES = ("state.c", "mig.c", "device.c")
LIBRARY = "libnvidia-ml.so.1"
NO_ID = 0xFFFFFFFF
XID_EVENT = 0x8
ARCHITECTURES = {"ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
MEDIA = {"none": 0, "standard": 1, "extended": 2, "all": 3}
ALIASES = {"a30": "a30-24gb", "a100": "a100-40gb", "h100": "h100-80gb", "h200": "h200-141gb", "b200": "b200-180gb"}
_NAMESPACE = uuid.UUID("2f4b9a57-3ed8-5f0b-8c55-6f7e9a1f2c01")


class DoubleError(Exception):
    """The double cannot be built or set as asked; the text says what to do."""


def compiler() -> str | None:
    """The C compiler of this machine, None when there is none."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(directory: Path) -> Path:
    """The library, in a folder below `directory` named after its sources; built only once. Raises DoubleError."""
    found = compiler()
    if found is None:
        raise DoubleError("no C compiler: install gcc, or use the double in Python (fallow agent --hardware fake)")
    digest = hashlib.sha256(layout.header().encode())
    for name in (*SOURCES, "double.h"):
        digest.update((HERE / name).read_bytes())
    place = directory / digest.hexdigest()[:16]
    if not (place / LIBRARY).exists():
        directory.mkdir(parents=True, exist_ok=True)
        _compile(found, directory, place)
    return place / LIBRARY


def _compile(found: str, directory: Path, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as work:
        (Path(work) / "layout.h").write_text(layout.header())
        flags = [
            "-std=c11",
            "-O1",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ]
        out = Path(work) / "out"
        out.mkdir()
        command = [found, *flags, f"-I{work}", f"-I{HERE}", f"-Wl,-soname,{LIBRARY}", "-o", str(out / LIBRARY)]
        done = subprocess.run(
            [*command, *(str(HERE / s) for s in SOURCES)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DoubleError(f"{found} failed:\n{done.stderr}")
        try:
            out.rename(place)
        except OSError:
            # Somebody else built the same at the same time.
            if not (place / LIBRARY).exists():
                raise


def model_keys() -> list[str]:
    return sorted(_models())


class Machine:
    """The GPUs in one state file. Every method may be called while clients use them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._state():
            """Looks whether the file is one of ours."""

    @classmethod
    def create(cls, path: Path, models: Sequence[str], seed: int = 0) -> "Machine":
        """GPUs of these models, such as `h100-80gb`; the same seed gives the same UUIDs. Raises DoubleError."""
        if not 1 <= len(models) <= layout.GPUS:
            raise DoubleError(f"{len(models)} GPUs: a machine has 1 to {layout.GPUS}")
        state = State(magic=layout.MAGIC, version=layout.VERSION, size=ctypes.sizeof(State), gpu_count=len(models))
        state.driver = b"580.95.05"
        for index, name in enumerate(models):
            _fill(state.gpus[index], _model(name), index, seed)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(bytes(state))
        temporary.replace(path)
        return cls(path)

    def environment(self, library: Path) -> dict[str, str]:
        """What makes a program see these GPUs."""
        return {"LD_LIBRARY_PATH": str(library.parent), "FALLOW_NVML_STATE": str(self.path)}

    def uuids(self) -> tuple[str, ...]:
        with self._state() as state:
            return tuple(state.gpus[i].uuid.decode() for i in range(state.gpu_count))

    def set(
        self,
        gpu: int,
        *,
        busy: float | None = None,
        memory_busy: float | None = None,
        memory_used_mib: int | None = None,
    ) -> None:
        """Activity as shares between 0 and 1."""
        with self._gpu(gpu) as raw:
            if busy is not None:
                raw.busy = round(100 * busy)
                raw.power_mw = 70_000 + round(600_000 * busy)
                raw.temperature = 30 + round(45 * busy)
            if memory_busy is not None:
                raw.memory_busy = round(100 * memory_busy)
            if memory_used_mib is not None:
                raw.memory_used = memory_used_mib * 2**20

    def add_process(
        self, gpu: int, pid: int, memory_mib: int = 100, gi: int | None = None, ci: int | None = None
    ) -> None:
        with self._gpu(gpu) as raw:
            vacant = next((p for p in raw.processes if not p.used), None)
            if vacant is None:
                raise DoubleError(f"a GPU holds at most {layout.PROCESSES} processes")
            vacant.pid, vacant.memory_bytes, vacant.used = pid, memory_mib * 2**20, 1
            vacant.gi, vacant.ci = (
                (NO_ID if gi is None else gi),
                (0 if ci is None and gi is not None else NO_ID if ci is None else ci),
            )

    def clear_processes(self, gpu: int) -> None:
        with self._gpu(gpu) as raw:
            for process in raw.processes:
                process.used = 0

    def lose(self, gpu: int, lost: bool = True) -> None:
        """The GPU falls off the bus, or comes back."""
        with self._gpu(gpu) as raw:
            raw.lost = int(lost)

    def xid(self, gpu: int, code: int, gi: int | None = None) -> None:
        with self._state() as state:
            state.event_sequence += 1
            event = state.events[state.event_sequence % layout.EVENTS]
            event.type, event.data, event.gpu = XID_EVENT, code, gpu
            event.gi = event.ci = NO_ID if gi is None else gi
            event.sequence = state.event_sequence

    def fault(
        self, call: str, *, fail: int | None = None, hang: float | None = None, kill: str | None = None, times: int = 1
    ) -> None:
        """The next `times` calls of this C name fail with a code, hang so many seconds, or kill their caller.

        `kill` is `before` or `after`: by SIGKILL, before or after the call has done its work.
        """
        if sum(x is not None for x in (fail, hang, kill)) != 1 or kill not in (None, "before", "after"):
            raise DoubleError("a fault is one of: fail=CODE, hang=SECONDS, kill='before' or 'after'")
        kind = layout.FAIL if fail is not None else layout.HANG if hang is not None else 0
        kind = kind or (layout.KILL_BEFORE if kill == "before" else layout.KILL_AFTER)
        with self._state() as state:
            vacant = next((f for f in state.faults if not f.times), None)
            if vacant is None:
                raise DoubleError(f"at most {layout.FAULTS} faults may be waiting: clear some")
            vacant.call, vacant.kind, vacant.code, vacant.seconds = call.encode(), kind, fail or 0, hang or 0.0
            vacant.times = times

    def clear_faults(self) -> None:
        with self._state() as state:
            for fault in state.faults:
                fault.times = 0

    def reboot(self) -> None:
        """Instances are lost on every GPU, and MIG mode where the driver holds it (Hopper and newer)."""
        with self._state() as state:
            for raw in list(state.gpus)[: state.gpu_count]:
                ctypes.memset(ctypes.addressof(raw.instances), 0, ctypes.sizeof(raw.instances))
                ctypes.memset(ctypes.addressof(raw.processes), 0, ctypes.sizeof(raw.processes))
                raw.mig = raw.mig_pending = raw.mig_pending if raw.needs_reset else 0

    def slices(self, gpu: int) -> dict[str, str]:
        """`1g.10gb@0` -> UUID of its MIG device, "" while it has no compute instance."""
        with self._gpu(gpu) as raw:
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
            with self._gpu(index) as raw:
                mode = "on" if raw.mig else "off"
                lost = "  LOST" if raw.lost else ""
                busy = f"{raw.busy}% busy, {raw.memory_used // 2**20} MiB used"
                lines.append(
                    f"{index}  {raw.uuid.decode()}  {raw.name.decode()}  {busy}  MIG {mode}, slices: {cut}{lost}"
                )
        return "\n".join(lines)

    @contextmanager
    def _gpu(self, index: int) -> Iterator[Gpu]:
        with self._state() as state:
            if not 0 <= index < state.gpu_count:
                raise DoubleError(f"no GPU {index}: this machine has {state.gpu_count}")
            yield state.gpus[index]

    @contextmanager
    def _state(self) -> Iterator[State]:
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


def _models() -> dict[str, dict[str, Any]]:
    raw = json.loads((HERE.parent / "gpu" / "profiles.json").read_text("utf-8"))
    return {m["key"]: m for m in raw["models"]}


def _model(name: str) -> dict[str, Any]:
    key = name.lower()
    models = _models()
    key = ALIASES.get(key, key)
    if key not in models:
        raise DoubleError(f"no GPU model {name!r}; known are {', '.join(sorted(models))}")
    return models[key]


def _fill(gpu: Gpu, model: dict[str, Any], index: int, seed: int) -> None:
    major, minor = model["cuda_compute_capability"].split(".")
    gpu.uuid = f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}')}".encode()
    gpu.name = model["product_name"].encode()
    gpu.serial = f"{1650000000000 + 1000 * seed + index}".encode()
    gpu.minor, gpu.bus = index, 0x18 + 16 * index
    gpu.pci_device_id = int(model["pci_device_ids"][0], 16)
    gpu.architecture = ARCHITECTURES.get(model["architecture"], NO_ID)
    gpu.cc_major, gpu.cc_minor = int(major), int(minor)
    gpu.needs_reset = int(model["mig_mode_change_needs_gpu_reset"])
    gpu.axis, gpu.compute_total = model["placement_axis_length"], model["compute_slices_total"]
    gpu.sm_total = model["sm_total_full_gpu"]
    gpu.memory_bytes = model["memory_total_mib"] * 2**20
    gpu.power_mw, gpu.power_limit_mw, gpu.temperature, gpu.persistence = 70_000, 700_000, 30, 1
    gpu.profile_count = len(model["profiles"])
    for number, profile in enumerate(model["profiles"]):
        _fill_profile(gpu.profiles[number], profile)


def _fill_profile(target: layout.Profile, raw: dict[str, Any]) -> None:
    target.name = raw["name"].encode()
    target.id, target.index = raw["profile_id"], raw["nvml_index"]
    target.compute, target.limit = raw["compute_slices"], raw["max_instances"]
    target.memory_mib, target.sm = raw["memory_mib"], raw["sm_count"]
    target.copy_engines, target.decoders = raw["copy_engines"], raw["decoders"]
    target.encoders, target.jpeg, target.ofa = raw["encoders"], raw["jpeg"], raw["ofa"]
    target.media = MEDIA[raw["media"]]
    starts = sorted(p["start"] for p in raw["placements"])
    target.size, target.start_count = raw["placements"][0]["size"], len(starts)
    for number, start in enumerate(starts):
        target.starts[number] = start
    target.ci_count = len(raw["compute_instances"])
    for number, ci in enumerate(raw["compute_instances"]):
        made = target.ci[number]
        made.id, made.index, made.slices = ci["ci_profile_id"], ci["nvml_index"], ci["compute_slices"]
        made.sm, made.limit = ci["sm_count"] or 0, ci["max_instances"]
