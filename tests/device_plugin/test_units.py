"""A new number of units reaches a GPU only when nobody holds units of it, after a second look."""

from device_plugin.claims import Held
from device_plugin.state import NodeState
from device_plugin.units import Units
from gpu.hardware import SeenGpu
from tests.builders import gpu, model, placement, share

SEEN = SeenGpu("GPU-0", 0, 0, "", "", model())


def shared() -> NodeState:
    state = NodeState()
    state.take((SEEN,), {"GPU-0": gpu("GPU-0", units=20)}, 20, 0.0, state.edits())
    return state


def offered(state: NodeState) -> int:
    return sum(len(devices) for devices in state.lists()[1].values())


def nobody() -> tuple[Held, ...]:
    return ()


def test_the_ids_are_withheld_first_and_the_number_changes_at_the_second_look() -> None:
    state = shared()
    units = Units(state)
    units.follow(10, nobody, ())
    assert offered(state) == 0
    units.follow(10, nobody, ())
    assert offered(state) == 10
    units.follow(10, nobody, ())
    assert offered(state) == 10


def test_whoever_turns_up_between_the_looks_keeps_the_old_number() -> None:
    state = shared()
    units = Units(state)
    units.follow(10, nobody, ())
    units.follow(10, lambda: (Held("ns", "p", "main", "r", ("GPU-0::19",)),), ())
    assert offered(state) == 20
    units.follow(10, nobody, [placement("q", share("GPU-0", units=1))])
    assert offered(state) == 20


def test_a_policy_that_goes_back_ends_the_withholding() -> None:
    state = shared()
    units = Units(state)
    units.follow(10, nobody, ())
    units.follow(20, nobody, ())
    assert offered(state) == 20


def test_a_silent_kubelet_leaves_everything_as_it_is() -> None:
    def silent() -> tuple[Held, ...]:
        raise ConnectionError("no answer")

    state = shared()
    Units(state).follow(10, silent, ())
    assert offered(state) == 20
