from __future__ import annotations

from typing import Any

import pytest
from jsonschema.validators import Draft202012Validator

from dsh_tasks.errors import SchemaRefused
from dsh_tasks.schema import SCHEMA_MAX_BYTES, check_schema, is_wrapped, parameters, violations

NUMBER = {"type": "number"}
NODE = {
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "n": NUMBER}}},
    "$ref": "#/$defs/Node",
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "array", "items": NUMBER},
        {"type": ["string", "null"]},
        {"anyOf": [NUMBER, {"type": "string"}]},
        {"enum": ["a", 1, None, {"$ref": "http://no.schema/but-a-value"}]},
        {"const": {"$ref": "#/nowhere"}},
        {"type": "object", "properties": {"$ref": {"type": "string"}, "$id": NUMBER, "pattern": NUMBER}},
        NODE,
        {"type": "array", "items": {"$ref": "#"}},
        {"$defs": {"x": {"$anchor": "here", "type": "string"}}, "$ref": "#here"},
        {"$defs": {"a/b": NUMBER}, "$ref": "#/$defs/a~1b"},
        {"$id": "https://example.org/x", "$ref": "#/$defs/n", "$defs": {"n": NUMBER}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [NUMBER, {"type": "string"}],
        },
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
    ],
)
def test_any_type_of_value_may_be_asked_for(schema: dict[str, Any]) -> None:
    check_schema(schema)
    Draft202012Validator.check_schema(
        parameters({**schema, "$schema": Draft202012Validator.META_SCHEMA["$id"]})
    ) if "draft-07" not in str(schema) else None
    assert parameters(schema)["type"] == "object"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], "must be a JSON object"),
        ({"type": "nothing"}, "at \\$.type"),
        ({"type": "object", "required": "n"}, "at \\$.required"),
        ({"items": [NUMBER]}, "at \\$.items"),
        ({"$ref": "http://elsewhere/x"}, "outside the schema"),
        ({"properties": {"a": {"$ref": "other.json#/x"}}}, "at \\$.properties.a.\\$ref"),
        ({"$ref": "#/$defs/none"}, "leads to no schema"),
        ({"$ref": "#/properties", "properties": {}}, "leads to no schema"),
        ({"$ref": "#none"}, "outside the schema"),
        ({"$dynamicRef": "#x"}, "not supported"),
        ({"properties": {"a": {"$id": "http://x/y"}}}, "\\$id below the top"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "this draft is not known"),
        ({"$schema": "http://elsewhere/schema"}, "this draft is not known"),
        ({"$schema": 7}, "draft"),
        ({"pattern": "("}, "at \\$.pattern"),
        ({"patternProperties": {"[": NUMBER}}, "at \\$.patternProperties"),
        ({"pattern": "a{99999999999999999999}"}, "counts too far"),
        ({"$ref": "#"}, "without end"),
        ({"anyOf": [NUMBER, {"$ref": "#"}]}, "without end"),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "without end",
        ),
        ({"const": float("nan")}, "not plain JSON"),
        ({"const": {1, 2}}, "not plain JSON"),
        ({"properties": {1: NUMBER}}, "not plain JSON"),
        ({"description": "x" * SCHEMA_MAX_BYTES}, "at most 65536"),
    ],
)
def test_what_no_worker_could_judge_by_itself_is_refused_with_place_and_reason(schema: Any, why: str) -> None:
    with pytest.raises(SchemaRefused, match=why):
        check_schema(schema)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = NUMBER
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaRefused, match="nested deeper than 32"):
        check_schema(schema)
    for _ in range(5_000):
        schema = {"items": schema}
    with pytest.raises(SchemaRefused):
        check_schema(schema)


def test_a_plain_object_schema_is_the_tools_parameters_as_it_stands() -> None:
    schema = {"type": "object", "properties": {"n": NUMBER}, "$defs": {"x": NUMBER}}
    assert parameters(schema) == schema
    assert not is_wrapped(schema)


def test_any_other_is_asked_for_as_the_only_member() -> None:
    assert parameters({"type": "array", "items": NUMBER}) == {
        "type": "object",
        "properties": {"value": {"type": "array", "items": NUMBER}},
        "required": ["value"],
        "additionalProperties": False,
    }
    assert is_wrapped({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})


def test_references_of_a_wrapped_schema_still_lead_where_they_led() -> None:
    inner = {
        "type": "array",
        "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/n"}, {"$ref": "#/prefixItems/0"}]},
        "prefixItems": [{"const": "first"}],
        "$defs": {"n": NUMBER},
        "enum_is_data": {"$ref": "#/x"},
    }
    check_schema(inner)
    wrapped = parameters(inner)
    assert wrapped["$defs"] == {"n": NUMBER}
    for value in (
        ["first", 1],
        ["first", ["first", 2]],
        ["first", "first"],
        ["no"],
        ["first", "no"],
        3,
        ["first", ["no"]],
    ):
        assert bool(violations(inner, value)) == bool(violations(wrapped, {"value": value})), value
    assert inner["items"]["anyOf"][0] == {"$ref": "#"}, "the schema that was given is not changed"


def test_a_recursive_definition_at_the_top_is_wrapped_and_judged() -> None:
    assert violations(parameters(NODE), {"value": {"next": {"next": {"n": 1}}}}) == []
    assert violations(parameters(NODE), {"value": {"next": {"n": "x"}}}) == [
        "$.value.next.n: 'x' is not of type 'number'"
    ]


def test_violations_are_told_by_place_and_of_several_branches_the_nearest() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "null"}, {"type": "object", "required": ["name"]}]},
            "b": {"maxLength": 3},
        },
        "required": ["c"],
    }
    found = violations(schema, {"a": {}, "b": "x" * 5_000})
    assert found[0] == "$: 'c' is a required property"
    assert found[1].startswith("$.a: {} is not valid under any of the given schemas")
    assert found[2] == "$.a: 'name' is a required property"
    assert found[3].startswith("$.b: 'xxx") and found[3].endswith("is too long")


def test_many_violations_are_counted() -> None:
    found = violations({"type": "array", "items": NUMBER}, ["x"] * 20)
    assert len(found) == 6
    assert found[-1] == "and 15 more"


def test_a_draft_is_judged_by_its_own_rules() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [NUMBER, {"type": "string"}],
    }
    assert violations(schema, [1, "a"]) == []
    assert violations(parameters(schema), {"value": [1, 2]}) == ["$.value[1]: 2 is not of type 'string'"]
