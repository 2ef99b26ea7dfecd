"""How deep a decoded JSON value is nested, found without recursion: what is asked may be too deep for any."""

from __future__ import annotations

from typing import Any


def is_deeper(value: Any, most: int) -> bool:
    """Whether a value holds more than `most` levels of objects and lists, one in the other."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
