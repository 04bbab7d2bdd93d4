"""A real Kubernetes on this machine: etcd, API server, controller manager, scheduler, real nodes and KWOK nodes.

Everything runs in a network namespace of its own and is recorded before it is needed; `stop` (or the next start)
cleans up by that record. The user's kubeconfig, firewall and network are never touched.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from cluster.client import NODES, Client, Kind
from cluster.errors import ApiError
from tests.controlplane import image, network
from tests.controlplane.build import Binaries, binaries, cache_dir
from tests.controlplane.keys import Authority, Tokens, service_account_keys
from tests.controlplane.node import Node, end_shims, wait
from tests.controlplane.processes import Record

PROGRAMS = ("fallow-scheduler", "fallow-planner", "fallow-agent")
MAX_NODES = 4
KWOK_ANNOTATION = {"kwok.x-k8s.io/node": "fake"}


class RealCluster:
    """`with RealCluster(directory) as cluster: cluster.start(real_nodes=2)`; `directory` may be reused."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or Path(tempfile.mkdtemp(prefix="fallow-cluster-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._own = directory is None
        self._ident = hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]
        self._record = Record(self.directory)
        self.nodes: list[Node] = []
        self._held: IO[str] | None = None

    def __enter__(self) -> "RealCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, real_nodes: int = 2, scheduler: Mapping[str, Any] | None = None) -> "RealCluster":
        """Up and ready, or an exception with the log of what did not start. `scheduler`: see `start_scheduler`."""
        self.clean()
        try:
            self._start(real_nodes, scheduler)
        except BaseException:
            self.stop(keep_logs=True)
            raise
        return self

    def stop(self, keep_logs: bool = False) -> None:
        for node in self.nodes:
            node.stop()
        self.nodes = []
        self.clean()
        if self._own and not keep_logs:
            shutil.rmtree(self.directory, ignore_errors=True)

    def clean(self) -> None:
        """Undo what the record says, whoever started it."""
        for node in self.directory.glob("node*"):
            end_shims(node)
        self._record.clean()
        for name in ("etcd", "node1", "node2", "node3", "node4"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        if self._held is not None:
            self._held.close()
            self._held = None

    def kubeconfig_for(self, user: str) -> Path:
        """A kubeconfig for `admin`, `node1` ..., `system:...`, or one of our programs by its service account."""
        account = {p: f"system:serviceaccount:fallow-system:{p}" for p in PROGRAMS}.get(user, user)
        path = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fallow",
            "clusters": [{"name": "fallow", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user, "user": {"token": self._tokens.of(account)}}],
            "contexts": [{"name": "fallow", "context": {"cluster": "fallow", "user": user}}],
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def run(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> int:
        """Start a program inside the cluster's network; its pid. Its output is `log(name)`."""
        return self._record.start(name, command, self.log(name), namespace=self.network.enter, env=env, cwd=cwd)

    def end(self, pid: int, how: int = signal.SIGTERM) -> None:
        self._record.stop(pid, how, seconds=15.0)

    def alive(self, pid: int) -> bool:
        return self._record.alive(pid)

    def log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name.replace('/', '-')}.log"

    def start_scheduler(self, config: Mapping[str, Any] | None = None, name: str = "kube-scheduler") -> int:
        """A stock kube-scheduler with these fields of KubeSchedulerConfiguration on top of ours; its pid."""
        merged = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            # The default of 50 requests a second would be what every measurement measures.
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig_for("system:kube-scheduler")),
                "qps": 2000,
                "burst": 2000,
            },
            "leaderElection": {"leaderElect": False},
            **(config or {}),
        }
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(merged))
        kubeconfig = self.kubeconfig_for("system:kube-scheduler")
        flags = [f"--config={path}", f"--secure-port={self._scheduler_port}", "--bind-address=127.0.0.1"]
        self._scheduler_port += 1
        login = [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
        return self.run(name, [str(self._binaries.controlplane), "kube-scheduler", *flags, *login])

    def start_kwok(self) -> int:
        stages = [f"--config={p}" for p in sorted(self._binaries.kwok_stages.iterdir())]
        return self.run(
            "kwok",
            [
                str(self._binaries.kwok),
                f"--kubeconfig={self.kubeconfig_for('admin')}",
                "--manage-all-nodes=false",
                "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
                "--node-lease-duration-seconds=40",
                *stages,
            ],
        )

    def create_kwok_nodes(self, count: int, resources: Mapping[str, str], prefix: str = "kwok") -> list[str]:
        """Nodes that only exist on paper, with these resources besides cpu, memory and pods."""
        status = {"cpu": "64", "memory": "512Gi", "pods": "250", **resources}
        names = [f"{prefix}-{n:04d}" for n in range(count)]
        for name in names:
            labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
            meta = {"name": name, "annotations": KWOK_ANNOTATION, "labels": labels}
            node = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": meta,
                "status": {"capacity": status, "allocatable": status},
            }
            self.admin.create(NODES, node)
        return names

    def kubectl(self, *args: str) -> list[str]:
        """The command line of a kubectl of the right version."""
        return [str(self._binaries.controlplane), "kubectl", f"--kubeconfig={self.kubeconfig_for('admin')}", *args]

    def _start(self, real_nodes: int, scheduler: Mapping[str, Any] | None) -> None:
        self._binaries: Binaries = binaries()
        (self.directory / "logs").mkdir(exist_ok=True)
        self._scheduler_port = 11259
        self.network = network.create(self._record, self._ident, self._number())
        self.url = f"https://{self.network.inside}:6443"
        users: dict[str, Sequence[str]] = {"admin": ["system:masters"]}
        users |= {u: [] for u in ("system:kube-controller-manager", "system:kube-scheduler")}
        users |= {f"system:node:node{n}": ["system:nodes"] for n in range(1, MAX_NODES + 1)}
        accounts = ["system:serviceaccounts", "system:serviceaccounts:fallow-system", "system:authenticated"]
        users |= {f"system:serviceaccount:fallow-system:{p}": accounts for p in PROGRAMS}
        self._tokens = Tokens(self.directory / "tokens.csv", users)
        self._authority = Authority(self.directory)
        self.ca = self._authority.path
        self._start_control_plane()
        self.admin = Client.connect(str(self.kubeconfig_for("admin")))
        self.start_scheduler(scheduler)
        archive = self.directory / "image.tar"
        image.write(archive)
        for number in range(1, real_nodes + 1):
            self._start_node(number, archive)
        wait(lambda: self._ready(real_nodes), 60, "the nodes", self.log("node1-kubelet"))
        wait(self._has_account, 30, "the default service account", self.log("kube-controller-manager"))

    def _start_control_plane(self) -> None:
        inside = self.network.inside
        serving, serving_key = self._authority.issue(
            "kube-apiserver",
            hosts=[inside, "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default", "localhost"],
        )
        client, client_key = self._authority.issue("kube-apiserver-kubelet-client", group="system:masters")
        private, public = service_account_keys(self.directory)
        binary = str(self._binaries.controlplane)
        peer, etcd = "http://127.0.0.1:2380", "http://127.0.0.1:2379"
        self.run(
            "etcd",
            [
                *(binary, "etcd", f"--data-dir={self.directory / 'etcd'}", "--unsafe-no-fsync", "--name=default"),
                *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
                *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                f"--initial-cluster=default={peer}",
            ],
        )
        self.apiserver = self.run(
            "kube-apiserver",
            [
                *(binary, "kube-apiserver", f"--etcd-servers={etcd}", "--secure-port=6443", "--bind-address=0.0.0.0"),
                *(
                    f"--advertise-address={inside}",
                    f"--tls-cert-file={serving}",
                    f"--tls-private-key-file={serving_key}",
                ),
                *(f"--token-auth-file={self._tokens.path}", f"--client-ca-file={self.ca}"),
                *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
                *("--service-account-issuer=https://kubernetes.default", f"--service-account-key-file={public}"),
                *(f"--service-account-signing-key-file={private}", "--service-cluster-ip-range=10.96.0.0/16"),
                *("--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP"),
                *(f"--kubelet-client-certificate={client}", f"--kubelet-client-key={client_key}"),
            ],
        )
        probe = Client.connect(str(self.kubeconfig_for("admin")), timeout_seconds=3)
        wait(lambda: self._alive_and(probe.reachable), 60, "the API server", self.log("kube-apiserver"))
        login = self.kubeconfig_for("system:kube-controller-manager")
        self.run(
            "kube-controller-manager",
            [
                *(binary, "kube-controller-manager", f"--kubeconfig={login}", "--leader-elect=false"),
                *(f"--authentication-kubeconfig={login}", f"--authorization-kubeconfig={login}"),
                *(f"--service-account-private-key-file={private}", f"--root-ca-file={self.ca}"),
                *("--use-service-account-credentials=true", "--bind-address=127.0.0.1"),
            ],
        )

    def _alive_and(self, check: Any) -> bool:
        if not self._record.alive(self.apiserver):
            raise RuntimeError(f"kube-apiserver has ended:\n{self.log('kube-apiserver').read_text()[-3000:]}")
        return bool(check())

    def _start_node(self, number: int, archive: Path) -> None:
        name = f"node{number}"
        node = Node(name, number, self.directory / name, self._record, self._binaries, self.network, self._ident)
        self.nodes.append(node)
        node.start(self.kubeconfig_for(f"system:node:{name}"), self.ca, archive)

    def _ready(self, count: int) -> bool:
        nodes = self.admin.list(NODES)["items"]
        ready = [
            n
            for n in nodes
            if any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"].get("conditions", ()))
        ]
        return len(ready) >= count

    def _has_account(self) -> bool:
        try:
            self.admin.get(Kind("v1", "ServiceAccount", "serviceaccounts"), "default", "default")
        except ApiError:
            return False
        return True

    def _number(self) -> int:
        """A free number for the addresses, locked for as long as this process lives and the record stands."""
        for number in range(int(self._ident, 16) % 200, 256):
            if not any(f"10.90.{number}." in line for line in Path("/proc/net/fib_trie").read_text().splitlines()):
                file = (Path(tempfile.gettempdir()) / f".fallow-net-{number}").open("w")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    file.close()
                    continue
                self._held = file
                return number
        raise RuntimeError("no free 10.90.N.0/24 for the cluster's network")


def default_directory() -> Path:
    return Path(os.environ.get("FALLOW_CLUSTER_DIR") or cache_dir() / "cluster")
