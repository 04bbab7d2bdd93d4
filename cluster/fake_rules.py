"""What a real API server does with an object on its way in, kind by kind: values in, values out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cluster.kinds import CONFIGMAPS, CRDS, EVENTS, GPUNODES, LEASES, NAMESPACES, NODES, PDBS, PODS, Kind

Object = dict[str, Any]


class Failure(Exception):
    """An answer that is no success: HTTP status, reason, message, and the fields that caused it."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        fields: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.headers, self.fields = dict(headers or {}), fields


@dataclass(frozen=True)
class Address:
    """Where an object lives: API group and version, plural, namespace and name ("" for a list)."""

    api: str
    plural: str
    namespace: str = ""
    name: str = ""


_NAME = ("metadata.name", "metadata.namespace")
_OF_PODS = ("spec.nodeName", "spec.schedulerName", "status.phase", "status.nominatedNodeName")
_OF_EVENTS = ("reason", "type", *(f"involvedObject.{f}" for f in ("kind", "name", "namespace", "uid")))


@dataclass(frozen=True)
class Rule:
    """How one kind differs from another. `status`: has that subresource. `counted`: metadata.generation counts the
    changes of the spec. `blind`: may be replaced without naming a version. `custom`: from a CRD."""

    kind: Kind
    status: bool = False
    counted: bool = False
    blind: bool = True
    custom: bool = False
    fields: tuple[str, ...] = _NAME


_RULES = (
    Rule(PODS, status=True, counted=True, fields=(*_NAME, *_OF_PODS)),
    Rule(NODES, status=True, fields=(*_NAME, "spec.unschedulable")),
    Rule(NAMESPACES, status=True, fields=(*_NAME, "status.phase")),
    Rule(CONFIGMAPS),
    Rule(EVENTS, fields=(*_NAME, *_OF_EVENTS)),
    Rule(LEASES, blind=False),
    Rule(PDBS, status=True, counted=True, blind=False),
    Rule(CRDS, status=True, counted=True, blind=False),
    Rule(GPUNODES, status=True, counted=True, blind=False, custom=True),
)
RULES = {(r.kind.api, r.kind.plural): r for r in _RULES}

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAY_CHANGE = ("tolerations", "activeDeadlineSeconds", "schedulingGates", "terminationGracePeriodSeconds")


def rule_of(at: Address) -> Rule:
    try:
        return RULES[at.api, at.plural]
    except KeyError:
        raise Failure(404, "NotFound", "the server could not find the requested resource") from None


def born(rule: Rule, obj: Object, namespace: str) -> Object:
    """A new object as it is stored, but for uid, version and the random end of a generated name."""
    if obj.get("kind", rule.kind.kind) != rule.kind.kind or obj.get("apiVersion", rule.kind.api) != rule.kind.api:
        raise Failure(400, "BadRequest", f"{obj.get('kind')} in version {obj.get('apiVersion')} is no {rule.kind.kind}")
    meta = dict(obj.get("metadata") or {})
    if meta.get("resourceVersion"):
        raise Failure(500, "", "resourceVersion should not be set on objects to be created")
    name = meta.get("name") or (f"{meta['generateName']}x" if meta.get("generateName") else "")
    if not name:
        raise invalid(rule, "", "metadata.name", "Required value: name or generateName is required")
    if not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        raise invalid(rule, name, "metadata.name", f'Invalid value: "{name}": must be a lowercase RFC 1123 subdomain')
    if rule.kind.namespaced and meta.get("namespace", namespace) != namespace:
        raise Failure(400, "BadRequest", "the namespace of the object does not match the namespace on the request")
    meta |= {"namespace": namespace} if rule.kind.namespaced else {}
    meta |= {"creationTimestamp": now()} | ({"generation": 1} if rule.counted else {})
    new = {"apiVersion": rule.kind.api, "kind": rule.kind.kind, **obj, "metadata": meta}
    if rule.custom or rule.kind in (PDBS, CRDS):
        new.pop("status", None)
    if rule.kind == NODES:
        new.setdefault("spec", {})
    return _born_pod(rule, new) if rule.kind == PODS else new


def _born_pod(rule: Rule, pod: Object) -> Object:
    spec = pod.get("spec") or {}
    if not spec.get("containers"):
        raise invalid(rule, pod["metadata"].get("name", ""), "spec.containers", "Required value")
    defaults = {
        "restartPolicy": "Always", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
    }  # fmt: skip
    status: Object = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    return {**pod, "spec": {**defaults, **spec}, "status": status}


def updated(rule: Rule, old: Object, new: Object, subresource: str) -> Object:
    """`old` after a write of `new` to the object or its status: each leaves the other's half alone."""
    keep = {k: old["metadata"][k] for k in _FIXED if k in old["metadata"]}
    meta = {k: v for k, v in (new.get("metadata") or {}).items() if k not in _FIXED} | keep
    if subresource == "status":
        # A custom resource's /status takes nothing but the status; a pod's and a node's also takes metadata.
        return _with_status({**old, "metadata": old["metadata"] if rule.custom else meta}, new.get("status"))
    obj = {**new, "apiVersion": rule.kind.api, "kind": rule.kind.kind, "metadata": meta}
    if rule.status:
        obj = _with_status(obj, old.get("status"))
    if rule.kind == PODS and _fixed_part(old["spec"]) != _fixed_part(obj.get("spec") or {}):
        text = "Forbidden: pod updates may not change fields other than images, tolerations (only additions) and gates"
        raise invalid(rule, meta["name"], "spec", text)
    if rule.counted and _without(old) != _without(obj):
        meta["generation"] = old["metadata"].get("generation", 1) + 1
    return obj


_FIXED = (
    "name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp",
    "deletionGracePeriodSeconds",
)  # fmt: skip


def _with_status(obj: Object, status: Any) -> Object:
    rest = {k: v for k, v in obj.items() if k != "status"}
    return rest if status is None else {**rest, "status": status}


def _without(obj: Object) -> Object:
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}


def _fixed_part(spec: Mapping[str, Any]) -> Object:
    def imageless(containers: Any) -> list[Object]:
        return [{k: v for k, v in c.items() if k != "image"} for c in containers or ()]

    fixed = {k: v for k, v in spec.items() if k not in _MAY_CHANGE}
    return fixed | {k: imageless(spec.get(k)) for k in ("containers", "initContainers")}


def check_version(rule: Rule, old: Object, meta: Mapping[str, Any], *, patch: bool) -> None:
    """The preconditions in the metadata of a write. Raises Failure."""
    name, version, uid = old["metadata"]["name"], meta.get("resourceVersion"), meta.get("uid")
    if not patch and not version and not rule.blind:
        text = "Invalid value: 0: must be specified for an update"
        raise invalid(rule, name, "metadata.resourceVersion", text)
    if version and version != old["metadata"]["resourceVersion"]:
        text = "the object has been modified; please apply your changes to the latest version and try again"
        raise Failure(409, "Conflict", f'Operation cannot be fulfilled on {rule.kind.plural} "{name}": {text}')
    if uid and uid != old["metadata"]["uid"]:
        if patch:
            raise invalid(rule, name, "metadata.uid", f'Invalid value: "{uid}": field is immutable')
        raise Failure(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")


def bound(pod: Object, binding: Mapping[str, Any]) -> Object:
    """The pod after a Binding: node, annotations and condition in one update. Raises Failure 409."""
    meta, name = binding.get("metadata") or {}, pod["metadata"]["name"]
    check_version(RULES[PODS.api, PODS.plural], pod, meta, patch=False)
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise Failure(500, "", "target.name: Required value")
    why = ""
    if pod["metadata"].get("deletionTimestamp"):
        why = "is being deleted, cannot be assigned to a host"
    elif pod["spec"].get("nodeName"):
        why = f'is already assigned to node "{pod["spec"]["nodeName"]}"'
    elif pod["spec"].get("schedulingGates"):
        why = "has non-empty .spec.schedulingGates"
    if why:
        raise Failure(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": pod {name} {why}')
    annotations = {**(pod["metadata"].get("annotations") or {}), **(meta.get("annotations") or {})}
    scheduled = with_condition(pod["status"], {"type": "PodScheduled", "status": "True"})
    scheduled.pop("nominatedNodeName", None)
    marked = {**pod["metadata"], "annotations": annotations} if annotations else pod["metadata"]
    return {**pod, "metadata": marked, "spec": {**pod["spec"], "nodeName": node}, "status": scheduled}


def dying(pod: Object, grace: int | None) -> Object:
    """The pod with its deletionTimestamp; with a grace of 0 seconds there it goes at once. A second deletion may only
    shorten the grace of the first."""
    spec, status, meta = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    seconds = spec.get("terminationGracePeriodSeconds", 30) if grace is None else max(0, grace)
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        seconds = 0
    if meta.get("deletionGracePeriodSeconds", seconds + 1) <= seconds:
        return pod
    at = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**pod, "metadata": {**meta, "deletionTimestamp": at, "deletionGracePeriodSeconds": seconds}}


def with_condition(status: Mapping[str, Any], condition: Object) -> Object:
    others = [c for c in status.get("conditions") or () if c.get("type") != condition["type"]]
    return {**status, "conditions": [*others, {**condition, "lastTransitionTime": now()}]}


def merge(old: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def invalid(rule: Rule, name: str, path: str, text: str) -> Failure:
    return Failure(422, "Invalid", f'{rule.kind.kind} "{name}" is invalid: {path}: {text}', fields=(path,))


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
