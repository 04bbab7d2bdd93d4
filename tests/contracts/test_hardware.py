"""One suite for both hardware doors: the double in Python, and the real door over the NVML double in C."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpu import catalogue, fake
from gpu.hardware import Ancestor, Checkup, FaultKind, GpuFault, Hardware, Recovery
from gpu.layout import Slice, parse_slice
from nvml_double import wear
from nvml_double.control import Machine
from nvml_double.layout import GpuInstance
from tests.machine import library

KEYS = ("h100-80gb", "a100-40gb", "rtxpro6000-96gb")
MODELS = [catalogue.model(key) for key in KEYS]
BUSY = 4711
"""The pid of a pretend process."""


class Rig(Protocol):
    """A door, and what a test does to the GPUs behind it, by their index."""

    hardware: Hardware

    def process(self, gpu: int, gi: int | None) -> None: ...
    def clear(self, gpu: int) -> None: ...
    def lose(self, gpu: int, lost: bool) -> None: ...
    def busy(self, gpu: int, busy: float, memory_busy: float, used_mib: int) -> None: ...
    def xid(self, gpu: int, code: int, gi: int | None) -> None: ...
    def halve(self, gpu: int, piece: Slice) -> None: ...
    def kill_at_cut(self, when: str) -> None: ...
    def reboot(self) -> None: ...
    def wear(self, gpu: int, recovery: Recovery, remap: str, uncorrectable: int) -> None: ...
    def limits_memory(self, gpu: int) -> None: ...


class PythonRig:
    def __init__(self, home: Path) -> None:
        fake.create(home / "gpus.json", KEYS)
        self.hardware = self._fake = fake.FakeHardware(home / "gpus.json")
        self._uuids = [g.uuid for g in self._fake.gpus()]

    def process(self, gpu: int, gi: int | None) -> None:
        self._fake.add_process(self._uuids[gpu], BUSY, gi, 100)

    def clear(self, gpu: int) -> None:
        self._fake.clear_processes(self._uuids[gpu])

    def lose(self, gpu: int, lost: bool) -> None:
        self._fake.lose(self._uuids[gpu], lost)

    def busy(self, gpu: int, busy: float, memory_busy: float, used_mib: int) -> None:
        self._fake.set_busy(self._uuids[gpu], busy, used_mib, memory_busy)

    def xid(self, gpu: int, code: int, gi: int | None) -> None:
        self._fake.xid(self._uuids[gpu], code, gi)

    def halve(self, gpu: int, piece: Slice) -> None:
        self._fake.halve(self._uuids[gpu], piece)

    def kill_at_cut(self, when: str) -> None:
        self._fake.kill("cut", when)

    def reboot(self) -> None:
        self._fake.reboot()

    def wear(self, gpu: int, recovery: Recovery, remap: str, uncorrectable: int) -> None:
        rows = {"remap_pending": remap == "pending", "remap_failed": remap == "failed"}
        self._fake.wear(self._uuids[gpu], recovery=recovery.name, uncorrectable=uncorrectable, **rows)

    def limits_memory(self, gpu: int) -> None:
        self._fake.wear(self._uuids[gpu], limits_memory=True)


class NvmlRig:
    def __init__(self, home: Path) -> None:
        from gpu.nvml import NvmlHardware

        ctypes.CDLL(str(library()))
        self._machine = Machine.create(home / "gpus.state", KEYS)
        # Stays set: a forked child opens the state for itself.
        os.environ["FALLOW_NVML_STATE"] = str(self._machine.path)
        self.hardware = NvmlHardware()

    def process(self, gpu: int, gi: int | None) -> None:
        self._machine.add_process(gpu, BUSY, 100, gi)

    def clear(self, gpu: int) -> None:
        self._machine.clear_processes(gpu)

    def lose(self, gpu: int, lost: bool) -> None:
        self._machine.lose(gpu, lost)

    def busy(self, gpu: int, busy: float, memory_busy: float, used_mib: int) -> None:
        self._machine.set(gpu, busy=busy, memory_busy=memory_busy, memory_used_mib=used_mib)

    def xid(self, gpu: int, code: int, gi: int | None) -> None:
        self._machine.xid(gpu, code, gi)

    def halve(self, gpu: int, piece: Slice) -> None:
        with self._machine.of_gpu(gpu) as raw:
            instances: list[GpuInstance] = [g for g in raw.instances if g.used]
            half = next(g for g in instances if raw.profiles[g.profile].name.decode() == piece.profile.name)
            half.compute[0].used = 0

    def kill_at_cut(self, when: str) -> None:
        # All is done when the door looks at what it has made.
        name = "nvmlDeviceCreateGpuInstanceWithPlacement" if when == "before" else "nvmlGpuInstanceGetInfo"
        self._machine.fault(name, kill="before")

    def reboot(self) -> None:
        self._machine.reboot()

    def wear(self, gpu: int, recovery: Recovery, remap: str, uncorrectable: int) -> None:
        rows = {"remap_pending": remap == "pending", "remap_failed": remap == "failed"}
        number = list(Recovery).index(recovery)
        wear.wear(self._machine, gpu, recovery=number, uncorrectable=uncorrectable, **rows)

    def limits_memory(self, gpu: int) -> None:
        wear.can(self._machine, gpu, limit_memory=True)


RIGS: dict[str, Callable[[Path], Rig]] = {"python": PythonRig, "nvml": NvmlRig}


@contextmanager
def opened(name: str, home: Path) -> Iterator[Rig]:
    rig = RIGS[name](home)
    try:
        yield rig
    finally:
        rig.hardware.close()
        os.environ.pop("FALLOW_NVML_STATE", None)


@pytest.fixture(params=sorted(RIGS))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with opened(request.param, tmp_path) as made:
        yield made


def uuid(rig: Rig, index: int = 0) -> str:
    return rig.hardware.gpus()[index].uuid


def piece(text: str, index: int = 0) -> Slice:
    return parse_slice(text, MODELS[index])


def kind(act: Callable[[], object]) -> FaultKind | None:
    try:
        act()
    except GpuFault as fault:
        return fault.kind
    return None


def test_it_shows_every_gpu_with_the_tables_of_its_model(rig: Rig) -> None:
    seen = rig.hardware.gpus()
    assert [g.index for g in seen] == list(range(len(KEYS)))
    for gpu, model in zip(seen, MODELS, strict=True):
        assert (gpu.model.axis, gpu.model.memory_mib) == (model.axis, model.memory_mib)
        assert gpu.model.needs_reset == model.needs_reset
        assert set(gpu.model.profiles) == set(model.profiles)
        assert (gpu.mig, gpu.slices, gpu.fault) == (False, (), "")


def test_cutting_and_joining_may_be_repeated(rig: Rig) -> None:
    gpu, one = uuid(rig), piece("1g.10gb@3")
    rig.hardware.set_mig(gpu, True)
    rig.hardware.set_mig(gpu, True)
    first = rig.hardware.cut(gpu, one)
    assert rig.hardware.cut(gpu, one) == first
    assert rig.hardware.read(gpu).slices == (first,)
    rig.hardware.join(gpu, one)
    rig.hardware.join(gpu, one)
    assert rig.hardware.read(gpu).layout == ()
    assert rig.hardware.cut(gpu, one).uuid != first.uuid  # made anew, another device


@pytest.mark.parametrize(
    ("index", "pieces", "ids"),
    [
        (0, ["3g.40gb@4", "3g.40gb@0"], [1, 2]),
        (0, ["4g.40gb@0", "2g.20gb@4", "1g.10gb@6"], [1, 3, 7]),
        (0, ["7g.80gb@0"], [0]),
        (0, ["1g.20gb@0", "1g.10gb@2", "1g.10gb@3"], [3, 7, 8]),
        (2, ["2g.48gb@0", "1g.24gb@6", "1g.24gb@9"], [1, 3, 4]),
    ],
)
def test_instance_ids_tell_the_span_class(rig: Rig, index: int, pieces: list[str], ids: list[int]) -> None:
    # As seen on real GPUs: full 0, halves 1-2, quarters 3-6, eighths 7-14. Device node numbers follow from them.
    gpu = uuid(rig, index)
    rig.hardware.set_mig(gpu, True)
    assert [rig.hardware.cut(gpu, piece(text, index)).gi for text in pieces] == ids


@pytest.mark.parametrize(("index", "keeps"), [(0, False), (1, True)])
def test_a_reboot_takes_slices_and_on_hopper_the_mode(rig: Rig, index: int, keeps: bool) -> None:
    gpu = uuid(rig, index)
    rig.hardware.set_mig(gpu, True)
    rig.hardware.cut(gpu, Slice(MODELS[index].profiles[0], 0))
    rig.reboot()
    seen = rig.hardware.read(gpu)
    assert (seen.mig, seen.slices) == (keeps, ())


def test_a_half_made_slice_is_seen_and_completed(rig: Rig) -> None:
    gpu, one = uuid(rig), piece("3g.40gb@4")
    rig.hardware.set_mig(gpu, True)
    made = rig.hardware.cut(gpu, one)
    rig.halve(0, one)
    seen = rig.hardware.read(gpu)
    assert (seen.layout, seen.whole_slices) == ((one,), False)
    again = rig.hardware.cut(gpu, one)
    assert again.gi == made.gi
    assert rig.hardware.read(gpu).whole_slices
    rig.halve(0, one)
    rig.hardware.join(gpu, one)
    assert rig.hardware.read(gpu).layout == ()


def test_a_slice_of_another_model_is_neither_cut_nor_joined(rig: Rig) -> None:
    # Both have profile id 19; taken by its id alone, another size would be cut, and a slice in use destroyed.
    gpu, own, foreign = uuid(rig), piece("1g.10gb@0"), piece("1g.5gb@0", 1)
    rig.hardware.set_mig(gpu, True)
    assert kind(lambda: rig.hardware.cut(gpu, foreign)) is FaultKind.NOT_SUPPORTED
    rig.hardware.cut(gpu, own)
    rig.hardware.join(gpu, foreign)
    assert rig.hardware.read(gpu).layout == (own,)


def test_refusals_have_the_same_kinds(rig: Rig) -> None:
    gpu, hardware = uuid(rig), rig.hardware
    assert kind(lambda: hardware.cut(gpu, piece("1g.10gb@0"))) is FaultKind.NOT_SUPPORTED  # MIG is off
    assert kind(lambda: hardware.read("GPU-none")) is FaultKind.NOT_FOUND
    assert kind(lambda: hardware.processes("GPU-none")) is FaultKind.NOT_FOUND
    rig.process(0, None)
    assert kind(lambda: hardware.set_mig(gpu, True)) is FaultKind.IN_USE
    rig.clear(0)
    hardware.set_mig(gpu, True)
    made = hardware.cut(gpu, piece("3g.40gb@0"))
    assert kind(lambda: hardware.cut(gpu, piece("2g.20gb@2"))) is FaultKind.NO_ROOM
    assert kind(lambda: hardware.set_mig(gpu, False)) is FaultKind.IN_USE
    assert kind(lambda: hardware.activity(gpu)) is FaultKind.NOT_SUPPORTED
    rig.process(0, made.gi)
    assert kind(lambda: hardware.join(gpu, made.slice)) is FaultKind.IN_USE
    assert hardware.read(gpu).slices == (made,)
    assert [(p.pid, p.gi, p.memory_mib) for p in hardware.processes(gpu)] == [(BUSY, made.gi, 100)]


def test_activity_is_what_was_set(rig: Rig) -> None:
    rig.busy(1, 0.83, 0.4, 20000)
    reading = rig.hardware.activity(uuid(rig, 1))
    assert (reading.busy, reading.memory_busy, reading.memory_used_mib) == (0.83, 0.4, 20000)


def test_a_lost_gpu_is_marked_and_hides_no_other(rig: Rig) -> None:
    gpu, other = uuid(rig, 0), uuid(rig, 1)
    rig.lose(0, True)
    first, *rest = rig.hardware.gpus()
    assert (first.uuid, first.fault) == (gpu, FaultKind.LOST.value)
    assert [g.fault for g in rest] == ["", ""]
    acts = (rig.hardware.processes, rig.hardware.activity, lambda g: rig.hardware.set_mig(g, True))
    assert [kind(lambda a=a: a(gpu)) for a in acts] == [FaultKind.LOST] * 3
    rig.hardware.set_mig(other, True)
    rig.lose(0, False)
    assert rig.hardware.read(gpu).fault == ""


def test_events_tell_what_happened_since_listening(rig: Rig) -> None:
    gpu = uuid(rig, 1)
    rig.xid(1, 31, None)  # before anybody listened
    heard = rig.hardware.events(0.0)
    if not isinstance(rig, PythonRig):  # the double in Python listens from the moment it is opened
        assert heard == ()
    assert rig.hardware.events(0.0) == ()
    rig.xid(1, 79, None)
    (event,) = rig.hardware.events(5.0)
    assert (event.gpu, event.code, event.gi) == (gpu, 79, None)


def test_a_lost_gpu_silences_no_other(rig: Rig) -> None:
    rig.hardware.events(0.0)
    rig.lose(0, True)
    rig.hardware.events(0.0)
    rig.xid(1, 79, None)
    assert [e.code for e in rig.hardware.events(5.0)] == [79]
    rig.lose(0, False)
    rig.hardware.gpus()  # the next look finds it again
    rig.hardware.events(0.0)
    rig.xid(0, 94, None)
    assert [e.code for e in rig.hardware.events(5.0)] == [94]


def test_a_forked_child_uses_it_too(rig: Rig) -> None:
    gpu = uuid(rig)
    child = os.fork()
    if child == 0:
        try:
            rig.hardware.set_mig(gpu, True)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rig.hardware.read(gpu).mig


@pytest.mark.parametrize(("when", "there"), [("before", False), ("after", True)])
def test_death_around_a_cut_leaves_a_layout_that_can_go_on(rig: Rig, when: str, there: bool) -> None:
    gpu, one = uuid(rig), piece("1g.10gb@0")
    rig.hardware.set_mig(gpu, True)
    rig.kill_at_cut(when)
    child = os.fork()
    if child == 0:
        try:
            rig.hardware.cut(gpu, one)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert rig.hardware.read(gpu).layout == ((one,) if there else ())
    assert rig.hardware.cut(gpu, one).uuid


def test_a_healthy_gpu_shows_no_fault_while_it_is_recut(rig: Rig) -> None:
    gpu, one = uuid(rig), piece("1g.10gb@0")
    rig.hardware.set_mig(gpu, True)
    faults: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            if fault := rig.hardware.read(gpu).fault:
                faults.append(fault)

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(30):
        rig.hardware.cut(gpu, one)
        rig.hardware.join(gpu, one)
    done.set()
    looking.join()
    assert faults == []


def test_closing_waits_for_the_thread_that_hears(rig: Rig) -> None:
    started, ended = threading.Event(), threading.Event()

    def hear() -> None:
        started.set()
        if rig.hardware.events(60.0) == rig.hardware.events(60.0) == ():
            ended.set()

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    started.wait()
    rig.hardware.close()
    assert ended.wait(5.0)


ACTS = (*["cut"] * 8, *["join"] * 3, "join any", "process", "clear", "mig", "unmig", "lose", "restore", "reboot")
"""Weighted: what is refused most of the time says little, so that slices stand most of the time."""
acts = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 999)), min_size=8, max_size=25)


def perform(rig: Rig, act: str, index: int, number: int) -> FaultKind | None:
    gpu = rig.hardware.gpus()[index]
    pieces = [Slice(p, start) for p in MODELS[index].profiles for start in p.starts]
    chosen = pieces[number % len(pieces)]
    standing = sorted(gpu.slices, key=lambda s: s.slice.start)
    there = standing[number % len(standing)] if standing else None
    return kind(
        {
            "mig": lambda: rig.hardware.set_mig(gpu.uuid, True),
            "unmig": lambda: rig.hardware.set_mig(gpu.uuid, False),
            "cut": lambda: rig.hardware.cut(gpu.uuid, chosen),
            "join": lambda: rig.hardware.join(gpu.uuid, there.slice) if there else None,
            "join any": lambda: rig.hardware.join(gpu.uuid, chosen),
            "process": lambda: rig.process(index, there.gi if there else None) if there or not gpu.mig else None,
            "clear": lambda: rig.clear(index),
            "lose": lambda: rig.lose(index, True),
            "restore": lambda: rig.lose(index, False),
            "reboot": rig.reboot,
        }[act]
    )


def picture(rig: Rig) -> list[tuple[object, ...]]:
    def pieces(gpu: object) -> list[tuple[str, int, bool]]:
        return sorted((str(s.slice), s.gi, bool(s.uuid)) for s in gpu.slices)  # type: ignore[attr-defined]

    return [(g.mig, g.layout, g.fault, pieces(g)) for g in rig.hardware.gpus()]


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(index=st.integers(0, len(KEYS) - 1), acts=acts)
def test_the_same_acts_have_the_same_outcome_on_both(
    index: int, acts: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        opened("python", tmp_path_factory.mktemp("python")) as one,
        opened("nvml", tmp_path_factory.mktemp("nvml")) as other,
    ):
        for number, (act, choice) in enumerate([("mig", 0), *acts]):
            assert perform(one, act, index, choice) == perform(other, act, index, choice), (number, act)
            assert picture(one) == picture(other), (number, act)


def test_the_driver_and_its_products_are_told(rig: Rig) -> None:
    driver = rig.hardware.driver()
    assert (driver.version, driver.cuda[0]) == ("580.95.05", 13)
    products = [rig.hardware.product(g.uuid) for g in rig.hardware.gpus()]
    assert [p.architecture for p in products] == ["hopper", "ampere", "blackwell"]
    assert [p.compute for p in products] == [(9, 0), (8, 0), (12, 0)]
    assert [p.memory_mib for p in products] == [m.memory_mib for m in MODELS]
    assert all(p.mig_capable and not p.fabric for p in products)


def test_the_engines_of_a_slice_are_those_of_its_profile(rig: Rig) -> None:
    gpu = uuid(rig)
    assert rig.hardware.engines(gpu) == {}
    rig.hardware.set_mig(gpu, True)
    made = rig.hardware.cut(gpu, piece("3g.40gb@4"))
    found = rig.hardware.engines(gpu)
    assert found.keys() == {made.gi}
    assert (found[made.gi].gi_slices, found[made.gi].multiprocessors) == (3, 60)
    assert found[made.gi].memory_mib == piece("3g.40gb@4").profile.memory_mib


def test_a_gpu_tells_how_worn_it_is(rig: Rig) -> None:
    gpu = uuid(rig)
    assert rig.hardware.checkup(gpu) == Checkup(False, False, 0, Recovery.NONE)
    rig.wear(0, Recovery.GPU_RESET, "pending", 3)
    assert rig.hardware.checkup(gpu) == Checkup(True, False, 3, Recovery.GPU_RESET)
    rig.wear(0, Recovery.DRAIN_AND_RESET, "failed", 4)
    assert rig.hardware.checkup(gpu) == Checkup(False, True, 4, Recovery.DRAIN_AND_RESET)
    rig.reboot()
    assert rig.hardware.checkup(gpu) == Checkup(False, True, 0, Recovery.NONE)


def test_links_are_told_of_every_pair_that_can_be_asked(rig: Rig) -> None:
    gpus = [g.uuid for g in rig.hardware.gpus()]
    topology = rig.hardware.topology()
    near = topology.between(gpus[0], gpus[1])
    assert near is not None
    assert (near.ancestor, near.nvlinks, near.p2p) == (Ancestor.SWITCH, 12, True)
    far = topology.between(gpus[0], gpus[2])
    assert far is not None
    assert (far.ancestor, far.nvlinks) == (Ancestor.NUMA_NODE, 0)
    assert topology.between(gpus[2], gpus[0]) == far
    rig.lose(1, True)
    assert set(rig.hardware.topology().links) == {tuple(sorted((gpus[0], gpus[2])))}


def test_mig_mode_switches_links_and_peer_access_off(rig: Rig) -> None:
    gpus = [g.uuid for g in rig.hardware.gpus()]
    rig.hardware.set_mig(gpus[0], True)
    link = rig.hardware.topology().between(gpus[0], gpus[1])
    assert link is not None
    assert (link.nvlinks, link.p2p) == (0, False)


def test_compute_mode_may_be_set_twice(rig: Rig) -> None:
    for on in (True, True, False, False):
        rig.hardware.set_exclusive(uuid(rig), on)


def test_memory_is_limited_where_the_driver_can_and_never_in_mig_mode(rig: Rig) -> None:
    gpu = uuid(rig)
    assert kind(lambda: rig.hardware.limit_memory(gpu, "/sys/fs/cgroup/x", 100)) is FaultKind.NOT_SUPPORTED
    rig.limits_memory(0)
    rig.hardware.limit_memory(gpu, "/sys/fs/cgroup/x", 100)
    rig.hardware.set_mig(gpu, True)
    assert kind(lambda: rig.hardware.limit_memory(gpu, "/sys/fs/cgroup/x", 100)) is FaultKind.NOT_SUPPORTED


@pytest.mark.parametrize("call", ["product", "engines", "checkup"])
def test_facts_of_a_lost_gpu_are_refused_and_those_of_others_are_not(rig: Rig, call: str) -> None:
    gpus = [g.uuid for g in rig.hardware.gpus()]
    rig.lose(0, True)
    assert kind(lambda: getattr(rig.hardware, call)(gpus[0])) is FaultKind.LOST
    getattr(rig.hardware, call)(gpus[1])
