"""Output schemas: which ones a start accepts, checked before any child exists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator

from dsh_tasks.errors import SchemaRefused

SCHEMA_MAX_BYTES = 64 * 1024
SCHEMA_MAX_DEPTH = 32


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that is invalid, too large, not of an object, or that reaches outside itself.

    Raises SchemaRefused with the place and the reason.
    """
    try:
        size = len(json.dumps(schema).encode())
    except (TypeError, ValueError, RecursionError):
        raise SchemaRefused("it is not plain JSON") from None
    if size > SCHEMA_MAX_BYTES:
        raise SchemaRefused(f"{size} bytes, at most {SCHEMA_MAX_BYTES}")
    _walk(schema, "$", 0)
    if schema.get("type") != "object":
        raise SchemaRefused('the top must be of "type": "object"; models answer by a tool call')
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise SchemaRefused(error.message[:300], path=error.json_path) from None


def _walk(node: Any, path: str, depth: int) -> None:
    if depth > SCHEMA_MAX_DEPTH:
        raise SchemaRefused(f"nested deeper than {SCHEMA_MAX_DEPTH}", path=path[:200])
    if isinstance(node, Mapping):
        reference = node.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            raise SchemaRefused("a $ref outside the schema is not followed", path=f"{path}.$ref")
        for name, value in node.items():
            _walk(value, f"{path}.{name}", depth + 1)
    elif isinstance(node, list):
        for place, value in enumerate(node):
            _walk(value, f"{path}[{place}]", depth + 1)


def violations(schema: Mapping[str, Any], value: Any, *, most: int = 5) -> list[str]:
    """What is wrong with `value` under `schema`, a line each; empty where it is valid."""
    found = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda error: error.json_path)
    return [f"{error.json_path}: {error.message[:300]}" for error in found[:most]]
