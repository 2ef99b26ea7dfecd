"""Session, Event, Turn: a log as values, and where its turns begin and end.

Pure values: no clock, no I/O. `format` reads and writes them as files; nothing here checks a log, so
a Session made by hand is as good as its maker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol

from dsh_tasks.errors import SessionRefused

SessionId = NewType("SessionId", str)
"""Names a session: a parent's, or a child's own."""
TaskId = NewType("TaskId", str)
"""Names a task. A one-shot child has one id for both."""

Sources = tuple[int | tuple[int, int], ...]
"""Earlier rows that a row was made from: single seqs, and ranges (first, last), both inclusive."""

SURFACE_TYPES = frozenset(
    {"system/message", "developer/message", "user/message", "assistant/message", "tool/result"}
)
"""The rows that a model can see; only they carry `surfaceOp` and `sourceEventSeqs`."""


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a log. Times are epoch ms."""

    version: int
    """Always 4 in memory; a v0 file is converted when it is read."""
    id: str
    created_at: int
    cwd: str | None = None
    """Absolute; the harness keeps the file in a folder of this name."""
    parent_session: str | None = None
    is_seeded: bool = False
    """Exactly one `session/end-seed` row with `inherited: true` says where the inherited part ends."""
    origin: str | None = None
    """`subagent`, or nothing."""
    agent_preset: str | None = None
    delegation_depth: int = 0
    """How many parents sit above; 0 is a root."""

    def row(self) -> dict[str, Any]:
        """The header line as v4 has it: exactly these keys in this order, absent ones left out."""
        row = {
            "type": "session",
            "version": self.version,
            "id": self.id,
            "createdAt": self.created_at,
            "cwd": self.cwd,
            "parentSession": self.parent_session,
            "isSeeded": self.is_seeded,
            "origin": self.origin,
            "delegationDepth": self.delegation_depth,
            "agentPreset": self.agent_preset,
        }
        return {key: value for key, value in row.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Replace:
    """A row takes the place of the live rows from `start_seq` to `end_seq`, both inclusive."""

    start_seq: int
    end_seq: int

    def row(self) -> dict[str, Any]:
        """The operation as v4 writes it."""
        return {"op": "replace", "startSeq": self.start_seq, "endSeq": self.end_seq}


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a log. `data` is never changed by anyone who holds an Event."""

    type: str
    seq: int
    """Its place, dense from 0."""
    time: int
    """Epoch ms."""
    data: dict[str, Any]
    source_event_seqs: Sources | None = None
    surface_op: Literal["append"] | Replace | None = None
    ignorable: bool = False
    """Who does not know the type may skip the row."""

    def row(self) -> dict[str, Any]:
        """The row as a v4 file holds it. Shares `data` with this Event."""
        row: dict[str, Any] = {"type": self.type, "seq": self.seq, "time": self.time, "data": self.data}
        if self.source_event_seqs is not None:
            row["sourceEventSeqs"] = [
                list(source) if isinstance(source, tuple) else source for source in self.source_event_seqs
            ]
        if self.surface_op is not None:
            row["surfaceOp"] = "append" if self.surface_op == "append" else self.surface_op.row()
        if self.ignorable:
            row["ignorable"] = True
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Event:
        """The Event of a v4 row; shares `data` with it.

        Raises SessionRefused where the row's frame is not of that shape. What the row says about
        others (its place, its sources) is checked by `format`, not here.
        """
        try:
            sources = row.get("sourceEventSeqs")
            return cls(
                type=row["type"],
                seq=row["seq"],
                time=row["time"],
                data=row["data"],
                source_event_seqs=None if sources is None else _sources(sources),
                surface_op=_operation(row.get("surfaceOp")),
                ignorable=row.get("ignorable") is True,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            seq, kind = (row.get("seq"), row.get("type")) if isinstance(row, Mapping) else (None, None)
            raise SessionRefused(
                f"not a row ({type(error).__name__})",
                seq=seq if isinstance(seq, int) else None,
                event_type=kind if isinstance(kind, str) else None,
            ) from None

    def sources(self) -> tuple[int, ...]:
        """The seqs in `source_event_seqs`, ranges written out."""
        return flat(self.source_event_seqs or ())


def flat(sources: Sources) -> tuple[int, ...]:
    """Single seqs and ranges as single seqs, in order."""
    seqs: list[int] = []
    for source in sources:
        if isinstance(source, tuple):
            seqs.extend(range(source[0], source[1] + 1))
        else:
            seqs.append(source)
    return tuple(seqs)


def _sources(value: Iterable[Any]) -> Sources:
    return tuple(
        (int(source[0]), int(source[1])) if isinstance(source, list | tuple) else int(source)
        for source in value
    )


def _operation(value: Any) -> Literal["append"] | Replace | None:
    if value is None or value == "append":
        return value  # type: ignore[no-any-return]
    return Replace(value["startSeq"], value["endSeq"])


@dataclass(frozen=True, slots=True)
class Turn:
    """From `turn/start` to `turn/end`."""

    number: int
    """From 1."""
    start_seq: int
    """Seq of its `turn/start`."""
    end_seq: int | None
    """Seq of its `turn/end`; None while it is open."""
    reason: str | None
    """Kind of its ending: completed, max-tokens, error, aborted, interrupted, or one not yet known."""

    @property
    def is_completed(self) -> bool:
        """It has ended, for whatever reason: an aborted turn counts."""
        return self.end_seq is not None


@dataclass(frozen=True, slots=True)
class Session:
    """A header and its events. Nothing that holds a Session changes it."""

    header: Header
    events: tuple[Event, ...]

    def turns(self) -> tuple[Turn, ...]:
        """All turns in order; only the last can be open."""
        return turns_of(self.events)

    def completed_turns(self) -> tuple[Turn, ...]:
        """The turns that have ended."""
        return tuple(turn for turn in self.turns() if turn.is_completed)

    def end_of_completed(self) -> int:
        """How many events there are up to and including the last `turn/end`; 0 without one."""
        for place in range(len(self.events), 0, -1):
            if self.events[place - 1].type == "turn/end":
                return place
        return 0

    def model_route(self) -> tuple[str, str] | None:
        """(provider, model) of the last request that the log records."""
        for event in reversed(self.events):
            if event.type == "request/header" and (route := route_of(event)) is not None:
                return route
        return None


class ParentLog(Protocol):
    """A parent's log, in memory or in a file."""

    @property
    def header(self) -> Header:
        """Its first line."""

    def model_route(self) -> tuple[str, str] | None:
        """(provider, model) of the last request that it records."""


def turns_of(events: Iterable[Event]) -> tuple[Turn, ...]:
    """All turns of these rows in order; only the last can be open."""
    turns: list[Turn] = []
    opened: Event | None = None
    for event in events:
        if event.type == "turn/start":
            opened = event
        elif event.type == "turn/end" and opened is not None:
            turns.append(Turn(_number(opened), opened.seq, event.seq, _reason(event)))
            opened = None
    if opened is not None:
        turns.append(Turn(_number(opened), opened.seq, None, None))
    return tuple(turns)


def route_of(request: Event) -> tuple[str, str] | None:
    """(provider, model) of a request header; None where it names none."""
    config = _inner(request.data, "header", "config")
    provider, model = config.get("provider"), config.get("model")
    return (provider, model) if isinstance(provider, str) and isinstance(model, str) else None


def _number(turn_start: Event) -> int:
    number = turn_start.data.get("turn")
    return number if isinstance(number, int) else 0


def _reason(turn_end: Event) -> str | None:
    kind = _inner(turn_end.data, "reason").get("kind")
    return kind if isinstance(kind, str) else None


def _inner(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The object at a path; empty where there is none."""
    for key in keys:
        value = data.get(key)
        if not isinstance(value, Mapping):
            return {}
        data = value
    return data
