"""A real Kubernetes on this machine: etcd, API server, controller manager, scheduler, real nodes and KWOK nodes.

Everything runs in a network namespace of its own and is recorded; `stop` (or the next run, when this one was killed)
cleans up by that record. The user's kubeconfig, firewall and network are never touched.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import yaml

from cluster.client import NODES, Client, Kind
from cluster.errors import ApiError
from tests.controlplane import control, image, kwok, network
from tests.controlplane.build import binaries
from tests.controlplane.credentials import MAX_NODES, Credentials
from tests.controlplane.node import Node
from tests.controlplane.processes import ClusterError, Record
from tests.controlplane.site import Site, answers

PREFIX = "fallow-cluster-"
MARK = ".fallow-cluster"
"""In every directory of a cluster, so that no other directory is ever emptied."""


class RealCluster:
    """`with RealCluster() as cluster: cluster.start()`.

    With a `directory` the cluster can be left up and stopped by a later process; without, it lives in a directory of
    its own and ends with this process: if that is killed, the next cluster sweeps it up.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._own = directory is None
        self.directory = (directory or Path(tempfile.mkdtemp(prefix=PREFIX))).absolute()
        self._ident = hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]
        self._record = Record(self.directory)
        self._held: list[IO[str] | int] = []
        self.nodes: list[Node] = []

    def __enter__(self) -> "RealCluster":
        return self

    def __exit__(self, *_: object) -> None:
        if self._held:
            self.stop()

    def start(self, real_nodes: int = 2, scheduler: Mapping[str, Any] | None = None) -> "RealCluster":
        """Up and ready, or ClusterError with the log of what did not start. `scheduler`: see `start_scheduler`."""
        if not 0 <= real_nodes <= MAX_NODES:
            raise ClusterError(f"{real_nodes} real nodes: at most {MAX_NODES} can be had")
        self._hold()
        if self._own:
            sweep()
        try:
            self._record.clean()
            self._wipe(set())
            self._start(real_nodes, scheduler or {})
        except BaseException:
            self.stop(keep_logs=True)
            raise
        return self

    def stop(self, keep_logs: bool = False) -> None:
        """Undo what the record says, whoever started it. Raises ClusterError while another process is at work on it."""
        self._hold()
        self.nodes = []
        self._record.clean()
        self._wipe({"logs"} if keep_logs else set())
        if not keep_logs:
            shutil.rmtree(self.directory, ignore_errors=True)
        while self._held:
            held = self._held.pop()
            os.close(held) if isinstance(held, int) else held.close()

    def programs(self) -> dict[str, bool]:
        """What has been started, by whichever process, and whether it runs."""
        return self._record.programs()

    def kubeconfig_for(self, user: str) -> Path:
        """A kubeconfig for `admin`, `system:...`, or one of our programs by its service account."""
        return self._login.kubeconfig_for(user)

    def run(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> int:
        """Start a program inside the cluster's network; its pid. Its output is `log(name)`."""
        return self._site.run(name, command, env=env, cwd=cwd)

    def end(self, pid: int, how: int = signal.SIGTERM) -> None:
        self._record.stop(pid, how, seconds=15.0)

    def alive(self, pid: int) -> bool:
        return self._record.alive(pid)

    def log(self, name: str) -> Path:
        return self._site.log(name)

    def start_scheduler(self, config: Mapping[str, Any] | None = None, name: str = "kube-scheduler") -> int:
        """A stock kube-scheduler with these fields of KubeSchedulerConfiguration on top of ours, ready; its pid."""
        path = self._write(f"{name}.yaml", control.scheduler_config(self._login, config or {}))
        self._scheduler_port += 1
        address, port = self._site.network.inside, self._scheduler_port
        pid = self._component(name, control.scheduler(path, self._login, address, port))
        self._site.wait_for(name, pid, lambda: answers(f"https://{address}:{port}/readyz"), 30)
        return pid

    def start_proxy(self) -> int:
        """A kube-proxy, so that pods reach the API server at its Service."""
        address = self._site.network.inside
        path = self._write("kube-proxy.yaml", control.proxy_config(self._login, self.nodes[0].name, address))
        pid = self._component("kube-proxy", ["kube-proxy", f"--config={path}"])
        self._site.wait_for("kube-proxy", pid, lambda: answers(f"http://{address}:10256/healthz"), 30)
        return pid

    def start_kwok(self) -> int:
        files, login = self._site.binaries, self.kubeconfig_for("admin")
        return self.run("kwok", kwok.command(files.kwok, files.kwok_stages, login))

    def create_kwok_nodes(self, count: int, resources: Mapping[str, str], prefix: str = "kwok") -> list[str]:
        """Nodes that only exist on paper, with these resources besides cpu, memory and pods."""
        names = [f"{prefix}-{n:04d}" for n in range(count)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self.admin.create(NODES, kwok.node(name, resources)), names))
        return names

    def kubectl(self, *args: str) -> list[str]:
        """The command line of a kubectl of the right version."""
        return [str(self._site.binaries.controlplane), "kubectl", f"--kubeconfig={self.kubeconfig_for('admin')}", *args]

    def ready_nodes(self) -> set[str]:
        conditions = {n["metadata"]["name"]: n["status"].get("conditions", ()) for n in self.admin.list(NODES)["items"]}
        return {n for n, cs in conditions.items() if any(c["type"] == "Ready" and c["status"] == "True" for c in cs)}

    def _start(self, real_nodes: int, scheduler: Mapping[str, Any]) -> None:
        programs = binaries()
        (self.directory / "logs").mkdir()
        number, lock = network.reserve(self._ident)
        self._held.append(lock)
        self.network = net = network.create(self._record, self._ident, number)
        self._site = Site(self.directory, self._ident, self._record, net, programs)
        self._login = Credentials(self.directory, net.inside)
        self.url, self.ca = self._login.url, self._login.ca
        self._scheduler_port = 11258
        self._component("etcd", control.etcd(self.directory / "etcd"))
        self.apiserver = self._component("kube-apiserver", control.apiserver(net.inside, self._login))
        self._start_runtimes(real_nodes)  # while the API server is still starting
        self.admin = Client.connect(str(self.kubeconfig_for("admin")))
        self._site.wait_for("kube-apiserver", self.apiserver, self.admin.reachable, 60)
        manager = self._component("kube-controller-manager", control.controller_manager(self._login))
        for node in self.nodes:
            node.start_kubelet(self.kubeconfig_for(f"system:node:{node.name}"), self.ca)
        self.start_scheduler(scheduler)
        self._site.wait_for("kube-controller-manager", manager, self._has_account, 30)
        for node in self.nodes:
            node.wait(self.ready_nodes)

    def _start_runtimes(self, count: int) -> None:
        archive = self.directory / "image.tar"
        image.write(archive)
        self.nodes = [Node(self._site, number) for number in range(1, count + 1)]
        for node in self.nodes:
            node.start_runtime(archive)

    def _component(self, name: str, command: list[str]) -> int:
        return self._site.run(name, [str(self._site.binaries.controlplane), *command])

    def _write(self, name: str, config: Mapping[str, Any]) -> Path:
        path = self.directory / name
        path.write_text(yaml.safe_dump(config))
        return path

    def _has_account(self) -> bool:
        """Pods are refused in a namespace that has no default service account yet."""
        try:
            self.admin.get(Kind("v1", "ServiceAccount", "serviceaccounts"), "default", "default")
        except ApiError:
            return False
        return True

    def _hold(self) -> None:
        """The directory, against other processes; death lets it go. Raises ClusterError."""
        if self._held:
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_mine()
        except BlockingIOError:
            os.close(handle)
            raise ClusterError(f"another process is at work on the cluster in {self.directory}") from None
        except ClusterError:
            os.close(handle)
            raise
        self._held.append(handle)
        self._record = Record(self.directory)

    def _check_mine(self) -> None:
        mark = self.directory / MARK
        if any(self.directory.iterdir()) and not mark.exists():
            raise ClusterError(f"{self.directory} is not empty and not a cluster's; name another or empty it")
        mark.touch()

    def _wipe(self, keep: set[str]) -> None:
        for entry in self.directory.iterdir():
            if entry.name in {MARK, *keep}:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()


def sweep() -> list[Path]:
    """End the clusters of runs that were killed; where they were."""
    gone = []
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        mine = directory.is_dir() and not directory.is_symlink() and directory.stat().st_uid == os.geteuid()
        if mine and (directory / "record.json").exists():
            try:
                RealCluster(directory).stop()
            except ClusterError:  # it is in use
                continue
            gone.append(directory)
    return gone
