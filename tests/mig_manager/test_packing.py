"""The packing against all there is: every layout of every GPU, every way to seat the pods."""

from collections import Counter
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.layout import legal, legal_layouts
from gpu.node import Gpu, Mode, NodeGpus, Snapshot
from gpu.placement import PodRequest, Want
from gpu.recut import Shape
from mig_manager import packing
from mig_manager.demand import items
from mig_manager.greedy import greedy
from mig_manager.outlook import Key, shape_of
from mig_manager.packing import Packing, solve
from mig_manager.patterns import Terms
from mig_manager.problem import Problem, pose
from tests import builders
from tests.builders import gpu, node, placement, request, share, slices, units, whole
from tests.mig_manager.strategies import MODEL, UNITS, nodes, requests

ALL = frozenset(Mode)


def problem(
    snapshot: tuple[NodeGpus, ...],
    pods: tuple[PodRequest, ...],
    modes: frozenset[Mode] = ALL,
    budget: int = 99,
    shared_into: int = 20,
) -> Problem:
    keys = frozenset((n.name, g.uuid) for n in snapshot for g in n.gpus)
    return pose(Snapshot(snapshot), pods, keys, Terms(modes, shared_into), budget)


def pack(*args: object, **more: object) -> Packing:
    return solve(problem(*args, **more))  # type: ignore[arg-type]


def test_nothing_asked_changes_nothing() -> None:
    assert pack((node(gpu()),), ()) == Packing()


def test_the_first_slice_goes_where_large_ones_cannot() -> None:
    found = pack((node(gpu()),), (request(slices("1g.10gb")),))
    assert found.shapes == {("n1", "GPU-0"): Shape(Mode.SLICED, builders.layout("1g.10gb@6"))}
    assert (found.served, found.bound, found.gap, found.proven) == (1, 1, 0, True)


def test_three_beside_four() -> None:
    pods = (request(slices("4g.40gb"), pod="a"), request(slices("3g.40gb"), pod="b"))
    found = pack((node(gpu()),), pods)
    assert found.shapes == {("n1", "GPU-0"): Shape(Mode.SLICED, builders.layout("4g.40gb@0", "3g.40gb@4"))}


def test_a_cut_gpu_is_added_to_before_a_whole_one_is_broken_up() -> None:
    found = pack((node(gpu("GPU-0"), gpu("GPU-1", "1g.10gb@6")),), (request(slices("2g.20gb")),))
    assert list(found.shapes) == [("n1", "GPU-1")]
    assert builders.layout("1g.10gb@6")[0] in found.shapes["n1", "GPU-1"].layout


def test_slices_in_use_stay_where_they_are() -> None:
    used = placement("user", share("GPU-0", "1g.10gb@0"), claimed=True)
    cluster = (node(gpu("GPU-0", "1g.10gb@0", "3g.40gb@4"), placements=(used,)),)
    assert not pack(cluster, (request(slices("4g.40gb")),)).shapes, "4g only starts at 0"
    found = pack(cluster, (request(slices("2g.20gb"), pod="a"), request(slices("2g.20gb"), pod="b")))
    assert found.served == 2
    assert builders.layout("1g.10gb@0")[0] in found.shapes["n1", "GPU-0"].layout


def test_whole_gpus_are_made_on_one_node() -> None:
    cluster = (
        node(gpu("GPU-0", "1g.10gb@6"), gpu("GPU-1", units=20), name="n1"),
        node(gpu("GPU-2"), gpu("GPU-3", "1g.10gb@6"), name="n2"),
    )
    assert pack(cluster, (request(whole(2)),)).shapes == {("n2", "GPU-3"): Shape(Mode.WHOLE)}
    assert not pack(cluster, (request(whole(3)),)).shapes


def test_shares_of_one_pod_lie_on_one_gpu() -> None:
    pods = tuple(request(units(8), pod=f"p{i}") for i in range(5))
    found = pack((node(gpu("GPU-0"), gpu("GPU-1"), gpu("GPU-2")),), pods)
    assert found.served == 5
    assert len(found.shapes) == 3, "two of 8 units fit on 20, three do not"
    assert not pack((node(gpu()),), (request(units(21)),)).shapes


def test_modes_the_policy_forbids_are_not_made() -> None:
    pods = (request(slices("1g.10gb"), pod="a"), request(units(1), pod="b"), request(whole(), pod="c"))
    cluster = (node(gpu("GPU-0", "7g.80gb@0"), gpu("GPU-1", "7g.80gb@0")),)
    assert {s.mode for s in pack(cluster, pods, frozenset({Mode.WHOLE})).shapes.values()} == {Mode.WHOLE}
    assert {s.mode for s in pack(cluster, pods, frozenset({Mode.SHARED})).shapes.values()} == {Mode.SHARED}


def test_budget_and_priority() -> None:
    pods = (
        request(slices("7g.80gb"), pod="a"),
        request(slices("7g.80gb"), pod="b"),
        request(whole(2), pod="c", priority=9),
    )
    cluster = (node(gpu("GPU-0", "1g.10gb@6"), gpu("GPU-1", "1g.10gb@6")),)
    assert {s.mode for s in pack(cluster, pods).shapes.values()} == {Mode.WHOLE}
    assert pack(cluster, pods, budget=1).served == 1


def test_many_alike_are_quick() -> None:
    cluster = tuple(node(*(gpu(f"GPU-{i}") for i in range(8)), name=f"n{n:03}") for n in range(200))
    pods = tuple(request(slices(p), pod=f"{p}-{i}") for p in ("1g.10gb", "2g.20gb", "3g.40gb") for i in range(900))
    found = pack(cluster, pods, budget=10_000)
    assert found.served == 2700
    assert found.proven


@settings(max_examples=150, deadline=None)
@given(nodes((1, 1)), requests())
def test_as_good_as_trying_everything(cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...]) -> None:
    check(cluster, pods)


@settings(max_examples=60, deadline=None)
@given(nodes((2,)), requests(3))
def test_as_good_as_trying_everything_on_one_node(cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...]) -> None:
    check(cluster, pods)


@settings(max_examples=150, deadline=None)
@given(nodes((1, 1)), requests(4, ("n0", "n1")))
def test_as_good_as_trying_everything_with_bars(cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...]) -> None:
    check(cluster, pods)


@settings(max_examples=20, deadline=None)
@given(nodes((2, 1)), requests(3, ("n0", "n1")))
def test_as_good_as_trying_everything_with_bars_and_a_larger_node(
    cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...]
) -> None:
    check(cluster, pods)


@settings(max_examples=60, deadline=None)
@given(nodes((2, 1)), requests(6, ("n0", "n1")), st.integers(1, 3))
def test_greedy_is_legal_and_never_better(
    cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...], budget: int
) -> None:
    posed = problem(cluster, pods, budget=budget, shared_into=UNITS)
    if not posed.groups:
        return
    choice, served = greedy(posed)
    assert served <= solve(posed).served
    assert all(open_to_some(node_of(group.gpus[0]), pods) for group in posed.groups)
    changed = 0
    for group, row in zip(posed.groups, choice, strict=True):
        assert sum(row) == len(group.gpus)
        assert min(row) >= 0
        changed += sum(n for p, n in zip(group.patterns, row, strict=True) if p.cost)
    assert changed <= budget


def test_only_nodes_that_the_pod_may_use_are_cut() -> None:
    cluster = tuple(node(gpu(f"GPU-{i}"), name=f"n{i}") for i in range(4))
    pinned = replace(request(slices("1g.10gb")), barred=frozenset({"n0", "n1", "n3"}))
    assert list(pack(cluster, (pinned,)).shapes) == [("n2", "GPU-2")]
    assert list(greedy_pack(cluster, (pinned,)).shapes) == [("n2", "GPU-2")]
    assert not pack(cluster, (replace(pinned, barred=frozenset({"n0", "n1", "n2", "n3"})),)).shapes


def test_a_free_slice_elsewhere_does_not_serve_a_pinned_pod() -> None:
    cluster = (node(gpu("GPU-0", "1g.10gb@6"), name="n0"), node(gpu("GPU-1"), name="n1"))
    pinned = replace(request(slices("1g.10gb"), pod="a"), barred=frozenset({"n0"}))
    found = pack(cluster, (pinned, request(slices("1g.10gb"), pod="b")))
    assert found.served == 2
    assert list(found.shapes) == [("n1", "GPU-1")]


def test_pods_of_several_pieces_find_them_on_a_node_they_may_use() -> None:
    cluster = tuple(node(gpu(f"GPU-{n}0", "1g.10gb@6"), gpu(f"GPU-{n}1", "1g.10gb@6"), name=f"n{n}") for n in range(3))
    pinned = replace(request(whole(2), pod="a"), barred=frozenset({"n0", "n1"}))
    other = replace(request(whole(2), pod="b"), barred=frozenset({"n0", "n2"}))
    for found in (pack(cluster, (pinned, other)), greedy_pack(cluster, (pinned, other))):
        assert {name for name, _ in found.shapes} == {"n1", "n2"}
        assert found.served == 2
    assert pack(cluster, (pinned, replace(pinned, pod=other.pod))).served == 1


def test_a_pool_is_cut_only_into_what_its_pods_ask_for() -> None:
    cluster = (node(gpu("GPU-0"), name="n0"), node(gpu("GPU-1"), name="n1"))
    small = replace(request(slices("1g.10gb"), pod="a"), barred=frozenset({"n1"}))
    large = replace(request(slices("7g.80gb"), pod="b"), barred=frozenset({"n0"}))
    posed = problem(cluster, (small, large))
    offers = {g.gpus[0][0]: {w.profile for p in g.patterns for w, _ in p.offers} for g in posed.groups}
    assert offers == {"n0": {"1g.10gb"}, "n1": {"7g.80gb"}}


def greedy_pack(cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...]) -> Packing:
    return packing._fallback(problem(cluster, pods))


def test_greedy_says_that_it_is_one() -> None:
    pods = tuple(request(slices(p), pod=f"{p}-{i}") for p in ("1g.10gb", "2g.20gb", "3g.40gb") for i in range(9))
    posed = problem(tuple(node(*(gpu(f"GPU-{i}") for i in range(8)), name=f"n{n}") for n in range(9)), pods)
    found = solve(posed, work_limit=0.0)
    assert found.method == "greedy"
    assert not found.proven
    assert found.served == 27


def test_same_answer_every_time() -> None:
    pods = tuple(request(slices(p), pod=f"{p}-{i}") for p in ("1g.10gb", "2g.20gb") for i in range(5))
    cluster = tuple(node(*(gpu(f"GPU-{i}") for i in range(4)), name=f"n{n}") for n in range(3))
    assert pack(cluster, pods) == pack(cluster, pods)


def check(cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...]) -> None:
    found = pack(cluster, pods, shared_into=UNITS)
    assert found.proven
    by_name = {n.name: n for n in cluster}
    for (name, uuid), shape in found.shapes.items():
        assert open_to_some(name, pods)
        changed = by_name[name].by_uuid[uuid]
        used = by_name[name].use(changed)
        assert legal(shape.layout, MODEL)
        assert used.slices <= frozenset(shape.layout)
        assert used.idle or shape.mode is changed.mode
    reached = {key: found.shapes.get(key, shape) for key, shape in standing(cluster).items()}
    assert seatable(cluster, reached, pods) >= found.served
    assert found.served == best(cluster, pods)


def node_of(key: Key) -> str:
    return key[0]


def open_to_some(name: str, pods: tuple[PodRequest, ...]) -> bool:
    return any(name not in r.barred for r in pods)


def standing(cluster: tuple[NodeGpus, ...]) -> dict[Key, Shape]:
    return {(n.name, g.uuid): shape_of(g) for n in cluster for g in n.gpus}


def best(cluster: tuple[NodeGpus, ...], pods: tuple[PodRequest, ...]) -> int:
    keys = list(standing(cluster))
    by_name = {n.name: n for n in cluster}
    choices = [could_be(by_name[n], by_name[n].by_uuid[u]) for n, u in keys]
    most, seen = 0, set()
    for shapes in product(*choices):
        kind = tuple((s.mode, tuple(sorted(p.profile.name for p in s.layout))) for s in shapes)
        if kind not in seen and most < len(pods):
            seen.add(kind)
            most = max(most, seatable(cluster, dict(zip(keys, shapes, strict=True)), pods))
    return most


def could_be(books: NodeGpus, one: Gpu) -> list[Shape]:
    used = books.use(one)
    if one.mode is not Mode.SLICED and not used.idle:
        return [shape_of(one)]
    layouts = [Shape(Mode.SLICED, x) for x in legal_layouts(MODEL) if used.slices <= frozenset(x)]
    return layouts + ([Shape(Mode.WHOLE), Shape(Mode.SHARED)] if used.idle else [])


def seatable(cluster: tuple[NodeGpus, ...], shapes: dict[Key, Shape], pods: tuple[PodRequest, ...]) -> int:
    """Most of the pods that can sit, by trying every seat."""
    rooms: dict[str, list[Counter[object]]] = {}
    for books in cluster:
        for one in books.gpus:
            rooms.setdefault(books.name, []).append(room(books, one, shapes[books.name, one.uuid]))

    def most(index: int) -> int:
        if index == len(pods):
            return 0
        reached = most(index + 1)
        for name in rooms.keys() - pods[index].barred:
            for _ in seats(rooms[name], [w for w, n in items(pods[index]).items() for _ in range(n)]):
                reached = max(reached, 1 + most(index + 1))
                if reached == len(pods) - index:
                    return reached
        return reached

    def seats(gpus: list[Counter[object]], pieces: list[Want]):  # type: ignore[no-untyped-def]
        if not pieces:
            yield
            return
        want = pieces[0]
        key: object = want.mode if want.mode is Mode.SHARED else want
        amount = want.amount if want.mode is Mode.SHARED else 1
        tried: set[tuple[tuple[object, int], ...]] = set()
        for free in gpus:
            state = tuple(sorted(((repr(k), n) for k, n in free.items())))
            if free[key] >= amount and state not in tried:
                tried.add(state)
                free[key] -= amount
                try:
                    yield from seats(gpus, pieces[1:])
                finally:
                    free[key] += amount

    return most(0)


def room(books: NodeGpus, one: Gpu, shape: Shape) -> Counter[object]:
    used = books.use(one)
    if shape.mode is Mode.SLICED:
        return Counter(Want(Mode.SLICED, 1, s.profile.name) for s in shape.layout if s not in used.slices)
    if shape.mode is Mode.WHOLE:
        return Counter({Want(Mode.WHOLE, 1): 0 if used.whole else 1})
    return Counter({Mode.SHARED: UNITS - used.units})
