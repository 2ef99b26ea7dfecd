"""Logs for tests, as the harness writes them: a_log(turns=3, open_turn=True) states only what matters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsh_tasks import format as log_format
from dsh_tasks.session import Event, Header, Session

START_MS = 1_796_000_000_000
ROUTE = {"provider": "deepseek-official", "model": "deepseek-v4-flash"}
CANARY = "canary-of-the-open-turn"
"""Stands in every message of an open turn; no child may see it."""


@dataclass
class LogWriter:
    """Writes a v4 log row by row, as the harness does: turns, steps, inbox and bookkeeping."""

    session_id: str = "parent"
    cwd: str | None = "/srv/project"
    bookkeeping: bool = True
    """Inbox, title, delivery and request rows, as the harness has them; without, the least that is valid."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    turn: int = 0
    step: int = 0
    ids: int = 0
    live: list[int] = field(default_factory=list)
    """Seqs of the surface."""
    delivered: bool = True

    # -- rows -------------------------------------------------------------------------------------

    def add(self, kind: str, data: Mapping[str, Any], **more: Any) -> int:
        seq = len(self.rows)
        self.rows.append({"type": kind, "seq": seq, "time": START_MS + 10 * seq, "data": dict(data), **more})
        return seq

    def show(self, kind: str, data: Mapping[str, Any], **more: Any) -> int:
        seq = self.add(kind, data, surfaceOp="append", **more)
        self.live.append(seq)
        return seq

    def name(self, word: str) -> str:
        self.ids += 1
        return f"{word}-{self.turn}-{self.ids}"

    @property
    def frame(self) -> dict[str, int]:
        return {"turn": self.turn, "step": self.step}

    # -- turns ------------------------------------------------------------------------------------

    def open_turn(self, text: str, *, images: int = 0) -> int:
        message = self.user_message(text, images=images)
        if self.bookkeeping:
            self.inbox("next-turn", [message])
        self.turn += 1
        self.step = 0
        self.add("turn/start", {"turn": self.turn})
        if self.bookkeeping:
            self.inbox("next-turn", [], removed=1)
        self.open_step()
        if self.turn == 1 and self.bookkeeping:
            self.system("You are a helpful software engineer assistant.")
        seq = self.show("user/message", message)
        if self.turn == 1 and self.bookkeeping:
            header = {"config": ROUTE, "tools": [{"name": "read", "description": "Read", "parameters": {}}]}
            self.add("request/header", {"header": header, "reason": "initial"})
            self.add("request/context", {**ROUTE, "contextWindow": 128_000})
            self.add(
                "session/title", {"title": "A log", "messageSeqs": [seq], "source": {"kind": "fallback"}}
            )
        return seq

    def close_turn(self, reason: str = "completed") -> int:
        if self.step:
            self.add("step/end", self.frame)
        self.step = 0
        return self.add("turn/end", {"turn": self.turn, "reason": {"kind": reason}})

    def open_step(self) -> None:
        if self.step:
            self.add("step/end", self.frame)
        self.step += 1
        self.add("step/start", self.frame)

    def inbox(self, target: str, inserted: Sequence[Mapping[str, Any]], *, removed: int = 0) -> int:
        data: dict[str, Any] = {"target": target, "start": 0}
        if removed:
            data["removedCount"] = removed
        return self.add("agent/inbox/spliced", {**data, "inserted": list(inserted)})

    # -- messages ---------------------------------------------------------------------------------

    def system(self, text: str) -> int:
        message = {
            "role": "system",
            "content": [{"type": "text", "text": text}],
            "source": {"kind": "system-prompt"},
            "id": self.name("system"),
        }
        return self.show("system/message", {**self.frame, "message": message})

    def user_message(self, text: str, *, kind: str = "user", images: int = 0) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        content += [
            {"type": "image", "attachment": {"kind": "image", "id": f"att-{n}"}} for n in range(images)
        ]
        return {"content": content, "source": {"kind": kind}, "role": "user", "id": self.name("user")}

    def notice(self, text: str) -> int:
        """A message that the harness itself puts between two steps."""
        message = self.user_message(text, kind="subagent-settled")
        if self.bookkeeping:
            self.inbox("next-step", [message])
            self.inbox("next-step", [], removed=1)
        return self.show("user/message", message)

    def assistant(self, *blocks: Mapping[str, Any]) -> int:
        if self.bookkeeping and self.delivered:
            covered = {
                "sessionId": self.session_id,
                "sessionFormatVersion": 4,
                "throughSeq": len(self.rows) - 1,
            }
            self.add("session-log-deepseek/delivery-accepted", covered)
        message = {
            "role": "assistant",
            "content": list(blocks),
            "source": {"kind": "model", **ROUTE},
            "id": self.name("assistant"),
        }
        data = {
            **self.frame,
            "message": message,
            "stream": [],
            "usage": {"inputTokens": 9, "outputTokens": 3},
        }
        return self.show("assistant/message", data)

    def call(self, block: Mapping[str, Any]) -> int:
        call = {"callId": block["id"], "name": block["name"], "arguments": block["arguments"]}
        return self.add("tool/call", {**self.frame, **call})

    def result(self, call_seq: int, block: Mapping[str, Any], text: str, *, is_error: bool = False) -> int:
        message = {
            "role": "tool",
            "source": {"kind": "tool", "callId": block["id"]},
            "toolCallId": block["id"],
            "content": [{"type": "text", "text": text}],
            "isError": is_error,
            "id": self.name("result"),
        }
        data: dict[str, Any] = {**self.frame, "message": message}
        return self.show("tool/result", data, sourceEventSeqs=[call_seq])

    def repair(self, block: Mapping[str, Any], text: str, **error: str) -> int:
        """The result that the harness writes for a call which a fork cut off before it began."""
        message = {
            "role": "tool",
            "source": {"kind": "tool", "callId": block["id"]},
            "toolCallId": block["id"],
            "content": [{"type": "text", "text": text}],
            "isError": True,
            "id": f"forked-tool-result-{block['id']}-{len(self.rows)}",
        }
        kind = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
        return self.show("tool/result", {**self.frame, "message": message, "error": kind | error})

    def calls(self, count: int, *, name: str = "read", arguments: Any = None) -> list[dict[str, Any]]:
        text = json.dumps({"path": "f"} if arguments is None else arguments)
        return [
            {"type": "tool-call", "id": self.name("call"), "name": name, "arguments": text}
            for _ in range(count)
        ]

    def compact(self, summary: str, *, first: int, last: int) -> int:
        """Put a summary in the place of the live rows `first` to `last`."""
        gone = self.live[self.live.index(first) : self.live.index(last) + 1]
        key = self.name("compaction")
        start = self.add("compaction/start", {"compactionId": key, "turn": self.turn})
        text = [{"type": "text", "text": summary}]
        span = {"shadowedRange": {"start": first, "end": last}, "shadowedSeqs": gone, "shadowedTokenCount": 9}
        done = self.add("compaction/summary", {"compactionId": key, "summary": text, **span, **ROUTE})
        message = self.user_message(summary, kind="compact-checkpoint")
        message["source"]["compactionId"] = key
        operation = {"op": "replace", "startSeq": first, "endSeq": last}
        seq = self.add("user/message", message, sourceEventSeqs=[start, done, *gone], surfaceOp=operation)
        at = self.live.index(first)
        self.live[at : at + len(gone)] = [seq]
        self.add("compaction/end", {"compactionId": key, "turn": self.turn})
        return seq

    # -- the whole --------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        is_seeded = any(row["type"] == "session/end-seed" and row["data"] for row in self.rows)
        header = Header(
            version=4,
            id=self.session_id,
            created_at=START_MS,
            cwd=self.cwd,
            parent_session="grandparent" if is_seeded else None,
            is_seeded=is_seeded,
            origin="subagent" if is_seeded else None,
            delegation_depth=int(is_seeded),
        )
        # A copy through JSON: what a test does to the writer afterwards changes no Session.
        return Session(header, tuple(Event.from_row(json.loads(json.dumps(row))) for row in self.rows))


def text(words: str) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": words}


def reasoning(words: str) -> dict[str, Any]:
    """A block of the model's own thoughts."""
    return {"type": "reasoning", "text": words}


def a_log(
    turns: int = 3,
    *,
    open_turn: bool = False,
    tools: int = 0,
    facts: Sequence[tuple[str, str]] = (),
    reasons: Mapping[int, str] = {},
    compacted: Mapping[int, int] = {},
    notices: int = 0,
    images: int = 0,
    thinks: bool = False,
    unanswered: Sequence[int] = (),
    inherited: int = 0,
    bookkeeping: bool = True,
    session_id: str = "parent",
    cwd: str | None = "/srv/project",
) -> Session:
    """A valid v4 log of `turns` completed turns.

    tools        parallel calls in every turn, each with its result
    facts        (noun, value): turn n says `The <noun> is <value>.`, in order
    reasons      turn -> how it ended, where that is not `completed`
    compacted    turn -> how many live messages before it its compaction summarises
    notices      messages that the harness puts into every turn between two steps
    images       attachments of every user message
    thinks       every answer begins with reasoning
    unanswered   turns that end with a call that has no result
    inherited    turns before the marker of an inherited part
    open_turn    one more turn, whose calls (read with its result, three children) carry CANARY
    """
    writer = LogWriter(session_id=session_id, cwd=cwd, bookkeeping=bookkeeping)
    for number in range(1, turns + 1):
        said = [f"The {noun} is {value}." for noun, value in facts[number - 1 : number]]
        writer.open_turn(" ".join([f"question {number}.", *said]), images=images)
        if number in compacted:
            before = writer.live[-1 - compacted[number] : -1]
            writer.compact(f"summary by turn {number}", first=before[0], last=before[-1])
        _answer(writer, number, tools=tools, notices=notices, thinks=thinks)
        if number in unanswered:
            writer.open_step()
            (block,) = writer.calls(1, name="write")
            writer.assistant(block)
            writer.call(block)
        writer.close_turn(reasons.get(number, "completed"))
        if number == inherited:
            writer.add("session/end-seed", {"inherited": True})
    if open_turn:
        _open(writer)
    return writer.session


def _answer(writer: LogWriter, number: int, *, tools: int, notices: int, thinks: bool) -> None:
    thoughts = [reasoning(f"thoughts {number}")] if thinks else []
    if tools:
        blocks = writer.calls(tools)
        writer.assistant(*thoughts, text(f"looking {number}"), *blocks)
        begun = [writer.call(block) for block in blocks]
        for block, call_seq in zip(blocks, begun, strict=True):
            writer.result(call_seq, block, f"result of {block['id']}")
        writer.open_step()
    for place in range(notices):
        writer.notice(f"notice {number}.{place}")
    writer.assistant(*thoughts, text(f"answer {number}"))


def _open(writer: LogWriter) -> None:
    writer.open_turn(f"{CANARY}: delegate this")
    (read,) = writer.calls(1)
    children = writer.calls(3, name="subagent", arguments={"prompt": CANARY})
    writer.assistant(text(CANARY), read, *children)
    begun = writer.call(read)
    for block in children:
        writer.call(block)
    writer.result(begun, read, CANARY)


def bytes_of(session: Session) -> bytes:
    """The log as a plain v4 file."""
    return log_format.write(session)


def lines_of(session: Session) -> list[dict[str, Any]]:
    """The log as decoded lines, header first: for tests that break one of them."""
    return [json.loads(line) for line in bytes_of(session).splitlines()]


def file_of(lines: Sequence[Any]) -> bytes:
    """A file of these lines."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
