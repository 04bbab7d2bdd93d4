"""What the stand-in for kube-scheduler checks before it asks an extender: resources, selectors, what counts as news."""

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from cluster import names

Object = Mapping[str, Any]

_DECIMAL = {"m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12)}
_BINARY = {"Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40)}
_SUFFIXES = _BINARY | _DECIMAL


def requests_of(pod: Object) -> dict[str, Decimal]:
    """What the pod takes of its node, by resource; a limit counts where no request is given."""
    spec = pod.get("spec") or {}
    total: dict[str, Decimal] = {"pods": Decimal(1)}
    for container in spec.get("containers") or ():
        for resource, amount in _asked(container).items():
            total[resource] = total.get(resource, Decimal(0)) + amount
    for container in spec.get("initContainers") or ():
        for resource, amount in _asked(container).items():
            total[resource] = max(total.get(resource, Decimal(0)), amount)
    return total


def quantity(text: Any) -> Decimal:
    """A Kubernetes quantity such as `100m`, `2Gi` or `3`."""
    text = str(text)
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


def _asked(container: Object) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {resource: quantity(amount) for resource, amount in asked.items()}


def lacks(node: Object, used: Mapping[str, Any], asks: Mapping[str, Decimal], pod: Object) -> str:
    """Why this node is out of the question before any extender is asked, or ""."""
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    labels = node["metadata"].get("labels") or {}
    if (pod["spec"].get("nodeSelector") or {}).items() - labels.items():
        return "node(s) didn't match Pod's node affinity/selector"
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    for resource, amount in asks.items():
        have = quantity(allocatable.get(resource, 110 if resource == "pods" else 0))
        if amount and used.get(resource, 0) + amount > have:
            return "Too many pods" if resource == "pods" else f"Insufficient {resource}"
    return ""


def interests_extender(pod: Object) -> bool:
    """managedResources: the keys count, not the amounts."""
    spec = pod["spec"]
    containers: Iterable[Object] = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(names.is_ours(resource) for c in containers for resource in _asked(c))


def what_counts(obj: Object) -> tuple[Any, ...]:
    """The parts of an object whose change wakes refused pods; heartbeats and conditions do not."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    allocatable = (obj.get("status") or {}).get("allocatable")
    return meta.get("labels"), meta.get("annotations"), meta.get("deletionTimestamp"), spec, allocatable


def summary(refused: Mapping[str, str]) -> str:
    reasons = sorted(Counter(refused.values()).items())
    told = ", ".join(f"{count} {reason}" for reason, count in reasons) or "no nodes available to schedule pods"
    return f"0/{len(refused)} nodes are available: {told}."
