"""Exact JSON: reads only what every reader takes for the same value, and cuts a member out as it was written.

Python's own reader lets the last of two equal keys win, takes NaN, and makes infinity of 1e400.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from dsh_tasks.json_depth import is_deeper

DEPTH_MOST = 100
DIGITS_MOST = 1_000
"""Of a whole number; Python refuses to read one of more than 4,300."""


class NotExact(ValueError):
    """A text that is no JSON, or that two readers would read differently; says where or why."""


def read(text: str) -> Any:
    """The value of a JSON text. Raises NotExact for one that is no JSON or loses something when read.

    Refused are keys that stand twice, NaN and infinities, numbers beyond a double or of more than 1,000
    digits, half characters (lone surrogates), and nesting deeper than 100. Order of keys, 1.0 and 1, and
    large whole numbers stay as they are.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_once, parse_float=_finite, parse_int=_whole, parse_constant=_constant
        )
    except NotExact:
        raise
    except json.JSONDecodeError as error:
        raise NotExact(f"it is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotExact(f"it is nested deeper than {DEPTH_MOST}") from None
    if is_deeper(value, DEPTH_MOST):
        raise NotExact(f"it is nested deeper than {DEPTH_MOST}")
    try:
        (text + json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        raise NotExact("it holds half a character (a lone surrogate)") from None
    return value


def member(text: str, name: str) -> str:
    """The value of a member of an object, as it is written. `text` was read by `read`. Raises KeyError."""
    decoder = json.JSONDecoder()
    at = _after_blanks(text, 0) + 1
    while text[(at := _after_blanks(text, at))] != "}":
        key, at = decoder.raw_decode(text, at)
        start = _after_blanks(text, _after_blanks(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        if key == name:
            return text[start:end]
        at = _after_blanks(text, end)
        at += text[at] == ","
    raise KeyError(name)


_BLANKS = re.compile(r"[ \t\n\r]*")


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None
    return found.end()


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotExact(f"the key {twice[:80]!r} stands twice in one object")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotExact(f"the number {text[:40]} is beyond what a number holds")
    return value


def _whole(text: str) -> int:
    if len(text) > DIGITS_MOST:
        raise NotExact(f"a whole number of {len(text)} digits, at most {DIGITS_MOST}")
    return int(text)


def _constant(name: str) -> Any:
    raise NotExact(f"{name} is no JSON number")
