"""One node with one GPU, its kubelet and its pods, small enough to run a re-cut thousands of times.

Deaths and faults are set by number: the n-th moment between two acts, the n-th call of the hardware. What must never
happen is checked in the act itself.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from cluster.cache import Cache
from cluster.clock import ManualClock
from cluster.gpunode import inventory, wanted_out
from gpu.hardware import FaultKind, GpuFault, GpuProcess, HardwareEvent, Reading, SeenGpu, SeenSlice
from gpu.layout import Layout, Slice, canonical, legal
from gpu.node import Gpu, Mode
from gpu.recut import Phase, Recut, Shape, Wanted
from mig_manager import apply
from mig_manager.agent import NodeLoop
from mig_manager.lanes import Inline
from mig_manager.moment import Seen
from policies.load import Policies
from policies.model import Policy, Recutting
from tests import builders

GPU = "GPU-0"
CALLS = frozenset({"read", "set_mig", "cut", "join", "processes"})
ACTS = frozenset({"set_mig", "cut", "join"})
NODE = "n1"
DRAIN_SECONDS = 20.0


class Death(BaseException):
    """The agent is killed here."""


@dataclass
class Pod:
    """Uses `what` (a slice, or None: the GPU as it is) from `starts` until `leaves`, seconds after the beginning."""

    name: str
    what: Slice | None
    leaves: float = float("inf")
    starts: float = 0.0


@dataclass
class World:
    """The truth, which outlives agents. Implements the hardware door and the parts of the client that are used."""

    before: Shape
    wanted: Shape
    pods: list[Pod] = field(default_factory=list)
    deaths: frozenset[int] = frozenset()
    fault_from: int = 0
    fault_until: int = 0
    fault: FaultKind = FaultKind.OTHER
    faulty: frozenset[str] = CALLS
    key: str = builders.H100

    def __post_init__(self) -> None:
        self.model = builders.model(self.key)
        self.clock = ManualClock()
        self.began = self.clock.now()
        self.moments = self.calls = self.tried = 0
        self.mig = self.before.mode is Mode.SLICED
        self.slices: dict[Slice, bool] = dict.fromkeys(self.before.layout, True)
        self.advertised = self.before
        self.hands: Hands | None = None
        self.shown: tuple[Shape, bool] = (self.before, False)
        self.cache = Cache(self.clock)
        self.object = builders.gpunode_object(NODE)
        self.object["status"] = inventory([self._gpu()], {})
        self.object["spec"]["gpus"] = {GPU: wanted_out(Wanted(1, self.wanted, "for a test", 1))}
        for kind in ("pods", "nodes", "gpunodes"):
            self.cache.listed(kind)
        self.cache.take("nodes", "ADDED", {"metadata": {"name": NODE}})
        self._show_object()

    # --- moments ---

    def moment(self) -> None:
        """Between any two acts: the agent may die here."""
        self.moments += 1
        if self.moments in self.deaths:
            raise Death

    def _call(self, name: str) -> None:
        self.calls += 1
        if self.fault_from <= self.calls < self.fault_until and name in self.faulty:
            raise GpuFault(self.fault, name, GPU)

    @property
    def elapsed(self) -> float:
        return self.clock.now() - self.began

    def using(self) -> list[Pod]:
        return [p for p in self.pods if p.starts <= self.elapsed < p.leaves]

    def coming(self) -> list[Pod]:
        return [p for p in self.pods if self.elapsed < p.starts]

    # --- hardware ---

    def gpus(self) -> tuple[SeenGpu, ...]:
        return (self.read(GPU),)

    def read(self, gpu: str) -> SeenGpu:
        self._call("read")
        seen = tuple(
            SeenSlice(s, i, i if whole else None, f"MIG-{s}" if whole else None)
            for i, (s, whole) in enumerate(sorted(self.slices.items(), key=lambda item: item[0].start))
        )
        return SeenGpu(GPU, 0, 0, "00000000:01:00.0", "test", self.model, self.mig, seen)

    def set_mig(self, gpu: str, on: bool) -> None:
        self._call("set_mig")
        assert not self.using(), "MIG mode switched under a user"
        assert not self.slices, "MIG mode switched while slices exist"
        self.moment()
        self.mig = on
        self.moment()

    def cut(self, gpu: str, piece: Slice) -> SeenSlice:
        self._call("cut")
        assert self.mig
        self.moment()
        if piece not in self.slices:
            if any(piece.mask & s.mask for s in self.slices):
                raise GpuFault(FaultKind.NO_ROOM, "cut", gpu)
            self.slices[piece] = False
            assert legal(canonical(self.slices), self.model)
            self.moment()  # a GPU instance without its compute instance
        self.slices[piece] = True
        self.moment()
        return SeenSlice(piece, 0, 0, f"MIG-{piece}")

    def join(self, gpu: str, piece: Slice) -> None:
        self._call("join")
        assert all(p.what != piece for p in self.using()), f"{piece} destroyed under a user"
        self.moment()
        self.slices[piece] = False
        self.moment()
        del self.slices[piece]
        self.moment()

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        self._call("processes")
        order = sorted(self.slices, key=lambda s: s.start)
        users = self.using()
        return tuple(GpuProcess(i, None, order.index(p.what) if p.what else None) for i, p in enumerate(users))

    def activity(self, gpu: str) -> Reading:
        raise GpuFault(FaultKind.NOT_SUPPORTED, "activity", gpu)

    def events(self, timeout_seconds: float) -> tuple[HardwareEvent, ...]:
        return ()

    def close(self) -> None: ...

    # --- the API server ---

    def patch(self, kind: Any, name: str, patch: Any, namespace: str = "", subresource: str = "") -> dict[str, Any]:
        self.moment()
        _merge(self.object, patch)
        self._show_object()
        self.moment()
        return self.object

    def write(self, *_: Any, **__: Any) -> None:
        """Events."""

    def order(self, wanted: Wanted) -> None:
        self.object["spec"]["gpus"][GPU] = wanted_out(wanted)
        self._show_object()

    def publish(self) -> None:
        _merge(self.object, {"status": inventory([self._gpu()], {})})
        self.object["status"]["gpus"][GPU]["slices"] = {str(s): {} for s in self.advertised.layout}
        self._show_object()

    def record(self) -> Recut | None:
        facts = self.cache.facts(NODE)
        assert facts is not None
        assert not facts.problems, facts.problems
        return (facts.recuts or {}).get(GPU)

    def _gpu(self) -> Gpu:
        units = 20 if self.advertised.mode is Mode.SHARED else 0
        return Gpu(GPU, 0, self.model, self.advertised.mode, self.advertised.layout, units)

    def _show_object(self) -> None:
        self.cache.take("gpunodes", "MODIFIED", deepcopy(self.object))


class Hands:
    """What an agent has in its memory; a new agent starts with nothing withheld."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.out: Shape | None = None
        world.hands = self

    def gpus(self) -> tuple[str, ...]:
        return (GPU,)

    def see(self, gpu: str, target: Shape) -> Seen:
        world = self.world
        found = world.read(gpu)
        offer = (world.advertised, self.out is not None)
        agrees, world.shown = world.shown == offer, offer  # the Node shows it one look later
        return Seen(
            mig=found.mig,
            layout=found.layout,
            complete=found.whole_slices,
            advertised=world.advertised,
            holders=tuple(f"default/{p.name}" for p in world.using() if self._goes(p, target)),
            unstarted=tuple(f"default/{p.name}" for p in world.coming() if self._goes(p, target)),
            withheld=self.out == target,
            node_agrees=agrees,
            short=self.out is not None,
        )

    def withhold(self, gpu: str, target: Shape) -> None:
        self.world.moment()
        self.out = target
        self.world.moment()

    def conditions(self) -> tuple[dict[str, str], ...]:
        return ()

    def release(self, gpu: str) -> None:
        self.world.moment()
        self.out = None
        self.world.moment()

    def apply(self, gpu: str, target: Shape) -> None:
        self.world.tried += 1
        assert self.out is not None or self.world.advertised == target or not self._removed(target), "ids still out"
        apply.towards(self.world, gpu, target)

    def advertise(self, gpu: str, shape: Shape) -> None:
        self.world.moment()
        found = self.world.read(gpu)
        assert found.mig == (shape.mode is Mode.SLICED), "advertised as something it is not"
        assert found.layout == shape.layout, "advertised as something it is not"
        for pod in self.world.using():
            assert not self._goes(pod, shape), "a user is not advertised any more"
        self.world.advertised, self.out = shape, None
        self.world.publish()
        self.world.moment()

    def _removed(self, target: Shape) -> Layout:
        return canonical(set(self.world.advertised.layout) - set(target.layout))

    def _goes(self, pod: Pod, target: Shape) -> bool:
        now = self.world.advertised
        return pod.what not in target.layout if pod.what is not None else now.mode is not target.mode


def start(world: World) -> NodeLoop:
    """A new agent process."""
    policies = Policies()
    policies.current = Policy(recutting=Recutting(drain_seconds=DRAIN_SECONDS))
    return NodeLoop(NODE, world, world.cache, policies, Hands(world), world.clock, world, Inline())  # type: ignore[arg-type]


def live(world: World, rounds: int = 200) -> Recut:
    """Run agents, one after the other dies, until the re-cut has ended and stays so."""
    agent = start(world)
    quiet = 0
    for _ in range(rounds):
        try:
            agent.tick()
        except Death:
            agent = start(world)
        world.clock.advance(1.0)
        record = world.record()
        quiet = quiet + 1 if record is not None and record.phase.final else 0
        if record is not None and quiet > (25 if record.phase is Phase.STUCK else 2):
            return record
    raise AssertionError(f"not ended after {rounds} s: {world.record()}")


def _merge(old: dict[str, Any], patch: Any) -> None:
    for key, value in patch.items():
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict) and isinstance(old.get(key), dict):
            _merge(old[key], value)
        else:
            old[key] = value
