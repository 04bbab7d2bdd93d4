"""What a GPU is to be sold as reaches it only when nobody holds a device of it, after a second look."""

from dataclasses import replace

from device_plugin.claims import Held
from device_plugin.sale import GpuPlan, NodePlan, Sold, Wish
from device_plugin.sharing import Sharing
from device_plugin.state import NodeState
from gpu.hardware import SeenGpu, SeenSlice
from gpu.node import Mode, SoldAs, Terms
from tests.builders import gpu, layout, model, placement, share

SEEN = SeenGpu("GPU-0", 0, 0, "", "", model())


def shared() -> NodeState:
    state = NodeState()
    state.take((SEEN,), {"GPU-0": gpu("GPU-0", units=20)}, Wish(20), 0.0, state.edits())
    return state


def offered(state: NodeState) -> int:
    return sum(len(devices) for devices in state.lists()[1].values())


def nobody() -> tuple[Held, ...]:
    return ()


def test_the_ids_are_withheld_first_and_the_number_changes_at_the_second_look() -> None:
    state = shared()
    sharing = Sharing(state)
    sharing.follow(Wish(10), nobody, ())
    assert offered(state) == 0
    sharing.follow(Wish(10), nobody, ())
    assert offered(state) == 10
    sharing.follow(Wish(10), nobody, ())
    assert offered(state) == 10


def test_whoever_turns_up_between_the_looks_keeps_the_old_number() -> None:
    state = shared()
    sharing = Sharing(state)
    sharing.follow(Wish(10), nobody, ())
    sharing.follow(Wish(10), lambda: (Held("ns", "p", "main", "r", ("GPU-0::19",)),), ())
    assert offered(state) == 20
    sharing.follow(Wish(10), nobody, [placement("q", share("GPU-0", units=1))])
    assert offered(state) == 20


def test_a_policy_that_goes_back_ends_the_withholding() -> None:
    state = shared()
    sharing = Sharing(state)
    sharing.follow(Wish(10), nobody, ())
    sharing.follow(Wish(20), nobody, ())
    assert offered(state) == 20


def test_a_silent_kubelet_leaves_everything_as_it_is() -> None:
    def silent() -> tuple[Held, ...]:
        raise ConnectionError("no answer")

    state = shared()
    Sharing(state).follow(Wish(10), silent, ())
    assert offered(state) == 20


def planned(*sold: tuple[str, Sold]) -> Wish:
    return Wish(20, NodePlan({u: GpuPlan(u, s) for u, s in sold}, fixed=frozenset(u for u, _ in sold)))


def names_of(state: NodeState) -> dict[str, int]:
    return {name: len(devices) for name, devices in state.lists()[1].items() if devices}


TEN = planned(("GPU-0", Sold("nvidia.com/gpu", 10)))


def test_a_gpu_nobody_knows_yet_is_sold_as_the_file_says_at_once() -> None:
    state = NodeState()
    state.take((SEEN,), {}, TEN, 0.0, state.edits())
    assert names_of(state) == {"nvidia.com/gpu": 10}
    (books,) = (g.books() for g in state.gpus())
    assert (books.mode, books.units, books.sold, books.fixed) == (Mode.SHARED, 10, SoldAs.WHOLE, True)


def test_a_whole_gpu_in_use_is_shared_when_its_pod_has_gone() -> None:
    state = NodeState()
    state.take((SEEN,), {"GPU-0": gpu("GPU-0")}, TEN, 0.0, state.edits())
    sharing = Sharing(state)
    held = (Held("ns", "p", "main", "nvidia.com/gpu", ("GPU-0",)),)
    for _ in range(3):
        sharing.follow(TEN, lambda: held, ())
        assert names_of(state) == {"nvidia.com/gpu": 1}
    sharing.follow(TEN, nobody, ())
    assert names_of(state) == {}
    sharing.follow(TEN, nobody, ())
    assert names_of(state) == {"nvidia.com/gpu": 10}


def test_without_the_file_the_gpu_is_what_it_was_and_free_to_be_recut() -> None:
    state = NodeState()
    state.take((SEEN,), {}, TEN, 0.0, state.edits())
    sharing = Sharing(state)
    for _ in range(2):
        sharing.follow(Wish(20), nobody, ())
    assert names_of(state) == {"nvidia.com/gpu.shared": 20}
    assert not state.gpus()[0].fixed


def test_slices_are_shared_by_profile_and_by_name_of_their_own() -> None:
    pieces = layout("1g.10gb@0", "2g.20gb@2")
    cut = replace(SEEN, mig=True, slices=tuple(SeenSlice(p, n + 7, 0, f"MIG-{n}") for n, p in enumerate(pieces)))
    plan = GpuPlan("GPU-0", slices={"1g.10gb": Sold("nvidia.com/mig-1g.10gb.shared", 3)})
    state = NodeState()
    state.take((cut,), {}, Wish(20, NodePlan({"GPU-0": plan})), 0.0, state.edits())
    assert names_of(state) == {"nvidia.com/mig-1g.10gb.shared": 3, "nvidia.com/mig-2g.20gb": 1}
    (books,) = (g.books() for g in state.gpus())
    assert books.terms == (Terms(pieces[0], 3, SoldAs.OTHER),)
    assert set(state.gpus()[0].shares) == {"MIG-0::0", "MIG-0::1", "MIG-0::2", "MIG-1"}


def test_a_gpu_that_is_being_recut_is_left_alone() -> None:
    state = shared()
    state.recutting("GPU-0", busy=True)
    sharing = Sharing(state)
    for _ in range(3):
        sharing.follow(TEN, nobody, ())
    assert names_of(state) == {"nvidia.com/gpu.shared": 20}
