"""The wired parts of one node: what runs in which thread, and what wakes whom.

Order at start: look at the hardware and the GpuNode, adopt what is there, withhold what a re-cut under way takes away,
and only then register with the kubelet.
"""

import argparse
import logging
import threading
from collections.abc import Mapping

from cluster import process
from cluster.cache import Cache
from cluster.client import GPUNODES, NODES, PODS, Client
from cluster.clock import Clock
from cluster.errors import ApiError
from cluster.events import Events
from cluster.watch import Watcher
from device_plugin.cgroups import Cgroups
from device_plugin.kubelet import PodResources, Registrar
from device_plugin.links import Links
from device_plugin.memory import MemoryGuard, Office
from device_plugin.prefer import Steering
from device_plugin.publish import Publisher
from fallow.hands import Hands, Parts
from fallow.sales import Sales, Shop
from gpu.hardware import FaultKind, GpuFault, Hardware
from gpu.node import Gpu, Placement, Stage
from gpu.recut import Phase
from idle.publish import IdlePublisher
from idle.sample import sample
from mig_manager.agent import NodeLoop
from policies import load
from policies.load import Policies

log = logging.getLogger(__name__)

CLAIM_SECONDS = 1.0
"""The kubelet's PodResources is to be asked at most once a second in a steady state (its limit is 10 at once)."""
LOOK_SECONDS = 5.0
"""Between two looks at the hardware when nothing happens."""
STEP_SECONDS = 0.5


class Agent:
    """The wired parts of one node."""

    def __init__(self, args: argparse.Namespace, hardware: Hardware, client: Client, clock: Clock) -> None:
        self._args, self._hardware, self._client, self._clock = args, hardware, client, clock
        self._node: str = args.node_name
        self._cache = Cache(clock)
        self._policies = Policies()
        self._events = Events(client, clock, "agent")
        self._sales = Sales(args, Shop(self._node, hardware, self._cache, self._events, clock, self._units))
        self._state = self._sales.state
        self._links = Links(hardware.topology)
        self._changed = threading.Event()
        self._allocated = threading.Event()
        self._publisher = Publisher(self._node, client, self._cache, self._state, self._events, clock)
        self._resources = PodResources(args.kubelet_dir)
        office = Office(self._node, client, self._cache, self._events, clock)
        self._guard = MemoryGuard(office, hardware, Cgroups(), self._state.gpus, lambda: self._policies.current.sharing)
        self._registrar = Registrar(
            args.kubelet_dir, self._state, self._steering, self._sales.terms, self._allocated.set, clock
        )
        self._hands = Hands(
            Parts(
                node=self._node,
                hardware=hardware,
                state=self._state,
                cache=self._cache,
                held=self._resources.held,
                offer=self._sales.specs.offer,
                publish=self._publish,
                published=self._publisher.shows,
                units=self._units,
                conditions=lambda: (self._sales.config.condition(), self._guard.condition()),
            )
        )
        self._loop = NodeLoop(self._node, client, self._cache, self._policies, self._hands, clock, self._events)
        self._idle = IdlePublisher(self._node, client)

    def run(self, stop: threading.Event) -> None:
        ready = {
            "config": self._sales.config.ready,
            "cache": self._cache.ready,
            "kubelet": self._registrar.ready,
            "inventory": self._unpublished,
        }
        health = process.HealthServer(self._args.metrics_address, ready).start()
        self._watch()
        self._start(stop)
        every = (
            ("recut", self._loop.tick, STEP_SECONDS),
            ("look", self._look, LOOK_SECONDS),
            ("memory", self._guard.tick, LOOK_SECONDS),
        )
        for name, tick, seconds in every:
            process.spawn(name, lambda n=name, t=tick, s=seconds: process.forever(n, t, s, self._clock, stop))  # type: ignore[misc]
        process.spawn(
            "idle", lambda: process.forever("idle", self._sample, self._args.sample_seconds, self._clock, stop)
        )
        process.spawn("inventory", lambda: self._keep_published(stop))
        process.spawn("claims", lambda: self._follow_claims(stop))
        process.spawn("events", lambda: self._hear(stop))
        registrar = process.spawn("kubelet", lambda: self._registrar.run(stop))
        stop.wait()
        self._registrar.wake()
        registrar.join(timeout=5)
        health.stop()
        self._resources.close()
        self._hardware.close()

    def _watch(self) -> None:
        mine = {"fieldSelector": f"metadata.name={self._node}"}
        bound = {"fieldSelector": f"spec.nodeName={self._node}"}
        for name, kind, selector in (("nodes", NODES, mine), ("gpunodes", GPUNODES, mine), ("pods", PODS, bound)):
            Watcher(
                self._client,
                kind,
                lambda event, obj, n=name: self._cache.take(n, event, obj),  # type: ignore[misc]
                on_listed=lambda n=name: self._cache.listed(n),  # type: ignore[misc]
                clock=self._clock,
                **selector,
            ).start()
        self._policy_watch = load.follow(self._client, self._policies, self._events, self._args.namespace).start()

    def _start(self, stop: threading.Event) -> None:
        """Adopt what is there before anything is advertised. Waits for the API server as long as it takes."""
        while not stop.is_set():
            try:
                facts = self._publisher.remembered()
                break
            except ApiError as error:
                log.warning("waiting for the API server: %s", error)
                self._clock.wait(1.0, stop)
        else:
            return
        # How long to be patient, and the number of units, are the policy's; which configuration, the node's label says.
        while not (self._policy_watch.listed.wait(0.2) and self._cache.node(self._node)) and not stop.is_set():
            pass
        recuts = facts.recuts or {}
        for uuid, recut in recuts.items():
            self._state.recutting(uuid, busy=recut.phase is not Phase.DONE)
        self._read({g.uuid: g for g in facts.gpus})
        while self._sales.config.ready() and not self._clock.wait(LOOK_SECONDS, stop):
            self._read({g.uuid: g for g in facts.gpus})  # nothing is offered before it is known how
        for uuid, recut in recuts.items():
            # In Hold a bound pod may still be on its way to what goes; later nobody is. Stuck is as it was left.
            if recut.phase not in (Phase.HOLD, Phase.DONE):
                self._state.withhold(uuid, recut.target)
        self._sales.renew()
        self._publish()

    def _look(self) -> str:
        """Read the hardware again; follow the policy's units; publish what changed."""
        self._read({})
        if not self._policies.ready():
            self._sales.follow(self._resources.held, self._placements())
        self._sales.renew()
        self._publish()
        return ""

    def _read(self, remembered: Mapping[str, Gpu]) -> None:
        # Asked before the hardware: a re-cut that ends while it is being read must not be undone by what was read.
        edits = self._state.edits()
        seen = self._hardware.gpus()
        self._sales.config.look(seen)
        if not self._sales.config.ready():
            self._state.take(seen, remembered, self._sales.wish(), self._clock.now(), edits)
            self._links.follow(seen)

    def _publish(self) -> None:
        """Soon, by the one thread that writes the inventory: nobody waits for the API server with a GPU in hand."""
        self._changed.set()
        self._registrar.wake()

    def _keep_published(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._changed.wait(LOOK_SECONDS)
            self._changed.clear()
            try:
                self._publisher.inventory()
            except ApiError as error:
                log.warning("inventory not published: %s", error)
                self._changed.set()
                self._clock.wait(1.0, stop)

    def _follow_claims(self, stop: threading.Event) -> None:
        """After each Allocate, and whenever something changed here: compare what was given with what was promised."""
        seen = 0
        while not stop.is_set():
            self._allocated.wait(CLAIM_SECONDS)
            if not self._allocated.is_set() and self._cache.version == seen:
                continue
            self._allocated.clear()
            seen = self._cache.version
            try:
                done = self._publisher.claims(self._resources.held())
            except ConnectionError as error:
                log.info("%s", error)
                done = False
            if not done:
                self._allocated.set()
            self._clock.wait(CLAIM_SECONDS, stop)

    def _sample(self) -> str:
        readings = sample(self._hardware, [g.uuid for g in self._state.gpus()], self._clock.now())
        self._idle.publish(readings, self._policies.current.placing.stale_after_seconds)
        return ""

    def _hear(self, stop: threading.Event) -> None:
        """XIDs, until stopped. Hardware that reports none is looked at all the same, every few seconds."""
        while not stop.is_set():
            try:
                events = self._hardware.events(timeout_seconds=1.0)
            except GpuFault as fault:
                log.warning("cannot listen for hardware events: %s", fault)
                self._clock.wait(3600.0 if fault.kind is FaultKind.NOT_SUPPORTED else LOOK_SECONDS, stop)
                continue
            for event in events:
                log.warning("GPU %s: XID %d", event.gpu or "unknown", event.code)
                self._state.take_event(event, self._clock.now())
                self._publish()

    def _placements(self) -> tuple[Placement, ...]:
        node = self._cache.snapshot().by_name.get(self._node)
        return node.seats if node else ()

    def _steering(self) -> Steering:
        promises = tuple(p for p in self._placements() if p.stage is Stage.PROMISED)
        return Steering(promises, self._links.now, self._sales.wish().plan.distribute)

    def _units(self) -> int:
        return self._policies.current.sharing.units_per_gpu

    def _unpublished(self) -> str:
        return "" if self._publisher.done else "the inventory has not been published yet"
