"""The best connected set of GPUs: against brute force, and on machines as they are built."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from device_plugin import aligned
from device_plugin.aligned import Candidate, best, worth
from gpu.hardware import Ancestor, Link, Topology

Machine = tuple[list[Candidate], Topology]


def machine(numa: list[int | None], nvlinks: int, near: dict[frozenset[int], Ancestor]) -> Machine:
    """GPUs on these NUMA nodes, each pair with so many NVLinks; what is not in `near` goes by the NUMA node."""
    free = [Candidate(f"GPU-{n}", n, at) for n, at in enumerate(numa)]
    links = {}
    for a, b in combinations(range(len(numa)), 2):
        usual = Ancestor.NUMA_NODE if numa[a] is not None and numa[a] == numa[b] else Ancestor.SYSTEM
        links[(f"GPU-{a}", f"GPU-{b}")] = Link(nvlinks, near.get(frozenset({a, b}), usual), p2p=True)
    return free, Topology(links)


def pairs(count: int, ancestor: Ancestor) -> dict[frozenset[int], Ancestor]:
    """Neighbours 0 and 1, 2 and 3 and so on below one switch."""
    return {frozenset({n, n + 1}): ancestor for n in range(0, count, 2)}


DGX_A100 = machine([3, 3, 1, 1, 7, 7, 5, 5], 12, pairs(8, Ancestor.SWITCHES))
HOPPER_4_NUMA = machine([0, 0, 0, 1, 2, 2, 2, 3], 18, {})
GB200_TRAY = machine([0, 0, 1, 1], 18, {})
PCIE = machine([0, 0, 0, 0, 1, 1, 1, 1], 0, pairs(8, Ancestor.SWITCH))


def chosen(of: Machine, size: int, *without: int, must: tuple[int, ...] = ()) -> set[int]:
    free = [c for c in of[0] if c.index not in without]
    ids = best(free, [f"GPU-{n}" for n in must], size, of[1])
    return {int(i.removeprefix("GPU-")) for i in ids}


def test_two_of_eight_gpus_without_nvlink_are_below_one_switch() -> None:
    assert chosen(PCIE, 2) == {0, 1}
    assert chosen(PCIE, 2, 0, 3) == {4, 5}


def test_one_gpu_is_taken_where_the_pair_is_broken_already() -> None:
    assert chosen(PCIE, 1, 4) == {5}
    assert chosen(PCIE, 1, 0, 1, 2) == {3}


def test_four_of_eight_are_one_half_of_the_machine() -> None:
    assert chosen(PCIE, 4) == {0, 1, 2, 3}
    assert chosen(PCIE, 4, 1) == {4, 5, 6, 7}


def test_below_nvswitches_all_pairs_are_equal_and_pcie_and_numa_decide() -> None:
    assert chosen(DGX_A100, 2, 0, 2) == {4, 5}
    assert chosen(DGX_A100, 4, 1) in ({2, 3, 4, 5}, {2, 3, 6, 7}, {4, 5, 6, 7})
    assert chosen(HOPPER_4_NUMA, 3, 1) == {4, 5, 6}
    assert chosen(HOPPER_4_NUMA, 1) == {3}
    assert chosen(GB200_TRAY, 2, 0) == {2, 3}
    assert chosen(GB200_TRAY, 1, 0) == {1}


def test_bridges_between_two_gpus_go_before_everything() -> None:
    free, topology = PCIE
    bridged = dict(topology.links)
    bridged[("GPU-2", "GPU-6")] = Link(12, Ancestor.SYSTEM, p2p=True)
    assert chosen((free, Topology(bridged)), 2) == {2, 6}
    assert chosen((free, Topology(bridged)), 1) != {2}


def test_a_gpu_whose_nvlinks_are_off_is_left_to_those_who_want_one() -> None:
    free, topology = machine([0, 0, 0, 0, 1, 1, 1, 1], 18, {})
    off = {pair: Link(0, link.ancestor, link.p2p) if "GPU-2" in pair else link for pair, link in topology.links.items()}
    assert chosen((free, Topology(off)), 1) == {2}
    assert 2 not in chosen((free, Topology(off)), 7)


def test_without_any_topology_numa_and_then_the_index_decide() -> None:
    free = [Candidate(f"GPU-{n}", n, numa) for n, numa in enumerate([0, 1, 0, 1])]
    assert best(free, (), 2, Topology({})) == ("GPU-0", "GPU-2")
    unknown = [Candidate(f"GPU-{n}", n, -1) for n in range(4)]
    assert best(unknown, (), 2, Topology({})) == ("GPU-0", "GPU-1")


def test_what_must_be_in_it_is_and_the_rest_is_close_to_it() -> None:
    assert chosen(PCIE, 2, must=(5,)) == {4, 5}
    assert chosen(PCIE, 4, must=(6,)) == {4, 5, 6, 7}


LINKS = st.builds(Link, st.sampled_from([0, 0, 4, 12]), st.sampled_from(list(Ancestor)), st.booleans())


@st.composite
def problems(draw: st.DrawFn, most: int = 7) -> tuple[list[Candidate], list[str], int, Topology]:
    count = draw(st.integers(1, most))
    free = [
        Candidate(f"GPU-{n}", n, draw(st.sampled_from([None, -1, 0, 1])), draw(st.sampled_from([0, 0, 1])))
        for n in draw(st.permutations(range(count)))
    ]
    links = {(f"GPU-{a}", f"GPU-{b}"): draw(LINKS) for a, b in combinations(range(count), 2) if draw(st.integers(0, 5))}
    must = draw(st.lists(st.sampled_from([c.uuid for c in free]), unique=True, max_size=2))
    return free, must, draw(st.integers(len(must), count)), Topology(links)


def total(group: list[Candidate], topology: Topology) -> int:
    return sum(worth(topology.between(a.uuid, b.uuid), a.numa, b.numa) for a, b in combinations(group, 2))


@given(problems())
def test_nothing_is_better_than_the_best(problem: tuple[list[Candidate], list[str], int, Topology]) -> None:
    """Rank by rank as the docstring says, written out plainly: models, their sizes, this set, the rest, indexes."""
    free, must, size, topology = problem

    def goodness(group: tuple[Candidate, ...]) -> tuple[object, ...]:
        rest = [c for c in free if c not in group]
        kinds = sorted((c.kind for c in group), reverse=True)
        indexes = sorted(c.index for c in group)
        return len(set(kinds)), kinds, -total(list(group), topology), -total(rest, topology), indexes

    sets = [g for g in combinations(free, size) if set(must) <= {c.uuid for c in g}]
    expected = sorted(min(sets, key=goodness), key=lambda c: c.index)
    if size:
        assert best(free, must, size, topology) == tuple(c.uuid for c in expected)


@given(problems(most=6), st.randoms(use_true_random=False))
def test_the_answer_does_not_hang_on_the_order_of_the_question(
    problem: tuple[list[Candidate], list[str], int, Topology], rng: object
) -> None:
    free, must, size, topology = problem
    again = list(free)
    rng.shuffle(again)  # type: ignore[attr-defined]
    assert best(free, must, size, topology) == best(again, must, size, topology)


def test_sixteen_gpus_are_searched_exactly_and_more_are_searched_well() -> None:
    """On machines of many equal boxes the search by hand must find one whole box, which is the best there is."""
    assert aligned.SETS == 12_870
    boxes: list[int | None] = [n // 8 for n in range(24)]
    many = machine(boxes, 0, pairs(24, Ancestor.SWITCH))
    assert chosen(many, 8, 0, 9) == set(range(16, 24))
    assert chosen(many, 8, 0, 17, must=(12,)) == set(range(8, 16))


@given(st.integers(17, 20), st.data())
def test_a_search_by_hand_answers_with_what_must_be_in_it(count: int, data: st.DataObject) -> None:
    free = [Candidate(f"GPU-{n}", n, data.draw(st.integers(0, 1))) for n in range(count)]
    must = data.draw(st.lists(st.sampled_from([c.uuid for c in free]), unique=True, max_size=3))
    ids = best(free, must, 9, Topology({}))
    assert len(set(ids)) == len(ids) == 9
    assert set(must) <= set(ids)
