"""Nodes, pods and objects in one readable line each, for every test."""

from typing import Any

from cluster import gpunode, names
from gpu import catalogue
from gpu.layout import Layout, canonical, parse_slice
from gpu.node import Activity, Gpu, Mode, NodeGpus, Placement, PodRef, Share, Stage
from gpu.placement import PodRequest, Want
from gpu.profiles import GpuModel

H100 = "h100-80gb"
A100 = "a100-40gb"


def model(key: str = H100) -> GpuModel:
    return catalogue.model(key)


def layout(*slices: str, key: str = H100) -> Layout:
    return canonical(parse_slice(s, model(key)) for s in slices)


def gpu(uuid: str = "GPU-0", *slices: str, key: str = H100, index: int | None = None, **more: Any) -> Gpu:
    """`gpu("GPU-0", "1g.10gb@0")` is sliced; `gpu("GPU-1", units=20)` is shared; `gpu("GPU-2")` is whole."""
    mode = Mode.SLICED if slices else Mode.SHARED if more.get("units") else Mode.WHOLE
    number = index if index is not None else int("".join(c for c in uuid if c.isdigit()) or 0)
    if "busy" in more:
        more["activity"] = Activity(more.pop("busy"), more.pop("at", 0.0), "test")
    return Gpu(uuid, number, model(key), more.pop("mode", mode), layout(*slices, key=key), **more)


def node(*gpus: Gpu, name: str = "n1", placements: tuple[Placement, ...] = ()) -> NodeGpus:
    return NodeGpus(name, gpus, placements)


def ref(name: str = "p1", namespace: str = "default") -> PodRef:
    return PodRef(namespace, name, f"uid-{namespace}-{name}")


def whole(n: int = 1) -> Want:
    return Want(Mode.WHOLE, n)


def units(n: int) -> Want:
    return Want(Mode.SHARED, n)


def slices(profile: str, n: int = 1) -> Want:
    return Want(Mode.SLICED, n, profile)


def request(*wants: Want, pod: str = "p1", priority: int = 0, since: float = 0.0) -> PodRequest:
    return PodRequest(ref(pod), wants, priority, since)


def placement(pod: str, *shares: Share, node: str = "n1", claimed: bool = False, at: float = 0.0) -> Placement:
    return Placement(ref(pod), node, shares, Stage.CLAIMED if claimed else Stage.PROMISED, at)


def share(uuid: str, piece: str = "", units: int = 0, key: str = H100) -> Share:
    return Share(uuid, parse_slice(piece, model(key)) if piece else None, units)


def pod(
    name: str = "p1",
    *,
    asks: dict[str, Any] | None = None,
    namespace: str = "default",
    node: str = "",
    annotations: dict[str, str] | None = None,
    phase: str = "Pending",
    **spec: Any,
) -> dict[str, Any]:
    """A pod object with one container that asks for `asks`, e.g. `{"nvidia.com/gpu": "1"}`."""
    container = {"name": "main", "image": "docker.io/local/pause:1", "resources": {"limits": asks or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "annotations": annotations or {},
        },
        "spec": {
            "schedulerName": names.SCHEDULER,
            "containers": [container],
            **({"nodeName": node} if node else {}),
            **spec,
        },
        "status": {"phase": phase},
    }


def gpunode_object(name: str, *gpus: Gpu, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
    """A GpuNode as its device plugin would have published it."""
    obj = gpunode.empty(name)
    obj["spec"]["gpus"] = wanted or {}
    obj["status"] = gpunode.inventory(gpus, {})
    idle = {g.uuid: gpunode.activity_out(g.activity) for g in gpus if g.activity}
    if idle:
        obj["status"]["idle"] = idle
    return obj
