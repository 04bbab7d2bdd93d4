"""Pods as Fallow reads them: what one asks for, what it was promised, what the kubelet really gave it.

Facts are versioned; rubbish raises FactError, which names the place and the cure, and never stops a reader of others.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from cluster import names
from gpu.layout import Slice, parse_slice
from gpu.node import Gpu, Mode, Placement, PodRef, Share, Stage
from gpu.placement import PodRequest, Want

Object = Mapping[str, Any]

FACT_VERSION = 1
"""Of the promise and claim annotations. Every version ever released has a golden file that must still be read."""

FACT_LIMIT = 64 * 1024
"""Characters of a fact; far beyond the shares of any pod, far below an annotation's limit."""

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_QUANTITY = re.compile(r"^(\d{1,18})(?:\.0+)?(k|M|G|Ki|Mi|Gi)?$")


class FactError(ValueError):
    """Something written on an object cannot be read. `where` names the object and field."""

    def __init__(self, where: str, problem: str, cure: str) -> None:
        super().__init__(f"{where}: {problem}; {cure}")
        self.where, self.problem, self.cure = where, problem, cure


def pod_ref(pod: Object) -> PodRef:
    meta = pod.get("metadata") or {}
    return PodRef(str(meta.get("namespace", "default")), str(meta.get("name", "")), str(meta.get("uid", "")))


def read_request(pod: Object) -> PodRequest | None:
    """What this pod asks of Fallow, or None when it asks for no GPU. Raises FactError."""
    spec = pod.get("spec") or {}
    ref = pod_ref(pod)
    running = [_wants(ref, c) for c in _containers(spec, "containers")]
    first: list[list[Want]] = []
    for container in _containers(spec, "initContainers"):
        # A sidecar (restartPolicy Always) keeps its devices; another init container hands them on.
        (running if container.get("restartPolicy") == "Always" else first).append(_wants(ref, container))
    wants = _with_init([w for ws in running for w in ws], [w for ws in first for w in ws])
    if not wants:
        return None
    return PodRequest(ref, tuple(wants), int(spec.get("priority") or 0), created_at(pod))


def created_at(pod: Object) -> float:
    """Seconds since the epoch; 0 when the object does not say."""
    return epoch((pod.get("metadata") or {}).get("creationTimestamp"))


def epoch(timestamp: Any) -> float:
    """A Kubernetes timestamp in seconds since the epoch; 0 for anything else."""
    try:
        return datetime.fromisoformat(str(timestamp).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def over(pod: Object) -> bool:
    """The pod has ended: it holds nothing any more. A pod that is being deleted still does."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def bound_node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def waiting(pod: Object) -> bool:
    """Not bound, not ended, not being deleted, not gated: a pod that a scheduler may place."""
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    return not (bound_node(pod) or over(pod) or meta.get("deletionTimestamp") or spec.get("schedulingGates"))


def write_shares(shares: Iterable[Share], at: float) -> str:
    """The text of a promise or claim annotation; `at` in seconds since the epoch."""
    return json.dumps(
        {"v": FACT_VERSION, "at": round(at, 3), "shares": [_share_out(s) for s in shares]}, separators=(",", ":")
    )


def read_placement(pod: Object, gpus: Mapping[str, Gpu]) -> Placement | None:
    """Where this bound pod sits: its claim, else its promise, else None. Raises FactError.

    `gpus` are those of its node, by UUID.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    for name, stage in ((names.CLAIM, Stage.CLAIMED), (names.PROMISE, Stage.PROMISED)):
        if name in annotations:
            where = f"pod {pod_ref(pod)}, annotation {name}"
            shares, at = read_shares(annotations[name], gpus, where)
            return Placement(pod_ref(pod), bound_node(pod), shares, stage, at)
    return None


def read_shares(text: str, gpus: Mapping[str, Gpu], where: str) -> tuple[tuple[Share, ...], float]:
    """Shares and time of a promise or claim. Shares on GPUs that are not here any more are left out."""
    try:
        if len(text) > FACT_LIMIT:
            raise ValueError(f"longer than {FACT_LIMIT} characters")
        fact = json.loads(text)
        if not isinstance(fact, dict) or fact.get("v") != FACT_VERSION:
            raise ValueError(f"version {fact.get('v') if isinstance(fact, dict) else None!r} is not {FACT_VERSION}")
        raw = [s for s in fact["shares"] if s["gpu"] in gpus]
        at = float(fact["at"])
        if not math.isfinite(at):
            raise ValueError(f"time {at} makes no sense")
        return tuple(_share_in(s, gpus[s["gpu"]]) for s in raw), at
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        cure = "only Fallow may write it: delete the pod, and look who else writes fallow.dev annotations"
        raise FactError(where, f"cannot be read ({error})", cure) from error


def resource_of(share: Share) -> str:
    if share.slice is not None:
        return names.mig_resource(share.slice.profile.name)
    return names.SHARED if share.units else names.WHOLE


def _share_out(share: Share) -> dict[str, Any]:
    out: dict[str, Any] = {"gpu": share.gpu}
    if share.slice is not None:
        out["slice"] = str(share.slice)
    if share.units:
        out["units"] = share.units
    return out


def _share_in(raw: Mapping[str, Any], gpu: Gpu) -> Share:
    piece: Slice | None = parse_slice(raw["slice"], gpu.model) if "slice" in raw else None
    units = raw.get("units", 0)
    if not isinstance(units, int) or units < 0:
        raise ValueError(f"units {units!r} make no sense")
    return Share(gpu.uuid, piece, units)


def _containers(spec: Object, key: str) -> list[Object]:
    return [c for c in spec.get(key) or () if isinstance(c, Mapping)]


def _wants(ref: PodRef, container: Object) -> list[Want]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    where = f"pod {ref}, container {container.get('name', '?')}"
    wants = [_want(name, amount, where) for name, amount in sorted(asked.items()) if names.is_ours(name)]
    return [w for w in wants if w.amount]


def _want(resource: str, amount: Any, where: str) -> Want:
    number = _whole_number(amount, f"{where}, {resource}")
    if resource == names.WHOLE:
        return Want(Mode.WHOLE, number)
    if resource == names.SHARED:
        return Want(Mode.SHARED, number)
    try:
        return Want(Mode.SLICED, number, names.mig_profile(resource))
    except ValueError as error:
        raise FactError(where, str(error), "correct the resource name in the pod") from error


def quantity(amount: Any) -> int | None:
    """A Kubernetes quantity as a whole number (`1k` is 1000); None when it is none."""
    match = _QUANTITY.match(str(amount))
    return int(match[1]) * _SUFFIXES[match[2] or ""] if match else None


def _whole_number(amount: Any, where: str) -> int:
    number = quantity(amount)
    if number is None:
        raise FactError(where, f"{str(amount)[:40]!r} is no whole number", "ask for 1, 2, 3 ... of it")
    return number


def _with_init(running: list[Want], first: list[Want]) -> list[Want]:
    """Init containers run before the others and hand their devices on, so only what they ask beyond them counts.

    The excess goes onto the largest want of the same resource: the kubelet gives that container the init
    container's devices, and units of one container must be on one GPU.
    """
    wants = list(running)
    for want in first:
        same = [i for i, w in enumerate(wants) if (w.mode, w.profile) == (want.mode, want.profile)]
        if not same:
            wants.append(want)
            continue
        largest = max(same, key=lambda i: wants[i].amount)
        total = sum(wants[i].amount for i in same)
        missing = max(want.amount - (wants[largest].amount if want.mode is Mode.SHARED else total), 0)
        wants[largest] = Want(want.mode, wants[largest].amount + missing, want.profile)
    return wants
