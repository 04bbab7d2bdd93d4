"""The API double's reading of a structural schema: unknown fields are dropped, wrong values are refused.

Only what our own CRDs use; errors say what a real API server says.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,),
    "integer": (int,), "number": (int, float), "boolean": (bool,),
}  # fmt: skip


def served(crd: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """`group/version` and schema of each version a CustomResourceDefinition serves."""
    spec = crd["spec"]
    for version in spec["versions"]:
        if version.get("served"):
            yield f"{spec['group']}/{version['name']}", (version.get("schema") or {}).get("openAPIV3Schema") or {}


def prune(value: Any, schema: Schema, root: bool = True) -> Any:
    """The value without the fields that the schema does not know."""
    if isinstance(value, list):
        return [prune(item, schema.get("items") or {}, root=False) for item in value]
    if not isinstance(value, dict):
        return value
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    keep = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    pruned = {}
    for key, inner in value.items():
        if root and key in ("apiVersion", "kind", "metadata"):
            pruned[key] = inner
        elif key in known:
            pruned[key] = prune(inner, known[key], root=False)
        elif isinstance(rest, Mapping):
            pruned[key] = prune(inner, rest, root=False)
        elif keep or rest is True:
            pruned[key] = inner
    return pruned


def faults(value: Any, schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """What is wrong with the value: the field, and a sentence."""
    wanted = schema.get("type")
    if value is None and schema.get("nullable"):
        return
    if wanted and not _is(value, wanted):
        named = _name(value)
        yield path, f'Invalid value: "{named}": {path} in body must be of type {wanted}: "{named}"'
        return
    yield from _bounds(value, schema, path)
    if isinstance(value, dict):
        yield from _fields(value, schema, path)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from faults(item, schema.get("items") or {}, f"{path}[{number}]")


def _fields(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    dot = f"{path}." if path else ""
    for key in schema.get("required") or ():
        if key not in value:
            yield f"{dot}{key}", "Required value"
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, inner in value.items():
        if key in known:
            yield from faults(inner, known[key], f"{dot}{key}")
        elif isinstance(rest, Mapping):
            yield from faults(inner, rest, f"{dot}{key}")


def _bounds(value: Any, schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{v}"' for v in schema["enum"])
        yield path, f"Unsupported value: {shown}: supported values: {allowed}"
    if "minimum" in schema and value < schema["minimum"]:
        yield path, f"Invalid value: {shown}: {path} in body should be greater than or equal to {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        yield path, f"Invalid value: {shown}: {path} in body should be less than or equal to {schema['maximum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield path, f"Invalid value: {shown}: {path} in body should match '{schema['pattern']}'"
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield path, f"Too long: may not be more than {schema['maxLength']} bytes"
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        yield path, f"Too many: {len(value)}: must have at most {schema['maxItems']} items"


def _is(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[wanted])


def _name(value: Any) -> str:
    return next((n for n in ("boolean", "integer", "number", "string", "array", "object") if _is(value, n)), "null")
