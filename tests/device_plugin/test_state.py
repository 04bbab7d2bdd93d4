"""The node's state under several threads: what a re-cut has changed is not undone by an older look at the hardware."""

from device_plugin.devices import shaped
from device_plugin.sale import Wish
from device_plugin.state import NodeState
from gpu.hardware import HardwareEvent, SeenGpu, SeenSlice
from gpu.node import Mode
from gpu.recut import Shape
from tests.builders import layout, model

PIECE = layout("1g.10gb@0")[0]
WHOLE = SeenGpu("GPU-0", 0, 0, "", "", model())
OTHER = SeenGpu("GPU-1", 1, 1, "", "", model())
CUT = SeenGpu("GPU-0", 0, 0, "", "", model(), mig=True, slices=(SeenSlice(PIECE, 7, 0, "MIG-a"),))


def state() -> NodeState:
    made = NodeState()
    made.take((WHOLE, OTHER), {}, Wish(20), 0.0, made.edits())
    return made


def shape(made: NodeState, uuid: str = "GPU-0") -> Shape:
    gpu = made.gpu(uuid)
    assert gpu is not None
    return gpu.shape


def test_a_look_that_began_before_a_recut_ended_does_not_undo_it() -> None:
    made = state()
    made.recutting("GPU-0", busy=True)
    before = made.edits()
    gpu = made.gpu("GPU-0")
    assert gpu is not None
    made.reshape(shaped(gpu, CUT, Shape(Mode.SLICED, (PIECE,)), 20))
    made.recutting("GPU-0", busy=False)
    made.take((WHOLE, OTHER), {}, Wish(20), 1.0, before)  # what was read before the cut
    assert shape(made) == Shape(Mode.SLICED, (PIECE,))
    made.take((CUT, OTHER), {}, Wish(20), 2.0, made.edits())
    assert shape(made) == Shape(Mode.SLICED, (PIECE,))


def test_a_look_that_began_before_ids_were_withheld_does_not_offer_them_again() -> None:
    made = state()
    before = made.edits()
    made.recutting("GPU-0", busy=True)
    made.withhold("GPU-0", Shape(Mode.SLICED, (PIECE,)))
    made.take((CUT, OTHER), {}, Wish(20), 1.0, before)
    ((devices),) = made.lists()[1].values()
    assert [d.id for d in devices] == ["GPU-1"]


def test_the_version_grows_only_when_the_kubelet_must_hear_of_it() -> None:
    made = state()
    version = made.version
    made.take((WHOLE, OTHER), {}, Wish(20), 1.0, made.edits())
    assert made.version == version
    made.take_event(HardwareEvent("GPU-1", 31, None), 2.0)
    assert made.version == version
    made.take_event(HardwareEvent("GPU-1", 79, None), 3.0)
    assert made.version > version


def test_an_event_that_names_no_gpu_concerns_them_all() -> None:
    made = state()
    made.take_event(HardwareEvent("", 79, None), 1.0)
    assert [g.healthy for g in made.gpus()] == [False, False]


def test_a_gpu_that_vanished_stays_unhealthy_in_the_list() -> None:
    made = state()
    made.take((OTHER,), {}, Wish(20), 1.0, made.edits())
    lost = made.gpu("GPU-0")
    assert lost is not None
    assert not lost.healthy
    assert "no longer shows" in lost.problem
