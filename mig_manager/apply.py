"""The order in which the hardware is changed, and the thin shell that does it through the hardware door.

Compare first, act, verify after: doing it twice is harmless. Slices that stay are never named by any act.
"""

from dataclasses import dataclass

from gpu.hardware import FaultKind, GpuFault, Hardware, SeenGpu
from gpu.layout import Slice
from gpu.node import Mode
from gpu.recut import Shape


@dataclass(frozen=True, slots=True)
class Join:
    piece: Slice


@dataclass(frozen=True, slots=True)
class SetMig:
    on: bool


@dataclass(frozen=True, slots=True)
class Cut:
    piece: Slice


HardwareAct = Join | SetMig | Cut


def order(seen: SeenGpu, target: Shape) -> tuple[HardwareAct, ...]:
    """Pure: join what must go, switch MIG mode if needed, then cut at named starts, large ones first.

    A half-made slice that the target has is cut again, which completes it; one that it lacks is joined.
    """
    want = frozenset(target.layout) if target.mode is Mode.SLICED else frozenset()
    there = frozenset(s.slice for s in seen.slices if s.uuid)
    goes = sorted((s.slice for s in seen.slices if s.slice not in want), key=lambda s: s.start)
    comes = sorted(want - there, key=lambda s: (-s.profile.size, s.start))
    on = target.mode is Mode.SLICED
    return (
        *(Join(piece) for piece in goes),
        *((SetMig(on),) if seen.mig is not on else ()),
        *(Cut(piece) for piece in comes),
    )


def towards(hardware: Hardware, gpu: str, target: Shape) -> None:
    """One pass of changes. Raises GpuFault, and then the next pass goes on from what is there."""
    seen = _read(hardware, gpu)
    for act in order(seen, target):
        _unused(hardware, gpu, seen, act)
        _do(hardware, gpu, act)
    after = _read(hardware, gpu)
    if left := order(after, target):
        raise GpuFault(FaultKind.OTHER, f"looking once more after the change: {left[0]} is still to do", gpu)


def _read(hardware: Hardware, gpu: str) -> SeenGpu:
    seen = hardware.read(gpu)
    if seen.fault:
        raise GpuFault(FaultKind.LOST, f"reading ({seen.fault})", gpu)
    return seen


def _unused(hardware: Hardware, gpu: str, seen: SeenGpu, act: HardwareAct) -> None:
    """A last look at the driver's own list of processes before anything is taken away. Raises GpuFault IN_USE."""
    if isinstance(act, Cut):
        return
    going = {s.gi for s in seen.slices if isinstance(act, SetMig) or s.slice == act.piece}
    for process in hardware.processes(gpu):
        if process.gi in going or (process.gi is None and isinstance(act, SetMig)):
            raise GpuFault(FaultKind.IN_USE, f"process {process.pid} is on what {act} takes away", gpu)


def _do(hardware: Hardware, gpu: str, act: HardwareAct) -> None:
    match act:
        case Join(piece):
            hardware.join(gpu, piece)
        case SetMig(on):
            hardware.set_mig(gpu, on)
        case Cut(piece):
            hardware.cut(gpu, piece)
