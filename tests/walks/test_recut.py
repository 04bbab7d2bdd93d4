"""One re-cut from order to end, with every hardware fault at every call and death at every moment.

Two things hold whatever happens: a slice in use is never touched (asserted in the world itself), and every run ends in
Done or Stuck.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.hardware import FaultKind
from gpu.layout import canonical, legal
from gpu.node import Mode
from gpu.recut import Phase, Recut, Shape, Wanted
from tests.builders import layout
from tests.walks.recut_world import ACTS, CALLS, GPU, Death, Pod, World, live, start

ONE, TWO, THREE = layout("1g.10gb@6")[0], layout("2g.20gb@4")[0], layout("3g.40gb@0")[0]
WHOLE, SHARED = Shape(Mode.WHOLE), Shape(Mode.SHARED)


def sliced(*pieces: str) -> Shape:
    return Shape(Mode.SLICED, layout(*pieces))


WALKS: dict[str, Callable[[], World]] = {
    "a whole GPU is cut": lambda: World(WHOLE, sliced("3g.40gb@0", "1g.10gb@6")),
    "a whole GPU is cut once its user has left": lambda: World(WHOLE, sliced("1g.10gb@6"), [Pod("a", None, leaves=9)]),
    "a slice is added beside users": lambda: World(
        sliced("1g.10gb@6"), sliced("3g.40gb@0", "1g.10gb@6"), [Pod("a", ONE)]
    ),
    "one slice goes, its neighbour is in use": lambda: World(
        sliced("3g.40gb@0", "2g.20gb@4", "1g.10gb@6"),
        sliced("1g.10gb@0", "1g.10gb@2", "2g.20gb@4", "1g.10gb@6"),
        [Pod("a", TWO), Pod("b", THREE, leaves=12), Pod("c", ONE)],
    ),
    "a cut GPU becomes whole": lambda: World(sliced("2g.20gb@4", "1g.10gb@6"), WHOLE, [Pod("a", TWO, leaves=7)]),
    "a whole GPU is shared": lambda: World(WHOLE, SHARED),
    "a shared GPU is cut": lambda: World(SHARED, sliced("7g.80gb@0"), [Pod("a", None, leaves=5)]),
    "a pod on its way starts first": lambda: World(
        sliced("2g.20gb@4", "1g.10gb@6"), WHOLE, [Pod("a", TWO, starts=6, leaves=15)]
    ),
    "a user never leaves": lambda: World(sliced("2g.20gb@4", "1g.10gb@6"), WHOLE, [Pod("a", TWO)]),
}


def check_end(world: World, record: Recut) -> None:
    assert legal(canonical(world.slices), world.model)
    for pod in world.using():
        assert pod.what is None or world.slices.get(pod.what) is True, "a user lost its slice"
    if record.phase is Phase.DONE:
        assert world.advertised == record.target
        assert canonical(world.slices) == record.target.layout
        assert all(world.slices.values())
        assert world.mig == (record.target.mode is Mode.SLICED)
        assert world.hands is not None
        assert world.hands.out is None, "ids are withheld for ever"
    assert record.message


@pytest.mark.parametrize("walk", WALKS)
def test_undisturbed(walk: str) -> None:
    world = WALKS[walk]()
    record = live(world)
    check_end(world, record)
    assert record.phase is Phase.DONE
    assert record.target == (world.before if walk == "a user never leaves" else world.wanted)


@pytest.mark.parametrize("walk", WALKS)
def test_death_at_every_moment(walk: str) -> None:
    calm = WALKS[walk]()
    end = live(calm)
    for moment in range(1, calm.moments + 1):
        world = replace(WALKS[walk](), deaths=frozenset({moment}))
        record = live(world)
        check_end(world, record)
        assert (record.phase, record.target) == (end.phase, end.target), f"death at moment {moment}"


@pytest.mark.parametrize("walk", WALKS)
def test_a_fault_at_every_call(walk: str) -> None:
    """Once, for a while, and for ever. Which fault it is makes no difference to the steps; chance draws them below."""
    calm = WALKS[walk]()
    live(calm)
    for call, until in product(range(1, calm.calls + 1), (1, 12, 10**9)):
        if (call, until) == (1, 10**9):
            continue  # nothing ever begins on a GPU that has never answered
        world = replace(WALKS[walk](), fault=FaultKind.LOST, fault_from=call, fault_until=call + until)
        check_end(world, live(world))


@pytest.mark.parametrize("walk", WALKS)
def test_an_act_that_always_fails(walk: str) -> None:
    """The driver answers, but will not cut, join or switch: back to the old layout if that can be had, else stuck."""
    calm = WALKS[walk]()
    live(calm)
    for call, acts in product(range(1, calm.calls + 1), [*({a} for a in sorted(ACTS)), ACTS]):
        world = replace(WALKS[walk](), fault_from=call, fault_until=10**9, faulty=frozenset(acts))
        record = live(world)
        check_end(world, record)
        if record.phase is Phase.STUCK or record.rolling_back:
            assert world.tried <= 2 * 3 + 1, "each layout is tried as often as policy says"


@settings(max_examples=300, deadline=None)
@given(
    walk=st.sampled_from(sorted(WALKS)),
    deaths=st.frozensets(st.integers(1, 60), max_size=6),
    fault_from=st.integers(1, 60),
    calls=st.integers(0, 25),
    kind=st.sampled_from(list(FaultKind)),
    faulty=st.sampled_from([CALLS, ACTS, frozenset({"cut"}), frozenset({"join"})]),
)
def test_deaths_and_faults_together(
    walk: str, deaths: frozenset[int], fault_from: int, calls: int, kind: FaultKind, faulty: frozenset[str]
) -> None:
    until = fault_from + calls
    world = replace(WALKS[walk](), deaths=deaths, fault=kind, fault_from=fault_from, fault_until=until, faulty=faulty)
    check_end(world, live(world))


@settings(max_examples=200, deadline=None)
@given(
    walk=st.sampled_from(sorted(WALKS)),
    rounds=st.integers(0, 25),
    other=st.sampled_from([WHOLE, SHARED, sliced("1g.10gb@6"), sliced("4g.40gb@0", "3g.40gb@4")]),
    deaths=st.frozensets(st.integers(1, 60), max_size=3),
)
def test_a_new_order_at_any_time(walk: str, rounds: int, other: Shape, deaths: frozenset[int]) -> None:
    world = replace(WALKS[walk](), deaths=deaths)
    agent = start(world)
    for _ in range(rounds):
        try:
            agent.tick()
        except Death:
            agent = start(world)
        world.clock.advance(1.0)
    world.order(Wanted(2, other, "for another test", 1))
    record = live(world, 1000)
    while record.generation < 2:
        record = live(world, 1000)
    check_end(world, record)


def test_a_gpu_that_lost_its_cut_is_cut_again() -> None:
    world = WALKS["a whole GPU is cut"]()
    live(world)
    world.slices.clear()
    world.mig = False
    world.advertised = WHOLE
    world.publish()
    record = live(world)
    agent = start(world)
    for _ in range(30):
        agent.tick()
        world.clock.advance(1.0)
    record = live(world)
    assert record.phase is Phase.DONE
    check_end(world, record)
    assert record.target == world.wanted


def test_foreign_slices_are_adopted() -> None:
    world = WALKS["a whole GPU is cut"]()
    live(world)
    world.slices = {TWO: True}
    before = world.record()
    start(world).tick()
    assert world.record() == before
    assert world.slices == {TWO: True}


def test_stuck_is_left_when_the_hardware_comes_back() -> None:
    world = replace(WALKS["a whole GPU is cut"](), fault=FaultKind.LOST, fault_from=4, fault_until=10**9)
    assert live(world).phase is Phase.STUCK
    conditions = {c["type"]: c for c in world.object["status"]["conditions"]}
    assert conditions["RecutStuck"]["status"] == "True"
    assert GPU in conditions["RecutStuck"]["message"]
    world.fault_until = 0
    agent = start(world)
    for _ in range(10):
        agent.tick()
        world.clock.advance(1.0)
    record = live(world)
    assert record.phase is Phase.DONE
    check_end(world, record)
    conditions = {c["type"]: c for c in world.object["status"]["conditions"]}
    assert conditions["RecutStuck"]["status"] == "False"


def test_every_rollback_in_a_row_is_counted_whoever_dies() -> None:
    for deaths in (frozenset[int](), frozenset(range(1, 200, 7))):
        world = replace(WALKS["a user never leaves"](), deaths=deaths)
        for generation in (1, 2, 3):
            world.order(Wanted(generation, world.wanted, "for a test", 1))
            record = live(world)
            assert (record.phase, record.target, record.failures) == (Phase.DONE, world.before, generation)
        world.pods, world.deaths = [], frozenset()
        world.order(Wanted(4, world.wanted, "for a test", 1))
        assert live(world).failures == 0
