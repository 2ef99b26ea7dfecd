"""The JSON of a row by the fastest library, wherever that is known to lose nothing.

orjson takes half the time of the next parser, and it is never believed: it makes floats of whole numbers
beyond 64 bits, and of a key that comes twice it says nothing. What it parsed is written again; only where
that is the line to the byte was nothing lost. Every other line is left to `format.decode_row`, the slow
and precise way. Pure: no clock, no I/O.
"""

from __future__ import annotations

from typing import Any

import orjson

MAX_DEPTH = 201
"""How deep the JSON of a row may be nested. Deeper values could not be written again by all our libraries."""


def _deepest() -> int:
    """How many levels orjson writes before it refuses."""
    value: list[Any] = []
    for levels in range(4 * MAX_DEPTH):
        try:
            orjson.dumps(value)
        except TypeError:
            return levels
        value = [value]
    raise ImportError("this orjson has no bound on how deep it writes")


_SPARE = _deepest() - MAX_DEPTH
"""Lists to put around a row, so that orjson's bound is ours: counting brackets takes longer."""
_SHALLOW = 2 * MAX_DEPTH
"""A line of so many bytes has no room for more levels."""


class RowParser:
    """Mutable: one per walk over the lines of a log or chunk, never shared by threads."""

    def __init__(self, *, is_numbered: bool = True) -> None:
        """`is_numbered`: each row has its seq; the rows of a chunk have none."""
        self._is_numbered = is_numbered
        self._innermost: list[Any] = [None]
        self._outermost = self._innermost
        for _ in range(_SPARE - 1):
            self._outermost = [self._outermost]

    def parse(self, line: bytes) -> tuple[dict[str, Any], int] | None:
        """The row of a line, and where in the line its data begins; None where the precise way must read it.

        Such a line is compact, begins with the keys of v4 in their order, and stands for this row alone.
        """
        try:
            row = orjson.loads(line)
            kind, time_ms = row["type"].encode(), row["time"]
            if self._is_numbered:
                head = b'{"type":"%b","seq":%d,"time":%d,"data":' % (kind, row["seq"], time_ms)
            else:
                head = b'{"type":"%b","time":%d,"data":' % (kind, time_ms)
            is_exact = line.startswith(head) and self._is_written_as(row, line)
        except (ValueError, TypeError, KeyError, AttributeError):
            # Not JSON, too deep, or no row.
            return None
        return (row, len(head)) if is_exact else None

    def _is_written_as(self, row: dict[str, Any], line: bytes) -> bool:
        if len(line) <= _SHALLOW:
            return orjson.dumps(row) == line
        self._innermost[0] = row
        written = orjson.dumps(self._outermost)
        return len(written) == len(line) + 2 * _SPARE and written.startswith(line, _SPARE)
