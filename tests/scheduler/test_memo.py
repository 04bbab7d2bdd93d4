"""The memo gives the same answers as asking every node every time, whatever happens in between."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpu.node import NodeGpus, Snapshot
from gpu.placement import Fit, PodRequest, place
from gpu.scoring import Scoring
from scheduler import decide
from scheduler.memo import Memo
from tests import builders as b
from tests import strategies

NAMES = ("n0", "n1", "n2", "n3")


class MemoMachine(RuleBasedStateMachine):
    """Nodes come, go and change, time passes (and jumps back), policies change; two classes are asked all along."""

    @initialize(snapshot=strategies.snapshots(), requests=st.tuples(strategies.requests(), strategies.requests()))
    def begin(self, snapshot: Snapshot, requests: tuple[PodRequest, PodRequest]) -> None:
        self.nodes = {n.name: n for n in snapshot.nodes}
        self.requests = requests
        self.scoring = Scoring("most_idle", strategies.NOW, 30.0, 60.0)
        self.memo = Memo(limit=3)
        self.snapshot = Snapshot(tuple(self.nodes[n] for n in sorted(self.nodes)))

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def change_a_node(self, data: st.DataObject, name: str) -> None:
        self._put(name, data.draw(strategies.nodes(name)))

    @rule(name=st.sampled_from(NAMES), which=st.integers(0, 1))
    def bind_there(self, name: str, which: int) -> None:
        if name not in self.nodes:
            return
        answer = place(self.nodes[name], self.requests[which], self.scoring)
        if isinstance(answer, Fit):
            pod = b.ref(f"bound-{len(self.nodes[name].placements)}")
            self._put(name, self.nodes[name].holding(replace(answer.placement, pod=pod)))

    @rule(name=st.sampled_from(NAMES))
    def lose_a_node(self, name: str) -> None:
        self._put(name, None)

    @rule(seconds=st.floats(-100, 100))
    def pass_time(self, seconds: float) -> None:
        self.scoring = replace(self.scoring, now=self.scoring.now + seconds)

    @rule(scorer=strategies.scorers, stale=st.sampled_from([10.0, 30.0]))
    def edit_the_policy(self, scorer: str, stale: float) -> None:
        self.scoring = replace(self.scoring, scorer=scorer, stale_after=stale)

    @invariant()
    def same_as_asking_everybody(self) -> None:
        if not hasattr(self, "memo"):
            return
        for request in self.requests:
            kept = self.memo.standing(self.snapshot, request, self.scoring)
            plain = decide.standing(self.snapshot.nodes, request, self.scoring)
            assert kept == plain

    def _put(self, name: str, node: NodeGpus | None) -> None:
        self.nodes.pop(name, None)
        if node is not None:
            self.nodes[name] = node
        self.snapshot = Snapshot(tuple(self.nodes[n] for n in sorted(self.nodes)))


TestMemoMachine = MemoMachine.TestCase
TestMemoMachine.settings = settings(
    max_examples=40, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_only_changed_nodes_are_asked_again() -> None:
    nodes = tuple(b.node(b.gpu("GPU-0", units=20), name=f"n{i}") for i in range(5))
    taken = b.placement("x", b.share("GPU-0", units=1), node="n2")
    changed = (*nodes[:2], nodes[2].holding(taken), *nodes[3:])
    equal = tuple(replace(n) for n in changed)
    remembered, scoring, ask = Memo(), Scoring(), b.request(b.units(1), b.units(2))
    for now, expected in ((nodes, ["n0", "n1", "n2", "n3", "n4"]), (nodes, []), (changed, ["n2"]), (equal, [])):
        remembered.standing(Snapshot(now), ask, scoring)
        assert _asked(now) == expected
    turned = b.request(b.units(2), b.units(1), pod="other")
    remembered.standing(Snapshot(equal), turned, replace(scoring, now=5.0))
    assert _asked(equal) == [], "another pod that asks for the same, in another order, is of the same class"


def _asked(nodes: tuple[NodeGpus, ...]) -> list[str]:
    """Who was asked since the last look: a node works out its uses when it is, and we make it forget them."""
    return [n.name for n in nodes if n.__dict__.pop("_uses", None) is not None]


@given(strategies.snapshots(), strategies.requests())
def test_the_answer_does_not_depend_on_who_asks(snapshot: Snapshot, request: PodRequest) -> None:
    scoring = Scoring("pack", strategies.NOW)
    first = decide.standing(snapshot.nodes, request, scoring)
    assert Memo().standing(snapshot, replace(request, pod=b.ref("somebody-else")), scoring) == first


def test_odd_requests_do_not_fill_the_memory() -> None:
    remembered = Memo(limit=4)
    for amount in range(1, 50):
        remembered.standing(Snapshot((b.node(b.gpu("GPU-0", units=60)),)), b.request(b.units(amount)), Scoring())
    assert len(remembered._classes) == 4
