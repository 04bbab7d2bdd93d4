"""The objects of the API double: versions, conflicts, watches, binding and eviction, as a real API server does them.

In memory, thread-safe. Errors are raised as `Failure` with the HTTP status a real one answers.
"""

import bisect
import copy
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

WITH_STATUS = {"pods", "nodes", "gpunodes", "poddisruptionbudgets"}
"""Kinds with a status subresource: a write to the object leaves the status alone, and the other way round."""


class Failure(Exception):
    def __init__(self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.headers = code, reason, message, dict(headers or {})


@dataclass(frozen=True)
class Address:
    """Where an object lives: API group and version, plural, namespace and name ("" for a list)."""

    api: str
    plural: str
    namespace: str = ""
    name: str = ""


_Change = tuple[int, str, Object]


@dataclass
class _History:
    """Events of one kind in order of version; `floor` is the oldest version a watch may still start from."""

    floor: int = 0
    events: list[_Change] = field(default_factory=list)


class Store:
    def __init__(self, validate: Callable[[Object], None] = lambda obj: None) -> None:
        self._changed = threading.Condition()
        self._versions = itertools.count(1)
        self._version = 0
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Object]] = {}
        self._histories: dict[tuple[str, str], _History] = {}
        self._validate = validate
        self.closed = False

    def list(self, at: Address, matches: Callable[[Object], bool]) -> tuple[list[Object], int]:
        with self._changed:
            found = [
                copy.deepcopy(obj)
                for (namespace, _), obj in sorted(self._kind(at).items())
                if at.namespace in ("", namespace) and matches(obj)
            ]
            return found, self._version

    def get(self, at: Address) -> Object:
        with self._changed:
            return copy.deepcopy(self._find(at))

    def create(self, at: Address, obj: Object) -> Object:
        with self._changed:
            meta = obj.setdefault("metadata", {})
            if not meta.get("name") and meta.get("generateName"):
                meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
            if not meta.get("name"):
                raise Failure(422, "Invalid", "metadata.name: Required value")
            if at.namespace:
                meta["namespace"] = at.namespace
            if (at.namespace, meta["name"]) in self._kind(at):
                raise Failure(409, "AlreadyExists", f'{at.plural} "{meta["name"]}" already exists')
            meta["uid"] = str(uuid.uuid4())
            meta["creationTimestamp"] = _now()
            meta["generation"] = 1
            if at.plural in WITH_STATUS and at.plural != "nodes":
                obj["status"] = {"phase": "Pending"} if at.plural == "pods" else {}
            self._validate(obj)
            return self._put(at, "ADDED", obj)

    def replace(self, at: Address, obj: Object, subresource: str = "") -> Object:
        with self._changed:
            return self._update(at, copy.deepcopy(self._find(at)), obj, subresource)

    def patch(self, at: Address, patch: Mapping[str, Any], subresource: str = "") -> Object:
        with self._changed:
            old = copy.deepcopy(self._find(at))
            wanted = _checked_version(old, patch.get("metadata") or {})
            if wanted:
                raise wanted
            return self._update(at, old, merge(copy.deepcopy(old), patch), subresource)

    def delete(self, at: Address, grace: int | None, uid: str = "") -> Object:
        """Pods bound to a node get a deletionTimestamp first; a second delete with grace 0 ends them."""
        with self._changed:
            obj = copy.deepcopy(self._find(at))
            if uid and obj["metadata"]["uid"] != uid:
                raise Failure(409, "Conflict", "the uid in the precondition does not match")
            started = at.plural == "pods" and (obj.get("spec") or {}).get("nodeName")
            if started and grace != 0 and (obj.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                seconds = 30 if grace is None else grace
                if "deletionTimestamp" not in obj["metadata"]:
                    obj["metadata"] |= {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": seconds}
                    return self._put(at, "MODIFIED", obj)
                return obj
            self._kind(at).pop((obj["metadata"].get("namespace", ""), at.name))
            return self._put(at, "DELETED", obj, keep=False)

    def bind(self, at: Address, binding: Object) -> None:
        with self._changed:
            pod = copy.deepcopy(self._find(at))
            meta = binding.get("metadata") or {}
            if meta.get("uid") and meta["uid"] != pod["metadata"]["uid"]:
                raise Failure(409, "Conflict", "Precondition failed: UID in precondition does not match")
            if wrong := _checked_version(pod, meta):
                raise wrong
            node = (binding.get("target") or {}).get("name")
            if not node:
                raise Failure(422, "Invalid", "target.name: Required value")
            if pod["metadata"].get("deletionTimestamp"):
                raise Failure(409, "Conflict", f"pod {at.name} is being deleted, cannot be assigned to a host")
            if pod["spec"].get("nodeName"):
                raise Failure(409, "Conflict", f"pod {at.name} is already assigned to node {pod['spec']['nodeName']!r}")
            if pod["spec"].get("schedulingGates"):
                raise Failure(409, "Conflict", f"pod {at.name} has non-empty .spec.schedulingGates")
            pod["spec"]["nodeName"] = node
            annotations = pod["metadata"].setdefault("annotations", {})
            annotations.update(meta.get("annotations") or {})
            conditions = [c for c in pod["status"].get("conditions") or () if c.get("type") != "PodScheduled"]
            pod["status"]["conditions"] = [*conditions, {"type": "PodScheduled", "status": "True"}]
            self._put(at, "MODIFIED", pod)

    def evict(self, at: Address, uid: str) -> None:
        with self._changed:
            pod = self._find(at)
            for pdb in self._kind(Address("policy/v1", "poddisruptionbudgets")).values():
                selector = (pdb.get("spec") or {}).get("selector", {}).get("matchLabels") or {}
                labels = pod["metadata"].get("labels") or {}
                same = pdb["metadata"].get("namespace") == at.namespace
                left = (pdb.get("status") or {}).get("disruptionsAllowed", 0)
                if same and left < 1 and selector.items() <= labels.items():
                    message = "Cannot evict pod as it would violate the pod's disruption budget."
                    raise Failure(429, "TooManyRequests", message, {"Retry-After": "1"})
        self.delete(at, None, uid)

    def watch(
        self, at: Address, since: int, matches: Callable[[Object], bool], idle: float
    ) -> Iterator[tuple[str, Object]]:
        """Events after version `since`; a BOOKMARK after `idle` seconds of silence. Raises Failure 410."""
        seen: dict[str, bool] = {}
        while not self.closed:
            with self._changed:
                fresh = self._after(at, since)
                if not fresh:
                    self._changed.wait(idle)
                    fresh = self._after(at, since)
                newest = self._version
            if not fresh:
                since = newest
                yield "BOOKMARK", {"metadata": {"resourceVersion": str(since)}}
            for version, event, obj in fresh:
                since = version
                yield from _selected(at, event, obj, matches, seen)

    def compact(self) -> None:
        """Forget all history: a watch from an older version is answered 410."""
        with self._changed:
            for history in self._histories.values():
                history.events.clear()
                history.floor = self._version
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _update(self, at: Address, old: Object, new: Object, subresource: str) -> Object:
        if wrong := _checked_version(old, new.get("metadata") or {}):
            raise wrong
        if subresource == "status":
            obj = {**old, "status": new.get("status") or {}}
            if annotations := (new.get("metadata") or {}).get("annotations"):
                obj["metadata"] = {**old["metadata"], "annotations": annotations}
        else:
            obj = dict(new)
            if at.plural in WITH_STATUS and "status" in old:
                obj["status"] = old["status"]
            fixed = {k: old["metadata"][k] for k in ("uid", "creationTimestamp", "generation") if k in old["metadata"]}
            obj["metadata"] = {**new["metadata"], **fixed}
            if old.get("spec") != obj.get("spec"):
                obj["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if obj == old:
            return old
        self._validate(obj)
        return self._put(at, "MODIFIED", obj)

    def _put(self, at: Address, event: str, obj: Object, keep: bool = True) -> Object:
        self._version = next(self._versions)
        obj["metadata"]["resourceVersion"] = str(self._version)
        obj.setdefault("apiVersion", at.api)
        frozen = copy.deepcopy(obj)
        if keep:
            self._kind(at)[(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])] = frozen
        self._history(at).events.append((self._version, event, frozen))
        self._changed.notify_all()
        return obj

    def _kind(self, at: Address) -> dict[tuple[str, str], Object]:
        return self._objects.setdefault((at.api, at.plural), {})

    def _history(self, at: Address) -> _History:
        return self._histories.setdefault((at.api, at.plural), _History())

    def _after(self, at: Address, since: int) -> Sequence[_Change]:
        history = self._history(at)
        if since < history.floor:
            raise Failure(410, "Expired", f"too old resource version: {since} ({history.floor})")
        return history.events[bisect.bisect_right(history.events, since, key=lambda e: e[0]) :]

    def _find(self, at: Address) -> Object:
        try:
            return self._kind(at)[(at.namespace, at.name)]
        except KeyError:
            raise Failure(404, "NotFound", f'{at.plural} "{at.name}" not found') from None


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


def _selected(
    at: Address, event: str, obj: Object, matches: Callable[[Object], bool], seen: dict[str, bool]
) -> Iterator[tuple[str, Object]]:
    """An object that leaves the selection is reported as deleted, one that enters it as added."""
    if at.namespace not in ("", obj["metadata"].get("namespace", "")):
        return
    uid, inside = obj["metadata"]["uid"], matches(obj)
    before = seen.get(uid, inside or event == "MODIFIED")
    seen[uid] = inside and event != "DELETED"
    if event == "DELETED":
        if before:
            yield event, obj
    elif inside:
        yield (event if before or event == "ADDED" else "ADDED"), obj
    elif before:
        yield "DELETED", obj


def _checked_version(old: Object, meta: Mapping[str, Any]) -> Failure | None:
    message = "the object has been modified; please apply your changes to the latest version and try again"
    if meta.get("resourceVersion") and meta["resourceVersion"] != old["metadata"]["resourceVersion"]:
        return Failure(409, "Conflict", message)
    if meta.get("uid") and meta["uid"] != old["metadata"]["uid"]:
        return Failure(409, "Conflict", f"Precondition failed: UID in precondition: {meta['uid']}")
    return None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
