"""The double of the hardware door in Python: the same rules and faults as a driver, told to fail on request.

Its GPUs live in one file that several processes share (`fake_state.py`). For tests, and for the demonstration where no
C compiler builds the NVML double.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu import catalogue, fake_facts
from gpu.fake_state import Raw, StateFile, save
from gpu.hardware import (
    Checkup,
    Driver,
    Engines,
    FaultKind,
    GpuFault,
    GpuProcess,
    HardwareEvent,
    Product,
    Reading,
    SeenGpu,
    SeenSlice,
    Topology,
)
from gpu.layout import Slice, canonical, openings, parse_slice
from gpu.profiles import GpuModel

_NAMESPACE = uuid.UUID("6f0d2f3a-6d5e-5c8e-9d0a-5b1f6a3f0c11")


def create(path: Path, keys: Iterable[str], seed: int = 0) -> None:
    """A new machine with GPUs of these models (keys of the catalogue). The same seed gives the same UUIDs."""
    gpus = {}
    for index, key in enumerate(keys):
        model = catalogue.model(key)
        gpus[f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}/{key}')}"] = {
            "index": index,
            "model": model.key,
            "mig": False,
            "pending": False,
            "slices": [],
            "busy": 0.0,
            "memory_busy": 0.0,
            "memory_used_mib": 0,
            "processes": [],
            "lost": False,
            **fake_facts.fresh(),
        }
    save(path, {"made": 0, "gpus": gpus, "events": [], "faults": []})


class FakeHardware:
    """Implements gpu.hardware.Hardware over the state file. Raises ValueError when there is none."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(f"{path}: no such state file; make one with `gpu.fake.create`")
        self._file = StateFile(path)
        self._closed = False
        with self._file.call() as state:
            self._heard = len(state["events"])  # what happened before is no news

    # What a driver does.

    def gpus(self) -> tuple[SeenGpu, ...]:
        with self._file.call("gpus") as state:
            return tuple(sorted((_seen(u, g) for u, g in state["gpus"].items()), key=lambda g: g.index))

    def read(self, gpu: str) -> SeenGpu:
        with self._file.call("read") as state:
            return _seen(gpu, self._gpu(state, gpu, "read", lost=True))

    def set_mig(self, gpu: str, on: bool) -> None:
        with self._file.call("set_mig") as state:
            raw = self._gpu(state, gpu, "set_mig")
            if raw["mig"] == on:
                raw["pending"] = on
                return
            if not _model(raw).can_be_cut:
                raise GpuFault(FaultKind.NOT_SUPPORTED, "set_mig", gpu)
            refused = bool(raw["processes"] or raw["slices"])
            if not refused:
                raw["mig"] = on
            if not raw["slices"] and (_model(raw).needs_reset or not refused):
                raw["pending"] = on  # on Ampere the change then waits for the next reset
        if refused:
            raise GpuFault(FaultKind.IN_USE, "set_mig", gpu)

    def cut(self, gpu: str, piece: Slice) -> SeenSlice:
        with self._file.call("cut") as state:
            raw = self._gpu(state, gpu, "cut")
            found = next((s for s in raw["slices"] if s["slice"] == str(piece)), None)
            if found is None:
                standing = _layout(raw)
                if not raw["mig"] or piece.profile not in _model(raw).profiles:
                    raise GpuFault(FaultKind.NOT_SUPPORTED, "cut", gpu)
                if piece not in openings(standing, piece.profile):
                    raise GpuFault(FaultKind.NO_ROOM, "cut", gpu)
                found = {"slice": str(piece), "gi": _free_gi(raw, piece), "ci": None, "uuid": None}
                raw["slices"].append(found)
            if found["uuid"] is None:
                state["made"] += 1
                made = uuid.uuid5(_NAMESPACE, f"{gpu}/{piece}/{state['made']}")
                found.update(ci=0, uuid=f"MIG-{made}")
            return _seen_slice(found, _model(raw))

    def join(self, gpu: str, piece: Slice) -> None:
        with self._file.call("join") as state:
            raw = self._gpu(state, gpu, "join")
            found = next((s for s in raw["slices"] if s["slice"] == str(piece)), None)
            if found is None:
                return
            if any(p["gi"] == found["gi"] for p in raw["processes"]):
                raise GpuFault(FaultKind.IN_USE, "join", gpu)
            raw["slices"].remove(found)

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        with self._file.call("processes") as state:
            raw = self._gpu(state, gpu, "processes")
            return tuple(GpuProcess(p["pid"], p["memory_mib"], p["gi"]) for p in raw["processes"])

    def activity(self, gpu: str) -> Reading:
        with self._file.call("activity") as state:
            raw = self._gpu(state, gpu, "activity")
            if raw["mig"]:
                raise GpuFault(FaultKind.NOT_SUPPORTED, "activity", gpu)
            return Reading(raw["busy"], raw["memory_busy"], raw["memory_used_mib"], "double")

    def driver(self) -> Driver:
        with self._file.call("driver") as state:
            return Driver(state.get("driver", fake_facts.DRIVER), fake_facts.CUDA)

    def product(self, gpu: str) -> Product:
        with self._file.call("product") as state:
            return fake_facts.product(self._gpu(state, gpu, "product"))

    def engines(self, gpu: str) -> Mapping[int, Engines]:
        with self._file.call("engines") as state:
            return fake_facts.engines(self._gpu(state, gpu, "engines"))

    def checkup(self, gpu: str) -> Checkup:
        with self._file.call("checkup") as state:
            return fake_facts.checkup(self._gpu(state, gpu, "checkup"))

    def topology(self) -> Topology:
        with self._file.call("topology") as state:
            return fake_facts.topology(state["gpus"])

    def set_exclusive(self, gpu: str, on: bool) -> None:
        with self._file.call("set_exclusive") as state:
            self._gpu(state, gpu, "set_exclusive")["exclusive"] = on

    def limit_memory(self, gpu: str, cgroup: str, limit_mib: int) -> None:
        with self._file.call("limit_memory") as state:
            raw = self._gpu(state, gpu, "limit_memory")
            if raw["mig"] or not raw["limits_memory"]:
                raise GpuFault(FaultKind.NOT_SUPPORTED, "limit_memory", gpu)
            raw["limits"][cgroup] = limit_mib

    def events(self, timeout_seconds: float) -> tuple[HardwareEvent, ...]:
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._file.call("events") as state:
                # Each process reads on from where it was; the file keeps the history.
                fresh = state["events"][self._heard :]
                self._heard = len(state["events"])
            if fresh or self._closed or time.monotonic() >= deadline:
                return tuple(HardwareEvent(e["gpu"], e["code"], e["gi"]) for e in fresh)
            time.sleep(0.05)

    def close(self) -> None:
        """Ends a wait for events that is going on."""
        self._closed = True

    # What a test does to it.

    def set_busy(self, gpu: str, busy: float, memory_used_mib: int = 0, memory_busy: float = 0.0) -> None:
        values = {"busy": busy, "memory_busy": memory_busy, "memory_used_mib": memory_used_mib}
        self._edit(gpu, lambda raw: raw.update(values))

    def add_process(self, gpu: str, pid: int, gi: int | None = None, memory_mib: int = 100) -> None:
        entry = {"pid": pid, "memory_mib": memory_mib, "gi": gi}
        self._edit(gpu, lambda raw: raw["processes"].append(entry))

    def clear_processes(self, gpu: str) -> None:
        self._edit(gpu, lambda raw: raw.update(processes=[]))

    def wear(self, gpu: str, **signs: Any) -> None:
        """Set any of the signs of `fake_facts.fresh`."""
        self._edit(gpu, lambda raw: raw.update(signs))

    def limits(self, gpu: str) -> dict[str, int]:
        """The memory limits that were set, in MiB, by cgroup."""
        with self._file.call() as state:
            return dict(state["gpus"][gpu]["limits"])

    def lose(self, gpu: str, lost: bool = True) -> None:
        self._edit(gpu, lambda raw: raw.update(lost=lost))

    def halve(self, gpu: str, piece: Slice) -> None:
        """Leave the slice without its compute instance, as a creation that was killed half way does."""

        def edit(raw: Raw) -> None:
            next(s for s in raw["slices"] if s["slice"] == str(piece)).update(ci=None, uuid=None)

        self._edit(gpu, edit)

    def xid(self, gpu: str, code: int, gi: int | None = None) -> None:
        with self._file.call() as state:
            state["events"].append({"gpu": gpu, "code": code, "gi": gi})

    def reboot(self) -> None:
        """Slices are lost on every GPU, MIG mode on those that keep it in the driver (Hopper and newer)."""
        with self._file.call() as state:
            for raw in state["gpus"].values():
                raw["slices"], raw["processes"] = [], []
                # A reset finishes pending remappings and starts volatile counters anew; a failed remapping stays.
                raw.update(exclusive=False, recovery="NONE", remap_pending=False, uncorrectable=0, limits={})
                raw["mig"] = raw["pending"] = raw["pending"] and _model(raw).needs_reset

    def fail(self, call: str, kind: FaultKind, times: int = 1) -> None:
        """The next `times` calls of this name raise that fault before doing anything."""
        self._fault({"call": call, "kind": kind.name, "times": times})

    def hang(self, call: str, seconds: float) -> None:
        self._fault({"call": call, "hang": seconds, "times": 1})

    def kill(self, call: str, when: str) -> None:
        """The next call of this name kills its process by SIGKILL, `before` or `after` it took effect."""
        self._fault({"call": call, "kill": when, "times": 1})

    def _fault(self, fault: Raw) -> None:
        with self._file.call() as state:
            state["faults"].append(fault)

    def _edit(self, gpu: str, edit: Callable[[Raw], None]) -> None:
        with self._file.call() as state:
            edit(state["gpus"][gpu])

    def _gpu(self, state: Raw, gpu: str, call: str, *, lost: bool = False) -> Raw:
        raw: Raw | None = state["gpus"].get(gpu)
        if raw is None:
            raise GpuFault(FaultKind.NOT_FOUND, call, gpu)
        if raw["lost"] and not lost:
            raise GpuFault(FaultKind.LOST, call, gpu)
        return raw


def _model(raw: Raw) -> GpuModel:
    return catalogue.model(raw["model"])


def _layout(raw: Raw) -> tuple[Slice, ...]:
    return canonical(parse_slice(s["slice"], _model(raw)) for s in raw["slices"])


def _free_gi(raw: Raw, piece: Slice) -> int:
    """The lowest free id of the span class, as drivers number: full 0, halves 1-2, quarters 3-6, smaller 7-14."""
    taken = {s["gi"] for s in raw["slices"]}
    classes = {1: range(1), 2: range(1, 3), 4: range(3, 7)}
    part, rest = divmod(_model(raw).axis, piece.profile.size)
    return next(n for n in classes.get(0 if rest else part, range(7, 15)) if n not in taken)


def _seen_slice(raw: Raw, model: GpuModel) -> SeenSlice:
    return SeenSlice(parse_slice(raw["slice"], model), raw["gi"], raw["ci"], raw["uuid"])


def _seen(gpu: str, raw: Raw) -> SeenGpu:
    model = _model(raw)
    lost = raw["lost"]
    return SeenGpu(
        uuid=gpu,
        index=raw["index"],
        minor=raw["index"],
        bus_id=f"00000000:{raw['index'] + 1:02X}:00.0",
        name=model.key,
        model=model,
        mig=raw["mig"] and not lost,
        slices=() if lost else tuple(_seen_slice(s, model) for s in raw["slices"]),
        fault=FaultKind.LOST.value if lost else "",
    )
