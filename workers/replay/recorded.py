"""Recorded: what a log tells of the run that wrote it: child, tools, the rows of each attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dsh_tasks.errors import SessionRefused
from dsh_tasks.session import Event, Session
from dsh_tasks.submission import AgentOptions, Policy
from workers.engines.agent.engine import without_instruction
from workers.engines.agent.structured import TOOL_NAME
from workers.engines.base import Child
from workers.engines.open_turn import Row
from workers.engines.transcript import ATTEMPT_BORDER, REMINDER_KIND, RouteName, text_of

UNKNOWN, NOT_STARTED = "TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"
END_OF_SEED = "session/end-seed"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A log, taken apart. Raises SessionRefused where no run of the agent engine can be read from it."""

    session: Session
    seed: tuple[Event, ...]
    attempts: tuple[tuple[Row, ...], ...]
    """Own rows by the attempt that wrote them."""

    @classmethod
    def of(cls, session: Session) -> Recorded:
        """Take a session apart."""
        events = session.events
        marks = [place for place, event in enumerate(events) if event.type == END_OF_SEED]
        first = marks[-1] if marks else 0
        rows = [event.row() for event in events[first:]]
        found = cls(session, events[:first], tuple(_attempts(rows)))
        if found.header is None or found.prompt is None:
            what = "nothing to replay: no model was asked in this log"
            raise SessionRefused(what)
        if not any(row["type"] == "subagent/descriptor" for row in rows):
            raise SessionRefused("nothing to replay: this is the log of no child")
        return found

    @property
    def rows(self) -> list[Row]:
        """All own rows."""
        return [row for attempt in self.attempts for row in attempt]

    @property
    def header(self) -> Mapping[str, Any] | None:
        """The first request header: route, tools, most tokens."""
        return next((row["data"]["header"] for row in self.rows if row["type"] == "request/header"), None)

    @property
    def prompt(self) -> Mapping[str, Any] | None:
        """The child's first message."""
        return next((row["data"] for row in self.rows if row["type"] == "user/message"), None)

    @property
    def route(self) -> RouteName:
        """Which model answered."""
        assert self.header is not None
        return RouteName(self.header["config"]["provider"], self.header["config"]["model"])

    def was_refused(self, place: int) -> bool:
        """Whether a further attempt only closed the turn: its worker could not run the child."""
        rows = self.attempts[place]
        closing = (ATTEMPT_BORDER, "tool/result", "step/end", "turn/end")
        ends = [row["data"]["reason"]["kind"] for row in rows if row["type"] == "turn/end"]
        return (
            place > 0
            and ends == ["error"]
            and all(row["type"] in closing for row in rows)
            and all(repair_of(row) for row in rows if row["type"] == "tool/result")
        )

    @property
    def repair_turns(self) -> int:
        """How often the child was told that its value is missing."""
        users = [row["data"] for row in self.rows if row["type"] == "user/message"]
        return sum(one["source"].get("kind") == REMINDER_KIND for one in users)

    def child(self, place: int) -> Child:
        """The child as attempt `place` (from 0) found it."""
        assert self.header is not None
        assert self.prompt is not None
        header = self.session.header
        own: Row = next((row["data"] for row in self.rows if row["type"] == "subagent/descriptor"), {})
        most = self.header["config"].get("maxTokens")
        schemas = [tool["parameters"] for tool in self.tools if tool["name"] == TOOL_NAME]
        before = [row for attempt in self.attempts[:place] for row in attempt]
        begin = (row["data"] for row in self.attempts[place] if row["type"] == ATTEMPT_BORDER)
        border: Row = next(begin, {})
        return Child(
            task_id=header.id,
            session_id=header.id,
            attempt=border.get("attempt", place + 1),
            depth=header.delegation_depth or 0,
            label=own.get("label", ""),
            provider=own.get("provider", ""),
            prompt=tuple(self.prompt["content"]),
            header=header,
            seed=self.seed,
            log=tuple(map(Event.from_row, before)),
            policy=Policy(
                persona=self._persona(),
                output_schema=schemas[0] if schemas else None,
                agent_options=None if most is None else AgentOptions(maxTokens=most),
            ),
        )

    def _persona(self) -> str | None:
        for row in self.rows:
            if row["type"] == "dsh-tasks/system":
                return without_instruction(row["data"]["text"]) or None
            if row["type"] == "system/message":
                return without_instruction(text_of(row["data"]["message"]["content"])) or None
        return None

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """As the model was shown them."""
        return () if self.header is None else self.header.get("tools", ())

    @property
    def once(self) -> frozenset[str]:
        """Tools that were not run again after a lost attempt."""
        names = {
            row["data"]["callId"]: row["data"]["name"] for row in self.rows if row["type"] == "tool/call"
        }
        return frozenset(
            names.get(row["data"]["message"]["toolCallId"], "")
            for row in self.rows
            if row["type"] == "tool/result" and repair_of(row) == UNKNOWN
        )

    @property
    def together(self) -> frozenset[str]:
        """Tools that were seen to begin beside another call; all others are taken for exclusive."""
        found: set[str] = set()
        for one, next_one in pairwise(self.rows):
            if one["type"] == next_one["type"] == "tool/call":
                found |= {one["data"]["name"], next_one["data"]["name"]}
        return frozenset(found)


def repair_of(row: Row) -> str:
    """The code of a result that was made up for a call without one; '' for a real result."""
    return str((row["data"].get("error") or {}).get("code", ""))


def _attempts(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    starts = [0]
    for place, row in enumerate(rows):
        if row["type"] == ATTEMPT_BORDER:
            starts.append(_start_of(rows, place))
    ends = [*starts[1:], len(rows)]
    return [tuple(rows[one:end]) for one, end in zip(starts, ends, strict=True)]


def _start_of(rows: Sequence[Row], border: int) -> int:
    """Where an attempt begins: with what closes an earlier one's turn, where it does that."""
    at = border
    if rows[at - 1]["type"] != "turn/end" or rows[at - 1]["data"]["reason"]["kind"] != "interrupted":
        return at
    at -= 1
    if rows[at - 1]["type"] == "step/end":
        at -= 1
    while rows[at - 1]["type"] == "tool/result" and repair_of(rows[at - 1]) in (UNKNOWN, NOT_STARTED):
        at -= 1
    return at
