"""OpenTurn: what an earlier attempt left open, read from the rows of a log. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call of the last answer of a turn."""

    id: str
    name: str
    arguments: str
    """JSON as the model wrote it."""
    mark: int | None
    """Seq of its `tool/call` row; None where it has not begun."""
    result: Row | None
    """Its `tool/result` row; None where there is none."""


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn that has a prompt and no end."""

    turn: int
    step: int
    """The last step, open or ended."""
    is_step_open: bool
    has_answer: bool
    """The model has answered in the open step: what is left is its calls, or the end of the turn."""
    calls: tuple[OpenCall, ...]
    """Calls of that answer, in its order."""
    repeated: frozenset[str]
    """Names of the tools whose calls may run again."""

    @property
    def lost(self) -> tuple[OpenCall, ...]:
        """Calls that have begun, have no result, and must not run again: what they did is not known."""
        return tuple(
            call
            for call in self.calls
            if call.result is None and call.mark is not None and call.name not in self.repeated
        )

    @property
    def left(self) -> tuple[OpenCall, ...]:
        """Calls that are to run: those that have not begun, and those that may run again."""
        return tuple(
            call
            for call in self.calls
            if call.result is None and (call.mark is None or call.name in self.repeated)
        )

    @classmethod
    def of(cls, rows: Sequence[Row], repeated: Collection[str] = ()) -> OpenTurn | None:
        """The turn that the child's own rows leave open; None where none is open, or it has no prompt yet."""
        found = open_turn_of(rows)
        if found is None:
            return None
        turn, inside = found
        steps = [row["data"]["step"] for row in inside if row["type"] == "step/start"]
        if not steps or not any(row["type"] == "user/message" for row in inside):
            return None
        step = open_step_of(inside)
        in_step = inside[_start_of(inside) :] if step is not None else ()
        return cls(
            turn, steps[-1], step is not None, _has_answer(in_step), _calls(in_step), frozenset(repeated)
        )


def _start_of(rows: Sequence[Row]) -> int:
    return max(place for place, row in enumerate(rows) if row["type"] == "step/start")


def _has_answer(rows: Sequence[Row]) -> bool:
    """Whether the last message of these rows is the model's, or a result of its calls."""
    spoke = [
        row["type"] for row in rows if row["type"] in ("assistant/message", "user/message", "tool/result")
    ]
    return bool(spoke) and spoke[-1] != "user/message"


def _calls(rows: Sequence[Row]) -> tuple[OpenCall, ...]:
    answers = [row for row in rows if row["type"] == "assistant/message"]
    if not answers:
        return ()
    marks = marks_of(rows)
    results = {row["data"]["message"]["toolCallId"]: row for row in rows if row["type"] == "tool/result"}
    return tuple(
        OpenCall(one["id"], one["name"], one["arguments"], marks.get(one["id"]), results.get(one["id"]))
        for one in answers[-1]["data"]["message"]["content"]
        if one["type"] == "tool-call"
    )


def open_turn_of(rows: Sequence[Row]) -> tuple[int, Sequence[Row]] | None:
    """Number and rows of the turn that is open."""
    for place in range(len(rows) - 1, -1, -1):
        if rows[place]["type"] == "turn/end":
            return None
        if rows[place]["type"] == "turn/start":
            return rows[place]["data"]["turn"], rows[place:]
    return None


def open_step_of(rows: Sequence[Row]) -> int | None:
    for row in reversed(rows):
        if row["type"] == "step/end":
            return None
        if row["type"] == "step/start":
            step: int = row["data"]["step"]
            return step
    return None


def unanswered(rows: Sequence[Row]) -> list[str]:
    """Ids of the calls of the last assistant message that have no result, in its order."""
    answered: set[str] = set()
    for row in reversed(rows):
        if row["type"] == "tool/result":
            answered.add(row["data"]["message"]["toolCallId"])
        elif row["type"] == "assistant/message":
            blocks = row["data"]["message"]["content"]
            return [one["id"] for one in blocks if one["type"] == "tool-call" and one["id"] not in answered]
    return []


def marks_of(rows: Sequence[Row]) -> dict[str, int]:
    """Seq of the `tool/call` mark of each call of the current step."""
    marks: dict[str, int] = {}
    for row in reversed(rows):
        if row["type"] == "step/start":
            break
        if row["type"] == "tool/call":
            marks.setdefault(row["data"]["callId"], row["seq"])
    return marks
