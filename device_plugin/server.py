"""The gRPC side that the kubelet calls: one service per resource name, because no call says which it is for.

Every answer comes from values; an Allocate takes no network and no driver call, so it cannot hang a pod's start.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from device_plugin import allocate, metrics
from device_plugin.api import deviceplugin_pb2 as pb
from device_plugin.api import deviceplugin_pb2_grpc as rpc
from device_plugin.delivery import Grant
from device_plugin.devices import Device
from device_plugin.prefer import Asked, Steering, prefer
from device_plugin.state import NodeState

log = logging.getLogger(__name__)

SOCKET_PREFIX = "fallow-"


class Plugin(rpc.DevicePluginServicer):
    """Serves one resource on a socket of its own. `steering` gives what the choice of ids goes by."""

    def __init__(
        self,
        resource: str,
        state: NodeState,
        steering: Callable[[], Steering],
        terms: Callable[[], allocate.Terms],
        directory: Path,
        on_allocated: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.resource = resource
        # The process id makes the name unique: an old and a new instance never share a socket.
        self.endpoint = f"{SOCKET_PREFIX}{resource.replace('/', '_')}-{os.getpid()}.sock"
        self.socket = directory / self.endpoint
        self._state, self._steering, self._terms = state, steering, terms
        self._on_allocated, self._on_gone = on_allocated, on_gone
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._streams = 0
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Serve before registering: the kubelet calls back inside Register."""
        self.socket.unlink(missing_ok=True)
        # One thread is kept by each open ListAndWatch; the kubelet has one, and for a moment two around a restart.
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8, thread_name_prefix=f"plugin-{self.resource}"))
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()

    def stop(self) -> None:
        self._stop.set()
        self._state.wake()
        if self._server is not None:
            self._server.stop(grace=0.5).wait()
        self.socket.unlink(missing_ok=True)

    def GetDevicePluginOptions(self, request: Any, context: Any) -> pb.DevicePluginOptions:  # noqa: N802 - gRPC's name
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[pb.ListAndWatchResponse]:  # noqa: N802
        """Full lists, one per change. When the kubelet hangs up, whoever registers is told."""
        self._count_stream(1)
        if not context.add_callback(lambda: self._count_stream(-1)):
            self._count_stream(-1)  # the call is over already, and nobody else will say so
            return
        sent: tuple[Device, ...] | None = None
        while not self._stop.is_set() and context.is_active():
            version, lists = self._state.lists()
            offered = lists.get(self.resource, ())
            if offered != sent:
                sent = offered
                _count(self.resource, offered)
                yield pb.ListAndWatchResponse(devices=[_device(d) for d in offered])
            self._state.wait(version, 5.0)

    @property
    def streams(self) -> int:
        """How many ListAndWatch calls are open; none means that the kubelet does not know us."""
        return self._streams

    def _count_stream(self, step: int) -> None:
        with self._lock:
            self._streams += step
        if step < 0:
            self._state.wake()
            self._on_gone()

    def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:  # noqa: N802
        steering, gpus = self._steering(), self._state.gpus()
        answers = []
        for asked in request.container_requests:
            must, free = tuple(asked.must_include_deviceIDs), tuple(asked.available_deviceIDs)
            ids = prefer(Asked(self.resource, free, must, asked.allocation_size), gpus, steering)
            log.info("%s: prefer %s", self.resource, ", ".join(ids))
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        metrics.preferred.labels("promise" if steering.promises else "fit").inc()
        return pb.PreferredAllocationResponse(container_responses=answers)

    def Allocate(self, request: Any, context: Any) -> pb.AllocateResponse:  # noqa: N802
        with metrics.allocate_seconds.time():
            gpus, terms = self._state.gpus(), self._terms()
            answers = []
            for asked in request.container_requests:
                answer = allocate.grant(tuple(asked.devices_ids), gpus, terms)
                if isinstance(answer, allocate.Denial):
                    metrics.allocations.labels(self.resource, "denied").inc()
                    log.warning("%s: denied %s: %s", self.resource, ", ".join(asked.devices_ids), answer.why)
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"Fallow: {answer.why}")
                    raise AssertionError("abort does not return")
                metrics.allocations.labels(self.resource, "granted").inc()
                answers.append(_answer(answer))
        self._on_allocated()
        return pb.AllocateResponse(container_responses=answers)

    def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:  # noqa: N802
        return pb.PreStartContainerResponse()


def _device(device: Device) -> pb.Device:
    health = "Healthy" if device.healthy else "Unhealthy"
    if device.numa is None or device.numa < 0:
        return pb.Device(ID=device.id, health=health)
    return pb.Device(ID=device.id, health=health, topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=device.numa)]))


def _answer(granted: Grant) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=granted.env,
        mounts=[pb.Mount(container_path=m.container, host_path=m.host, read_only=m.read_only) for m in granted.mounts],
        devices=[pb.DeviceSpec(container_path=n.container, host_path=n.host, permissions="rw") for n in granted.nodes],
        annotations=granted.annotations,
        cdi_devices=[pb.CDIDevice(name=n) for n in granted.cdi],
    )


def _count(resource: str, offered: tuple[Device, ...]) -> None:
    healthy = sum(d.healthy for d in offered)
    metrics.devices.labels(resource, "healthy").set(healthy)
    metrics.devices.labels(resource, "unhealthy").set(len(offered) - healthy)
