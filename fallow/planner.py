"""`fallow planner`: wires the planning loop to the cluster. One replica plans, the others stand by."""

import argparse
import logging
import os
import threading
from functools import partial

from cluster import names
from cluster.cache import Cache
from cluster.client import GPUNODES, NODES, PODS, Client
from cluster.clock import SystemClock
from cluster.events import Events
from cluster.lease import Lease
from cluster.process import HealthServer, forever, spawn, start_logging, stop_on_signals
from cluster.process import add_flags as add_common_flags
from cluster.unreadable import Unreadable
from cluster.watch import Watcher
from mig_manager.planner import Planner
from policies.load import Policies, follow

log = logging.getLogger(__name__)

FACTS_SECONDS = 5.0
"""Between two looks for facts that cannot be read."""
KINDS = {"pods": PODS, "nodes": NODES, "gpunodes": GPUNODES}


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_common_flags(parser, metrics_port=9403)
    parser.add_argument(
        "--identity", default="", help="name of this replica in the lease; empty: host name and process id"
    )
    parser.add_argument(
        "--tick-seconds", type=_positive, default=1.0, help="how often the planner looks whether pods wait"
    )


def run(args: argparse.Namespace) -> int:
    start_logging(args.log_level)
    stop, clock = stop_on_signals(), SystemClock()
    try:
        client = Client.connect(args.kubeconfig or None)
    except ValueError as error:
        log.error("%s", error)
        return 2
    cache, policies, events = Cache(clock), Policies(), Events(client, clock, "planner")
    watchers = [follow(client, policies, events, args.namespace), *_watch(client, cache, clock)]
    lease = Lease(client, clock, args.namespace, names.PLANNER_LEASE, args.identity or _identity())
    planner, unreadable = Planner(client, cache, policies, clock, events), Unreadable(cache, events, lease)
    try:
        health = HealthServer(args.metrics_address, {"cache": cache.ready}).start()
    except (ValueError, OSError) as error:
        log.error("%s", error)
        return 2
    for watcher in watchers:
        watcher.start()
    try:
        _wait_until_listed(watchers, stop)
        leader = spawn("lease", partial(lease.run, partial(planner.lead, seconds=args.tick_seconds), stop))
        spawn("facts", partial(forever, "facts", unreadable.tick, FACTS_SECONDS, clock, stop))
        stop.wait()
        leader.join(timeout=10)
    finally:
        for watcher in watchers:
            watcher.stop()
        health.stop()
    return 0


def _watch(client: Client, cache: Cache, clock: SystemClock) -> list[Watcher]:
    return [
        Watcher(client, kind, partial(cache.take, name), on_listed=partial(cache.listed, name), clock=clock)
        for name, kind in KINDS.items()
    ]


def _wait_until_listed(watchers: list[Watcher], stop: threading.Event) -> None:
    """A replica that knows nothing yet must not take the lease from one that does."""
    for watcher in watchers:
        while not stop.is_set() and not watcher.listed.wait(0.2):
            pass


def _identity() -> str:
    return f"{os.uname().nodename}_{os.getpid()}"


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return number
