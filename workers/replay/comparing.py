"""Comparing: a row or a request that was made against the recorded one, and what differs. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest

from workers.engines.agent.structured import TOOL_NAME
from workers.engines.open_turn import Row

SHOWN_LINES = 60
"""Lines of a difference that are shown."""
LINE_MOST = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that came out otherwise."""

    seq: int
    """Place in the whole log."""
    type: str
    """The row's type, or `request`."""
    what: str
    recorded: Any
    made: Any

    @property
    def diff(self) -> list[str]:
        """A unified diff of both as JSON, at most 60 lines."""
        lines = [
            line[:LINE_MOST]
            for line in difflib.unified_diff(
                _lines(self.recorded), _lines(self.made), "recorded", "made", lineterm="", n=2
            )
        ]
        more = len(lines) - SHOWN_LINES
        return [*lines[:SHOWN_LINES], f"[{more} more lines]"] if more > 0 else lines


def _lines(value: Any) -> list[str]:
    return (
        [] if value is None else json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).split("\n")
    )


def essence(row: Mapping[str, Any], *, with_error: bool = True) -> Row:
    """A row without ids of messages, times and usage: what a run of the same answers must make again."""
    data = {name: value for name, value in row["data"].items() if name not in ("usage", "id")}
    if "message" in data:
        data["message"] = _without_id(data["message"])
    if "inserted" in data:
        data["inserted"] = [_without_id(one) for one in data["inserted"]]
    if row["type"] == "request/header":
        data["header"] = _header(data["header"])
    if row["type"] == "turn/end" and not with_error:
        data["reason"] = {"kind": data["reason"]["kind"]}
    return {**{name: value for name, value in row.items() if name != "time"}, "data": data}


def _without_id(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "id"}


def _header(header: Mapping[str, Any]) -> dict[str, Any]:
    """How the tool of a structured value is described does not stand in the log's schema."""
    tools = [
        {**tool, "description": ""} if tool["name"] == TOOL_NAME else tool for tool in header.get("tools", ())
    ]
    return {**header, "tools": tools} if tools else dict(header)


_TOLD = ("part_kind", "content", "tool_name", "tool_call_id", "args", "outcome", "signature", "id")


def parts(messages: Iterable[ModelMessage]) -> list[dict[str, Any]]:
    """The parts of a request as JSON, however they are grouped into messages."""
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "request" if isinstance(message, ModelRequest) else "answer"
        for part in message.parts:
            told = {name: getattr(part, name, None) for name in _TOLD}
            plain = {name: _plain(value) for name, value in told.items() if value is not None}
            if plain.get("content") != "" or "args" in plain:
                found.append({"role": role, **plain})
    return found


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | dict) else repr(value)
