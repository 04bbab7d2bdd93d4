"""Hypothesis strategies of books and requests, for the property tests of every room."""

from hypothesis import strategies as st

from gpu.layout import legal_layouts
from gpu.node import Activity, Gpu, Mode, NodeGpus, Placement, Share, Snapshot, Stage
from gpu.placement import PodRequest, Want
from gpu.scoring import SCORERS, Scoring
from tests import builders

MODELS = (builders.H100, builders.A100)
UNITS = 20
NOW = 1000.0

scorers = st.sampled_from(sorted(SCORERS))
times = st.floats(NOW - 100, NOW + 100).map(lambda t: round(t, 1))


@st.composite
def gpus(draw: st.DrawFn, uuid: str, index: int) -> Gpu:
    """A GPU in any state that the books know, healthy and open more often than not."""
    model = builders.model(draw(st.sampled_from(MODELS)))
    mode = draw(st.sampled_from(list(Mode)))
    layout = draw(st.sampled_from(legal_layouts(model))) if mode is Mode.SLICED else ()
    held = draw(st.sets(st.sampled_from(layout), max_size=1)) if layout else ()
    activity = draw(st.none() | st.builds(Activity, st.floats(0, 1), times, st.just("test")))
    rarely = st.integers(0, 9).map(lambda n: n == 0)
    return Gpu(
        uuid, index, model, mode, layout, UNITS if mode is Mode.SHARED else 0, frozenset(held),
        closed=draw(rarely), healthy=not draw(rarely), activity=activity,
    )  # fmt: skip


@st.composite
def nodes(draw: st.DrawFn, name: str = "n1", max_gpus: int = 3) -> NodeGpus:
    """A node with pods on it that really fit: claims and promises, also of pods on closed and held GPUs."""
    books = NodeGpus(name, tuple(draw(gpus(f"GPU-{name}-{i}", i)) for i in range(draw(st.integers(0, max_gpus)))))
    for gpu in books.gpus:
        for share in draw(_shares(gpu)):
            pod = builders.ref(f"on-{name}-{len(books.placements)}")
            stage = draw(st.sampled_from(list(Stage)))
            books = books.holding(Placement(pod, name, (share,), stage, draw(times)))
    return books


@st.composite
def _shares(draw: st.DrawFn, gpu: Gpu) -> list[Share]:
    if gpu.mode is Mode.WHOLE:
        return [Share(gpu.uuid)] if draw(st.booleans()) else []
    if gpu.mode is Mode.SLICED:
        return [Share(gpu.uuid, piece) for piece in gpu.layout if draw(st.booleans())]
    sizes = draw(st.lists(st.integers(1, 10), max_size=3))
    return [Share(gpu.uuid, units=n) for i, n in enumerate(sizes) if sum(sizes[: i + 1]) <= gpu.units]


@st.composite
def wants(draw: st.DrawFn) -> Want:
    mode = draw(st.sampled_from(list(Mode)))
    if mode is Mode.SLICED:
        names = [p.name for key in MODELS for p in builders.model(key).profiles]
        return Want(mode, draw(st.integers(1, 3)), draw(st.sampled_from(names)))
    return Want(mode, draw(st.integers(1, 3 if mode is Mode.WHOLE else UNITS + 1)))


@st.composite
def requests(draw: st.DrawFn, pod: str = "asker") -> PodRequest:
    return PodRequest(builders.ref(pod), tuple(draw(st.lists(wants(), min_size=1, max_size=3))))


@st.composite
def snapshots(draw: st.DrawFn, max_nodes: int = 4) -> Snapshot:
    return Snapshot(tuple(draw(nodes(f"n{i}")) for i in range(draw(st.integers(0, max_nodes)))))


def scorings(now: st.SearchStrategy[float] = times) -> st.SearchStrategy[Scoring]:
    return st.builds(Scoring, scorers, now, st.just(30.0), st.just(60.0))
