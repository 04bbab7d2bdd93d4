"""The objects of the API double: versions, history, watches, binding and eviction, as a real API server does them.

In memory, thread-safe. Objects inside are never changed in place, so readers share them. Errors are raised as
`Failure` with the HTTP status a real one answers.
"""

import bisect
import itertools
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from cluster.fake_rules import (
    Address,
    Failure,
    Object,
    Rule,
    born,
    bound,
    check_version,
    dying,
    invalid,
    merge,
    rule_of,
    updated,
    with_condition,
)  # fmt: skip
from cluster.fake_schema import Schema, faults, prune, served
from cluster.fake_select import Matches, selects
from cluster.kinds import CRDS, PDBS, PODS

__all__ = ["Address", "Failure", "Object", "Store"]

HISTORY = 20_000
"""Changes of one kind that a watch may look back on; a real API server forgets too."""
OPEN_LISTS = 32


class _Change(NamedTuple):
    version: int
    event: str
    obj: Object
    old: Object | None


@dataclass
class _History:
    """Events of one kind in order of version; `floor` is the oldest version a watch may still start from."""

    floor: int = 0
    events: list[_Change] = field(default_factory=list)


class Store:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Begins where no earlier store has been, so that versions from before a restart are too old, not too new.
        self._version = self._first = time.time_ns() // 1_000_000
        self._numbers = itertools.count(self._version + 1)
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Object]] = {}
        self._histories: dict[tuple[str, str], _History] = {}
        self._schemas: dict[tuple[str, str], Schema] = {}
        self._rests: dict[str, tuple[list[Object], int]] = {}
        self.closed = False

    def all(self, at: Address, matches: Matches) -> tuple[list[Object], int]:
        """The matching objects and the version they are as new as. Shared with the store: not to be changed."""
        with self._changed:
            found = [
                obj
                for (namespace, _), obj in sorted(self._kind(at).items(), key=lambda entry: entry[0])
                if at.namespace in ("", namespace) and matches(obj)
            ]
            return found, self._version

    def page(self, at: Address, matches: Matches, limit: int, token: str) -> tuple[list[Object], int, str]:
        """At most `limit` objects (0: all) of the moment of the first page, and the token of the next."""
        if not token:
            items, version = self.all(at, matches)
        else:
            with self._changed:
                if token not in self._rests:
                    raise Failure(410, "Expired", "The provided continue parameter is too old")
                items, version = self._rests[token]
        if not limit or len(items) <= limit:
            return items, version, ""
        with self._changed:
            following = uuid.uuid4().hex
            self._rests[following] = items[limit:], version
            while len(self._rests) > OPEN_LISTS:
                self._rests.pop(next(iter(self._rests)))
        return items[:limit], version, following

    def get(self, at: Address) -> Object:
        """Shared with the store: not to be changed."""
        with self._changed:
            return self._find(at)

    def create(self, at: Address, obj: Object) -> Object:
        rule = rule_of(at)
        with self._changed:
            new = self._admitted(at, rule, born(rule, _copy(obj), at.namespace))
            meta = new["metadata"]
            if not meta.get("name"):
                meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
            if (at.namespace, meta["name"]) in self._kind(at):
                raise Failure(409, "AlreadyExists", f'{at.plural} "{meta["name"]}" already exists')
            meta["uid"] = str(uuid.uuid4())
            if rule.kind == CRDS:
                new["status"] = with_condition({}, {"type": "Established", "status": "True"})
                for api, schema in served(new):
                    self._schemas[api, new["spec"]["names"]["plural"]] = schema
            return self._put(at, "ADDED", new, None)

    def replace(self, at: Address, obj: Object, subresource: str = "") -> Object:
        with self._changed:
            return self._update(at, self._find(at), _copy(obj), subresource, patch=False)

    def patch(self, at: Address, patch: Mapping[str, Any], subresource: str = "") -> Object:
        with self._changed:
            old = self._find(at)
            check_version(rule_of(at), old, patch.get("metadata") or {}, patch=True)
            return self._update(at, old, _copy(merge(old, patch)), subresource, patch=True)

    def delete(self, at: Address, grace: int | None, uid: str = "") -> Object:
        """Pods bound to a node get a deletionTimestamp first; a second delete with grace 0 ends them."""
        with self._changed:
            obj = self._find(at)
            if uid and obj["metadata"]["uid"] != uid:
                raise Failure(409, "Conflict", f"the UID in the precondition ({uid}) does not match the UID in record")
            if at.plural == PODS.plural:
                still = dying(obj, grace)
                obj = obj if still is obj else self._put(at, "MODIFIED", still, obj)
                if obj["metadata"]["deletionGracePeriodSeconds"]:
                    return obj
            return self._put(at, "DELETED", obj, obj)

    def bind(self, at: Address, binding: Object) -> None:
        with self._changed:
            pod = self._find(at)
            self._put(at, "MODIFIED", bound(pod, _copy(binding)), pod)

    def evict(self, at: Address, uid: str, grace: int | None = None) -> None:
        """Refused with 429 while a budget has nothing left; pods that do not run are no budget's business."""
        with self._changed:
            pod = self._find(at)
            free = (pod.get("status") or {}).get("phase") in ("Pending", "Succeeded", "Failed")
            if not free and not pod["metadata"].get("deletionTimestamp"):
                self._spend_budget(at.namespace, pod["metadata"].get("labels") or {})
            if uid and pod["metadata"]["uid"] != uid:
                raise Failure(409, "Conflict", f"the UID in the precondition ({uid}) does not match the UID in record")
            target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            self._put(at, "MODIFIED", {**pod, "status": with_condition(pod["status"], target)}, pod)
            self.delete(at, grace, uid)

    def watch(self, at: Address, since: int, matches: Matches, idle: float) -> Iterator[tuple[str, Object]]:
        """Events after version `since` (0: what is there first, as ADDED); a BOOKMARK after `idle` seconds of silence.
        Raises Failure 410."""
        if not since:
            found, since = self.all(at, matches)
            yield from (("ADDED", obj) for obj in found)
        while not self.closed:
            with self._changed:
                fresh = self._after(at, since)
                if not fresh:
                    self._changed.wait_for(lambda: self.closed or self._after(at, since), idle)  # noqa: B023
                    fresh = self._after(at, since)
                newest = self._version
            if not fresh and not self.closed:
                since = max(since, newest)
                meta = {"resourceVersion": str(since), "creationTimestamp": None}
                yield "BOOKMARK", {"kind": rule_of(at).kind.kind, "apiVersion": at.api, "metadata": meta}
            for change in fresh:
                since = change.version
                yield from _selected(at, change, matches)

    def compact(self) -> None:
        """Forget all history: a watch from an older version, and a list half read, is answered 410."""
        with self._changed:
            self._rests.clear()
            # Kinds without a history yet forget too.
            for key in self._objects.keys() | self._histories.keys():
                history = self._histories.setdefault(key, _History())
                history.events.clear()
                history.floor = self._version
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _update(self, at: Address, old: Object, new: Object, subresource: str, *, patch: bool) -> Object:
        rule = rule_of(at)
        if not patch:
            check_version(rule, old, new.get("metadata") or {}, patch=False)
        obj = self._admitted(at, rule, updated(rule, old, new, subresource))
        return old if obj == old else self._put(at, "MODIFIED", obj, old)

    def _admitted(self, at: Address, rule: Rule, obj: Object) -> Object:
        schema = self._schemas.get((at.api, at.plural))
        if schema is None:
            return obj
        pruned: Object = prune(obj, schema)
        for path, text in faults(pruned, schema):
            raise invalid(rule, pruned["metadata"].get("name", ""), path, text)
        return pruned

    def _spend_budget(self, namespace: str, labels: Mapping[str, str]) -> None:
        budgets = [
            pdb
            for (where, _), pdb in self._kind(Address(PDBS.api, PDBS.plural)).items()
            if where == namespace and selects((pdb.get("spec") or {}).get("selector"), labels)
        ]
        if len(budgets) > 1:
            raise Failure(500, "InternalError", "This pod has more than one PodDisruptionBudget")
        for pdb in budgets:
            status = pdb.get("status") or {}
            left = int(status.get("disruptionsAllowed") or 0)
            if left < 1:
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Failure(429, "TooManyRequests", text)
            at = Address(PDBS.api, PDBS.plural, namespace, pdb["metadata"]["name"])
            self._put(at, "MODIFIED", {**pdb, "status": {**status, "disruptionsAllowed": left - 1}}, pdb)

    def _put(self, at: Address, event: str, obj: Object, old: Object | None) -> Object:
        self._version = next(self._numbers)
        meta = {**obj["metadata"], "resourceVersion": str(self._version)}
        obj = {**obj, "metadata": meta}
        key = (meta.get("namespace", ""), meta["name"])
        if event == "DELETED":
            self._kind(at).pop(key)
        else:
            self._kind(at)[key] = obj
        history = self._histories.setdefault((at.api, at.plural), _History(self._first))
        history.events.append(_Change(self._version, event, obj, old))
        if len(history.events) > HISTORY:
            history.floor = history.events[HISTORY // 2].version
            del history.events[: HISTORY // 2 + 1]
        self._changed.notify_all()
        return obj

    def _kind(self, at: Address) -> dict[tuple[str, str], Object]:
        return self._objects.setdefault((at.api, at.plural), {})

    def _after(self, at: Address, since: int) -> Sequence[_Change]:
        history = self._histories.get((at.api, at.plural)) or _History(self._first)
        if since < history.floor:
            raise Failure(410, "Expired", f"too old resource version: {since} ({history.floor})")
        return history.events[bisect.bisect_right(history.events, since, key=lambda e: e.version) :]

    def _find(self, at: Address) -> Object:
        rule_of(at)
        try:
            return self._kind(at)[at.namespace, at.name]
        except KeyError:
            raise Failure(404, "NotFound", f'{at.plural} "{at.name}" not found') from None


def _copy(obj: Any) -> Any:
    return orjson.loads(orjson.dumps(obj))


def _selected(at: Address, change: _Change, matches: Matches) -> Iterator[tuple[str, Object]]:
    """An object that leaves the selection is reported as deleted, one that enters it as added."""
    obj, old = change.obj, change.old
    if at.namespace not in ("", obj["metadata"].get("namespace", "")):
        return
    before, after = old is not None and matches(old), change.event != "DELETED" and matches(obj)
    if after:
        yield ("MODIFIED" if before else "ADDED"), obj
    elif before and change.event == "DELETED":
        yield "DELETED", obj
    elif before and old is not None:
        version = obj["metadata"]["resourceVersion"]
        yield "DELETED", {**old, "metadata": {**old["metadata"], "resourceVersion": version}}
