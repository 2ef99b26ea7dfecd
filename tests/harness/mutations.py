"""Valid files with one thing changed, in every way that we can think of: who refuses what?

A mutant has a kind, `row type, place in the row, change`, and each kind is made once. Rows that are
dropped, doubled or swapped are numbered anew, so that the change is the only fault.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_tasks.rows import moved
from dsh_tasks.session import Event

Row = dict[str, Any]
Path = tuple[str | int, ...]

DEEP = 6
"""How far into a row fields are changed."""
OPAQUE = ("stream", "tools", "replayState", "usage", "metadata", "adapterDefaults")
"""Fields whose inside is nobody's business here."""


@dataclass(frozen=True)
class Mutant:
    """A file and how it differs from a valid one."""

    kind: str
    base: str
    lines: tuple[bytes, ...]

    @property
    def data(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)


def mutants(bases: Mapping[str, Sequence[Row]]) -> Iterator[Mutant]:
    """Every kind of mutant of these files (each a header and its rows), once."""
    known: set[str] = set()
    for base, lines in bases.items():
        for kind, changed in _all(list(lines)):
            if kind not in known:
                known.add(kind)
                yield Mutant(kind, base, tuple(_line(one) for one in changed))


def _line(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()


def _all(lines: list[Row]) -> Iterator[tuple[str, list[Any]]]:
    head, rows = lines[0], lines[1:]
    for kind, header in _fields(head):
        if kind != "id":
            yield f"header: {kind}", [header, *rows]
    yield "header: another key", [{**head, "more": 1}, *rows]
    yield "header: again", [head, head, *rows]
    yield from _encodings(head, rows)
    for place, row in enumerate(rows):
        name = row["type"]
        for kind, changed in _fields(row):
            yield f"{name}: {kind}", [head, *rows[:place], changed, *rows[place + 1 :]]
        for kind, order in _orders(rows, place):
            yield f"{name}: {kind}", [head, *_reordered(rows, order)]
        yield f"{name}: another key in the row", _with(lines, place, {**row, "more": 1})
        if isinstance(row["data"], dict):
            yield (
                f"{name}: another key in data",
                _with(lines, place, {**row, "data": {**row["data"], "more": 1}}),
            )
        yield f"{name}: ignorable", _with(lines, place, {**row, "ignorable": True})
        yield f"{name}: unknown type", _with(lines, place, {**row, "type": "foreign/type"})
        yield f"{name}: unknown type, ignorable", _with(lines, place, _foreign(row))
        for more in ({"sourceEventSeqs": [0]}, {"surfaceOp": "append"}):
            if row.keys().isdisjoint(more) and place:
                yield f"{name}: with {next(iter(more))}", _with(lines, place, {**row, **more})
        yield from _special(lines, place, row)


def _with(lines: Sequence[Any], place: int, row: Any) -> list[Any]:
    return [*lines[: place + 1], row, *lines[place + 2 :]]


def _foreign(row: Row) -> Row:
    return {
        "type": "foreign/type",
        "seq": row["seq"],
        "time": row["time"],
        "data": row["data"],
        "ignorable": True,
    }


# -- fields ---------------------------------------------------------------------------------------

GONE = object()


def _fields(row: Row) -> Iterator[tuple[str, Row]]:
    """Each field taken out, and given each value that it should not have."""
    for path, value in _paths(row):
        for name, other in [("gone", GONE), *_others(value, path)]:
            yield f"{_shown(path)} {name}", _changed(row, path, other)


def _paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if len(path) > DEEP:
        return
    if path:
        yield path, value
    if path and path[-1] in OPAQUE:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*path, 0))


def _shown(path: Path) -> str:
    return ".".join("[]" if isinstance(step, int) else step for step in path)


def _others(value: Any, path: Path) -> Iterator[tuple[str, Any]]:
    yield "null", None
    if isinstance(value, bool):
        yield "negated", not value
        yield "a number", 1
    elif isinstance(value, int):
        for name, other in (
            ("one more", value + 1),
            ("one less", value - 1),
            ("negative", -3),
            ("with a fraction", value + 0.5),
            ("as a float", float(value)),
            ("beyond the safe ones", 2**53),
            ("as text", str(value)),
            ("true", True),
        ):
            yield name, other
    elif isinstance(value, str):
        yield "empty", ""
        yield "another text", f"{value}-other"
        yield "a number", 7
        yield "an object", {}
    elif isinstance(value, list):
        yield "empty", []
        yield "an object", {}
        yield "text", "text"
        yield "holds null", [None, *value]
        yield "holds a number", [*value, 3]
        if value:
            yield "first one twice", [value[0], *value]
            yield "reversed", value[::-1] if len(value) > 1 else [value]
    elif isinstance(value, dict):
        yield "empty", {}
        yield "a list", [value]
        yield "text", "text"


def _changed(row: Row, path: Path, value: Any) -> Row:
    row = copy.deepcopy(row)
    inner: Any = row
    for step in path[:-1]:
        inner = inner[step]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return row


# -- order ----------------------------------------------------------------------------------------


def _orders(rows: Sequence[Row], place: int) -> Iterator[tuple[str, list[int]]]:
    """Places of the rows as they shall follow."""
    everything = list(range(len(rows)))
    around = [rows[at]["type"] if 0 <= at < len(rows) else "the end" for at in (place - 1, place + 1)]
    yield f"dropped from between {around[0]} and {around[1]}", everything[:place] + everything[place + 1 :]
    yield f"twice before {around[1]}", [*everything[: place + 1], *everything[place:]]
    if place + 1 < len(rows):
        swapped = everything.copy()
        swapped[place : place + 2] = [place + 1, place]
        yield f"swapped with {around[1]}", swapped
    if place:
        moved_first = [place, *everything[:place], *everything[place + 1 :]]
        yield "moved to the beginning", moved_first


def _reordered(rows: Sequence[Row], order: Sequence[int]) -> list[Row]:
    """The rows in this order, numbered anew; what names a row that is gone names the one after it."""
    places = {old: new for new, old in reversed(list(enumerate(order)))}

    def place(seq: int) -> int:
        return places.get(seq, min(seq, len(order) - 1))

    return [
        moved(Event.from_row(rows[old]), new, place, lambda turn: turn).row() for new, old in enumerate(order)
    ]


# -- what only some rows have ---------------------------------------------------------------------


def _special(lines: Sequence[Row], place: int, row: Row) -> Iterator[tuple[str, list[Any]]]:
    for name, change in _SPECIAL.get(row["type"], ()):
        changed = copy.deepcopy(row)
        try:
            change(changed)
        except (KeyError, TypeError, IndexError):
            continue
        if changed != row:
            yield f"{row['type']}: {name}", _with(lines, place, changed)


def _as_repair(row: Row) -> None:
    """The result that the harness writes for a call that never began."""
    call = row["data"]["message"]["toolCallId"]
    row["data"]["message"] |= {
        "id": f"interrupted-tool-result-{call}-{row['seq']}",
        "isError": True,
        "content": [{"type": "text", "text": NOT_STARTED}],
    }
    row["data"]["error"] = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    row.pop("sourceEventSeqs", None)


NOT_STARTED = (
    "The tool call was interrupted before the Harness recorded it as started. Retry it if it is still needed."
)


def _repair_but(change: Callable[[Row], None]) -> Callable[[Row], None]:
    def apply(row: Row) -> None:
        if row["data"].get("error", {}).get("code") != "TOOL_NOT_STARTED":
            raise KeyError
        change(row)

    return apply


def _set(*path: str | int, to: Any) -> Callable[[Row], None]:
    def apply(row: Row) -> None:
        inner: Any = row
        for step in path[:-1]:
            inner = inner[step]
        if callable(to):
            inner[path[-1]] = to(inner[path[-1]])
        else:
            inner[path[-1]] = to

    return apply


def _id(word: str, suffix: str) -> Callable[[Row], None]:
    def apply(row: Row) -> None:
        call = row["data"]["message"]["toolCallId"]
        row["data"]["message"]["id"] = f"{word}-tool-result-{call}-{suffix}"

    return _repair_but(apply)


MESSAGE = ("data", "message")
_SPECIAL: dict[str, list[tuple[str, Callable[[Row], None]]]] = {
    "tool/result": [
        ("as a repair", _as_repair),
        (
            "a repair with other words",
            _repair_but(_set(*MESSAGE, "content", 0, "text", to="It never began.")),
        ),
        ("a repair with words more", _repair_but(_set(*MESSAGE, "content", 0, "text", to=f"{NOT_STARTED} "))),
        ("a repair with two blocks", _repair_but(_set(*MESSAGE, "content", to=lambda blocks: blocks * 2))),
        ("a repair that is no error", _repair_but(_set(*MESSAGE, "isError", to=False))),
        ("a repair with sources", _repair_but(_set("sourceEventSeqs", to=[0]))),
        ("a repair of another number", _id("interrupted", "0")),
        ("a repair of a number with a zero before it", _id("interrupted", "07")),
        ("a repair of no number", _id("interrupted", "x")),
        ("a repair of a huge number", _id("interrupted", str(2**60))),
        ("a forked repair of another number", _id("forked", "0")),
        ("a forked repair of no number", _id("forked", "x")),
        ("a repair by another name", _id("aborted", "1")),
        ("an error beside a good result", _set("data", "error", to={"name": "E", "code": "C"})),
        ("an error that is text", _set("data", "error", to="bad")),
        (
            "its content holds a call",
            _set(*MESSAGE, "content", to=[{"type": "tool-call", "id": "x", "name": "n", "arguments": "{}"}]),
        ),
    ],
    "assistant/message": [
        (
            "arguments that are no JSON",
            _set(*MESSAGE, "content", to=[{"type": "tool-call", "id": "x", "name": "n", "arguments": "{"}]),
        ),
        ("an unknown block", _set(*MESSAGE, "content", to=[{"type": "of-tomorrow", "x": 1}])),
        ("an image", _set(*MESSAGE, "content", to=[{"type": "image"}])),
        ("no content", _set(*MESSAGE, "content", to=[])),
        (
            "a call without an answer",
            _set(*MESSAGE, "content", to=[{"type": "tool-call", "id": "x", "name": "n", "arguments": "{}"}]),
        ),
        (
            "a result block",
            _set(*MESSAGE, "content", to=[{"type": "tool-result", "toolCallId": "x", "content": []}]),
        ),
    ],
    "user/message": [
        ("an unknown block", _set("data", "content", to=[{"type": "of-tomorrow", "x": 1}])),
        ("an image without attachment", _set("data", "content", to=[{"type": "image"}])),
        (
            "a file",
            _set("data", "content", to=[{"type": "file", "attachment": {"attachmentId": "a", "name": "n"}}]),
        ),
        (
            "a call",
            _set("data", "content", to=[{"type": "tool-call", "id": "x", "name": "n", "arguments": "{}"}]),
        ),
        ("no content", _set("data", "content", to=[])),
        ("from a compaction", _set("data", "source", to={"kind": "compact-checkpoint", "compactionId": "x"})),
        ("a range of sources that goes backwards", _set("sourceEventSeqs", to=[[4, 2]])),
        ("a range of three", _set("sourceEventSeqs", to=[[1, 2, 3]])),
        ("sources out of order", _set("sourceEventSeqs", to=lambda seqs: seqs[::-1])),
        ("sources as a range", _set("sourceEventSeqs", to=lambda seqs: [[min(seqs), max(seqs)]])),
        ("a source more", _set("sourceEventSeqs", to=lambda seqs: [*seqs, 0])),
        ("a source less", _set("sourceEventSeqs", to=lambda seqs: seqs[:-1])),
        ("itself as a source", lambda row: row.update(sourceEventSeqs=[row["seq"]])),
        ("the next row as a source", lambda row: row.update(sourceEventSeqs=[row["seq"] + 1])),
        ("a source twice", lambda row: row.update(sourceEventSeqs=[0, 0])),
        ("a source in a range and alone", lambda row: row.update(sourceEventSeqs=[[0, 1], 1])),
        (
            "a replacement of the first row",
            lambda row: row.update(
                surfaceOp={"op": "replace", "startSeq": 0, "endSeq": 0}, sourceEventSeqs=[0]
            ),
        ),
        (
            "a replacement of itself",
            lambda row: row.update(
                surfaceOp={"op": "replace", "startSeq": row["seq"], "endSeq": row["seq"]}, sourceEventSeqs=[0]
            ),
        ),
    ],
    "turn/end": [
        ("an error without words", _set("data", "reason", to={"kind": "error"})),
        ("a reason of tomorrow", _set("data", "reason", to={"kind": "of-tomorrow", "x": 1})),
    ],
    "session/end-seed": [
        ("no data", _set("data", to={})),
        ("inherited by another", _set("data", to={"inherited": "yes"})),
    ],
    "session/title": [
        ("by a person", _set("data", "source", to={"kind": "user"})),
        (
            "by a person, citing nothing",
            _set("data", to={"title": "t", "messageSeqs": [], "source": {"kind": "user"}}),
        ),
        ("citing nothing", _set("data", "messageSeqs", to=[])),
        ("citing another row", _set("data", "messageSeqs", to=[0])),
        ("citing a row twice", _set("data", "messageSeqs", to=lambda seqs: seqs * 2)),
    ],
    "session-log-deepseek/delivery-accepted": [
        ("of another version", _set("data", "sessionFormatVersion", to=3)),
        ("of a later version", _set("data", "sessionFormatVersion", to=5)),
        ("of another session", _set("data", "sessionId", to="nobody")),
        ("through itself", lambda row: row["data"].update(throughSeq=row["seq"])),
        ("through less", _set("data", "throughSeq", to=0)),
    ],
    "agent/inbox/spliced": [
        ("of another place", _set("data", "target", to="next-year")),
        ("beyond its end", _set("data", "start", to=5)),
        ("taking more than there is", _set("data", "removedCount", to=9)),
        ("putting in twice", _set("data", "inserted", to=lambda found: found * 2)),
        ("putting in nothing", _set("data", "inserted", to=[])),
    ],
}


# -- bytes ----------------------------------------------------------------------------------------


def _encodings(head: Row, rows: Sequence[Row]) -> Iterator[tuple[str, list[Any]]]:
    lines = [_line(one) for one in (head, *rows)]
    middle = len(lines) // 2
    for name, line in (
        ("an empty line", b""),
        ("a line of blanks", b"  "),
        ("a line that is no JSON", b"{"),
        ("a line that is a list", b"[]"),
        ("a line that is null", b"null"),
        ("blanks around it", b"  " + lines[middle] + b"  "),
        ("a carriage return at its end", lines[middle] + b"\r"),
        ("not a number", lines[middle].replace(b'"data":{', b'"data":{"x":NaN,', 1)),
        ("a number without bounds", lines[middle].replace(b'"data":{', b'"data":{"x":1e999,', 1)),
        ("a key twice", lines[middle].replace(b'"data":{', b'"data":{"x":1,"x":2,', 1)),
        ("not UTF-8", lines[middle].replace(b'"data":{', b'"data":{"x":"\xff",', 1)),
        ("half a surrogate pair", lines[middle].replace(b'"data":{', b'"data":{"x":"\\ud800",', 1)),
        ("a zero character", lines[middle].replace(b'"data":{', b'"data":{"x":"\\u0000",', 1)),
        ("a key named __proto__", lines[middle].replace(b'"data":{', b'"data":{"__proto__":{"x":1},', 1)),
        (
            "nested 100 deep",
            lines[middle].replace(b'"data":{', b'"data":{"x":' + b"[" * 100 + b"]" * 100 + b",", 1),
        ),
        (
            "nested 1000 deep",
            lines[middle].replace(b'"data":{', b'"data":{"x":' + b"[" * 1000 + b"]" * 1000 + b",", 1),
        ),
        ("a comma at its end", lines[middle] + b","),
        ("two values", lines[middle] + lines[middle]),
    ):
        yield f"bytes: {name}", [*lines[:middle], line, *lines[middle + 1 :]]
    yield "bytes: a byte order mark", [b"\xef\xbb\xbf" + lines[0], *lines[1:]]
    yield "bytes: an empty line at the end", [*lines, b""]
    yield "bytes: an empty line at the beginning", [b"", *lines]
    yield "bytes: no header", lines[1:]
    yield "bytes: the header alone", lines[:1]
    yield "bytes: version 3", [_line({**head, "version": 3}), *lines[1:]]
