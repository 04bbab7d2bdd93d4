"""The extender's messages, exactly as kube-scheduler sends and reads them.

Its types carry no JSON tags, so keys are the Go names; Go matches them in any case, and so do we. Numbers are integers:
a float makes kube-scheduler throw the whole answer away. Malformed bodies raise WireError, which names the field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gpu.placement import Reason

Object = Mapping[str, Any]


class WireError(ValueError):
    """A body that is no such message. The text names the field and the cure."""


@dataclass(frozen=True, slots=True)
class FilterCall:
    """ExtenderArgs: the pod and the nodes on offer. `nodes` holds full Node objects by name in that form, else None."""

    pod: Object
    names: list[str]
    nodes: dict[str, Object] | None = None


@dataclass(frozen=True, slots=True)
class BindCall:
    """ExtenderBindingArgs."""

    namespace: str
    name: str
    uid: str
    node: str


def read_filter(body: bytes) -> FilterCall:
    """Of `filter` and `prioritize`. Raises WireError."""
    args = _fields(body)
    pod = args.get("pod")
    if not isinstance(pod, dict) or not isinstance(pod.get("metadata"), dict):
        raise WireError(f"Pod: {_found(pod)} instead of a pod with metadata; send ExtenderArgs of kube-scheduler")
    for part in ("spec", "status"):
        if not isinstance(pod.get(part) or {}, dict):
            raise WireError(f"Pod.{part}: {_found(pod[part])} instead of an object")
    names, nodes = args.get("nodenames"), args.get("nodes")
    if names is not None:
        return FilterCall(pod, _names(names))
    if nodes is None:
        raise WireError("NodeNames: missing, and so is Nodes; set nodeCacheCapable: true for this extender")
    found = _nodes(nodes)
    return FilterCall(pod, list(found), found)


def read_bind(body: bytes) -> BindCall:
    """Raises WireError."""
    args = _fields(body)
    texts = {}
    for key in ("PodNamespace", "PodName", "PodUID", "Node"):
        text = args.get(key.lower())
        if not isinstance(text, str) or not text:
            raise WireError(f"{key}: {_found(text)} instead of a name; send ExtenderBindingArgs of kube-scheduler")
        texts[key] = text
    return BindCall(texts["PodNamespace"], texts["PodName"], texts["PodUID"], texts["Node"])


def filter_answer(call: FilterCall, nodes: Iterable[str], refusals: Mapping[str, Reason]) -> bytes:
    """ExtenderFilterResult: nodes that stay, and the reasons, parted by whether preemption or waiting may help."""
    waiting = {n: r.value for n, r in refusals.items() if r.may_change}
    final = {n: r.value for n, r in refusals.items() if not r.may_change}
    return _filter_result(call, list(nodes), waiting, final)


def filter_refusal(call: FilterCall, why: str) -> bytes:
    """No node at all, for a reason that lies in the pod and that its author has to read."""
    return _filter_result(call, [], {}, dict.fromkeys(call.names, why))


def rank_answer(scores: Mapping[str, int]) -> bytes:
    """HostPriorityList: a bare list."""
    return orjson.dumps([{"Host": host, "Score": score} for host, score in scores.items()])


def bind_answer(error: str) -> bytes:
    """ExtenderBindingResult; empty means bound."""
    return orjson.dumps({"Error": error})


def _filter_result(call: FilterCall, nodes: list[str], waiting: dict[str, str], final: dict[str, str]) -> bytes:
    known = call.nodes
    listed = None if known is None else {"metadata": {}, "items": [known[n] for n in nodes]}
    return orjson.dumps(
        {
            "Nodes": listed,
            "NodeNames": nodes,
            "FailedNodes": waiting,
            "FailedAndUnresolvableNodes": final,
            "Error": "",
        }
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"the body is no JSON ({error}); send what kube-scheduler sends to an extender") from error
    if not isinstance(message, dict):
        raise WireError(f"the body is {_found(message)} instead of an object")
    return {key.lower(): value for key, value in message.items()}


def _names(names: Any) -> list[str]:
    if not isinstance(names, list) or set(map(type, names)) - {str}:
        raise WireError(f"NodeNames: {_found(names)} instead of a list of node names")
    return names


def _nodes(nodes: Any) -> dict[str, Object]:
    items = {k.lower(): v for k, v in nodes.items()}.get("items") if isinstance(nodes, dict) else None
    if items is None and isinstance(nodes, dict):
        items = []
    if not isinstance(items, list):
        raise WireError(f"Nodes: {_found(nodes)} instead of a NodeList with items")
    found = {}
    for i, node in enumerate(items):
        meta = node.get("metadata") if isinstance(node, dict) else None
        name = meta.get("name") if isinstance(meta, dict) else None
        if not isinstance(name, str) or not name:
            raise WireError(f"Nodes.items[{i}].metadata.name: {_found(name)} instead of a name")
        found[name] = node
    return found


def _found(value: Any) -> str:
    """What stands there, in words; never the value itself, which may be long or none of our business."""
    if value is None:
        return "nothing"
    if value == "":
        return "an empty text"
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return kinds.get(type(value), "a number")
