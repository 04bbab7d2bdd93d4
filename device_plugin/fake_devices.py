"""The device manager of the kubelet double: which plugins are there, what they offer, and who was given what.

Copies what plugins come to depend on: available ids are passed in random order, the preferred answer is honoured as
far as it is available, freed devices come back lazily, and the record survives a restart.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from device_plugin.api import deviceplugin_pb2 as pb
from device_plugin.api import deviceplugin_pb2_grpc as rpc
from device_plugin.api import podresources_pb2 as resources_pb
from device_plugin.api import podresources_pb2_grpc as resources_rpc

PodKey = tuple[str, str, str]
"""Namespace, name, uid."""


class AdmissionError(Exception):
    """The pod cannot be admitted: the kubelet fails it for good."""


@dataclass
class Given:
    """What one container was given of one resource, and the plugin's answer."""

    container: str
    resource: str
    ids: tuple[str, ...]
    answer: Any


@dataclass
class _Endpoint:
    socket: Path
    channel: grpc.Channel
    devices: dict[str, bool] = field(default_factory=dict)
    stopped: bool = False


class Devices(rpc.RegistrationServicer, resources_rpc.PodResourcesListerServicer):
    """Thread-safe. `changed` is called whenever capacity may have changed; `active` tells the pods that still count."""

    def __init__(
        self, directory: Path, changed: Callable[[], None], active: Callable[[], Iterable[PodKey]], seed: int
    ) -> None:
        self._directory, self._changed, self._active = directory, changed, active
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._lock = threading.RLock()
        self._endpoints: dict[str, _Endpoint] = {}
        self._seen: set[str] = set()
        self.given: dict[PodKey, list[Given]] = {}

    def Register(self, request: Any, context: Any) -> pb.Empty:  # noqa: N802 - gRPC's name
        socket = self._directory / request.endpoint
        if request.version != "v1beta1" or not request.resource_name.count("/"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported version or resource name")
        channel = grpc.insecure_channel(f"unix://{socket}")
        # The kubelet calls back before it answers: a plugin that does not serve yet fails here.
        rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=10)
        endpoint = _Endpoint(socket, channel)
        with self._lock:
            old = self._endpoints.get(request.resource_name)
            self._endpoints[request.resource_name] = endpoint
            self._seen.add(request.resource_name)
        if old is not None:
            _close(old)
        threading.Thread(target=self._follow, args=(request.resource_name, endpoint), daemon=True).start()
        return pb.Empty()

    def List(self, request: Any, context: Any) -> resources_pb.ListPodResourcesResponse:  # noqa: N802
        with self._lock:
            self._free()
            answer = resources_pb.ListPodResourcesResponse()
            for (namespace, name, _), given in self.given.items():
                pod = answer.pod_resources.add(name=name, namespace=namespace)
                for entry in given:
                    container = pod.containers.add(name=entry.container)
                    container.devices.add(resource_name=entry.resource, device_ids=entry.ids)
            return answer

    def GetAllocatableResources(self, request: Any, context: Any) -> resources_pb.AllocatableResourcesResponse:  # noqa: N802
        with self._lock:
            answer = resources_pb.AllocatableResourcesResponse()
            for resource, endpoint in self._endpoints.items():
                ids = [i for i, healthy in endpoint.devices.items() if healthy]
                answer.devices.add(resource_name=resource, device_ids=ids)
            return answer

    def capacity(self) -> tuple[dict[str, str], dict[str, str]]:
        """Capacity and allocatable as a Node shows them; the key of a resource once seen never goes away."""
        with self._lock:
            offers = {r: self._endpoints[r].devices if r in self._endpoints else {} for r in self._seen}
            return (
                {r: str(len(devices)) for r, devices in offers.items()},
                {r: str(sum(devices.values())) for r, devices in offers.items()},
            )

    def admit(self, pod: PodKey, wants: Iterable[tuple[str, str, int]]) -> list[Given]:
        """Give a pod what its containers want: (container, resource, number). Raises AdmissionError."""
        with self._lock:
            self._free()
            self.given[pod] = []
            try:
                for container, resource, number in wants:
                    self.given[pod].append(self._allocate(container, resource, number))
            except AdmissionError:
                del self.given[pod]
                raise
            return self.given[pod]

    def disconnect(self) -> None:
        """As when the kubelet ends: every stream is closed; what was given is remembered."""
        with self._lock:
            endpoints, self._endpoints = list(self._endpoints.values()), {}
        for endpoint in endpoints:
            _close(endpoint)

    def _allocate(self, container: str, resource: str, number: int) -> Given:
        endpoint = self._endpoints.get(resource)
        taken = {i for given in self.given.values() for g in given if g.resource == resource for i in g.ids}
        healthy = [i for i, well in endpoint.devices.items() if well] if endpoint else []
        available = [i for i in healthy if i not in taken]
        if endpoint is None or not healthy:
            raise AdmissionError(
                f"Allocate failed due to no healthy devices present for {resource}, which is unexpected"
            )
        if len(available) < number:
            raise AdmissionError(
                f"Allocate failed due to requested number of devices unavailable for {resource}. "
                f"Requested: {number}, Available: {len(available)}, which is unexpected"
            )
        self._random.shuffle(available)
        stub = rpc.DevicePluginStub(endpoint.channel)
        try:
            ids = self._choose(stub, available, number)
            answer = stub.Allocate(
                pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]), timeout=5
            )
        except grpc.RpcError as error:
            raise AdmissionError(f"Allocate failed due to rpc error: {error}, which is unexpected") from error
        return Given(container, resource, tuple(ids), answer.container_responses[0])

    def _choose(self, stub: Any, available: list[str], number: int) -> list[str]:
        request = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=number)
        answer = stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]), timeout=5)
        liked = [i for i in answer.container_responses[0].deviceIDs if i in available]
        return [*liked, *(i for i in available if i not in liked)][:number]

    def _follow(self, resource: str, endpoint: _Endpoint) -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):
            for message in rpc.DevicePluginStub(endpoint.channel).ListAndWatch(pb.Empty()):
                with self._lock:
                    endpoint.devices = {d.ID: d.health == "Healthy" for d in message.devices}
                self._changed()
        with self._lock:
            endpoint.devices = dict.fromkeys(endpoint.devices, False)
        if not endpoint.stopped:
            self._changed()

    def _free(self) -> None:
        active = set(self._active())
        for pod in [p for p in self.given if p not in active]:
            del self.given[pod]


def _close(endpoint: _Endpoint) -> None:
    endpoint.stopped = True
    endpoint.channel.close()
