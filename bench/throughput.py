"""Pods per second through the real control plane: the same pods with Fallow and with a plain kube-scheduler, in turn.

Two stock kube-schedulers stand beside each other in one cluster of KWOK nodes, one with our extender, one without. Each
round stops the scheduler whose turn it is, creates the pods, lets it go on, and takes the time from then until the last
pod is bound, so that the creation of pods is not what is measured. Needs root and the built control plane.
"""

import os
import signal
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from bench.report import QUICK, report, spread
from cluster import gpunode, names
from cluster.client import CRDS, GPUNODES, PODS, Client
from cluster.watch import Watcher
from gpu import catalogue
from gpu.node import Gpu, Mode
from tests.controlplane.cluster import RealCluster

ROOT = Path(__file__).parents[1]
NODES, PODS_A_ROUND, ROUNDS = (50, 150, 3) if QUICK else (200, 500, 5)
GPUS, UNITS = 8, 20
BAR_RATIO = 0.9
PLAIN = "default-scheduler"
EVERY_NODE = {"percentageOfNodesToScore": 100}
EXTENDER = {
    "urlPrefix": "http://127.0.0.1:8888",
    "filterVerb": "filter",
    "bindVerb": "bind",
    "nodeCacheCapable": True,
    "httpTimeout": "5s",
    "managedResources": [{"name": names.WHOLE}, {"name": names.SHARED}],
}


class Bound:
    """Counts the pods of a round that the watch shows as bound."""

    def __init__(self, client: Client) -> None:
        self._changed, self._uids = threading.Condition(), set[str]()
        self._last = 0.0
        self._watcher = Watcher(client, PODS, self._take, namespace="default").start()
        self._watcher.listed.wait(30)

    def _take(self, event: str, pod: dict[str, Any]) -> None:
        with self._changed:
            if event == "DELETED":
                self._uids.discard(pod["metadata"]["uid"])
            elif pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in self._uids:
                self._uids.add(pod["metadata"]["uid"])
                self._last = time.perf_counter()
            self._changed.notify_all()

    def wait(self, count: int, seconds: float) -> float:
        """When the last of so many was bound."""
        with self._changed:
            done = self._changed.wait_for(lambda: len(self._uids) == count, seconds)
            assert done, f"{len(self._uids)} of {count} pods bound after {seconds} s"
            return self._last


def main() -> None:
    with RealCluster() as cluster:
        print(f"starting a cluster with {NODES} KWOK nodes", flush=True)
        cluster.start(real_nodes=0, scheduler=EVERY_NODE)
        cluster.start_kwok()
        _create_nodes(cluster)
        python = [sys.executable, "-m", "fallow", "scheduler"]
        flags = ["--kubeconfig", str(cluster.kubeconfig_for("admin")), "--metrics-address", "127.0.0.1:9401"]
        cluster.run("extender", [*python, *flags], cwd=ROOT)
        _wait(lambda: f"ready: {NODES} nodes" in cluster.log("extender").read_text(), "the extender")
        profile = {"profiles": [{"schedulerName": names.SCHEDULER}], "extenders": [EXTENDER], **EVERY_NODE}
        schedulers = {
            PLAIN: _pid_of(cluster, "kube-scheduler.yaml"),
            names.SCHEDULER: cluster.start_scheduler(profile, "kube-scheduler-fallow"),
        }
        measure(cluster.admin, schedulers)


def measure(client: Client, schedulers: dict[str, int]) -> None:
    bound = Bound(client)
    rates: dict[str, list[float]] = {name: [] for name in schedulers}
    for number in range(-1, ROUNDS):  # the first round warms everybody up
        for name, pid in schedulers.items():
            rate = _round(client, bound, name, pid, number + 1)
            print(f"  round {number + 1} {name:18} {rate:7.1f} pods/s{' (warm-up)' if number < 0 else ''}", flush=True)
            if number >= 0:
                rates[name].append(rate)
    ours, plain = rates[names.SCHEDULER], rates[PLAIN]
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    figures = {"pods_per_second": round(statistics.median(ours), 1), "ratio": round(statistics.median(ratios), 3)}
    peers = {"plain_pods_per_second": round(statistics.median(plain), 1)}
    conditions = {
        "nodes": NODES,
        "pods_a_round": PODS_A_ROUND,
        "rounds": ROUNDS,
        "pods_per_second_spread": spread(ours),
        "plain_spread": spread(plain),
        "ratio_spread": spread(ratios),
        "cpus": os.cpu_count(),
        "bars": "ratio >= 0.9",
        "quick": QUICK,
    }
    report("throughput", figures, peers, conditions, figures["ratio"] >= BAR_RATIO)


def _round(client: Client, bound: Bound, scheduler: str, pid: int, number: int) -> float:
    # New names each time: KWOK ends pods by name, and its last round's ends may come late.
    pods = [f"{scheduler}-{number}-{n}" for n in range(PODS_A_ROUND)]
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: client.create(PODS, _pod(name, scheduler), "default"), pods))
    finally:
        os.kill(pid, signal.SIGCONT)
    begun = time.perf_counter()
    rate = PODS_A_ROUND / (bound.wait(PODS_A_ROUND, 120) - begun)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: client.delete(PODS, name, "default", grace=0), pods))
    bound.wait(0, 60)
    return rate


def _pod(name: str, scheduler: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": {names.SHARED: "2"}}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": scheduler, "containers": [container]}}


def _create_nodes(cluster: RealCluster) -> None:
    crd = yaml.safe_load((ROOT / "manifests/base/crd/gpunode.yaml").read_text())
    cluster.admin.create(CRDS, crd)
    _wait(lambda: _established(cluster.admin, crd["metadata"]["name"]), "the CRD")
    model = catalogue.model("h100-80gb")
    for name in cluster.create_kwok_nodes(NODES, {names.SHARED: str(GPUS * UNITS)}):
        gpus = [Gpu(f"GPU-{name}-{i}", i, model, Mode.SHARED, units=UNITS) for i in range(GPUS)]
        cluster.admin.create(GPUNODES, gpunode.empty(name))
        cluster.admin.patch(GPUNODES, name, {"status": gpunode.inventory(gpus, {})}, subresource="status")


def _established(client: Client, crd: str) -> bool:
    conditions = client.get(CRDS, crd).get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _pid_of(cluster: RealCluster, config: str) -> int:
    """The scheduler that the cluster started by itself, found by its configuration file."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"--config={cluster.directory / config}".encode() in words:
            return int(line.parent.name)
    raise RuntimeError(f"no kube-scheduler runs with {config}")


def _wait(true: Any, what: str, seconds: float = 60.0) -> None:
    end, pause = time.monotonic() + seconds, threading.Event()
    while not true():
        assert time.monotonic() < end, f"{what}: not there after {seconds} s"
        pause.wait(0.1)


if __name__ == "__main__":
    main()
