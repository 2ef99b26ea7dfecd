"""Folding: the live messages of some turns as a log of their own.

Where a row of a window names what lies before it, no numbering of the rows as they are is valid:
they name rows that are not there. Their surface is: each live message is written again as a plain
append, in fresh turns and steps, in the order in which a model sees it. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsh_tasks.session import Event, Turn
from dsh_tasks.surface import Node


@dataclass(frozen=True, slots=True)
class Frame:
    """One kept turn, and the live nodes that are written into it."""

    turn: Turn
    start_ms: int
    end_ms: int
    nodes: tuple[Node, ...]


def framed(turns: Sequence[Turn], times: Mapping[int, int], nodes: Sequence[Node]) -> list[Frame]:
    """Share out the live, paired `nodes` of completed `turns`, keeping their order.

    `times` are those of the rows that begin and end the turns. A summary that was written in a later turn
    stands where the summarised messages stood: it goes into the turn of the message that follows it. A turn
    of which nothing lives stays, empty.
    """
    shares: dict[int, list[Node]] = {turn.number: [] for turn in turns}
    number = turns[-1].number
    for node in reversed(nodes):
        number = max(min(number, node.turn), turns[0].number)
        shares[number].append(node)
    return [
        Frame(
            turn,
            times[turn.start_seq],
            times[turn.start_seq if turn.end_seq is None else turn.end_seq],
            tuple(reversed(shares[turn.number])),
        )
        for turn in turns
    ]


def folded(
    frames: Sequence[Frame], headers: Mapping[int, Event], head: Mapping[str, Any] | None
) -> list[tuple[int, list[Event]]]:
    """(turn number, its rows) for each frame, numbered from 0 and from turn 1.

    `headers` are the request headers that developer messages among the nodes name. `head` is the
    system message to stand first where none of the nodes' own does; None where none is wanted.
    """
    first = next((node.event.type for frame in frames for node in frame.nodes), "system/message")
    writer = _Writer(headers, None if first == "system/message" else head)
    written: list[tuple[int, list[Event]]] = []
    for number, frame in enumerate(frames, start=1):
        start = len(writer.rows)
        writer.turn(number, frame)
        written.append((number, writer.rows[start:]))
    return written


@dataclass(slots=True)
class _Writer:
    """Rows written so far. Mutable: one per fold."""

    source: Mapping[int, Event]
    head: Mapping[str, Any] | None
    rows: list[Event] = field(default_factory=list)
    number: int = 0
    step: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    """Open calls of this step and the rows in which they began."""
    is_answered: bool = False
    """The step holds its assistant's message."""
    headers: dict[int, int] = field(default_factory=dict)
    """Request headers that developer messages name: their rows in the source and here."""

    def turn(self, number: int, frame: Frame) -> None:
        self.number, self.step = number, 0
        self._add("turn/start", frame.start_ms, {"turn": number})
        if self.head is not None and number == 1:
            self._open_step(frame.start_ms)
            self._append("system/message", frame.start_ms, {**self._frame, "message": self.head})
        last_ms = frame.start_ms
        for node in frame.nodes:
            last_ms = node.event.time
            self._node(node)
        self._close_step(last_ms)
        reason = {"kind": frame.turn.reason or "interrupted"}
        self._add("turn/end", frame.end_ms, {"turn": number, "reason": reason})

    @property
    def _frame(self) -> dict[str, int]:
        return {"turn": self.number, "step": self.step}

    def _open_step(self, time_ms: int) -> None:
        self.step += 1
        self.is_answered = False
        self._add("step/start", time_ms, self._frame)

    def _close_step(self, time_ms: int) -> None:
        if self.step:
            self._add("step/end", time_ms, self._frame)

    def _node(self, node: Node) -> None:
        kind, time_ms = node.event.type, node.event.time
        if not self.step:
            self._open_step(time_ms)
        elif self.is_answered and not self.calls and kind != "tool/result":
            # One answer of the model a step: what follows it, save its results, opens the next.
            self._close_step(time_ms)
            self._open_step(time_ms)
        if kind == "tool/result":
            self._result(node.message, time_ms)
        elif kind == "user/message":
            self._append(kind, time_ms, dict(node.message))
        elif kind == "assistant/message":
            self._assistant(node)
        elif kind == "developer/message":
            self._developer(node)
        else:
            self._append(kind, time_ms, {**self._frame, "message": node.message})

    def _assistant(self, node: Node) -> None:
        self.is_answered = True
        data = {**self._frame, "message": node.message, "stream": []}
        self._append("assistant/message", node.event.time, data)
        for block in node.message["content"]:
            if block["type"] == "tool-call":
                call = {"callId": block["id"], "name": block["name"], "arguments": block["arguments"]}
                self.calls[block["id"]] = len(self.rows)
                self._add("tool/call", node.event.time, {**self._frame, **call})

    def _result(self, message: Mapping[str, Any], time_ms: int) -> None:
        began = self.calls.pop(message["toolCallId"])
        self._append("tool/result", time_ms, {**self._frame, "message": message}, sources=(began,))

    def _developer(self, node: Node) -> None:
        data = {**self._frame, "message": node.message}
        named = node.event.data.get("headerSeq")
        if named is not None:
            if named not in self.headers:
                # The tools that the message speaks of are described there, and only there.
                self.headers[named] = len(self.rows)
                self._add("request/header", node.event.time, self.source[named].data)
            data["headerSeq"] = self.headers[named]
        self._append("developer/message", node.event.time, data)

    def _add(self, kind: str, time_ms: int, data: dict[str, Any]) -> None:
        self.rows.append(Event(kind, len(self.rows), time_ms, data))

    def _append(
        self, kind: str, time_ms: int, data: dict[str, Any], *, sources: tuple[int, ...] | None = None
    ) -> None:
        self.rows.append(Event(kind, len(self.rows), time_ms, data, sources, "append"))
