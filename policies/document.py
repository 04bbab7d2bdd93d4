"""A YAML or JSON text that people write, read into a checked model: every fault at once, each with its line.

Pure. An unknown key, a wrong type, a key that stands twice or an impossible value is a fault; nothing is guessed.
"""

import difflib
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)

LIMIT_BYTES = 256 * 1024
"""Far beyond any sensible text; a ConfigMap itself ends at 1 MiB."""


class _Loader(yaml.SafeLoader):
    """Without YAML 1.1's numbers to base sixty, as the parsers of Kubernetes have it: `1:0` is a text, not 60."""


_INT = re.compile(r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_NUMBERS = {"tag:yaml.org,2002:int": _INT, "tag:yaml.org,2002:float": _FLOAT}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at one place. `line` counts from 1, None when it concerns the text as a whole; `path` are keys."""

    line: int | None
    path: str
    problem: str

    def __str__(self) -> str:
        place = ", ".join(p for p in (f"line {self.line}" if self.line else "", self.path) if p)
        return f"{place}: {self.problem}" if place else self.problem


class DocumentError(ValueError):
    """What is wrong with a text, in the order of its lines; `source` names it."""

    def __init__(self, source: str, faults: tuple[Fault, ...]) -> None:
        self.source, self.faults = source, faults
        super().__init__("; ".join(f"{source}, {f}" if f.line or f.path else f"{source}: {f}" for f in faults))

    @property
    def line(self) -> int | None:
        """Of the first fault."""
        return self.faults[0].line


def read(text: str, model: type[M], source: str, example: str) -> M:
    """The values this text states. Raises DocumentError with every fault; `example` is for who gave an empty text."""
    if len(text.encode()) > LIMIT_BYTES:
        raise DocumentError(source, (Fault(None, "", f"longer than {LIMIT_BYTES} bytes"),))
    root, values, faults = _parse(text)
    if faults:
        raise DocumentError(source, faults)
    if root is None:
        raise DocumentError(source, (Fault(None, "", f"the text is empty; write at least `{example}`"),))
    if not isinstance(root, yaml.MappingNode):
        keys = ", ".join(f"`{k}:`" for k in _known(model))
        raise DocumentError(source, (Fault(_line(root), "", f"expected keys at the top, such as {keys}"),))
    twice = tuple(
        Fault(_line(k), str(k.value), "this key stands here twice; YAML would silently keep the last")
        for k in _repeated(root)
    )
    try:
        fine = model.model_validate(values)
    except ValidationError as error:
        wrong = [_explain(e, root, model) for e in error.errors(include_url=False)]
        raise DocumentError(source, tuple(sorted({*wrong, *twice}, key=_order))) from error
    if twice:
        raise DocumentError(source, twice)
    return fine


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line of a key in a text that has been read; of the deepest part of the path that stands there."""
    root = yaml.compose(text, Loader=_Loader)
    return None if root is None else _line(_at(root, path))


def _order(fault: Fault) -> tuple[int, str]:
    return fault.line or 0, fault.path


def _parse(text: str) -> tuple[yaml.Node | None, Any, tuple[Fault, ...]]:
    """The text as nodes, which know their lines, and as plain values. Aliases are refused: nothing here needs them."""
    try:
        for token in yaml.scan(text, Loader=_Loader):
            if isinstance(token, yaml.AliasToken):
                line = token.start_mark.line + 1
                return None, None, (Fault(line, "", "YAML aliases are not accepted; write the value out"),)
        root = yaml.compose(text, Loader=_Loader)
        wrong = tuple(_wrong_scalars(root))
        values = None if wrong else yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
        return root, values, wrong
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        return None, None, (Fault(line, "", f"no valid YAML: {error.problem or error.context}"),)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, None, (Fault(None, "", f"no valid YAML: {error}"),)


def _wrong_scalars(node: yaml.Node | None) -> Iterator[Fault]:
    """Values that look like a date or a number and are none: YAML's own error would not name the line."""
    if isinstance(node, yaml.ScalarNode):
        try:
            yaml.constructor.SafeConstructor().construct_object(node)
        except yaml.YAMLError:
            return  # an unknown tag: safe_load says so, with its line
        except ValueError as error:
            yield Fault(_line(node), "", f"{str(node.value)[:40]!r} is no value: {error}")
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for part in pair:
                yield from _wrong_scalars(part)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _wrong_scalars(item)


def _repeated(node: yaml.Node) -> Iterator[yaml.Node]:
    """Keys that stand twice in one mapping."""
    if isinstance(node, yaml.MappingNode):
        seen: set[Hashable] = set()
        for key, value in node.value:
            if key.value in seen:
                yield key
            seen.add(key.value)
            yield from _repeated(value)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item)


def _explain(error: Any, root: yaml.Node, model: type[BaseModel]) -> Fault:
    keys = tuple(str(k) for k in error["loc"])
    problem = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = _known(_model_at(model, keys[:-1]))
        near = difflib.get_close_matches(keys[-1], known, n=1)
        problem = "unknown key" + (f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(known)}")
    return Fault(_line(_at(root, keys)), ".".join(keys), problem)


def _known(model: type[BaseModel]) -> list[str]:
    return sorted(f.alias or name for name, f in model.model_fields.items())


def _model_at(model: type[BaseModel], keys: tuple[str, ...]) -> type[BaseModel]:
    """The model of the section at these keys; numbers are places in a list."""
    for key in keys:
        if key.isdecimal():
            continue
        field = next(f for name, f in model.model_fields.items() if (f.alias or name) == key)
        model = next(_models_in(field.annotation))
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _at(root: yaml.Node, keys: tuple[str, ...]) -> yaml.Node:
    """The node of the deepest part of the path that exists; for an unknown key, the key itself."""
    node = root
    for key in keys:
        inside = next(_children(node, key), None)
        if inside is None:
            break
        node = inside
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
