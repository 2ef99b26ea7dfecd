"""A second reading of a log, written from the format alone: it shares no code with dsh_tasks.surface or seed.

Everything becomes (role, text, calls, answered): what a model is shown, in the order shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Shown = tuple[str, str, tuple[tuple[str, str, Any], ...], str]


def completed_turns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """First and last place of each turn that has an end; rows since the turn before belong to it."""
    spans, first = [], 0
    for place, row in enumerate(rows):
        if row["type"] == "turn/end":
            spans.append((first, place))
            first = place + 1
    return spans


def kept_history(rows: Sequence[Mapping[str, Any]], turns: int | None) -> list[Shown]:
    """What a fork (`turns` None) or a window of `turns` shows a model: live nodes of the kept turns."""
    spans = completed_turns(rows)
    if turns == 0 or not spans:
        return []
    first = spans[0][0] if turns is None or turns >= len(spans) else spans[-turns][0]
    # A replacement stands in its old place even where its row came later: a window goes by the row.
    return [shown_row(rows[place]) for place in live_places(rows[: spans[-1][1] + 1]) if place >= first]


def live_places(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Places of the rows that a model is shown, in the order shown: what was put in, less what was replaced."""
    live: list[int] = []
    for place, row in enumerate(rows):
        operation = row.get("surfaceOp")
        if operation == "append":
            live.append(place)
        elif isinstance(operation, Mapping):
            start, end = live.index(operation["startSeq"]), live.index(operation["endSeq"])
            live[start : end + 1] = [place]
    return live


def shown_row(row: Mapping[str, Any]) -> Shown:
    """One row of the surface as a model is shown it."""
    message = row["data"] if row["type"] == "user/message" else row["data"]["message"]
    blocks = message["content"]
    calls = tuple(
        (block["id"], block["name"], json.loads(block["arguments"] or "{}"))
        for block in blocks
        if block["type"] == "tool-call"
    )
    return (message["role"], text_of(blocks), calls, message.get("toolCallId", ""))


def shown_request(messages: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """The messages of a chat completions request in the same form."""
    shown = []
    for message in messages:
        calls = tuple(
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"))
            for call in message.get("tool_calls") or ()
        )
        shown.append(
            (message["role"], text_of(message.get("content") or ""), calls, message.get("tool_call_id", ""))
        )
    return shown


def text_of(content: Any) -> str:
    """The text of a message, blocks joined."""
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content if block.get("type") == "text")


def joined(shown: Iterable[Shown]) -> list[Shown]:
    """Neighbouring messages of one role as one: providers differ in how they split a user's blocks."""
    out: list[Shown] = []
    for role, text, calls, answered in shown:
        if out and role in ("user", "system") and out[-1][0] == role:
            out[-1] = (role, out[-1][1] + text, (), "")
        elif text or calls or role == "tool":
            out.append((role, text, calls, answered))
    return out
