"""What the kubelet really handed out, against what was promised: the claims to write on pods.

Pure. Two equal pods that swapped slices are put right here; a device nobody can explain is named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster import facts, names
from device_plugin.devices import NodeGpu
from gpu.node import Share

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """Ids of one resource that the kubelet lists for one container."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The annotation to write on the pod with this uid."""

    namespace: str
    pod: str
    uid: str
    shares: tuple[Share, ...]


def ours(held: Iterable[Held]) -> tuple[Held, ...]:
    return tuple(h for h in held if names.is_ours(h.resource) and h.ids)


def shares_of(held: Iterable[Held], gpus: Sequence[NodeGpu]) -> dict[tuple[str, str], tuple[Share, ...]]:
    """The shares that each pod (namespace, name) holds. Units of one container on one GPU are one share."""
    known = {i: s for g in gpus for i, s in g.shares.items()}
    per_pod: dict[tuple[str, str], list[Share]] = {}
    for entry in ours(held):
        shares = [known[i] for i in entry.ids if i in known]
        units: dict[str, int] = {}
        for share in shares:
            if share.units:
                units[share.gpu] = units.get(share.gpu, 0) + 1
        mine = per_pod.setdefault((entry.namespace, entry.pod), [])
        mine += [Share(gpu, units=n) for gpu, n in sorted(units.items())]
        # An init container hands its devices on, so the kubelet may list the same slice twice for one pod.
        mine += [s for s in shares if not s.units and s not in mine]
    return {pod: tuple(shares) for pod, shares in per_pod.items()}


def missing(held: Iterable[Held], pods: Iterable[Object], gpus: Sequence[NodeGpu]) -> tuple[Claim, ...]:
    """Claims that the pods of this node do not carry yet, or carry wrongly."""
    listed = shares_of(held, gpus)
    books = {g.uuid: g.books() for g in gpus}
    claims = []
    for pod in pods:
        ref = facts.pod_ref(pod)
        shares = listed.get((ref.namespace, ref.name))
        # A pod re-created under its old name may find its predecessor's entry: only one the kubelet has started counts.
        if shares and (pod.get("status") or {}).get("startTime") and _claimed(pod, books) != set(shares):
            claims.append(Claim(ref.namespace, ref.name, ref.uid, shares))
    return tuple(claims)


def _claimed(pod: Object, books: Mapping[str, Any]) -> set[Share] | None:
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.CLAIM)
    if text is None:
        return None
    try:
        return set(facts.read_shares(text, books, "")[0])
    except facts.FactError:
        return None
