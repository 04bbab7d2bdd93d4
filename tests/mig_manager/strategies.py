"""Small clusters and requests for hypothesis: A30 GPUs, whose 76 layouts can all be tried."""

from dataclasses import replace

from hypothesis import strategies as st

from gpu.layout import Layout, legal_layouts
from gpu.node import Gpu, Mode, NodeGpus, Placement, Share, Stage
from gpu.placement import PodRequest, Want
from tests import builders

A30 = "a30-24gb"
UNITS = 4
MODEL = builders.model(A30)
PROFILES = ("1g.6gb", "2g.12gb", "4g.24gb", "2g.12gb+me")


@st.composite
def gpus(draw: st.DrawFn, uuid: str, node: str) -> tuple[Gpu, tuple[Placement, ...]]:
    mode = draw(st.sampled_from(list(Mode)))
    layout: Layout = draw(st.sampled_from(legal_layouts(MODEL))) if mode is Mode.SLICED else ()
    gpu = Gpu(uuid, int(uuid[-1]), MODEL, mode, layout, UNITS if mode is Mode.SHARED else 0)
    shares: list[Share] = []
    if mode is Mode.SLICED:
        shares = [Share(uuid, s) for s in layout if draw(st.booleans())]
    elif draw(st.booleans()):
        shares = [Share(uuid, units=draw(st.integers(1, UNITS)) if mode is Mode.SHARED else 0)]
    users = (Placement(builders.ref(f"user-{uuid}-{i}"), node, (s,), Stage.CLAIMED) for i, s in enumerate(shares))
    return gpu, tuple(users)


@st.composite
def nodes(draw: st.DrawFn, sizes: tuple[int, ...] = (1, 1)) -> tuple[NodeGpus, ...]:
    made = []
    for n, size in enumerate(sizes):
        name = f"n{n}"
        drawn = [draw(gpus(f"GPU-{n}{i}", name)) for i in range(size)]
        made.append(NodeGpus(name, tuple(g for g, _ in drawn), tuple(p for _, ps in drawn for p in ps)))
    return tuple(made)


wants = st.one_of(
    st.builds(lambda p, n: Want(Mode.SLICED, n, p), st.sampled_from(PROFILES), st.integers(1, 2)),
    st.builds(lambda n: Want(Mode.SHARED, n), st.integers(1, UNITS)),
    st.builds(lambda n: Want(Mode.WHOLE, n), st.integers(1, 2)),
)


@st.composite
def requests(draw: st.DrawFn, most: int = 4, bars: tuple[str, ...] = ()) -> tuple[PodRequest, ...]:
    """`bars` names the nodes that some of the pods may not run on."""
    asked = draw(st.lists(st.lists(wants, min_size=1, max_size=2), min_size=1, max_size=most))
    plain = (builders.request(*ws, pod=f"p{i}") for i, ws in enumerate(asked))
    return tuple(replace(r, barred=frozenset(n for n in bars if draw(st.booleans()))) for r in plain)
