"""Plain rows: nearly all of a log, brought into the bytes of a chunk by text alone.

Such a row names no other row but, as a tool's result does, one of its own turn. Of its line only the
seq, the turn's number and the row that it names have to change; the rest stays as it was read. What comes
out is what `chunks.canonical` gives, in a fraction of the time. Pure: no clock, no I/O.
"""

from __future__ import annotations

from dsh_tasks.rows import END_SEED, KNOWN_TYPES, TYPES_WITH_POINTERS
from dsh_tasks.seed.verbatim import BOOKKEEPING
from dsh_tasks.session import Event, Replace

_PLAIN_TYPES = KNOWN_TYPES - TYPES_WITH_POINTERS - BOOKKEEPING - {END_SEED}


class PlainRows:
    """The plain rows of one turn, and those between it and the turn before."""

    __slots__ = ("_first_seq", "_turn")

    def __init__(self, turn: int, first_seq: int) -> None:
        """`turn` is its number; all rows from `first_seq` on stand in it."""
        self._turn = b'{"turn":%d,' % turn
        self._first_seq = first_seq

    def line(self, event: Event, line: bytes, data_at: int) -> bytes | None:
        """The canonical line of a row that `row_json` read from `line`; None where it is not plain."""
        if event.type not in _PLAIN_TYPES or event.ignorable or event.surface_op.__class__ is Replace:
            return None
        sources, data = event.source_event_seqs, event.data
        turn, end, tail = b"", None, b""
        if type(data.get("turn")) is int:
            if not line.startswith(self._turn, data_at):
                return None
            turn = b'{"turn":0,'
            data_at += len(self._turn)
        if sources is not None:
            source = sources[0]
            if len(sources) != 1 or type(source) is not int or source < self._first_seq or "error" in data:
                # An error may make a result a repair, which is named after rows.
                return None
            end = -len(_SOURCE % source)
            tail = _SOURCE % (source - self._first_seq)
        return b'{"type":"%b","time":%d,"data":%b%b%b\n' % (
            event.type.encode(),
            event.time,
            turn,
            line[data_at:end],
            tail,
        )


_SOURCE = b',"sourceEventSeqs":[%d],"surfaceOp":"append"}'
