"""Where our reader once took what the runtime refuses, or refused what it writes: the smallest case of each.

What the runtime (0.2.1rc2) says of each was seen; docs/seeds-judged.md has the whole comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsh_tasks import format as log_format
from dsh_tasks import seed
from dsh_tasks.errors import SessionRefused
from dsh_tasks.lifecycle import NOT_STARTED, check
from tests.factories import LogWriter, bytes_of, text

Row = dict[str, Any]


def accepts(writer: LogWriter) -> bool:
    """Whether the log could be written for the harness."""
    try:
        check(log_format.parse(bytes_of(writer.session)).events, strict=True)
    except SessionRefused:
        return False
    return True


def turn(write: Callable[[LogWriter], Any], *, reason: str = "completed") -> LogWriter:
    """A log of one turn with a request header, and something in it."""
    writer = LogWriter()
    writer.open_turn("question")
    write(writer)
    writer.close_turn(reason)
    return writer


def row_of(writer: LogWriter, kind: str) -> Row:
    return next(row for row in writer.rows if row["type"] == kind)


def nothing(writer: LogWriter) -> None:
    writer.assistant(text("answer"))


# -- a crash in a compaction ----------------------------------------------------------------------


def cut_off_compaction() -> LogWriter:
    writer = turn(nothing)
    writer.turn += 1
    writer.add("turn/start", {"turn": 2})
    writer.add("compaction/start", {"compactionId": "c", "turn": 2})
    writer.step = 0
    writer.close_turn("interrupted")
    return writer


def test_a_crash_in_a_compaction_leaves_it_open_over_the_end_of_its_turn() -> None:
    writer = cut_off_compaction()
    writer.add("session/end-seed", {})
    writer.open_turn("question 3")
    writer.assistant(text("answer 3"))
    writer.close_turn()
    assert accepts(writer)
    for turns in range(4):
        assert seed.window(writer.session, turns).turns == turns


def test_nothing_continues_a_compaction_that_was_cut_off() -> None:
    writer = cut_off_compaction()
    writer.add("compaction/end", {"compactionId": "c", "turn": None, "error": "e"})
    assert not accepts(writer)


def test_a_summary_stands_for_the_rows_that_were_announced() -> None:
    writer = turn(nothing)
    first = row_of(writer, "user/message")["seq"]
    last = writer.open_turn("question 2")
    writer.compact("summary", first=first, last=last)
    writer.close_turn()
    assert accepts(writer)
    placed = next(row for row in writer.rows if row.get("surfaceOp") not in (None, "append"))
    placed["surfaceOp"]["startSeq"] = row_of(writer, "assistant/message")["seq"]
    assert not accepts(writer)


# -- repairs --------------------------------------------------------------------------------------


def repair(writer: LogWriter, cause: str, number: int | str | None = None, words: str = NOT_STARTED) -> Row:
    (block,) = writer.calls(1)
    writer.assistant(block)
    seq = len(writer.rows)
    message = {
        "role": "tool",
        "source": {"kind": "tool", "callId": block["id"]},
        "toolCallId": block["id"],
        "content": [text(words)],
        "isError": True,
        "id": f"{cause}-tool-result-{block['id']}-{seq if number is None else number}",
    }
    error = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    writer.show("tool/result", {**writer.frame, "message": message, "error": error})
    return writer.rows[seq]


@pytest.mark.parametrize(
    ("cause", "number", "words", "is_one"),
    [
        ("interrupted", None, NOT_STARTED, True),
        ("interrupted", 0, NOT_STARTED, True),
        ("interrupted", None, "It never began.", False),
        ("interrupted", "07", NOT_STARTED, False),
        ("interrupted", "x", NOT_STARTED, False),
        ("interrupted", 2**53, NOT_STARTED, False),
        ("forked", None, "any words", True),
        ("forked", 0, "any words", False),
        ("forked", "x", "any words", False),
        ("aborted", None, NOT_STARTED, False),
    ],
)
def test_a_repair_is_one_to_the_letter(
    cause: str, number: int | str | None, words: str, is_one: bool
) -> None:
    assert accepts(turn(lambda writer: repair(writer, cause, number, words))) is is_one


@pytest.mark.parametrize("change", ["two blocks", "sources", "no error"])
def test_a_near_miss_of_a_repair_is_none(change: str) -> None:
    def write(writer: LogWriter) -> None:
        row = repair(writer, "interrupted")
        if change == "two blocks":
            row["data"]["message"]["content"] *= 2
        elif change == "sources":
            row["sourceEventSeqs"] = [0]
        else:
            row["data"]["message"]["isError"] = False
            del row["data"]["error"]

    assert not accepts(turn(write))


def test_a_near_miss_is_folded_into_a_result_of_a_call() -> None:
    writer = turn(lambda writer: repair(writer, "interrupted", words="It never began."))
    made = seed.cut(writer.session)
    assert made.form == "folded"
    check(made.events, strict=True)


# -- rows by themselves and with their kin --------------------------------------------------------


def developer(writer: LogWriter, block: Row, *, header: bool) -> None:
    message = {"role": "developer", "content": [block], "source": {"kind": "p"}, "id": "d"}
    named = {"headerSeq": row_of(writer, "request/header")["seq"]} if header else {}
    writer.show("developer/message", {**writer.frame, "message": message, **named})


def program(writer: LogWriter, **ended: Any) -> None:
    (block,) = writer.calls(1)
    writer.assistant(block)
    call = writer.call(block)
    began = {"rootCallId": block["id"], "parentCallId": block["id"], "subCallId": "s", "name": "read"}
    began["arguments"] = "{}"
    writer.add("tool/ptc-dispatch-start", began)
    writer.add("tool/ptc-dispatch", {**began, **ended})
    writer.result(call, block, "done")


def retry(writer: LogWriter, *, started: Row, again: bool = False) -> None:
    chain = {**writer.frame, "provider": "deepseek-official", "policyKey": "p", "retryId": "r", "retry": 1}
    writer.add("llm/retry", chain)
    writer.add("llm/retry-started", {**writer.frame, "retryId": "r", "retry": 1, **started})
    if again:
        writer.add("llm/retry", {**chain, "policyKey": "q"})


def offload(writer: LogWriter, *indexes: list[int]) -> None:
    seq = row_of(writer, "user/message")["seq"]
    row = writer.rows[seq]
    row["data"]["content"].append({"type": "image", "attachment": {"attachmentId": "sha256:0"}})
    for some in indexes:
        writer.add("image/offload", {"targets": [{"seq": seq, "imageIndexes": some}]})


TOOL = {"type": "tool-addition", "toolName": "read"}
CASES: dict[str, tuple[Callable[[LogWriter], Any], bool]] = {
    "a tool came": (lambda w: developer(w, TOOL, header=True), True),
    "a tool came that nobody described": (
        lambda w: developer(w, {**TOOL, "toolName": "x"}, header=True),
        False,
    ),
    "a tool came without a header": (lambda w: developer(w, TOOL, header=False), False),
    "a tool came without a name": (lambda w: developer(w, {"type": "tool-addition"}, header=True), False),
    "a header is named, but no tool came": (lambda w: developer(w, text("word"), header=True), False),
    "a program's call": (program, True),
    "a program's call ends as another": (lambda w: program(w, name="write"), False),
    "a program's call of another tool": (lambda w: program(w, rootCallId="other"), False),
    "a program's call without a root": (lambda w: program(w, rootCallId=""), False),
    "a retry": (lambda w: retry(w, started={}), True),
    "a retry begins in another step": (lambda w: retry(w, started={"step": 2}), False),
    "a retry of the number true": (lambda w: retry(w, started={"retry": True}), False),
    "a retry's name in two chains": (lambda w: retry(w, started={}, again=True), False),
    "an image is taken out": (lambda w: offload(w, [0]), True),
    "an image is taken out twice": (lambda w: offload(w, [0], [0]), False),
    "an image that is not there is taken out": (lambda w: offload(w, [1]), False),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_and_their_kin(name: str) -> None:
    write, is_accepted = CASES[name]
    assert accepts(turn(lambda writer: (write(writer), nothing(writer)))) is is_accepted


FIELDS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "a title that says nothing of its source": ("session/title", lambda data: data.pop("source")),
    "a person's title that cites messages": (
        "session/title",
        lambda data: data.update(source={"kind": "user"}),
    ),
    "a title that cites nothing": ("session/title", lambda data: data.update(messageSeqs=[])),
    "a delivery of no version": (
        "session-log-deepseek/delivery-accepted",
        lambda data: data.update(sessionFormatVersion="4"),
    ),
    "a request for no reason": ("request/header", lambda data: data.pop("reason")),
    "a request for a reason of tomorrow": ("request/header", lambda data: data.update(reason="whim")),
    "empty adapterDefaults": ("request/header", lambda data: data["header"].update(adapterDefaults={})),
    "adapterDefaults of what is not there": (
        "request/header",
        lambda data: data["header"].update(adapterDefaults={"maxTokens": True}),
    ),
    "a tool that is null": ("request/header", lambda data: data["header"]["tools"].append(None)),
    "an empty reasoningEffort": (
        "request/header",
        lambda data: data["header"].update(config={**data["header"]["config"], "reasoningEffort": ""}),
    ),
    "usage that is null": ("assistant/message", lambda data: data.update(usage=None)),
    "a stream that holds null": ("assistant/message", lambda data: data.update(stream=[None])),
    "a message of the kind plugin": ("user/message", lambda data: data.update(source={"kind": "plugin"})),
    "a waiting message from nowhere": ("agent/inbox/spliced", lambda data: data["inserted"][0].pop("source")),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_the_runtime_refuses(name: str) -> None:
    kind, change = FIELDS[name]
    writer = turn(nothing)
    assert accepts(writer)
    change(row_of(writer, kind)["data"])
    assert not accepts(writer)
