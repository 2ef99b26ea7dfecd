"""Transcript: the rows that a child's run adds to its log, in the order in which the harness writes them.

Rows are made here and written elsewhere: a made row counts only once `accept` was told that it is
stored. So what closes a turn (a kill, or the next attempt) is derived from what the log really holds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_tasks.notice import Notice, notice_message
from dsh_tasks.session import Event, Replace
from dsh_tasks.surface import UNKNOWN_OUTCOME
from workers.engines.base import Child
from workers.engines.open_turn import OpenTurn, Row, marks_of, open_step_of, open_turn_of, unanswered

NOT_STARTED = (
    "The tool call was interrupted before the Harness recorded it as started. Retry it if it is still needed."
)
"""The harness' own words, to the letter: its runtime takes no other result of a call that never began."""
ATTEMPT_BORDER = "dsh-tasks/attempt"
"""Row between what one attempt wrote and what the next one writes."""
SEEN = "dsh-tasks/seen"
"""Row after a result that told of endings: their notices are not told again."""
PARTIAL = "dsh-tasks/partial"
"""Row with the text of an answer that was cut off when its worker left; the next attempt asks again."""
REMINDER_KIND = "structured-output-missing"
"""`source.kind` of the message that reminds a child of the value that it was asked for."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a run must know of the rows before it."""

    next_turn: int = 1
    system_seq: int | None = None
    """The system message that stands first on the surface; None where none does."""
    system_text: str = ""
    is_empty: bool = True
    """Nothing is on the surface yet: a system message may stand first."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Inherited:
        """Read it from a log."""
        return cls().after(events)

    def after(self, events: Iterable[Event]) -> Inherited:
        """The same once `events` followed."""
        next_turn, head, text, is_empty = self.next_turn, self.system_seq, self.system_text, self.is_empty
        for event in events:
            if event.type == "turn/start":
                next_turn = event.data["turn"] + 1
            elif event.type == "system/message":
                operation = event.surface_op
                if is_empty or (isinstance(operation, Replace) and operation.start_seq == head):
                    head, text = event.seq, text_of(event.data["message"]["content"])
            if event.surface_op is not None:
                is_empty = False
        return Inherited(next_turn, head, text, is_empty)


@dataclass(frozen=True, slots=True)
class RouteName:
    """A model route as rows name it."""

    provider: str
    model: str


class Transcript:
    """Makes the rows of one attempt. Holds what is stored, and the numbers of turn and step."""

    def __init__(self, child: Child, inherited: Inherited, now_ms: Callable[[], int]) -> None:
        """`inherited` is read from the seed and the rows of earlier attempts."""
        self.rows: list[Row] = [event.row() for event in child.log]
        """The child's own rows that are stored, those of earlier attempts included."""
        self.turn = inherited.next_turn
        self.step = 0
        self._child = child
        self._inherited = inherited
        self._now_ms = now_ms
        self._first = len(child.seed)

    @property
    def next_seq(self) -> int:
        """Place of the next row."""
        return self._first + len(self.rows)

    def accept(self, rows: Sequence[Row]) -> None:
        """These rows are stored."""
        self.rows += rows

    # -- rows of a turn ---------------------------------------------------------------------------

    def opening(self, *, system: str | None = None) -> list[Row]:
        """The rows that begin this attempt, up to the prompt.

        Closes first what an earlier attempt left open. `system` is what the model gets as its system
        text, None where that is the inherited one; it has a row only where it differs.
        """
        made = _Made(self.next_seq, self._now_ms())
        self._begin(made)
        message = self._prompt_message()
        made.add("agent/inbox/spliced", {"target": "next-turn", "start": 0, "inserted": [message]})
        made.add("turn/start", {"turn": self.turn})
        made.add(
            "agent/inbox/spliced", {"target": "next-turn", "start": 0, "removedCount": 1, "inserted": []}
        )
        if not self.rows:
            made.add("subagent/descriptor", self._descriptor())
        self.step = 1
        made.add("step/start", self._place())
        self._system(made, system)
        made.add("user/message", message, surfaceOp="append")
        return made.rows

    def resumption(self, turn: OpenTurn) -> list[Row]:
        """The rows that begin an attempt within the turn that an earlier one left open.

        A call that has begun, and is not in `turn.repeated`, ran to an unknown point: its result says so.
        """
        made = _Made(self.next_seq, self._now_ms())
        self._border(made)
        self.turn, self.step = turn.turn, turn.step
        if not turn.is_step_open:
            self.step += 1
            made.add("step/start", self._place())
        for call in turn.lost:
            _repair(made, self.turn, self.step, call.id, call.mark)
        if turn.calls and not turn.left:
            made.extend(self.next_step(made.rows))
        return made.rows

    def border(self) -> list[Row]:
        """The border alone: this attempt does nothing but close the turn."""
        made = _Made(self.next_seq, self._now_ms())
        self._border(made)
        return made.rows

    def request(
        self,
        after: Sequence[Row],
        route: RouteName,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        effort: str | None = None,
    ) -> list[Row]:
        """`request/header`: the route and the tools that the model is shown; follows the rows `after`."""
        config: Row = {"provider": route.provider, "model": route.model}
        if max_tokens is not None:
            config["maxTokens"] = max_tokens
        if effort is not None:
            config["reasoningEffort"] = effort
        made = _Made(self.next_seq + len(after), self._now_ms())
        reason = "resume" if self._first or self.rows else "initial"
        header: Row = {"config": config}
        if tools:
            # The harness refuses an empty list.
            header["tools"] = [dict(tool) for tool in tools]
        if header != self._own_header():
            made.add("request/header", {"header": header, "reason": reason})
        return made.rows

    def _own_header(self) -> Row | None:
        """What the last `request/header` of this child says: an attempt that goes on repeats none."""
        own = (row for row in reversed(self.rows) if row["type"] == "request/header")
        last = next(own, None)
        return None if last is None else last["data"]["header"]

    def answer(
        self,
        content: Sequence[Row],
        route: RouteName,
        *,
        usage: Mapping[str, int] | None = None,
        replay_state: Row | None = None,
    ) -> list[Row]:
        """`assistant/message` of the current step."""
        source: Row = {"kind": "model", "provider": route.provider, "model": route.model}
        if replay_state is not None:
            source["replayState"] = replay_state
        message = {"role": "assistant", "content": list(content), "source": source, "id": new_id()}
        data: Row = {**self._place(), "message": message}
        if usage is not None:
            data["usage"] = dict(usage)
        made = _Made(self.next_seq, self._now_ms())
        made.add("assistant/message", {**data, "stream": []}, surfaceOp="append")
        return made.rows

    def calls(self, calls: Sequence[tuple[str, str, str]], after: Sequence[Row] = ()) -> list[Row]:
        """`tool/call` for each (id, name, arguments): the mark that they begin; follow the rows `after`."""
        made = _Made(self.next_seq + len(after), self._now_ms())
        for call_id, name, arguments in calls:
            made.add("tool/call", {**self._place(), "callId": call_id, "name": name, "arguments": arguments})
        return made.rows

    def result(self, call_id: str, text: str, *, is_error: bool) -> list[Row]:
        """`tool/result` of a call whose `tool/call` is stored."""
        made = _Made(self.next_seq, self._now_ms())
        message = tool_message(call_id, text, is_error=is_error, message_id=new_id())
        mark = marks_of(self.rows)[call_id]
        made.add(
            "tool/result", {**self._place(), "message": message}, sourceEventSeqs=[mark], surfaceOp="append"
        )
        return made.rows

    def next_step(self, after: Sequence[Row] = ()) -> list[Row]:
        """End the current step and open the next; follow the rows `after`."""
        made = _Made(self.next_seq + len(after), self._now_ms())
        made.add("step/end", self._place())
        self.step += 1
        made.add("step/start", self._place())
        return made.rows

    def partial(self, text: str) -> list[Row]:
        """The text of an answer that was cut off and is asked for again; no model sees it."""
        made = _Made(self.next_seq, self._now_ms())
        made.add(PARTIAL, {**self._place(), "text": text}, ignorable=True)
        return made.rows

    def seen(self, task_ids: Sequence[str], after: Sequence[Row]) -> list[Row]:
        """The endings that the rows `after` told; none where they told of none."""
        made = _Made(self.next_seq + len(after), self._now_ms())
        if task_ids:
            made.add(SEEN, {"taskIds": list(task_ids)}, ignorable=True)
        return made.rows

    def news(self, notices: Sequence[Notice], after: Sequence[Row], *, new_step: bool) -> list[Row]:
        """Endings as one message, at a step's border; follows the rows `after`."""
        made = _Made(self.next_seq + len(after), self._now_ms())
        if new_step:
            made.extend(self.next_step(after))
        made.add("user/message", notice_message(notices, new_id()), surfaceOp="append")
        return made.rows

    def reminder(self, text: str, after: Sequence[Row]) -> list[Row]:
        """The next step, which opens with a message on what is missing; follows the rows `after`."""
        made = _Made(self.next_seq + len(after), self._now_ms())
        made.extend(self.next_step(after))
        source = {"kind": REMINDER_KIND, "form": "notice", "summary": "no structured output yet"}
        message = {
            "content": [{"type": "text", "text": text}],
            "source": source,
            "role": "user",
            "id": new_id(),
        }
        made.add("user/message", message, surfaceOp="append")
        return made.rows

    def end(
        self, kind: str, after: Sequence[Row] = (), *, error: Mapping[str, Any] | None = None
    ) -> list[Row]:
        """The rows that close the turn as `kind`, whatever is open; follow the stored rows and `after`."""
        stored = [*self.rows, *after]
        return closing(stored, self._first + len(stored), self._now_ms(), kind=kind, error=error)

    # -- parts ------------------------------------------------------------------------------------

    def _begin(self, made: _Made) -> None:
        if self.rows:
            made.extend(closing(self.rows, made.seq, made.time, kind="interrupted"))
            self._border(made)
        elif self._first:
            made.add("session/end-seed", {"inherited": True})

    def _border(self, made: _Made) -> None:
        made.add(ATTEMPT_BORDER, {"attempt": self._child.attempt}, ignorable=True)

    def _descriptor(self) -> Row:
        descriptor: Row = {"version": 3, "mode": "one-shot", "provider": self._child.provider}
        if self._child.label:
            descriptor["label"] = self._child.label
        return descriptor

    def _prompt_message(self) -> Row:
        return {
            "content": [dict(block) for block in self._child.prompt],
            "source": {"kind": "user"},
            "role": "user",
            "id": new_id(),
        }

    def _system(self, made: _Made, text: str | None) -> None:
        before = self._inherited
        if text is None or text == before.system_text:
            return
        if before.system_seq is None and not before.is_empty:
            # The format has no place for a system message behind other messages: who reads the log
            # learns of it, the fold does not.
            made.add("dsh-tasks/system", {"text": text}, ignorable=True)
            return
        message = {
            "role": "system",
            "content": [{"type": "text", "text": text}] if text else [],
            "source": {"kind": "system-prompt"},
            "id": new_id(),
        }
        data = {**self._place(), "message": message}
        if before.system_seq is None:
            made.add("system/message", data, surfaceOp="append")
        else:
            head = before.system_seq
            replace = {"op": "replace", "startSeq": head, "endSeq": head}
            made.add("system/message", data, sourceEventSeqs=[head], surfaceOp=replace)

    def _place(self) -> Row:
        return {"turn": self.turn, "step": self.step}


class _Made:
    """Rows in the making, numbered as they come."""

    def __init__(self, seq: int, time: int) -> None:
        self.rows: list[Row] = []
        self.seq = seq
        self.time = time

    def add(self, kind: str, data: Row, **frame: Any) -> None:
        self.rows.append({"type": kind, "seq": self.seq, "time": self.time, "data": data, **frame})
        self.seq += 1

    def extend(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        self.seq += len(rows)


def closing(
    rows: Sequence[Row], seq: int, time: int, *, kind: str, error: Mapping[str, Any] | None = None
) -> list[Row]:
    """The rows, from `seq` on, that close the turn that `rows` leave open; none where none is open.

    A call with a `tool/call` mark and no result ran to an unknown point, one without a mark was never
    begun; each gets an error result that says so.
    """
    open_turn = open_turn_of(rows)
    if open_turn is None:
        return []
    turn, inside = open_turn
    made = _Made(seq, time)
    step = open_step_of(inside)
    if step is not None:
        marks = marks_of(inside)
        for call_id in unanswered(inside):
            _repair(made, turn, step, call_id, marks.get(call_id))
        made.add("step/end", {"turn": turn, "step": step})
    reason: Row = {"kind": kind}
    if error is not None:
        reason["error"] = dict(error)
    if kind == "aborted":
        reason["reason"] = {"kind": "parent"}
    made.add("turn/end", {"turn": turn, "reason": reason})
    return made.rows


def _repair(made: _Made, turn: int, step: int, call_id: str, mark: int | None) -> None:
    begun = mark is not None
    message = tool_message(
        call_id,
        UNKNOWN_OUTCOME if begun else NOT_STARTED,
        is_error=True,
        message_id=f"interrupted-tool-result-{call_id}-{made.seq}",
    )
    error = (
        {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
        if begun
        else {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    )
    frame: Row = {"sourceEventSeqs": [mark]} if begun else {}
    data = {"turn": turn, "step": step, "message": message, "error": error}
    made.add("tool/result", data, **frame, surfaceOp="append")


def tool_message(call_id: str, text: str, *, is_error: bool, message_id: str) -> Row:
    """The message of a `tool/result`."""
    return {
        "role": "tool",
        "source": {"kind": "tool", "callId": call_id},
        "toolCallId": call_id,
        "content": [{"type": "text", "text": text}],
        "isError": is_error,
        "id": message_id,
    }


def own_text(rows: Iterable[Row], streamed: str = "") -> str:
    """The child's output: the text of its own last message that holds any, else what was `streamed`.

    Blocks joined, reasoning left out; text of only white space does not count.
    """
    text = ""
    for row in rows:
        if row["type"] == "assistant/message":
            said = text_of(row["data"]["message"]["content"])
            text = said if said.strip() else text
        elif row["type"] == PARTIAL:
            streamed = streamed or row["data"]["text"]
    return text or (streamed if streamed.strip() else "")


def text_of(content: Iterable[Mapping[str, Any]]) -> str:
    """The text blocks of a message, joined."""
    return "".join(block["text"] for block in content if block.get("type") == "text")


def new_id() -> str:
    """An id for a message."""
    return str(uuid.uuid4())
