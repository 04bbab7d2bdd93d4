"""What the kubelet really handed out, against what was promised: the claims to write on pods.

Pure. Two equal pods that swapped slices are put right here; a device nobody can explain is named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


def ours(held: Iterable[Held], gpus: Iterable[NodeGpu]) -> tuple[Held, ...]:
    """Entries of resources that this node offers, or that are named as ours usually are."""
    offered = {g.resource(i) for g in gpus for i in g.shares}
    return tuple(h for h in held if h.ids and (names.is_ours(h.resource) or h.resource in offered))


def shares_of(held: Iterable[Held], gpus: Sequence[NodeGpu]) -> dict[tuple[str, str], tuple[Share, ...]]:
    """The shares that each pod (namespace, name) holds. Units of one container on one GPU are one share.

    The kubelet may list the devices of one container in several entries, down to one entry per device.
    """
    known = {i: s for g in gpus for i, s in g.shares.items()}
    units: dict[tuple[str, str, str], dict[Share, set[str]]] = {}
    per_pod: dict[tuple[str, str], list[Share]] = {}
    for entry in ours(held, gpus):
        mine = per_pod.setdefault((entry.namespace, entry.pod), [])
        for id_, share in ((i, known[i]) for i in entry.ids if i in known):
            if share.units:
                here = units.setdefault((entry.namespace, entry.pod, entry.container), {})
                here.setdefault(share, set()).add(id_)
            elif share not in mine:
                # An init container hands its devices on, so one slice may be listed twice for one pod.
                mine.append(share)
    counted: set[str] = set()
    groups = [(key, unit, ids) for key, mine in units.items() for unit, ids in mine.items()]
    for (namespace, pod, _), unit, ids in sorted(groups, key=lambda g: (g[0][:2], -len(g[2]), g[0], str(g[1]))):
        # Units that an init container handed on are listed under both containers.
        if fresh := ids - counted:
            per_pod[namespace, pod].append(replace(unit, units=len(fresh)))
            counted |= fresh
    return {pod: tuple(shares) for pod, shares in per_pod.items()}


def unknown(held: Iterable[Held], gpus: Sequence[NodeGpu]) -> frozenset[str]:
    """Ids of ours that the kubelet has handed out and this node does not have."""
    known = {i for g in gpus for i in g.shares}
    return frozenset(f"{i} ({h.namespace}/{h.pod})" for h in ours(held, gpus) for i in h.ids if i not in known)


def missing(held: Iterable[Held], pods: Iterable[Object], gpus: Sequence[NodeGpu]) -> tuple[Claim, ...]:
    """Claims that the pods of this node do not carry yet, or carry wrongly."""
    listed = shares_of(held, gpus)
    books = {g.uuid: g.books() for g in gpus}
    claims = []
    for pod in pods:
        ref = facts.pod_ref(pod)
        shares = listed.get((ref.namespace, ref.name))
        # A pod re-created under its old name may find its predecessor's entry: only one the kubelet has started counts.
        if shares and (pod.get("status") or {}).get("startTime") and _claimed(pod, books) != sorted(shares, key=str):
            claims.append(Claim(ref.namespace, ref.name, ref.uid, shares))
    return tuple(claims)


def _claimed(pod: Object, books: Mapping[str, Any]) -> list[Share] | None:
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.CLAIM)
    if text is None:
        return None
    try:
        return sorted(facts.read_shares(text, books, "")[0], key=str)
    except facts.FactError:
        return None
