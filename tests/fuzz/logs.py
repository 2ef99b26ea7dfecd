"""The logs that fuzzers, laws and tests of bad input begin with: every kind of row, v4 and v0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from random import Random
from typing import Any

from dsh_tasks import format as log_format
from dsh_tasks.session import Session
from tests.factories import ROUTE, LogWriter, a_log, bytes_of, file_of, reasoning, text

Row = dict[str, Any]


def every_kind(*, inherited: bool = False, answered: bool = False) -> Session:
    """A log with each kind of row that anything is known about, and with each way to point at rows.

    inherited   a marker after the first turn
    answered    each call has its result, so that a fork is verbatim
    """
    writer = LogWriter()
    said = writer.open_turn("first")
    run = writer.add("command/run", {"commandId": "k1"})
    writer.add("command/done", {"commandId": "k1", "sourceEventSeq": run})
    writer.add("hook/invoked", {"turn": 1, "hook": "h"})
    writer.add("hook/result", {"turn": 1, "hook": "h"})
    _developer(writer)
    retry = {**writer.frame, "provider": ROUTE["provider"], "policyKey": "p", "retryId": "r", "retry": 1}
    writer.add("llm/retry", retry)
    writer.add("llm/retry-started", {**writer.frame, "retryId": "r", "retry": 1})
    writer.add("assistant/attempt", {**writer.frame, "stream": []})
    begun, cut_off = writer.calls(2)
    writer.assistant(reasoning("hm"), text("looking"), begun, cut_off)
    call = writer.call(begun)
    kin = {"rootCallId": begun["id"], "parentCallId": begun["id"], "name": "read", "arguments": {}}
    writer.add("tool/ptc-dispatch-start", {"subCallId": "s1", "turn": 1, **kin})
    writer.add("tool/ptc-dispatch-start", {"subCallId": "s2", **kin, "parentCallId": "s1"})
    writer.add("tool/ptc-dispatch", {"subCallId": "s2", **kin, "parentCallId": "s1"})
    writer.add("tool/ptc-dispatch", {"subCallId": "s1", "turn": 1, **kin})
    result = writer.result(call, begun, "seen")
    repair = writer.repair(cut_off, "not started", message="m")
    writer.open_step()
    writer.assistant(text("done"))
    writer.add("session/title-llm-request", {"messageSeqs": [said], "messages": []})
    writer.close_turn()
    if inherited:
        writer.add("session/end-seed", {"inherited": True})
    writer.add("permission/preset", {"preset": "ask"})
    writer.add("x/of-tomorrow", {"any": [1]}, ignorable=True)
    looked = writer.open_turn("second", images=2)
    writer.add("image/offload", {"targets": [{"seq": looked, "imageIndexes": [0]}]})
    _rewritten(writer, result)
    if answered:
        _rewritten(writer, repair)
    _new_system(writer)
    writer.notice("a notice")
    writer.assistant(text("answer"))
    writer.close_turn("aborted")
    writer.add("session/end-seed", {})
    last = writer.open_turn("third")
    writer.compact("summary", first=said, last=looked)
    writer.assistant(text("short"), *(blocks := writer.calls(1)))
    call = writer.call(blocks[0])
    if answered:
        writer.result(call, blocks[0], "out")
    writer.close_turn("interrupted")
    writer.open_turn("still open")
    writer.add("session/title", {"title": "t", "messageSeqs": [last], "source": {"kind": "llm"}})
    return writer.session


def _developer(writer: LogWriter) -> None:
    header = next(row["seq"] for row in writer.rows if row["type"] == "request/header")
    message = {
        "role": "developer",
        "content": [{"type": "tool-addition", "toolName": "read"}, text("a tool came")],
        "source": {"kind": "tools"},
        "id": writer.name("developer"),
    }
    writer.show("developer/message", {**writer.frame, "headerSeq": header, "message": message})


def _rewritten(writer: LogWriter, seq: int) -> None:
    """A tool's result with a shorter text in its place."""
    span = {"shadowedRange": {"start": seq, "end": seq}, "shadowedSeqs": [seq]}
    prune = writer.add("compaction/prune", span)
    data = json.loads(json.dumps(writer.rows[seq]["data"]))
    data["message"]["content"] = [text("pruned")]
    operation = {"op": "replace", "startSeq": seq, "endSeq": seq}
    sources: list[Any] = [seq] if "error" in data else [[seq, seq], prune]
    place = writer.add("tool/result", data, sourceEventSeqs=sources, surfaceOp=operation)
    writer.live[writer.live.index(seq)] = place


def _new_system(writer: LogWriter) -> None:
    head = writer.live[0]
    writer.system("other rules")
    writer.live.pop()
    operation = {"op": "replace", "startSeq": head, "endSeq": head}
    writer.rows[-1] |= {"surfaceOp": operation, "sourceEventSeqs": [head]}
    writer.live[0] = writer.rows[-1]["seq"]


# -- v0 -------------------------------------------------------------------------------------------


def old_lines(*, seeded: bool = False) -> list[Row]:
    """A v0 log: chunks as rows, results inside user messages, a replacement, a system text that changes."""
    rows: list[Row] = []

    def add(kind: str, data: Row, **more: Any) -> int:
        rows.append({"type": kind, "data": data, **more})
        return sum(_width(row) for row in rows) - 1

    def said(words: str, **source: Any) -> Row:
        return {"role": "user", "id": f"m-{words}", "content": [text(words)], "source": source}

    def request(system: str) -> None:
        config = {"config": ROUTE, "system": system, "tools": [{"name": "read"}]}
        add("request/header", {"header": config, "reason": "initial"})

    add("agent/inbox/spliced", {"target": "next-turn", "start": 0, "inserted": [said("one", kind="user")]})
    add("turn/start", {"turn": 1, "trigger": {"kind": "message"}})
    add("agent/inbox/spliced", {"target": "next-turn", "start": 0, "inserted": [], "removedCount": 1})
    one = add("user/message", said("one", kind="user"), surfaceOp="append")
    add("step/start", {"turn": 1, "step": 1})
    add("session/title", {"title": "t", "messageSeqs": [one], "source": {"kind": "fallback"}})
    request("Be good.")
    first = add("assistant/chunk", {"turn": 1, "step": 1, "chunk": {"type": "block-start"}})
    texts = {"turn": 1, "step": 1, "index": 0, "dt": [1, 2], "texts": ["a", "b", "c"]}
    last = add("text-chunks", texts)
    block = {"type": "tool-call", "id": "c1", "name": "read", "arguments": "{}"}
    answer = {
        "role": "assistant",
        "content": [text("abc"), block],
        "source": {"kind": "model", **ROUTE},
        "id": "a1",
    }
    spoken = add(
        "assistant/message",
        {"turn": 1, "step": 1, "message": answer},
        surfaceOp="append",
        sourceEventSeqs=[[first, last]],
    )
    call = add("tool/call", {"turn": 1, "step": 1, "callId": "c1", "name": "read", "arguments": "{}"})
    kin = {"subCallId": "s", "rootCallId": "c1", "parentCallId": "c1"}
    add("tool/code-dispatch-start", kin)
    add("tool/code-dispatch", kin)
    inner = {"type": "tool-result", "toolCallId": "c1", "content": [text("out")], "isError": False}
    result = {**said("r", kind="tool", callId="c1"), "content": [inner]}
    data = {"turn": 1, "step": 1, "message": result}
    done = add("tool/result", data, surfaceOp="append", sourceEventSeqs=[call])
    add("command/run", {"commandId": "k"})
    add("command/done", {"commandId": "k", "sourceEventSeq": done})
    add("step/end", {"turn": 1, "step": 1})
    add("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    length = sum(_width(row) for row in rows)
    if seeded:
        add("session/end-seed", {})
    add("turn/start", {"turn": 2})
    add("step/start", {"turn": 2, "step": 1})
    two = add("user/message", said("two", kind="plugin", plugin="tools-ptc"), surfaceOp="append")
    add("compaction/start", {"compactionId": "z", "turn": 2})
    gone = [one, spoken, done]
    span = {"shadowedRange": {"start": one, "end": done}, "shadowedSeqs": gone}
    add("compaction/summary", {"compactionId": "z", **span})
    short = said("short", kind="plugin", plugin="compact", compactionId="z")
    operation = {"op": "replace", "start": one, "end": done}
    add("user/message", short, surfaceOp=operation, sourceEventSeqs=[one, [spoken, call], done])
    add("compaction/end", {"compactionId": "z", "turn": 2})
    add("session/title-llm-request", {"messageSeqs": [one], "messages": [said("one", kind="user")]})
    request("Be better.")
    other = {**answer, "content": [text("d")], "id": f"a{two}"}
    add("assistant/message", {"turn": 2, "step": 1, "message": other}, surfaceOp="append", time=7)
    add("step/end", {"turn": 2, "step": 1})
    add("turn/end", {"turn": 2, "reason": {"kind": "completed"}})
    head = {"type": "session", "version": 0, "id": "old", "createdAt": 5, "cwd": "/srv"}
    child = {"seedLength": length, "parentSession": "p", "origin": "subagent", "delegationDepth": 1}
    return [head | child if seeded else head, *rows]


def _width(row: Row) -> int:
    return len(row["data"]["texts"]) if row["type"] == "text-chunks" else 1


# -- the first corpus -----------------------------------------------------------------------------


def packaged() -> bytes:
    """The log of the harness that comes with dsh_tasks."""
    return (resources.files("dsh_tasks") / "data" / "parent.session.v4.jsonl").read_bytes()


def corpus(*, made_up: int = 40) -> Iterator[bytes]:
    """Valid files to begin with: made by hand, by the harness, and `made_up` by the author of the seed laws."""
    from tests.laws.test_seed_laws import Author

    hand_made = [
        a_log(0),
        a_log(1, bookkeeping=False),
        a_log(2),
        a_log(1, open_turn=True),
        a_log(2, tools=2, thinks=True, notices=1, images=1),
        a_log(3, compacted={2: 2, 3: 2}, bookkeeping=False),
        a_log(2, unanswered=[1], tools=1),
        a_log(2, inherited=1),
        a_log(2, reasons={1: "aborted"}),
        every_kind(),
        every_kind(inherited=True),
        every_kind(answered=True),
    ]
    for log in hand_made:
        yield bytes_of(log)
    yield packaged()
    yield file_of(old_lines())
    yield file_of(old_lines(seeded=True))
    yield log_format.pack(a_log(2))
    yield log_format.pack(every_kind())
    for number in range(made_up):
        dice = Random(number)
        yield bytes_of(Author(dice, bookkeeping=number % 2 == 0, tame=number % 3 == 0).log(1 + number % 4))
