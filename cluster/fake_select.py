"""Label and field selectors, as the API double's lists and watches understand them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from cluster.fake_rules import Failure, Object, Rule

Matches = Callable[[Object], bool]

_TERM = re.compile(
    r"\s*(?:(?P<not>!)\s*(?P<absent>[^\s,!=()]+)|(?P<key>[^\s,!=()]+)"
    r"(?:\s*(?P<sign>!=|==|=)\s*(?P<value>[^\s,()]*)|\s+(?P<in>in|notin)\s*\((?P<set>[^)]*)\))?)\s*(?:,|$)"
)


def matcher(rule: Rule, query: Mapping[str, str]) -> Matches:
    """What `labelSelector` and `fieldSelector` let through. Raises Failure 400 for what a real server refuses."""
    labels = _label_terms(query.get("labelSelector", ""))
    fields = _field_terms(rule, query.get("fieldSelector", ""))

    def matches(obj: Object) -> bool:
        have = obj["metadata"].get("labels") or {}
        return all(term(have) for term in labels) and all((_field(obj, k) == v) is same for k, v, same in fields)

    return matches


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A LabelSelector inside an object: none of it selects nothing, an empty one everything."""
    if selector is None:
        return False
    exact = all(labels.get(k) == v for k, v in (selector.get("matchLabels") or {}).items())
    return exact and all(_expression(e, labels) for e in selector.get("matchExpressions") or ())


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _label_terms(selector: str) -> list[Callable[[Mapping[str, str]], bool]]:
    terms: list[Callable[[Mapping[str, str]], bool]] = []
    at = 0
    while at < len(selector):
        match = _TERM.match(selector, at)
        if not match:
            raise Failure(400, "BadRequest", f"unable to parse requirement: {selector!r}")
        at = match.end()
        terms.append(_label_term(match))
    return terms


def _label_term(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    key, sign, value = match["key"], match["sign"], match["value"]
    if match["absent"]:
        return lambda have: match["absent"] not in have
    if match["in"]:
        values = {v.strip() for v in match["set"].split(",")}
        return lambda have: (have.get(key) in values) is (match["in"] == "in")
    if sign:
        return lambda have: (have.get(key) == value) is (sign != "!=")
    return lambda have: key in have


def _field_terms(rule: Rule, selector: str) -> list[tuple[str, str, bool]]:
    terms = []
    for term in filter(None, selector.split(",")):
        key, *rest = re.split(r"(!=|==|=)", term, maxsplit=1)
        if len(rest) != 2:
            raise Failure(400, "BadRequest", f"invalid selector: {selector!r}; can't understand {term!r}")
        if key not in rule.fields:
            raise Failure(400, "BadRequest", f"field label not supported: {key}")
        terms.append((key, rest[1], rest[0] != "!="))
    return terms


def _field(obj: Object, path: str) -> str:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)
