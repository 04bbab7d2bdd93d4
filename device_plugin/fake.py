"""A kubelet that pretends: it speaks the real device-plugin and PodResources protocols on real sockets, admits the pods
bound to its node through the API server, and resolves CDI names as a container runtime does.

For tests and the demonstration, on machines where no kubelet can run. No container is started; what one would have got
is in `containers`.
"""

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from cluster import facts
from cluster.client import NODES, PODS, Client
from cluster.errors import ApiError, Conflict, NotFound
from cluster.watch import Watcher
from device_plugin.api import deviceplugin_pb2_grpc as rpc
from device_plugin.api import podresources_pb2_grpc as resources_rpc
from device_plugin.fake_devices import AdmissionError, Devices, Given, PodKey

log = logging.getLogger(__name__)


@dataclass
class Container:
    """What a container of that name would see: its environment and the device nodes under /dev."""

    env: dict[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)


class FakeKubelet:
    """`start()`, then it is a node named `node`; `restart()` sweeps the sockets as the real one does."""

    def __init__(self, node: str, directory: Path, cdi_dir: Path, client: Client, seed: int = 0) -> None:
        self.node, self._directory, self._cdi_dir, self._client = node, directory, cdi_dir, client
        self.containers: dict[tuple[str, str], dict[str, Container]] = {}
        self._plugins = directory / "device-plugins"
        self._pods: dict[str, dict[str, Any]] = {}
        self._settled: set[str] = set()
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._stop = threading.Event()
        self._servers: list[grpc.Server] = []
        self.devices = Devices(self._plugins, self._work.set, self._active, seed)

    def start(self, labels: dict[str, str] | None = None) -> "FakeKubelet":
        self._register_node(labels or {})
        self._serve()
        self._watcher = Watcher(self._client, PODS, self._take, fieldSelector=f"spec.nodeName={self.node}").start()
        self._thread = threading.Thread(target=self._run, name=f"kubelet-{self.node}", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._work.set()
        self._watcher.stop()
        self._thread.join(timeout=5)
        self._close()

    def restart(self) -> None:
        """The streams end, the sockets go, and a new kubelet serves on the old path. Allocations are remembered."""
        self._close()
        for socket in self._plugins.glob("*.sock"):
            socket.unlink(missing_ok=True)
        self._serve()

    def finish(self, namespace: str, name: str) -> None:
        """The pod's containers have ended well."""
        self._client.patch(PODS, name, {"status": {"phase": "Succeeded"}}, namespace, "status")

    def _serve(self) -> None:
        for directory, add in (
            (self._plugins, rpc.add_RegistrationServicer_to_server),
            (self._directory / "pod-resources", resources_rpc.add_PodResourcesListerServicer_to_server),
        ):
            directory.mkdir(parents=True, exist_ok=True)
            server = grpc.server(ThreadPoolExecutor(max_workers=8))
            add(self.devices, server)
            server.add_insecure_port(f"unix://{directory / 'kubelet.sock'}")
            server.start()
            self._servers.append(server)

    def _close(self) -> None:
        self.devices.disconnect()
        for server in self._servers:
            server.stop(grace=0.1).wait()
        self._servers.clear()

    def _register_node(self, labels: dict[str, str]) -> None:
        meta = {"name": self.node, "labels": {"kubernetes.io/hostname": self.node, **labels}}
        try:
            self._client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        except Conflict:
            log.debug("node %s exists", self.node)
        ready = [{"type": "Ready", "status": "True"}]
        self._client.patch(NODES, self.node, {"status": {"conditions": ready}}, subresource="status")

    def _take(self, event: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            if event == "DELETED":
                self._pods.pop(uid, None)
                self._settled.discard(uid)
            else:
                self._pods[uid] = pod
        self._work.set()

    def _active(self) -> list[PodKey]:
        with self._lock:
            return [_key(p) for p in self._pods.values() if not facts.over(p)]

    def _run(self) -> None:
        shown: tuple[dict[str, str], dict[str, str]] = ({}, {})
        while not self._stop.is_set():
            self._work.wait(1.0)
            self._work.clear()
            try:
                shown = self._show_capacity(shown)
                for pod in self._due():
                    self._sync(pod)
            except ApiError as error:
                log.warning("kubelet %s: %s", self.node, error)

    def _show_capacity(self, shown: tuple[dict[str, str], dict[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
        capacity, allocatable = self.devices.capacity()
        if (capacity, allocatable) != shown:
            status = {"capacity": capacity, "allocatable": allocatable}
            self._client.patch(NODES, self.node, {"status": status}, subresource="status")
        return capacity, allocatable

    def _due(self) -> list[dict[str, Any]]:
        with self._lock:
            return sorted(self._pods.values(), key=lambda p: (p["metadata"].get("creationTimestamp", ""), _key(p)))

    def _sync(self, pod: dict[str, Any]) -> None:
        namespace, name, uid = _key(pod)
        if pod["metadata"].get("deletionTimestamp"):
            try:
                self._client.delete(PODS, name, namespace, uid=uid, grace=0)
            except (NotFound, Conflict):
                log.debug("pod %s/%s is gone", namespace, name)
        elif uid not in self._settled and not facts.over(pod):
            self._settled.add(uid)
            if (pod.get("status") or {}).get("phase") != "Running":
                self._admit(pod)

    def _admit(self, pod: dict[str, Any]) -> None:
        namespace, name, _ = key = _key(pod)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            given = self.devices.admit(key, list(_wants(pod)))
            self.containers[namespace, name] = {c: self._container(c, given) for c in _container_names(pod)}
            status = {
                "phase": "Running",
                "startTime": now,
                "containerStatuses": [{"name": c, "ready": True, "started": True} for c in _container_names(pod)],
            }
        except AdmissionError as error:
            status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": str(error), "startTime": now}
        try:
            self._client.patch(PODS, name, {"status": status}, namespace, "status")
        except NotFound:
            log.debug("pod %s/%s went away", namespace, name)

    def _container(self, name: str, given: list[Given]) -> Container:
        container = Container()
        for entry in (g for g in given if g.container == name):
            container.env |= dict(entry.answer.envs)
            container.devices += entry.ids
            for cdi in entry.answer.cdi_devices:
                self._inject(container, cdi.name)
        return container

    def _inject(self, container: Container, cdi_name: str) -> None:
        """As a runtime does: an unknown CDI name fails the container."""
        for spec in (json.loads(p.read_text()) for p in sorted(self._cdi_dir.glob("*.json"))):
            for device in spec["devices"]:
                if f"{spec['kind']}={device['name']}" == cdi_name:
                    edits = device["containerEdits"]
                    container.env |= dict(e.split("=", 1) for e in edits.get("env", ()))
                    container.nodes += [
                        n["path"] for n in edits.get("deviceNodes", ()) if n["path"] not in container.nodes
                    ]
                    return
        raise AdmissionError(f"unresolvable CDI devices {cdi_name}")


def _key(pod: dict[str, Any]) -> PodKey:
    ref = facts.pod_ref(pod)
    return ref.namespace, ref.name, ref.uid


def _container_names(pod: dict[str, Any]) -> list[str]:
    return [c["name"] for c in pod["spec"].get("containers", ())]


def _wants(pod: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    for container in (*pod["spec"].get("initContainers", ()), *pod["spec"].get("containers", ())):
        limits = (container.get("resources") or {}).get("limits") or {}
        for resource, number in sorted(limits.items()):
            if "/" in resource and int(number):  # an extended resource, whoever serves it
                yield container["name"], resource, int(number)
