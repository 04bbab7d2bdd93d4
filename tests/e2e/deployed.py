"""Fallow on the real cluster: its manifests applied, its three programs started with their own rights."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster import names
from cluster.client import CONFIGMAPS, EVENTS, GPUNODES, NODES, PODS, Client
from cluster.errors import NotFound
from tests.controlplane.cluster import RealCluster
from tests.machine import Machine

ROOT = Path(__file__).parents[2]
BASE = ROOT / "manifests" / "base"
IMAGE = "docker.io/local/pause:1"
SHOW = "env; echo ---; find /dev -name 'nvidia*'; sleep 2147483647"


GPUS = 2
POLICY = """
version: v1
placing: {scorer: least_stranded, staleAfterSeconds: 6}
sharing: {unitsPerGpu: 20}
recutting: {patienceSeconds: 0.5, cooldownSeconds: 1, drainSeconds: 60}
"""


class Deployed:
    """Three programs, several replicas where the real thing has them; started, killed and asked about by name."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.client: Client = cluster.admin
        self._pids: dict[str, int] = {}
        self.machines = [Machine(cluster.directory / f"gpus-{n.name}", n.name) for n in cluster.nodes]

    def start_all(self) -> None:
        self.start_pair(1)
        self.start_planner(1)
        for number in range(len(self.cluster.nodes)):
            self.start_agent(number)
        self.until(self._all_advertise, 40, lambda: f"all nodes advertise\n{self.logs()}")

    def reset(self) -> None:
        """No pods, the tests' policy, idle GPUs, every program up."""
        self.gone(*(p["metadata"]["name"] for p in self.client.list(PODS, "default")["items"]))
        self.set_policy(POLICY)
        for machine in self.machines:
            machine.quiet()
        for number, node in enumerate(self.cluster.nodes):
            if not self.up(f"fallow-agent-{node.name}"):
                self.start_agent(number)
        if not self.up("fallow-planner-1"):
            self.start_planner(1)
        if not self.up("fallow-scheduler-1"):
            self.start_extender()
        if not self.up("kube-scheduler-fallow-1"):
            self.start_pair(1)

    def up(self, name: str) -> bool:
        return name in self._pids and self.cluster.alive(self._pids[name])

    def _all_advertise(self) -> bool:
        return all(self.allocatable(n.name) for n in self.cluster.nodes)

    def apply(self, policy: str = "") -> None:
        manifests = ["namespace.yaml", "crd/gpunode.yaml", "policy/configmap.yaml"]
        manifests += [f"{n}/rbac.yaml" for n in ("scheduler", "planner", "agent")]
        for name in manifests:
            self.kubectl("apply", "--server-side", "-f", str(BASE / name))
        self.kubectl("wait", "--for=condition=Established", "crd/gpunodes.fallow.dev", "--timeout=30s")
        if policy:
            self.set_policy(policy)

    def kubectl(self, *args: str) -> str:
        done = subprocess.run(self.cluster.kubectl(*args), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}"
        return done.stdout

    def set_policy(self, text: str) -> None:
        self.client.patch(CONFIGMAPS, names.POLICY_CONFIGMAP, {"data": {names.POLICY_KEY: text}}, names.NAMESPACE)

    def start(self, name: str, *args: str, user: str = "", env: Mapping[str, str] | None = None) -> int:
        """`fallow <args>` as its own service account."""
        command = [sys.executable, "-m", "fallow", *args, "--kubeconfig", str(self.cluster.kubeconfig_for(user))]
        self._pids[name] = self.cluster.run(name, command, env=env, cwd=ROOT)
        return self._pids[name]

    def start_extender(self, pair: int = 1) -> None:
        """With mutual TLS, by the certificates that the install step makes."""
        certs = self._certificates()
        flags = [f"--tls-cert={certs / 'tls.crt'}", f"--tls-key={certs / 'tls.key'}", f"--client-ca={certs / 'ca.crt'}"]
        flags += [f"--listen=127.0.0.1:{8887 + pair}", f"--metrics-address=127.0.0.1:{9430 + pair}"]
        self.start(f"fallow-scheduler-{pair}", "scheduler", *flags, user="fallow-scheduler")

    def start_pair(self, pair: int) -> None:
        """An extender, and beside it the stock kube-scheduler with the manifests' configuration and account.

        Only the port differs by pair, and the lease is short so that a test need not wait long for it to end.
        """
        self.start_extender(pair)
        text = (BASE / "scheduler" / "kube-scheduler.yaml").read_text()
        text = text.replace("/etc/fallow/tls", str(self._certificates())).replace(":8888", f":{8887 + pair}")
        fields = {k: v for k, v in yaml.safe_load(text).items() if k not in ("apiVersion", "kind")}
        fields["clientConnection"] |= {"kubeconfig": str(self.cluster.kubeconfig_for("fallow-scheduler"))}
        fields["leaderElection"] |= {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "1s"}
        name = f"kube-scheduler-fallow-{pair}"
        self._pids[name] = self.cluster.start_scheduler(fields, name)

    def _certificates(self) -> Path:
        directory = self.cluster.directory / "certs"
        command = [sys.executable, "-m", "fallow", "certs", "--dir", str(directory)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return directory

    def start_planner(self, replica: int = 1) -> None:
        port = 9410 + replica
        flags = (f"--metrics-address=127.0.0.1:{port}", f"--identity=planner-{replica}", "--tick-seconds=0.5")
        self.start(f"fallow-planner-{replica}", "planner", *flags, user="fallow-planner")

    def start_agent(self, number: int) -> None:
        node, machine = self.cluster.nodes[number], self.machines[number]
        flags = [f"--node-name={node.name}", f"--kubelet-dir={node.kubelet_dir}", f"--cdi-dir={node.cdi_dir}"]
        flags += [f"--dev-root={node.make_devices(GPUS)}", f"--metrics-address=127.0.0.1:{9420 + number}"]
        name = f"fallow-agent-{node.name}"
        self.start(name, "agent", *flags, *machine.flags, user="fallow-agent", env=machine.env)

    def pid(self, name: str) -> int:
        return self._pids[name]

    def kill(self, name: str, how: int = 15) -> None:
        if name in self._pids:
            self.cluster.end(self._pids.pop(name), how)

    def stop(self) -> None:
        for name in list(self._pids):
            self.kill(name)

    def pod(self, name: str, asks: Mapping[str, int], node: str = "", **more: Any) -> dict[str, Any]:
        """Create a pod for our scheduler that prints its environment and device nodes."""
        limits = {resource: str(n) for resource, n in asks.items()}
        container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", SHOW]}
        spec = {
            "schedulerName": names.SCHEDULER,
            "terminationGracePeriodSeconds": 0,
            "containers": [{**container, "resources": {"limits": limits}}],
        }
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        meta = {"name": name, **more}
        return self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")

    def get(self, name: str) -> dict[str, Any]:
        return self.client.get(PODS, name, "default")

    def running(self, name: str, seconds: float = 40) -> dict[str, Any]:
        def check() -> bool:
            phase = self.get(name)["status"]["phase"]
            assert phase != "Failed", self.get(name)["status"]
            return phase == "Running"

        self.until(check, seconds, lambda: f"pod {name} runs: {self.explain(name)}")
        return self.get(name)

    def claimed(self, name: str, seconds: float = 20) -> dict[str, Any]:
        def check() -> bool:
            return names.CLAIM in self.get(name)["metadata"].get("annotations", {})

        self.until(check, seconds, lambda: f"pod {name} has a claim: {self.explain(name)}")
        return self.get(name)

    def claimed_running(self, name: str, seconds: float = 40) -> dict[str, Any]:
        self.running(name, seconds)
        return self.claimed(name)

    def pod_after(self, first: str, name: str, asks: Mapping[str, int]) -> None:
        """A second pod once the first has its place, and both run."""
        self.claimed_running(first)
        self.pod(name, asks)
        self.claimed_running(name)

    def restarts(self, name: str) -> int:
        return sum(c["restartCount"] for c in self.get(name)["status"]["containerStatuses"])

    def measured(self, gpu: str) -> float | None:
        return self._reading(gpu).get("busy")

    def age(self, gpu: str) -> float:
        return time.time() - self._reading(gpu)["at"]

    def _reading(self, gpu: str) -> dict[str, Any]:
        nodes = (self.gpunode(n.name)["status"].get("idle") or {} for n in self.cluster.nodes)
        return next((n[gpu] for n in nodes if gpu in n), {})

    def freeze(self, name: str) -> None:
        os.kill(self._pids[name], signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        os.kill(self._pids[name], signal.SIGCONT)

    def kill_when_phase_is(self, phase: str, node: str, gpu: str) -> None:
        """From now on: the node's agent dies as soon as its journal shows this phase for the GPU."""
        version = self.client.list(GPUNODES)["metadata"]["resourceVersion"]

        def watch() -> None:
            for event in self.client.watch(GPUNODES, version, timeout_seconds=60):
                recut = (event["object"].get("status") or {}).get("recuts", {}).get(gpu) or {}
                if recut.get("phase") == phase and event["object"]["metadata"]["name"] == node:
                    self.kill(f"fallow-agent-{node}", signal.SIGKILL)
                    return

        self._killer = threading.Thread(target=watch, daemon=True)
        self._killer.start()

    def killed(self, node: str) -> None:
        self._killer.join(timeout=30)
        assert not self.up(f"fallow-agent-{node}"), f"the phase never came\n{self.logs()}"

    def reason(self, name: str) -> str:
        """What kube-scheduler says of a pod that waits."""
        conditions = self.get(name)["status"].get("conditions") or ()
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")

    def whole_again(self) -> None:
        """Every GPU whole, as on a fresh node: by pods that want them all."""
        names_ = [f"sweep-{n}" for n in range(GPUS * len(self.cluster.nodes))]
        for name in names_:
            self.pod(name, {names.WHOLE: 1})
        for name in names_:
            self.running(name)
        self.gone(*names_)

    def gone(self, *pods: str) -> None:
        for name in pods:
            self.client.delete(PODS, name, "default", grace=0 if not self.get(name)["spec"].get("nodeName") else None)
        self.until(lambda: not any(self._exists(n) for n in pods), 30, lambda: f"pods {pods} are gone")

    def sees(self, name: str) -> tuple[dict[str, str], set[str]]:
        """Environment and device nodes of the pod's container, as it printed them itself."""
        env, _, nodes = self.kubectl("logs", name).partition("---")
        variables = dict(line.split("=", 1) for line in env.splitlines() if "=" in line)
        return variables, set(nodes.split())

    def gpunode(self, node: str) -> dict[str, Any]:
        return self.client.get(GPUNODES, node)

    def allocatable(self, node: str) -> dict[str, int]:
        listed = self.client.get(NODES, node)["status"]["allocatable"]
        return {k: int(v) for k, v in listed.items() if names.is_ours(k) and int(v)}

    def events(self, reason: str, namespace: str = "default") -> list[dict[str, Any]]:
        return [e for e in self.client.list(EVENTS, namespace)["items"] if e.get("reason") == reason]

    def explain(self, name: str) -> str:
        """Why a pod is where it is, for a failing test."""
        pod = self.get(name)
        said = [
            e["message"]
            for e in self.client.list(EVENTS, "default")["items"]
            if e["involvedObject"].get("name") == name
        ]
        return f"{pod['status']} {pod['metadata'].get('annotations')} {said[-4:]}"

    def until(self, check: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what()}"
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(
            f"== {p.name}\n{p.read_text(errors='replace')[-2500:]}"
            for p in sorted((self.cluster.directory / "logs").glob("fallow-*.log"))
        )

    def _exists(self, name: str) -> bool:
        try:
            self.get(name)
        except NotFound:
            return False
        return True
