"""Logs of format v0 as rows of v4: read only, so that everything after knows v4 alone.

What v0 does otherwise: a row's place is its number (a packed run of chunks counts for each chunk in
it), streamed chunks are rows of their own, the system text stands in the request header, a tool's
result is a block inside a user message, replacements say `start` and `end`, the header has `seedLength`.
Chunk rows go: the message that they made is in the log as well. All numbers are mapped.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from dsh_tasks.errors import SessionRefused
from dsh_tasks.rows import END_SEED, is_count
from dsh_tasks.session import Header

Row = dict[str, Any]
Line = tuple[int, Row]
"""A v4 row and the line (from 1) that it came from."""
Numbered = tuple[int, int, Row]
"""A v0 row with its line and its number."""

_FIELDS = frozenset(
    {"type", "version", "id", "createdAt", "cwd", "parentSession", "seedLength", "origin", "delegationDepth"}
) | {"agentPreset"}
_ROW_FIELDS = frozenset({"type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp", "ignorable"})
_PACKED = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
_PRODUCERS = {
    "compact": "compact-checkpoint",
    "tools-code-mode": "ptc-mode",
    "tools-ptc": "ptc-mode",
    "dsh-compaction-basic": "compact-basic",
    "@deepseek-ai/dsh-system-prompt": "runtime-context",
}
"""Names of message sources that v4 calls otherwise."""
_RETIRED = {"tool/code-dispatch": "tool/ptc-dispatch", "tool/code-dispatch-start": "tool/ptc-dispatch-start"}


def convert(head: Row, lines: Iterator[Row]) -> tuple[Header, Iterator[Line]]:
    """Header and v4 rows, each with the line (from 1) that it came from. Raises SessionRefused."""
    if not head.keys() <= _FIELDS:
        raise SessionRefused("the v0 header has a key that the format does not know", line=1)
    for key in ("id", "createdAt"):
        if key not in head:
            raise SessionRefused(f"the header lacks {key}", line=1)
    seed_length = head.get("seedLength")
    if seed_length is not None and not is_count(seed_length):
        raise SessionRefused("the header's seedLength is not a whole number from 0", line=1)
    cwd = head.get("cwd")
    rows = list(_numbered(lines))
    if seed_length and seed_length > (rows[-1][1] + 1 if rows else 0):
        raise SessionRefused("the header's seedLength lies behind the last row", line=1)
    return (
        header(head, is_seeded=bool(seed_length), cwd=cwd if is_absolute(cwd) else None),
        _Rows(seed_length, first_system(row for _, _, row in rows)).converted(_stepped(rows)),
    )


def header(row: Row, *, is_seeded: bool, cwd: Any) -> Header:
    """The header's fields that both formats share. Raises SessionRefused."""
    for key in ("id", "cwd", "parentSession", "agentPreset"):
        if key in row and (not isinstance(row[key], str) or not row[key]):
            raise SessionRefused(f"the header's {key} is not text", line=1)
    if not is_count(row["createdAt"]):
        raise SessionRefused("the header's createdAt is not epoch milliseconds", line=1)
    depth = row.get("delegationDepth", 0)
    if not is_count(depth):
        raise SessionRefused("the header's delegationDepth is not a whole number from 0", line=1)
    if row.get("origin", "subagent") != "subagent":
        raise SessionRefused("the header's origin is not subagent", line=1)
    return Header(
        version=4,
        id=row["id"],
        created_at=row["createdAt"],
        cwd=cwd,
        parent_session=row.get("parentSession"),
        is_seeded=is_seeded,
        origin=row.get("origin"),
        agent_preset=row.get("agentPreset"),
        delegation_depth=depth,
    )


def is_absolute(path: Any) -> bool:
    """Whether it is the text of an absolute path, of POSIX or of Windows."""
    return isinstance(path, str) and re.match(r"/|[A-Za-z]:[\\/]", path) is not None


def _numbered(lines: Iterable[Row]) -> Iterator[Numbered]:
    seq = 0
    for place, row in enumerate(lines):
        line, kind, data = place + 2, row.get("type"), row.get("data")
        if not isinstance(kind, str) or not isinstance(data, dict):
            raise SessionRefused("a row needs a type and a data object", line=line, seq=seq)
        if row.get("seq", seq) != seq:
            raise SessionRefused(f"seq has a gap (expected {seq})", line=line, seq=seq, event_type=kind)
        packed = data.get(_PACKED[kind]) if kind in _PACKED else [None]
        if not isinstance(packed, list) or not packed:
            raise SessionRefused("a packed row holds no chunks", line=line, seq=seq, event_type=kind)
        yield line, seq, row
        seq += len(packed)


def _stepped(rows: Iterable[Numbered]) -> Iterator[Numbered]:
    """The rows, with what stood between a turn's start and its step moved behind the step's start.

    Early logs put the user's message there. In v4 the system text must stand before it, inside a step.
    """
    waiting: list[Numbered] = []
    is_before_step = False
    for numbered in rows:
        kind = numbered[2]["type"]
        if kind == "turn/start":
            is_before_step = True
        elif kind == "step/start":
            is_before_step = False
            yield numbered
            yield from waiting
            waiting = []
            continue
        elif kind in ("turn/end", END_SEED):
            yield from waiting
            waiting, is_before_step = [], False
        if is_before_step and (waiting or kind == "user/message"):
            waiting.append(numbered)
        else:
            yield numbered
    yield from waiting


def first_system(rows: Iterable[Row]) -> str | None:
    """The system text of the first request, which was in force from the first step on."""
    for row in rows:
        if row["type"] == "request/header":
            header = row["data"].get("header")
            system = header.get("system") if isinstance(header, dict) else None
            return system if isinstance(system, str) else None
    return None


class _Places:
    """Where v0 rows stand in v4, kept and looked up as runs.

    A range of sources is never written out: one in every row of a long log would cost its square.
    Raises KeyError for what is no number, or that of a row which is gone or yet to come.
    """

    MOST_STEPS = 1 << 18
    """How many runs all the ranges of one log may go through: what comes of them is kept."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []
        """(first, last, place of the first), by the first."""
        self._steps = 0

    def put(self, seq: int, place: int) -> None:
        at = bisect_right(self._runs, seq, key=itemgetter(0))
        if at:
            first, last, start = self._runs[at - 1]
            if (last + 1, start + last + 1 - first) == (seq, place):
                self._runs[at - 1] = (first, seq, start)
                return
        self._runs.insert(at, (seq, seq, place))

    def one(self, seq: Any) -> int:
        """The place of one row."""
        if not is_count(seq):
            raise KeyError
        at = bisect_right(self._runs, seq, key=itemgetter(0)) - 1
        if at < 0 or self._runs[at][1] < seq:
            raise KeyError
        first, _, start = self._runs[at]
        place: int = start + seq - first
        return place

    def span(self, seq: Any, last: Any) -> Iterator[int | list[int]]:
        """The places of all rows from `seq` to `last`, as ranges where they follow each other."""
        if not is_count(seq) or not is_count(last) or last < seq:
            raise KeyError
        pieces: list[list[int]] = []
        at = bisect_right(self._runs, seq, key=itemgetter(0)) - 1
        while seq <= last:
            self._steps += 1
            if self._steps > self.MOST_STEPS or not 0 <= at < len(self._runs):
                raise KeyError
            if not self._runs[at][0] <= seq <= self._runs[at][1]:
                raise KeyError
            first, end, start = self._runs[at]
            end = min(end, last)
            pieces.append([start + seq - first, start + end - first])
            seq, at = end + 1, at + 1
        yield from _joined(sorted(pieces))


def _joined(pieces: Iterable[list[int]]) -> Iterator[int | list[int]]:
    """Sorted ranges, with those that follow each other as one; a range of one row as its number."""
    whole: list[list[int]] = []
    for first, last in pieces:
        if whole and whole[-1][1] + 1 == first:
            whole[-1][1] = last
        else:
            whole.append([first, last])
    yield from (piece[0] if piece[0] == piece[1] else piece for piece in whole)


class _Rows:
    """Rows of one v0 log on their way to v4."""

    def __init__(self, seed_length: int | None, system: str | None) -> None:
        self._cut = seed_length or None
        self._places = _Places()
        self._next = 0
        self._system = system
        self._head: int | None = None
        self._step: Row | None = None
        self._compaction: Any = None
        self._time = 0

    def converted(self, rows: Iterable[Numbered]) -> Iterator[Line]:
        """v4 rows with the lines that they came from. Raises SessionRefused."""
        line = 1
        for line, seq, row in rows:
            time = row.get("time", self._time)
            self._time = time
            if self._cut is not None and seq >= self._cut:
                self._cut = None
                yield line, self._made(END_SEED, {"inherited": True})
                if row["type"] == END_SEED:
                    continue
            try:
                made = list(self._convert(seq, row))
            except (KeyError, TypeError, AttributeError, IndexError, ValueError):
                raise SessionRefused(
                    "the v0 row does not have the shape of its type, or points at a row that is gone",
                    line=line,
                    seq=seq,
                    event_type=row["type"],
                ) from None
            yield from ((line, new) for new in made)
        if self._cut is not None:
            yield line, self._made(END_SEED, {"inherited": True})

    def _made(self, kind: str, data: Row, **more: Any) -> Row:
        row = {"type": kind, "seq": self._next, "time": self._time, "data": data, **more}
        self._next += 1
        return row

    def _convert(self, seq: int, row: Row) -> Iterator[Row]:
        if not row.keys() <= _ROW_FIELDS:
            raise KeyError
        kind = str(_RETIRED.get(row["type"], row["type"]))
        if kind == "assistant/chunk" or kind in _PACKED:
            return
        data = _lifted(kind, row["data"])
        if kind in ("compaction/start", "compaction/end"):
            self._compaction = data["compactionId"] if kind == "compaction/start" else None
        if kind == "user/message":
            data = self._owned_summary(data)
        if kind == "request/header":
            data, system = _split_header(data)
            yield from self._changed_system(system)
        self._places.put(seq, self._next)
        yield self._made(kind, self._mapped_data(kind, data), **self._mapped_frame(kind, row))
        if kind == "step/start":
            self._step = {"turn": data["turn"], "step": data["step"]}
            yield from self._first_system()
        elif kind in ("step/end", "turn/end"):
            self._step = None

    def _owned_summary(self, data: Row) -> Row:
        """A summary without its compaction around it is a message like any other: v4 would look for one."""
        source = data["source"]
        if source["kind"] != "compact-checkpoint" or source.get("compactionId") == self._compaction:
            return data
        return {**data, "source": {**source, "kind": "plugin:compact"}}

    def _first_system(self) -> Iterator[Row]:
        """The system text's row, first on the surface."""
        if self._head is None and self._system is not None:
            self._head = self._next
            yield self._made("system/message", self._system_data(), surfaceOp="append")

    def _changed_system(self, text: Any) -> Iterator[Row]:
        """A new row in the place of the first one, where the text has changed."""
        if not isinstance(text, str) or text == self._system or self._head is None or self._step is None:
            return
        self._system, head = text, self._head
        self._head = self._next
        operation = {"op": "replace", "startSeq": head, "endSeq": head}
        yield self._made("system/message", self._system_data(), sourceEventSeqs=[head], surfaceOp=operation)

    def _system_data(self) -> Row:
        content = [{"type": "text", "text": self._system}] if self._system else []
        message = {
            "role": "system",
            "content": content,
            "source": {"kind": "system-prompt"},
            "id": f"v0-system-{self._next}",
        }
        return {**(self._step or {}), "message": message}

    def _mapped_frame(self, kind: str, row: Row) -> Row:
        frame: Row = {}
        # An assistant's message was made from its chunks; in v4 they are part of it.
        if "sourceEventSeqs" in row and kind != "assistant/message":
            frame["sourceEventSeqs"] = list(self._sources(row["sourceEventSeqs"]))
        if "surfaceOp" in row:
            frame["surfaceOp"] = self._operation(row["surfaceOp"])
        if "ignorable" in row:
            frame["ignorable"] = row["ignorable"]
        return frame

    def _operation(self, operation: Any) -> Any:
        if operation == "append":
            return operation
        return {
            "op": operation["op"],
            "startSeq": self._places.one(operation["start"]),
            "endSeq": self._places.one(operation["end"]),
        }

    def _sources(self, sources: Iterable[Any]) -> Iterator[int | list[int]]:
        for source in sources:
            if isinstance(source, list):
                first, last = source
                yield from self._places.span(first, last)
            else:
                yield self._places.one(source)

    def _all_mapped(self, seqs: Iterable[Any]) -> list[int]:
        return [self._places.one(seq) for seq in seqs]

    def _mapped_data(self, kind: str, data: Row) -> Row:
        if kind in ("session/title", "session/title-llm-request"):
            return {**data, "messageSeqs": self._all_mapped(data["messageSeqs"])}
        if kind in ("compaction/summary", "compaction/prune"):
            span = data["shadowedRange"]
            return {
                **data,
                "shadowedRange": {
                    "start": self._places.one(span["start"]),
                    "end": self._places.one(span["end"]),
                },
                "shadowedSeqs": self._all_mapped(data["shadowedSeqs"]),
            }
        if kind == "command/done" and "sourceEventSeq" in data:
            return {**data, "sourceEventSeq": self._places.one(data["sourceEventSeq"])}
        return data


def _split_header(data: Row) -> tuple[Row, Any]:
    """A request header without its system text and without what is no list of tools; and the text."""
    header = dict(data["header"])
    system = header.pop("system", None)
    if not isinstance(header.get("tools"), list) or not header["tools"]:
        # v4 has no empty list; a word in its place is a redaction.
        header.pop("tools", None)
    return {**data, "header": header}, system


def _lifted(kind: str, data: Row) -> Row:
    """The data of a row in the shape of v4, its numbers still those of v0."""
    if kind == "turn/start":
        return {"turn": data["turn"]}
    if kind == "user/message":
        return _message(data)
    if kind == "assistant/message":
        return {**data, "message": _message(data["message"]), "stream": []}
    if kind == "tool/result":
        return {**data, "message": _result(data["message"])}
    for key in ("inserted", "messages"):
        if kind in ("agent/inbox/spliced", "session/title-llm-request") and key in data:
            return {**data, key: [_message(message) for message in data[key]]}
    return data


def _message(message: Row) -> Row:
    source = message["source"]
    if source["kind"] != "plugin":
        return message
    plugin = source["plugin"]
    rest = {key: value for key, value in source.items() if key not in ("kind", "plugin")}
    return {**message, "source": {"kind": _PRODUCERS.get(plugin, plugin), **rest}}


def _result(message: Row) -> Row:
    """A tool's result: in v0 one block inside a user message, in v4 the message itself."""
    (block,) = message["content"]
    return {
        "role": "tool",
        "source": message["source"],
        "toolCallId": block["toolCallId"],
        "content": block["content"],
        "isError": block.get("isError", False),
        "id": message["id"],
    }
