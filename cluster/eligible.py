"""On which nodes a pod may run, as far as the pod and the Node say: selector, affinity, taints. Pure.

The same rules as kube-scheduler's NodeAffinity, TaintToleration and NodeUnschedulable. Not looked at: CPU, memory and
whatever else of a node may be used up, other pods (anti-affinity, spreading), volumes and ports. What cannot be read
does not match: such a pod may run nowhere, such a taint keeps everybody away, and nothing is raised.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
"""What cordoning means to a pod; the API server's own name."""

_CLOSING = ("NoSchedule", "NoExecute")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_RUBBISH = (AttributeError, LookupError, TypeError, ValueError)

_Names = frozenset[str]
_Values = Mapping[str, _Names]
"""The nodes that have a label, by its value."""


def may_run(pod: Object, node: Object) -> bool:
    """Whether nothing in the pod's constraints keeps it from this node."""
    return bool(_Nodes({_name(node): node}).open_to(_constraints(pod)))


def barred(pods: Mapping[str, Object], nodes: Mapping[str, Object]) -> dict[str, _Names]:
    """For each pod (by any key) the names of the nodes (keys of `nodes`) that it may not run on.

    Pods with equal constraints are looked at once and get the very same set.
    """
    index = _Nodes(nodes)
    known: dict[str, _Names] = {}
    same: dict[_Names, _Names] = {}
    found = {}
    for pod, obj in pods.items():
        constraints = _constraints(obj)
        key = repr(constraints)
        if key not in known:
            shut = index.all - index.open_to(constraints)
            known[key] = same.setdefault(shut, shut)
        found[pod] = known[key]
    return found


@dataclass(frozen=True, slots=True)
class _Constraints:
    """What of a pod says where it may run, raw. `required` is None when there is no required affinity."""

    selector: Any
    required: Any
    tolerations: tuple[Any, ...]


def _constraints(pod: Object) -> _Constraints:
    try:
        spec = pod.get("spec") or {}
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        tolerations = tuple(spec.get("tolerations") or ())
        if all(isinstance(t, Mapping) for t in tolerations):
            return _Constraints(spec.get("nodeSelector") or {}, required, tolerations)
    except _RUBBISH:
        pass
    return _Constraints({}, {}, ())  # a required affinity without terms selects nothing


class _Nodes:
    """Nodes by what a constraint can ask for, so that each constraint costs a few set operations."""

    def __init__(self, nodes: Mapping[str, Object]) -> None:
        self.all: _Names = frozenset(nodes)
        self._labels = {key: _labels(node) for key, node in nodes.items()}
        self._named = {_name(node): key for key, node in nodes.items()}
        self._values: dict[str, _Values] = {}
        tainted: dict[str, tuple[tuple[Any, ...], set[str]]] = {}
        for key, node in nodes.items():
            taints = _taints(node)
            tainted.setdefault(repr(taints), (taints, set()))[1].add(key)
        self._tainted = tuple(tainted.values())

    def open_to(self, constraints: _Constraints) -> _Names:
        try:
            found = self._tolerated(constraints.tolerations)
            for key, value in constraints.selector.items():
                found &= self.values(key).get(value, frozenset())
            if constraints.required is not None:
                found &= self._selected(constraints.required)
        except _RUBBISH:
            return frozenset()
        return found

    def values(self, label: str) -> _Values:
        if label not in self._values:
            by_value: dict[str, set[str]] = {}
            for key, labels in self._labels.items():
                if isinstance(value := labels.get(label), str):
                    by_value.setdefault(value, set()).add(key)
            self._values[label] = {value: frozenset(keys) for value, keys in by_value.items()}
        return self._values[label]

    def _tolerated(self, tolerations: tuple[Any, ...]) -> _Names:
        return _union(
            names for taints, names in self._tainted if all(any(_tolerates(t, x) for t in tolerations) for x in taints)
        )

    def _selected(self, required: Any) -> _Names:
        """Any term is enough; one that cannot be read selects nothing and leaves the others their say."""
        return _union(self._term(term) for term in required.get("nodeSelectorTerms") or ())

    def _term(self, term: Any) -> _Names:
        try:
            expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
            chosen = [*(self._meeting(e) for e in expressions), *(self._field(f) for f in fields)]
        except _RUBBISH:
            return frozenset()
        return self.all.intersection(*chosen) if chosen else frozenset()

    def _meeting(self, expression: Any) -> _Names:
        select, others = _OPERATORS[expression["operator"]]
        chosen = select(self.values(expression["key"]), tuple(expression.get("values") or ()))
        return self.all - chosen if others else chosen

    def _field(self, field: Any) -> _Names:
        """Names of nodes are the one field that Kubernetes lets pods choose by, one name at a time."""
        (name,) = field["values"]
        if field["key"] != "metadata.name" or field["operator"] not in ("In", "NotIn"):
            raise ValueError("no such field selector")
        chosen = frozenset({self._named[name]} if name in self._named else ())
        return chosen if field["operator"] == "In" else self.all - chosen


def _name(node: Object) -> str:
    try:
        return str((node.get("metadata") or {}).get("name", ""))
    except _RUBBISH:
        return ""


def _labels(node: Object) -> Mapping[str, Any]:
    try:
        labels = (node.get("metadata") or {}).get("labels")
    except _RUBBISH:
        return {}
    return labels if isinstance(labels, Mapping) else {}


def _taints(node: Object) -> tuple[Any, ...]:
    """Those that keep pods away."""
    try:
        spec = node.get("spec") or {}
        taints = [t for t in spec.get("taints") or () if t.get("effect") in _CLOSING]
        return (*taints, *([_UNSCHEDULABLE] if spec.get("unschedulable") else []))
    except _RUBBISH:
        return (None,)


def _union(sets: Iterable[Iterable[str]]) -> _Names:
    return frozenset().union(*sets)


def _in(nodes: _Values, values: tuple[Any, ...]) -> _Names:
    if not values:
        raise ValueError("In and NotIn need values")
    return _union(nodes.get(value, ()) for value in values)


def _exists(nodes: _Values, values: tuple[Any, ...]) -> _Names:
    if values:
        raise ValueError("Exists and DoesNotExist take no values")
    return _union(nodes.values())


def _greater(nodes: _Values, values: tuple[Any, ...]) -> _Names:
    (bound,) = values
    limit = _integer(bound)
    return _union(names for value, names in nodes.items() if _INTEGER.fullmatch(value) and int(value) > limit)


def _less(nodes: _Values, values: tuple[Any, ...]) -> _Names:
    (bound,) = values
    limit = _integer(bound)
    return _union(names for value, names in nodes.items() if _INTEGER.fullmatch(value) and int(value) < limit)


_OPERATORS: Mapping[str, tuple[Callable[[_Values, tuple[Any, ...]], _Names], bool]] = {
    "In": (_in, False),
    "NotIn": (_in, True),
    "Exists": (_exists, False),
    "DoesNotExist": (_exists, True),
    "Gt": (_greater, False),
    "Lt": (_less, False),
}
"""What chooses nodes by a label, and whether all the others are meant."""


def _tolerates(toleration: Any, taint: Any) -> bool:
    operator = toleration.get("operator") or "Equal"
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return bool(operator == "Exists")  # everything; without a key no other operator is allowed
    if toleration["key"] != taint["key"]:
        return False
    wanted, value = toleration.get("value") or "", taint.get("value") or ""
    if operator in ("Gt", "Lt"):
        return _compares(operator, value, wanted)
    return bool(operator == "Exists" or (operator == "Equal" and wanted == value))


def _compares(operator: str, value: Any, wanted: Any) -> bool:
    """`Gt` tolerates taints with a greater number than the toleration's, `Lt` those with a lesser one."""
    if not (_INTEGER.fullmatch(str(value)) and _INTEGER.fullmatch(str(wanted))):
        return False
    return int(value) > int(wanted) if operator == "Gt" else int(value) < int(wanted)


def _integer(text: Any) -> int:
    if not isinstance(text, str) or not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)
