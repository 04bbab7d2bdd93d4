"""`fallow scheduler`: the kube-scheduler extender, wired. One process, beside its own kube-scheduler."""

import argparse
import gc
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial

from cluster.cache import Cache
from cluster.client import GPUNODES, NODES, PODS, Client, Kind
from cluster.clock import SystemClock
from cluster.events import Events
from cluster.process import HealthServer, spawn, start_logging, stop_on_signals
from cluster.process import add_flags as add_common_flags
from cluster.watch import Watcher
from policies.load import Policies, follow
from scheduler.app import Extender, application
from scheduler.bind import Binder
from scheduler.promises import Promises
from scheduler.serve import Tls, listen, serve, server

log = logging.getLogger(__name__)

METRICS_PORT = 9401


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_common_flags(parser, METRICS_PORT)
    parser.add_argument("--listen", default="127.0.0.1:8888", help="host:port kube-scheduler calls; port 0: any free")
    parser.add_argument(
        "--tls-cert", default="", help="this server's certificate (PEM); empty: plain HTTP, on loopback only"
    )
    parser.add_argument("--tls-key", default="", help="its key (PEM)")
    parser.add_argument("--client-ca", default="", help="CA that kube-scheduler's client certificate must come from")


def run(args: argparse.Namespace, kind: type[Extender] = Extender) -> int:
    """Until a signal stops it; 2 when it cannot start. `kind`: a bench may put another way of deciding in its place."""
    start_logging(args.log_level)
    tls = Tls(args.tls_cert, args.tls_key, args.client_ca)
    try:
        client = Client.connect(args.kubeconfig)
        sock = listen(args.listen, tls)
    except ValueError as error:
        print(f"fallow scheduler: {error}", file=sys.stderr)
        return 2
    stop, clock, policies = stop_on_signals(), SystemClock(), Policies()
    cache = Cache(clock)
    watchers = [_watch(client, kind, cache) for kind in (PODS, NODES, GPUNODES)]
    policy_watch = follow(client, policies, Events(client, clock, "scheduler"), args.namespace)

    def ready() -> str:
        return cache.ready() or ("" if policy_watch.listed.is_set() else "policy not yet looked up")

    promises = Promises(cache, clock)
    binder = Binder(client, cache, promises, lambda: policies.current, clock)
    extender = kind(promises, binder, lambda: policies.current, clock, ready)
    try:
        serving = server(application(extender), tls)
        health = HealthServer(args.metrics_address, {"scheduler": ready}).start()
    except (ValueError, OSError) as error:
        print(f"fallow scheduler: {error}", file=sys.stderr)
        return 2
    for watcher in (*watchers, policy_watch):
        watcher.start()
    spawn("settle", partial(_settle, ready, cache, stop))
    how = "mutual TLS" if tls.on else "plain HTTP on loopback"
    log.info("extender on %s:%s, %s; metrics on port %s", *sock.getsockname()[:2], how, health.port)
    serve(serving, sock, stop)
    for watcher in (*watchers, policy_watch):
        watcher.stop()
    health.stop()
    return 0


def _watch(client: Client, kind: Kind, cache: Cache) -> Watcher:
    return Watcher(client, kind, partial(cache.take, kind.plural), on_listed=partial(cache.listed, kind.plural))


def _settle(ready: Callable[[], str], cache: Cache, stop: threading.Event) -> None:
    """Once everything has been listed, take it out of the garbage collector's sight: walking the objects of thousands
    of nodes would stop an answer for a tenth of a second, and what is listed lives long."""
    while ready() and not stop.is_set():
        cache.wait(0.5, cache.version)
    gc.collect()
    gc.freeze()
    log.info("ready: %d nodes", len(cache.snapshot().nodes))
