"""Laws of lines: the fast parser takes and refuses what the standard one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsh_tasks import format as log_format

PIECES = '0123456789eE+-.[]{}",:nulltrfas \\ud800INy'


def verdict(decode: Callable[[bytes], Any], line: bytes) -> str:
    try:
        return repr(decode(line))
    except ValueError:
        return "refused"


@settings(max_examples=2000, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=30),
        st.text(alphabet=PIECES, max_size=25).map(lambda line: line.encode("utf-8", "surrogatepass")),
    )
)
@example(b"1e999")
@example(b"-1E+999")
@example(b"1" + b"0" * 400 + b".0")
@example(b"1" * 4299)
@example(b"1" * 5000)
@example(b"0." + b"0" * 500 + b"1")
@example(b"[1e308,1.7976931348623159e308]")
@example(b"[" * 200 + b"]" * 200)
@example(b"[" * 201 + b"]" * 201)
@example(b"[" * 202 + b"]" * 202)
@example(b"[" + b"1" * 4300 + b"]")
@example(b" " * 3999 + b"1" * 4301)
@example(b'"\\ud800"')
@example(b'{"a":NaN}')
def test_a_line_is_what_the_standard_parser_says(line: bytes) -> None:
    assert verdict(log_format.decode_line, line) == verdict(log_format._decoded, line)
