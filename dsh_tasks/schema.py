"""Output schemas: which ones a start accepts, how they become a tool's parameters, what a value violates.

Checked before any child exists: what passes here can be asked for and judged on any worker, offline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import (
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)

from dsh_tasks.errors import SchemaRefused

SCHEMA_MAX_BYTES = 64 * 1024
SCHEMA_MAX_DEPTH = 32
WRAPPED_IN = "value"
"""Member of the tool's arguments that holds a value which is no plain object."""

_DRAFTS = (Draft202012Validator, Draft201909Validator, Draft7Validator, Draft6Validator)
# Where the schemas below a schema stand; everything else in it is words or data.
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_IN_PLACE = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies", "else", "if", "not", "then")
"""Those that look at the same value again: a circle of them has no end."""
_NOT_PLAIN = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const")
"""What providers do not take at the top of a tool's parameters."""
_SLOW = ("pattern", "patternProperties", "uniqueItems")
_FAULT_CHARS = 300
_SHOWN_CHARS = 80


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that is invalid, too large, or that reaches outside itself.

    Any type of value may be asked for. Drafts 6, 7, 2019-09 and 2020-12; the last where it names none.
    Raises SchemaRefused with the place and the reason.
    """
    if not isinstance(schema, Mapping):
        raise SchemaRefused("it must be a JSON object")
    try:
        size = len(json.dumps(schema, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise SchemaRefused("it is not plain JSON") from None
    if size > SCHEMA_MAX_BYTES:
        raise SchemaRefused(f"{size} bytes, at most {SCHEMA_MAX_BYTES}")
    _check_depth(schema, "$", 0)
    draft = _draft_of(schema)
    if draft is None:
        raise SchemaRefused("this draft is not known; 2020-12, 2019-09, 7 and 6 are", path="$.$schema")
    try:
        draft.check_schema(dict(schema))
    except SchemaError as error:
        raise SchemaRefused(error.message[:_FAULT_CHARS], path=error.json_path[:200]) from None
    except OverflowError:
        raise SchemaRefused("a pattern in it counts too far") from None
    _check_references(schema)


def parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a tool that takes a value of `schema`: these must be an object for every provider.

    A plain object schema stands as it is; any other value is asked for as the only member, `value`.
    """
    if not is_wrapped(schema):
        return dict(schema)
    inner = _moved(schema)
    # Definitions stay where providers look for them.
    shared = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
    outer = {"$schema": inner.pop("$schema")} if "$schema" in inner else {}
    inner.pop("$id", None)
    return {
        **outer,
        "type": "object",
        "properties": {WRAPPED_IN: inner},
        "required": [WRAPPED_IN],
        "additionalProperties": False,
        **shared,
    }


def is_wrapped(schema: Mapping[str, Any]) -> bool:
    """The value is no plain object, so that a tool takes it as a member."""
    return schema.get("type") != "object" or any(name in schema for name in _NOT_PLAIN)


def may_take_long(schema: Mapping[str, Any]) -> bool:
    """Whether even a small value can take long to judge, by a pattern or by comparing its items."""
    return any(name in node for _, node in _walk(schema) for name in _SLOW)


def violations(schema: Mapping[str, Any], value: Any, *, most: int = 5) -> list[str]:
    """What is wrong with `value` under `schema`, a line each; empty where it is valid."""
    validator = _validator(schema)
    try:
        found = sorted(validator.iter_errors(value), key=lambda error: error.json_path)
    except RecursionError:
        return ["$: it is nested too deeply to be checked"]
    lines = [line for error in found[:most] for line in _lines_of(error)]
    left = len(found) - most
    return [*lines, f"and {left} more"] if left > 0 else lines


def _draft_of(schema: Mapping[str, Any]) -> type[Validator] | None:
    named = schema.get("$schema", Draft202012Validator.META_SCHEMA["$id"])
    known = {draft.META_SCHEMA["$id"].rstrip("#"): draft for draft in _DRAFTS}
    return known.get(named.rstrip("#")) if isinstance(named, str) else None


def _validator(schema: Mapping[str, Any]) -> Validator:
    return (_draft_of(schema) or Draft202012Validator)(dict(schema))


def _lines_of(error: ValidationError) -> Iterator[str]:
    yield f"{error.json_path}: {_words(error)}"
    # Of several schemas that might have fitted, what stands against the one that fits best.
    best = best_match(iter((error,)))
    if best is not None and best is not error:
        yield f"{best.json_path}: {_words(best)}"


def _words(error: ValidationError) -> str:
    """The message; a long value in it must not push the fault itself out."""
    shown = repr(error.instance)
    message = error.message
    if len(shown) > _SHOWN_CHARS:
        message = message.replace(shown, f"{shown[:_SHOWN_CHARS]}...")
    return message[:_FAULT_CHARS]


# -- what a schema holds ------------------------------------------------------------------------------


def _check_depth(node: Any, path: str, depth: int) -> None:
    if depth > SCHEMA_MAX_DEPTH:
        raise SchemaRefused(f"nested deeper than {SCHEMA_MAX_DEPTH}", path=path[:200])
    if isinstance(node, Mapping):
        for name, value in node.items():
            if not isinstance(name, str):
                raise SchemaRefused("it is not plain JSON", path=path[:200])
            _check_depth(value, f"{path}.{name}", depth + 1)
    elif isinstance(node, list | tuple):
        for place, value in enumerate(node):
            _check_depth(value, f"{path}[{place}]", depth + 1)


Pointer = tuple[str, ...]


def _below(node: Mapping[str, Any]) -> Iterator[tuple[Pointer, Any]]:
    """The schemas directly below a schema, each with its place in it."""
    for keyword, value in node.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            yield from (((keyword, name), one) for name, one in value.items())
        elif keyword in _LISTED and isinstance(value, list):
            yield from (((keyword, str(place)), one) for place, one in enumerate(value))
        elif keyword in _SINGLE:
            yield (keyword,), value


def _walk(node: Any, at: Pointer = ()) -> Iterator[tuple[Pointer, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        yield at, node
        for place, one in _below(node):
            yield from _walk(one, (*at, *place))
    elif isinstance(node, bool):
        yield at, {}


def _check_references(schema: Mapping[str, Any]) -> None:
    """Every $ref leads to a schema in here, and no circle of schemas is endless."""
    found = dict(_walk(schema))
    anchors = {node["$anchor"]: at for at, node in found.items() if isinstance(node.get("$anchor"), str)}
    again: dict[Pointer, list[Pointer]] = {}
    for at, node in found.items():
        path = ".".join(("$", *at))[:200]
        _check_keywords(node, path, is_top=not at)
        again[at] = [(*at, *place) for place, _ in _below(node) if place[0] in _IN_PLACE]
        if "$ref" in node:
            target = _target(node["$ref"], anchors)
            if target is None:
                raise SchemaRefused("a $ref outside the schema is not followed", path=f"{path}.$ref")
            if target not in found:
                raise SchemaRefused("this $ref leads to no schema here", path=f"{path}.$ref")
            again[at].append(target)
    _check_circles(again)


def _check_keywords(node: Mapping[str, Any], path: str, *, is_top: bool) -> None:
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if keyword in node:
            raise SchemaRefused("it is not supported; use $ref", path=f"{path}.{keyword}")
    if "$id" in node and not is_top:
        raise SchemaRefused("an $id below the top is not supported", path=f"{path}.$id")


def _target(reference: str, anchors: Mapping[str, Pointer]) -> Pointer | None:
    """Where a $ref leads; None where that is outside."""
    if not reference.startswith("#"):
        return None
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        return anchors.get(pointer)
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def _check_circles(again: Mapping[Pointer, Iterable[Pointer]]) -> None:
    ended = set[Pointer]()
    for start in again:
        above = dict[Pointer, Iterator[Pointer]]()
        at: Pointer | None = start
        while at is not None:
            if at not in above:
                above[at] = iter(again.get(at, ()))
            below = next((one for one in above[at] if one not in ended), None)
            if below in above:
                raise SchemaRefused(
                    "its schemas lead to each other without end", path=".".join(("$", *at))[:200]
                )
            if below is None:
                ended.add(at)
                del above[at]
                at = next(reversed(above), None)
            else:
                at = below


def _moved(node: Any) -> Any:
    """A schema with its references as they must be once it stands under `properties.value`."""
    if not isinstance(node, Mapping):
        return node
    moved = dict(node)
    for place, one in _below(node):
        holder, *key = place
        if not key:
            moved[holder] = _moved(one)
        elif isinstance(node[holder], list):
            moved[holder] = [*moved[holder]]
            moved[holder][int(key[0])] = _moved(one)
        else:
            moved[holder] = {**moved[holder], key[0]: _moved(one)}
    reference = str(node.get("$ref"))
    is_pointer = reference == "#" or reference.startswith("#/")
    if is_pointer and not reference.startswith(("#/$defs/", "#/definitions/")):
        moved["$ref"] = f"#/properties/{WRAPPED_IN}{reference[1:]}"
    return moved
