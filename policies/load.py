"""The policy file as it is in force: checked whole, swapped at once, and the last good one kept.

Every fault names its line. A broken edit changes nothing.
"""

import difflib
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from cluster import names
from cluster.client import CONFIGMAPS, Client
from cluster.events import Events
from cluster.watch import Watcher
from policies import metrics
from policies.model import Policy

log = logging.getLogger(__name__)

LIMIT_BYTES = 256 * 1024
"""Far beyond any sensible policy; a ConfigMap itself ends at 1 MiB."""


class PolicyError(ValueError):
    """What is wrong with a policy text. `line` counts from 1, None when it concerns the text as a whole."""

    def __init__(self, line: int | None, path: str, problem: str) -> None:
        place = ", ".join(p for p in (names.POLICY_KEY, f"line {line}" if line else "", path) if p)
        super().__init__(f"{place}: {problem}")
        self.line, self.path, self.problem = line, path, problem


def read_policy(text: str) -> Policy:
    """The policy this text states. Raises PolicyError for the first fault in it."""
    if len(text.encode()) > LIMIT_BYTES:
        raise PolicyError(None, "", f"longer than {LIMIT_BYTES} bytes")
    root, values = _parse(text)
    if root is None:
        raise PolicyError(None, "", "the text is empty; write at least `version: v1`")
    if not isinstance(root, yaml.MappingNode):
        raise PolicyError(_line(root), "", "expected keys such as `placing:` at the top")
    if twice := _repeated(root):
        raise PolicyError(_line(twice), str(twice.value), "this key stands here twice")
    try:
        return Policy.model_validate(values)
    except ValidationError as error:
        raise _explain(error, root) from error


class Policies:
    """The policy in force. `current` is swapped whole, so readers need no lock."""

    def __init__(self) -> None:
        self.current = Policy()
        self.problem = ""
        self.known = False
        """A good text has been read, or it is certain that there is none. Until then `current` is a guess."""
        self.on_change: list[Callable[[Policy], None]] = []
        self._lock = threading.Lock()

    def take(self, configmap: Mapping[str, Any] | None) -> bool:
        """Read the newest ConfigMap (None: it is gone). True when the policy in force has changed."""
        try:
            fresh = read_policy(_text_of(configmap))
        except PolicyError as error:
            self._refuse(str(error))
            return False
        with self._lock:
            changed, self.current, self.problem, self.known = fresh != self.current, fresh, "", True
        metrics.loads.labels("applied").inc()
        metrics.valid.set(1)
        if changed:
            for call in self.on_change:
                call(fresh)
        return changed

    def listed(self) -> None:
        """The first look is over. No ConfigMap: the defaults are what is wanted."""
        with self._lock:
            self.known = self.known or not self.problem

    def ready(self) -> str:
        """Empty when `current` is what the operator wants, else why that is not known."""
        if self.known:
            return ""
        return f"no good policy is known: {self.problem}" if self.problem else "policy not yet looked up"

    def _refuse(self, problem: str) -> None:
        with self._lock:
            self.problem = problem
        log.error("policy not changed: %s", problem)
        metrics.loads.labels("refused").inc()
        metrics.valid.set(0)


def follow(client: Client, policies: Policies, events: Events, namespace: str) -> Watcher:
    """Watch the one ConfigMap and tell on it, by an Event, what became of each edit."""

    def take(event: str, configmap: dict[str, Any]) -> None:
        changed = policies.take(None if event == "DELETED" else configmap)
        about = {"apiVersion": "v1", "kind": "ConfigMap", **configmap}
        if policies.problem:
            events.write(
                about, names.POLICY_INVALID, f"{policies.problem}; the last good policy stays in force", warning=True
            )
        elif changed:
            events.write(about, names.POLICY_APPLIED, "the policy is in force")

    return Watcher(
        client,
        CONFIGMAPS,
        take,
        on_listed=policies.listed,
        namespace=namespace,
        fieldSelector=f"metadata.name={names.POLICY_CONFIGMAP}",
    )


def _text_of(configmap: Mapping[str, Any] | None) -> str:
    if configmap is None:
        raise PolicyError(None, "", f"ConfigMap {names.POLICY_CONFIGMAP} is gone")
    data = configmap.get("data") or {}
    if names.POLICY_KEY not in data:
        raise PolicyError(None, "", f"ConfigMap {names.POLICY_CONFIGMAP} has no key {names.POLICY_KEY}")
    return str(data[names.POLICY_KEY])


def _parse(text: str) -> tuple[yaml.Node | None, Any]:
    """The text as nodes, which know their lines, and as plain values. Aliases are refused: nothing here needs them."""
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise PolicyError(token.start_mark.line + 1, "", "YAML aliases are not accepted; write the value out")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_scalars(root)
        return root, yaml.safe_load(text)
    except PolicyError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise PolicyError(line, "", f"no valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PolicyError(None, "", f"no valid YAML: {error}") from error


def _check_scalars(node: yaml.Node | None) -> None:
    """Values that look like a date or a number and are none: YAML's own error would not name the line."""
    if isinstance(node, yaml.ScalarNode):
        try:
            yaml.constructor.SafeConstructor().construct_object(node)
        except ValueError as error:
            raise PolicyError(_line(node), "", f"{str(node.value)[:40]!r} is no value: {error}") from error
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _check_scalars(key)
            _check_scalars(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_scalars(item)


def _repeated(node: yaml.Node) -> yaml.Node | None:
    """A key that stands twice in one mapping: YAML would silently keep the last."""
    if isinstance(node, yaml.MappingNode):
        seen: set[Hashable] = set()
        for key, value in node.value:
            if key.value in seen:
                return key  # type: ignore[no-any-return]
            seen.add(key.value)
            if inner := _repeated(value):
                return inner
    if isinstance(node, yaml.SequenceNode):
        return next((inner for item in node.value if (inner := _repeated(item))), None)
    return None


def _explain(error: ValidationError, root: yaml.Node) -> PolicyError:
    fault = error.errors(include_url=False)[0]
    keys = tuple(str(k) for k in fault["loc"])
    problem = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(keys[-1], _keys_at(keys[:-1]), n=1)
        problem = "unknown key" + (
            f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(_keys_at(keys[:-1]))}"
        )
    return PolicyError(_line(_at(root, keys)), ".".join(keys), problem)


def _keys_at(path: tuple[str, ...]) -> list[str]:
    model: type[BaseModel] = Policy
    for key in path:
        field = next(f for f in model.model_fields.values() if f.alias == key)
        assert isinstance(field.annotation, type)  # noqa: S101 - sections are plain models
        model = field.annotation
    return sorted(str(f.alias) for f in model.model_fields.values())


def _at(root: yaml.Node, keys: tuple[str, ...]) -> yaml.Node:
    """The node of the deepest part of the path that exists; for an unknown key, the key itself."""
    node = root
    for key in keys:
        inside = list(_children(node, key))
        if not inside:
            break
        node = inside[0]
    return node


def _children(node: yaml.Node, key: str) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                # A mapping's own mark is its first key; the line a person looks for is that of the name.
                yield value if isinstance(value, yaml.CollectionNode) else name
    elif isinstance(node, yaml.SequenceNode) and key.isdecimal() and int(key) < len(node.value):
        yield node.value[int(key)]


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
