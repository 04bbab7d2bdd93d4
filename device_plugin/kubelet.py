"""The kubelet's sockets: registering, noticing its restart, and asking who holds what.

On a restart the kubelet deletes every socket and makes its own anew; a bound pod whose plugin is not back by then
fails for good, so its return is watched by inotify and answered at once.
"""

import errno
import logging
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
from inotify_simple import INotify, flags

from cluster.clock import Clock
from device_plugin import metrics
from device_plugin.allocate import Terms
from device_plugin.api import deviceplugin_pb2 as pb
from device_plugin.api import deviceplugin_pb2_grpc as rpc
from device_plugin.api import podresources_pb2, podresources_pb2_grpc
from device_plugin.claims import Held
from device_plugin.prefer import Steering
from device_plugin.server import SOCKET_PREFIX, Plugin
from device_plugin.state import NodeState

log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
SETTLE_SECONDS = 1.0
"""After registering, the kubelet needs a moment to open its stream; only later does none mean it has forgotten us."""
RECEIVE_LIMIT = 16 * 2**20
"""Bytes; the limit that upstream's own tests of PodResources use."""


class Registrar:
    """Keeps one plugin per resource name registered with the kubelet, whatever happens to either side."""

    def __init__(
        self,
        kubelet_dir: Path,
        state: NodeState,
        steering: Callable[[], Steering],
        terms: Callable[[], Terms],
        on_allocated: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._directory = kubelet_dir / "device-plugins"
        self._state, self._steering, self._terms = state, steering, terms
        self._on_allocated, self._clock = on_allocated, clock
        self._plugins: dict[str, Plugin] = {}
        self._registered: dict[str, float] = {}
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._lock = threading.Lock()

    def run(self, stop: threading.Event) -> None:
        """Until stopped: register what is new, register everything again when the kubelet comes back."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._remove_stale()
        with INotify() as inotify:
            inotify.add_watch(self._directory, flags.CREATE | flags.DELETE | flags.MOVED_TO)
            while not stop.is_set():
                self._register_missing()
                self._wait(inotify)
        for plugin in list(self._plugins.values()):
            plugin.stop()

    def wake(self) -> None:
        """Look again now: a resource name may be new, or a stream has ended."""
        try:
            os.write(self._wake_writer, b"x")
        except BlockingIOError:
            return

    def ready(self) -> str:
        """Empty when every resource of this node is registered, else which is not."""
        wanted = set(self._state.lists()[1])
        with self._lock:
            missing = sorted(wanted - set(self._registered))
        return f"not registered with the kubelet: {', '.join(missing)}" if missing else ""

    def _register_missing(self) -> None:
        for resource in {*self._state.lists()[1], *self._plugins}:
            plugin = self._plugins.get(resource)
            if plugin is None or not plugin.socket.exists():
                # New, or the kubelet has swept the directory: serve on a socket before registering.
                plugin = self._serve(resource)
            elif not plugin.streams and self._clock.monotonic() - self._registered.get(resource, 0) > SETTLE_SECONDS:
                self._forget(resource)
            if resource not in self._registered:
                self._register(plugin)

    def _serve(self, resource: str) -> Plugin:
        if old := self._plugins.pop(resource, None):
            old.stop()
        self._forget(resource)
        plugin = Plugin(
            resource, self._state, self._steering, self._terms, self._directory, self._on_allocated, self.wake
        )
        plugin.start()
        self._plugins[resource] = plugin
        return plugin

    def _register(self, plugin: Plugin) -> None:
        socket = self._directory / KUBELET_SOCKET
        if not socket.exists():
            return
        try:
            with grpc.insecure_channel(f"unix://{socket}") as channel:
                rpc.RegistrationStub(channel).Register(
                    pb.RegisterRequest(
                        version=API_VERSION,
                        endpoint=plugin.endpoint,
                        resource_name=plugin.resource,
                        options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
                    ),
                    timeout=10,
                )
        except grpc.RpcError as error:
            metrics.registrations.labels(plugin.resource, "failed").inc()
            log.warning("registering %s: %s", plugin.resource, _words(error))
            return
        metrics.registrations.labels(plugin.resource, "done").inc()
        with self._lock:
            self._registered[plugin.resource] = self._clock.monotonic()
        log.info("registered %s", plugin.resource)

    def _forget(self, resource: str) -> None:
        with self._lock:
            self._registered.pop(resource, None)

    def _wait(self, inotify: INotify) -> None:
        """Until the directory changes, somebody wakes us, or a while has passed (what failed is tried again)."""
        silent = self.ready() or not all(p.streams for p in self._plugins.values())
        timeout = 0.5 if silent else 5.0
        readable, _, _ = select.select([inotify.fileno(), self._wake_reader], [], [], timeout)
        if self._wake_reader in readable:
            os.read(self._wake_reader, 4096)
        if inotify.fileno() in readable:
            events = inotify.read(timeout=0)
            if any(e.name == KUBELET_SOCKET and e.mask & (flags.CREATE | flags.MOVED_TO) for e in events):
                log.info("the kubelet is back")
                for resource in list(self._registered):
                    self._forget(resource)

    def _remove_stale(self) -> None:
        """Sockets of predecessors that were killed: nobody serves them."""
        for socket in self._directory.glob(f"{SOCKET_PREFIX}*.sock"):
            pid = socket.stem.rpartition("-")[2]
            if not (pid.isdecimal() and _alive(int(pid))) or int(pid) == os.getpid():
                socket.unlink(missing_ok=True)


class PodResources:
    """Asks the kubelet which devices it has handed out. Raises ConnectionError when it does not answer."""

    def __init__(self, kubelet_dir: Path) -> None:
        socket = kubelet_dir / "pod-resources" / KUBELET_SOCKET
        options = [
            ("grpc.max_receive_message_length", RECEIVE_LIMIT),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=options)
        self._stub = podresources_pb2_grpc.PodResourcesListerStub(self._channel)

    def held(self) -> tuple[Held, ...]:
        try:
            answer = self._stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=3)
        except grpc.RpcError as error:
            raise ConnectionError(f"the kubelet's PodResources: {_words(error)}") from error
        return tuple(
            Held(pod.namespace, pod.name, container.name, devices.resource_name, tuple(devices.device_ids))
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
        )

    def close(self) -> None:
        self._channel.close()


def _words(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True
