"""However events come in, the snapshot is what a fresh cache would fold, sorted by name, and as old as it can be."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.cache import Cache
from cluster.clock import ManualClock
from tests import builders as b

NAMES = st.sampled_from(["n1", "n2", "n3"])


@st.composite
def _events(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    kind, event, name = draw(st.sampled_from(["pods", "nodes", "gpunodes"])), draw(_EVENTS), draw(NAMES)
    if kind == "nodes":
        return kind, event, {"metadata": {"name": name, "labels": {"x": str(draw(st.integers(0, 1)))}}}
    if kind == "gpunodes":
        gpu = replace(b.gpu("GPU-0", units=20), healthy=draw(st.booleans()))
        return kind, event, b.gpunode_object(name, gpu)
    promise = '{"v":1,"at":1,"shares":[{"gpu":"GPU-0","units":3}]}'
    pod = b.pod(
        draw(st.sampled_from(["p1", "p2"])), node=draw(st.just("") | NAMES), annotations={"fallow.dev/promise": promise}
    )
    return kind, event, pod


_EVENTS = st.sampled_from(["ADDED", "MODIFIED", "DELETED"])


@given(st.lists(_events(), max_size=20))
def test_the_snapshot_is_what_a_fresh_fold_would_be(events: list[tuple[str, str, dict[str, Any]]]) -> None:
    cache = Cache(ManualClock())
    for number, event in enumerate(events):
        before = cache.snapshot()
        cache.take(*event)
        after, fresh = cache.snapshot(), Cache(ManualClock())
        for earlier in events[: number + 1]:
            fresh.take(*earlier)
        assert after.nodes == fresh.snapshot().nodes
        assert [n.name for n in after.nodes] == sorted(n.name for n in after.nodes)
        assert after is before or after.nodes != before.nodes
        kept = {n.name: n for n in before.nodes}
        assert all(kept[n.name] is n for n in after.nodes if kept.get(n.name) == n)
