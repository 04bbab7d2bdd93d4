"""Layouts against a recount by hand: every pair of slices, every model, nothing sampled that can be enumerated."""

from itertools import combinations

import pytest

from gpu import catalogue
from gpu.layout import Slice, canonical, changes, every_slice, legal, legal_layouts, occupied, openings, parse_slice
from gpu.profiles import Media
from tests import builders as b

GEOMETRIES = {
    tuple((p.size, p.starts, p.limit, p.media) for p in model.profiles): key
    for key, model in sorted(catalogue.models().items())
    if model.can_be_cut
}
CUTTABLE = sorted(GEOMETRIES.values())
"""One model for each set of sizes, starts, limits and media engines there is."""


@pytest.mark.parametrize("key", CUTTABLE)
def test_the_legal_layouts_are_exactly_the_sets_of_slices_that_obey_the_rules(key: str) -> None:
    model = b.model(key)
    pieces = [s for p in model.profiles for s in every_slice(p)]
    found, frontier = {()}, {()}
    while frontier:
        grown = {canonical((*layout, s)) for layout in frontier for s in pieces if s not in layout}
        frontier = {layout for layout in grown if _allowed(layout)}
        found |= frontier
    assert set(legal_layouts(model)) == found
    assert len(legal_layouts(model)) == len(found), "a layout is listed twice"


def _allowed(layout) -> bool:
    media = [s.profile.media for s in layout]
    return (
        all(not a.mask & c.mask for a, c in combinations(layout, 2))
        and all(sum(s.profile == p for s in layout) <= p.limit for p in {s.profile for s in layout})
        and media.count(Media.EXTENDED) + media.count(Media.ALL) <= 1
        and (Media.ALL not in media or all(m in (Media.ALL, Media.NONE) for m in media))
    )


@pytest.mark.parametrize("key", CUTTABLE)
def test_every_legal_layout_is_legal_in_any_order_and_can_be_written_down(key: str) -> None:
    model = b.model(key)
    for layout in legal_layouts(model):
        assert legal(layout, model)
        assert legal(tuple(reversed(layout)), model)
        assert canonical(parse_slice(str(s), model) for s in reversed(layout)) == layout
        for piece in (openings(layout, p) for p in model.profiles):
            assert all(legal((*layout, s), model) for s in piece[:1])


def test_changes_destroy_before_they_create_and_leave_common_slices_alone() -> None:
    model = b.model()
    for before in legal_layouts(model)[:40]:
        for after in legal_layouts(model)[-40:]:
            step = changes(before, after)
            kept = canonical(set(before) - set(step.destroy))
            assert legal(kept, model)
            assert canonical((*kept, *step.create)) == after
            assert not set(step.destroy) & set(after)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("9g.10gb@0", "has no profile '9g.10gb'"),
        ("1g.10gb", "expected PROFILE@START"),
        ("1g.10gb@", "expected PROFILE@START"),
        ("1g.10gb@x", "expected PROFILE@START"),
        ("1g.10gb@-1", "expected PROFILE@START"),
        ("3g.40gb@1", "cannot start at 1"),
        ("", "has no profile ''"),
    ],
)
def test_a_slice_that_cannot_be_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_slice(text, b.model())


def test_two_slices_are_the_same_when_profile_and_start_are() -> None:
    small = b.model().profile("1g.10gb")
    assert small is not None
    assert hash(Slice(small, 0)) == hash(b.layout("1g.10gb@0")[0])
    assert Slice(small, 0) == b.layout("1g.10gb@0")[0] != Slice(small, 1)
    assert occupied(b.layout("1g.10gb@0", "3g.40gb@4")) == 0b11110001
