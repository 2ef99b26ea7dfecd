from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_tasks.exact_json import NotExact, member, read


@pytest.mark.parametrize(
    "text",
    [
        "1.0",
        "1",
        "-0.0",
        "123456789012345678901234567890",
        "1E5",
        '"\\u00e4"',
        '{"b": 1, "a": 2}',
        "null",
        "[]",
    ],
)
def test_what_every_reader_takes_for_the_same_is_read(text: str) -> None:
    assert repr(read(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NaN", "NaN is no JSON number"),
        ('{"n": -Infinity}', "-Infinity is no JSON number"),
        ("1e400", "beyond what a number holds"),
        ('{"a": 1, "b": {"x": 1, "x": 2}}', "the key 'x' stands twice"),
        ('"\\ud800"', "half a character"),
        ('{"\\udfff": 1}', "half a character"),
        ('"\ud800"', "half a character"),
        ("1" * 1_001, "a whole number of 1001 digits"),
        ("1" * 5_000, "a whole number of 5000 digits"),
        ("[" * 101 + "]" * 101, "nested deeper than 100"),
        ("[" * 100_000, "nested deeper than 100"),
        ("{", "it is no JSON"),
        ("", "it is no JSON"),
        ("\ufeff{}", "it is no JSON"),
        ("{} {}", "it is no JSON"),
    ],
)
def test_what_would_lose_something_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(NotExact, match=why):
        read(text)


def test_nesting_up_to_the_bound_is_read() -> None:
    assert read("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"value":1.0}', "1.0"),
        (' {\n "value" : [1,  2] \t}', "[1,  2]"),
        ('{"a": {"value": 1}, "value": "}", "b": 2}', '"}"'),
        ('{"v\\u0061lue": 1E5}', "1E5"),
    ],
)
def test_a_member_is_cut_out_as_it_is_written(text: str, value: str) -> None:
    read(text)
    assert member(text, "value") == value


def test_a_member_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        member('{"a": 1}', "value")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    VALUES,
    st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=3),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_whatever_is_written_is_read_and_cut_out_to_the_letter(value, beside, ascii_only, indent) -> None:
    text = json.dumps({**beside, "value": value}, ensure_ascii=ascii_only, indent=indent)
    assert repr(read(text)["value"]) == repr(value)
    assert repr(json.loads(member(text, "value"))) == repr(value)
    assert member(text, "value") in text
