"""The real cluster itself: what the other tests here take for granted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.client import NODES, PODS, Client
from tests.controlplane.cluster import PREFIX, RealCluster, sweep
from tests.controlplane.image import REFERENCE
from tests.controlplane.processes import ClusterError

ROOT = Path(__file__).parents[2]


def pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": REFERENCE, "imagePullPolicy": "Never"}
    if command:
        container["command"] = list(command)
    body = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": body}


def on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


def until(true: Callable[[], bool], what: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


class Pods:
    """Created by one test and gone after it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: list[str] = []

    def create(self, name: str, *command: str, **spec: Any) -> None:
        self._client.create(PODS, pod(name, *command, **spec), "default")
        self._made.append(name)

    def get(self, name: str) -> dict[str, Any]:
        return self._client.get(PODS, name, "default")

    def phase(self, name: str, wanted: str = "Running", seconds: float = 30.0) -> dict[str, Any]:
        until(lambda: self.get(name)["status"].get("phase") == wanted, lambda: self.get(name)["status"], seconds)
        return self.get(name)

    def remove(self) -> None:
        while self._made:
            self._client.delete(PODS, self._made.pop(), "default")
        until(lambda: not self._client.list(PODS, "default")["items"], lambda: "pods stay")


@pytest.fixture
def pods(real_cluster: RealCluster) -> Iterator[Pods]:
    made = Pods(real_cluster.admin)
    yield made
    made.remove()


def test_the_scheduler_puts_a_pod_on_each_real_node_and_it_runs(real_cluster: RealCluster, pods: Pods) -> None:
    for node in real_cluster.nodes:
        pods.create(node.name, nodeSelector=on(node.name))
    for node in real_cluster.nodes:
        assert pods.phase(node.name)["spec"]["nodeName"] == node.name


def test_the_sockets_of_a_node_are_reachable_from_outside(real_cluster: RealCluster) -> None:
    for node in real_cluster.nodes:
        assert (node.kubelet_dir / "device-plugins" / "kubelet.sock").is_socket()
        assert (node.kubelet_dir / "pod-resources" / "kubelet.sock").is_socket()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_pod_survives_its_kubelet(real_cluster: RealCluster, pods: Pods, how: int) -> None:
    node = real_cluster.nodes[0]
    pods.create("stays", nodeSelector=on(node.name))
    before = pods.phase("stays")["status"]["containerStatuses"][0]
    node.restart_kubelet(how)
    # Its own next pod says that the new kubelet is at work.
    pods.create("next", nodeSelector=on(node.name))
    pods.phase("next")
    after = pods.phase("stays")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


def test_pods_on_nodes_of_paper_run_too(real_cluster: RealCluster, pods: Pods) -> None:
    kwok = real_cluster.start_kwok()
    names = real_cluster.create_kwok_nodes(3, {"example.com/thing": "2"}, prefix="paper")
    try:
        until(lambda: set(names) <= real_cluster.ready_nodes(), lambda: real_cluster.log("kwok").read_text())
        for number in range(6):
            container = {"name": "main", "image": "none", "resources": {"limits": {"example.com/thing": "1"}}}
            pods.create(f"paper-{number}", containers=[container])
        for number in range(6):
            pods.phase(f"paper-{number}")
        pods.remove()
    finally:
        for name in names:
            real_cluster.admin.delete(NODES, name)
        real_cluster.end(kwok)


def test_a_pod_reaches_the_api_server_at_its_service(real_cluster: RealCluster, pods: Pods) -> None:
    proxy = real_cluster.start_proxy()
    try:
        pods.create("asks", "sh", "-c", "until nc -w 1 10.96.0.1 443 < /dev/null; do sleep 0.2; done")
        pods.phase("asks", "Succeeded")
    finally:
        real_cluster.end(proxy)


def test_a_program_logs_in_with_the_rights_of_its_own_service_account(real_cluster: RealCluster) -> None:
    command = [*real_cluster.kubectl("auth", "whoami", "-o", "json")]
    kubeconfig = f"--kubeconfig={real_cluster.kubeconfig_for('fallow-agent')}"
    done = subprocess.run([*command, kubeconfig], capture_output=True, text=True, check=True, timeout=30)
    assert '"username": "system:serviceaccount:fallow-system:fallow-agent"' in done.stdout
    assert '"system:serviceaccounts:fallow-system"' in done.stdout


def test_a_scheduler_that_cannot_start_says_why(real_cluster: RealCluster) -> None:
    with pytest.raises(ClusterError, match=r"kube-scheduler-bad has ended.*(?s:.)*noSuchField"):
        real_cluster.start_scheduler({"noSuchField": 1}, "kube-scheduler-bad")


RUN_AND_BE_KILLED = """
import os, sys
from cluster.client import PODS
from tests.controlplane.cluster import RealCluster
from tests.e2e.test_cluster import pod
cluster = RealCluster().start(real_nodes=1)
cluster.admin.create(PODS, pod("orphan"), "default")
while cluster.admin.get(PODS, "orphan", "default")["status"].get("phase") != "Running":
    pass
print(cluster.directory, cluster.nodes[0].cgroup, cluster.network.name, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_run_is_swept_up_by_the_next_and_leaves_nothing(real_cluster: RealCluster) -> None:
    before = real_cluster.programs()
    killed = [sys.executable, "-c", RUN_AND_BE_KILLED]
    done = subprocess.run(killed, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == -signal.SIGKILL, done.stderr
    directory, cgroup, network = done.stdout.split()
    assert Path(directory).name.startswith(PREFIX)
    assert running(directory, cgroup), "the killed run has left its cluster running"
    assert Path(directory) in sweep()
    until(lambda: not running(directory, cgroup), lambda: running(directory, cgroup), 5)
    assert not Path(directory).exists()
    assert directory not in Path("/proc/self/mountinfo").read_text()
    assert not Path(f"/run/netns/{network}").exists()
    assert not list(Path("/sys/class/net").glob(f"f?-{network.removeprefix('fallow-')}"))
    assert not [*Path("/sys/fs/cgroup").glob(f"*/{cgroup}"), *Path("/sys/fs/cgroup").glob(cgroup)]
    assert real_cluster.programs() == before, "the cluster of this run lives on"


def running(directory: str, cgroup: str) -> list[str]:
    """Command lines of everything that belongs to that cluster."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            words, group = (proc / "cmdline").read_text(), (proc / "cgroup").read_text()
        except OSError:
            continue
        if proc.name != str(os.getpid()) and (f"{directory}/" in words or f"/{cgroup}" in group):
            found.append(words.replace("\0", " "))
    return found
