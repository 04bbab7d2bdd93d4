"""The order of hardware acts, for every pair of layouts of a small GPU."""

from dataclasses import replace
from itertools import product

import pytest

from gpu.hardware import FaultKind, GpuFault, SeenGpu, SeenSlice
from gpu.layout import Layout, legal, legal_layouts
from gpu.node import Mode
from gpu.recut import Shape
from mig_manager.apply import Cut, Join, SetMig, order, towards
from tests.builders import layout, model
from tests.walks.recut_world import GPU, Pod, World

H100 = model()


def seen(slices: Layout = (), *, mig: bool = True, half: Layout = ()) -> SeenGpu:
    found = tuple(SeenSlice(s, i, i, f"MIG-{i}") for i, s in enumerate(slices))
    broken = tuple(SeenSlice(s, 90 + i, None, None) for i, s in enumerate(half))
    return SeenGpu(GPU, 0, 0, "", "", H100, mig, found + broken)


def sliced(*pieces: str) -> Shape:
    return Shape(Mode.SLICED, layout(*pieces))


def test_from_whole_large_ones_first() -> None:
    three, two, one = layout("3g.40gb@0")[0], layout("2g.20gb@4")[0], layout("1g.10gb@6")[0]
    target = sliced("1g.10gb@6", "2g.20gb@4", "3g.40gb@0")
    assert order(seen(mig=False), target) == (SetMig(True), Cut(three), Cut(two), Cut(one))


def test_back_to_whole_or_shared() -> None:
    there = layout("2g.20gb@4", "1g.10gb@6")
    for mode in (Mode.WHOLE, Mode.SHARED):
        assert order(seen(there), Shape(mode)) == (Join(there[0]), Join(there[1]), SetMig(False))
        assert order(seen(mig=False), Shape(mode)) == ()


def test_what_stays_is_not_named() -> None:
    there, stays = layout("2g.20gb@4", "1g.10gb@6"), layout("1g.10gb@6")[0]
    acts = order(seen(there), sliced("1g.10gb@4", "1g.10gb@5", "1g.10gb@6"))
    assert not any(isinstance(a, Join | Cut) and a.piece == stays for a in acts)


def test_half_made_slices_are_completed_or_removed() -> None:
    half = layout("1g.10gb@6")
    assert order(seen(half=half), sliced("1g.10gb@6")) == (Cut(half[0]),)
    assert order(seen(half=half), sliced("1g.10gb@5")) == (Join(half[0]), Cut(layout("1g.10gb@5")[0]))


def test_every_pair_of_layouts_is_legal_all_the_way() -> None:
    a30 = model("a30-24gb")
    for before, after in product(legal_layouts(a30), repeat=2):
        standing = list(before)
        for act in order(replace(seen(before), model=a30), Shape(Mode.SLICED, after)):
            if isinstance(act, Join):
                standing.remove(act.piece)
            elif isinstance(act, Cut):
                standing.append(act.piece)
            assert legal(tuple(sorted(standing, key=lambda s: s.start)), a30)
        assert set(standing) == set(after)


def test_a_process_on_what_goes_is_found_before_anything_is_destroyed() -> None:
    cut = World(sliced("1g.10gb@6"), sliced("1g.10gb@5"), [Pod("a", layout("1g.10gb@6")[0])])
    with pytest.raises(GpuFault) as caught:
        towards(cut, GPU, cut.wanted)
    assert caught.value.kind is FaultKind.IN_USE
    assert list(cut.slices) == list(layout("1g.10gb@6"))
    whole = World(Shape(Mode.WHOLE), sliced("1g.10gb@5"), [Pod("a", None)])
    with pytest.raises(GpuFault, match="somebody still uses it"):
        towards(whole, GPU, whole.wanted)


def test_doing_it_twice_is_harmless() -> None:
    world = World(Shape(Mode.WHOLE), sliced("3g.40gb@0", "1g.10gb@6"))
    towards(world, GPU, world.wanted)
    calls = world.calls
    towards(world, GPU, world.wanted)
    assert world.calls - calls == 2, "looked before and after, did nothing"
