"""How one GPU is cut: slices, which of them go together, and what changes from one layout to another.

All legal layouts follow from starts and sizes; none is listed by hand.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from gpu.profiles import GpuModel, Media, MigProfile


@dataclass(frozen=True, slots=True)
class Slice:
    """One profile at one start on one GPU; written `1g.10gb@0`."""

    profile: MigProfile
    start: int

    def __post_init__(self) -> None:
        if self.start not in self.profile.starts:
            raise ValueError(f"{self.profile.name} cannot start at {self.start}, only at {self.profile.starts}")

    def __hash__(self) -> int:
        # Sets of slices are at the heart of every decision; the generated hash would walk the whole profile.
        return hash((self.profile.name, self.start))

    @property
    def mask(self) -> int:
        return ((1 << self.profile.size) - 1) << self.start

    def __str__(self) -> str:
        return f"{self.profile.name}@{self.start}"


Layout = tuple[Slice, ...]


def canonical(slices: Iterable[Slice]) -> Layout:
    """The same slices in the one order layouts are compared in: by start."""
    return tuple(sorted(slices, key=lambda s: (s.start, s.profile.name)))


def occupied(layout: Iterable[Slice]) -> int:
    """Bit mask of the placement units in use."""
    mask = 0
    for piece in layout:
        mask |= piece.mask
    return mask


@cache
def every_slice(profile: MigProfile) -> Layout:
    return tuple(Slice(profile, start) for start in profile.starts)


def openings(layout: Layout, profile: MigProfile) -> Layout:
    """Where one more slice of this profile would still go, lowest start first."""
    if sum(s.profile == profile for s in layout) >= profile.limit or not _media_agree(layout, profile):
        return ()
    taken = occupied(layout)
    return tuple(s for s in every_slice(profile) if not s.mask & taken)


def legal(layout: Layout, model: GpuModel) -> bool:
    """Whether the hardware can hold exactly these slices together."""
    standing: Layout = ()
    for piece in layout:
        if piece.profile not in model.profiles or piece not in openings(standing, piece.profile):
            return False
        standing = (*standing, piece)
    return True


@cache
def legal_layouts(model: GpuModel) -> tuple[Layout, ...]:
    """Every legal layout of this model, the empty one first, each once, in a fixed order."""
    return tuple(extensions((), model))


def extensions(layout: Layout, model: GpuModel, floor: int = -1) -> Iterator[Layout]:
    """`layout` itself and every legal layout that adds slices to it at starts above `floor`.

    Adding in ascending order of start visits each set of slices once.
    """
    yield layout
    for profile in model.profiles:
        for piece in openings(layout, profile):
            if piece.start > floor:
                yield from extensions(canonical((*layout, piece)), model, piece.start)


@dataclass(frozen=True, slots=True)
class Changes:
    """What to destroy, then what to create: in this order every step is legal."""

    destroy: Layout
    create: Layout


def changes(before: Layout, after: Layout) -> Changes:
    return Changes(
        destroy=canonical(set(before) - set(after)),
        create=canonical(set(after) - set(before)),
    )


def parse_slice(text: str, model: GpuModel) -> Slice:
    """`1g.10gb@0` on this model. Raises ValueError that names what is wrong."""
    name, at, start = text.partition("@")
    profile = model.profile(name)
    if profile is None:
        known = ", ".join(p.name for p in model.profiles) or "none: this GPU cannot be cut"
        raise ValueError(f"slice {text!r}: {model.key} has no profile {name!r} (it has {known})")
    if not at or not start.isdecimal():
        raise ValueError(f"slice {text!r}: expected PROFILE@START, such as {name}@{profile.starts[0]}")
    return Slice(profile, int(start))


def _media_agree(layout: Layout, profile: MigProfile) -> bool:
    standing = {s.profile.media for s in layout}
    if profile.media is Media.ALL:
        return standing <= {Media.NONE}
    if profile.media is Media.EXTENDED:
        return not standing & {Media.EXTENDED, Media.ALL}
    return profile.media is Media.NONE or Media.ALL not in standing
