"""The fast parser of rows: what it takes is what the standard library reads, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_tasks import format as log_format
from dsh_tasks import seed
from dsh_tasks.errors import SessionRefused
from dsh_tasks.row_json import MAX_DEPTH, RowParser
from dsh_tasks.session_file import SessionFile
from tests.factories import a_log, bytes_of


def line_of(data: bytes, *, seq: bytes = b"7", tail: bytes = b"}") -> bytes:
    return b'{"type":"goal/change","seq":%b,"time":5,"data":%b%b' % (seq, data, tail)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":18446744073709551615,"b":-9223372036854775808,"c":0}',
        b'{"a":0.1,"b":1.5e+300,"c":-0.0,"d":5e-324}',
        '{"ä":"\\n\\u001b\\"\\\\ 𝄞 \u2028 \x7f"}'.encode(),
        b"[1,[2,{}],[]]",
        b"null",
        nested(MAX_DEPTH - 1),
    ],
)
def test_it_takes_what_it_would_write_the_same(data: bytes) -> None:
    line = line_of(data)
    found = RowParser().parse(line)
    assert found is not None
    row, at = found
    assert repr(row) == repr(json.loads(line))
    assert line[at:] == data + b"}"


@pytest.mark.parametrize(
    "data",
    [
        b"18446744073709551616",
        b"-9223372036854775809",
        b"1" + b"0" * 5_000,
        b"1e999",
        b"NaN",
        b"1.50",
        b"1E5",
        b"-0",
        b'{"a":1,"a":2}',
        b'{"a": 1}',
        b'"\\u00e4"',
        b'"\\/"',
        b'"\\ud800"',
        b'"\xff"',
        nested(MAX_DEPTH),
        b"[" + b'"%b",' % (b"x" * 500) + nested(MAX_DEPTH - 1) + b"]",
        nested(100_000),
        b"",
        b"{}}{",
    ],
)
def test_it_leaves_to_others_what_it_would_lose_or_write_in_another_way(data: bytes) -> None:
    assert RowParser().parse(line_of(data)) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"type":7,"seq":7,"time":5,"data":{}}',
        b'{"type":"a","seq":"7","time":5,"data":{}}',
        b'{"seq":7,"type":"a","time":5,"data":{}}',
        b'{"type":"a","seq":7,"time":5}',
        b'{"type":"a","seq":7.0,"time":5,"data":{}}',
        b'{"type":"a","seq":7,"time":true,"data":{}}',
        b'{"type":"a","seq":7,"time":5,"data":{}} ',
        b'{"type":"a","seq":7,"time":5,"data":{}}\r',
        line_of(b"{}", tail=b',"surfaceOp":' + nested(MAX_DEPTH) + b"}"),
    ],
)
def test_it_leaves_to_others_what_is_no_row_in_the_order_of_v4(line: bytes) -> None:
    assert RowParser().parse(line) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(VALUES, st.booleans(), st.sampled_from([None, (", ", ":"), (",", ":")]))
def test_what_it_takes_is_what_the_standard_library_reads(
    value: Any, is_ascii: bool, separators: Any
) -> None:
    row = {"type": "goal/change", "seq": 3, "time": 4, "data": value, "ignorable": True}
    text = json.dumps(row, ensure_ascii=is_ascii, separators=separators)
    line = text.encode("utf-8", "surrogatepass")
    found = RowParser().parse(line)
    if found is not None:
        assert repr(found[0]) == repr(json.loads(line))


@pytest.mark.parametrize(
    "value", [b"18446744073709551616", b"0.10", b'"\\ud800\\u00e4"', b"[1, 2]", b'{"a":1,"a":2}']
)
def test_rows_of_either_parser_give_one_seed(tmp_path: Path, value: bytes) -> None:
    data = bytes_of(a_log(4, tools=2))
    odd = data.replace(b'"turn":2,', b'"turn":2,"odd":%b,' % value)
    assert odd != data
    path = tmp_path / "session.v4.jsonl"
    path.write_bytes(odd)
    assert SessionFile(path).seed() == seed.cut(log_format.read(path))


def test_a_line_that_is_nested_too_deep_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "session.v4.jsonl"
    data = bytes_of(a_log(1))
    for depth, is_refused in ((MAX_DEPTH - 2, False), (MAX_DEPTH - 1, True), (240, True), (5_000, True)):
        path.write_bytes(data.replace(b'"turn":1}', b'"turn":1,"x":%b}' % nested(depth), 1))
        if not is_refused:
            assert SessionFile(path).seed().turns == 1
            continue
        with pytest.raises(SessionRefused) as refused:
            SessionFile(path).refresh()
        assert "nested too deep" in str(refused.value)


def test_orjson_is_not_trusted_with_whole_numbers() -> None:
    """Why all this is needed; where it fails, orjson has changed and the parser can be simpler."""
    assert isinstance(orjson.loads(b"18446744073709551616"), float)
