"""Logs built row by row, for what the runtime cannot be made to write by a script. Each is valid by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsh_tasks.session import Session
from tests.factories import ROUTE, LogWriter, a_log, reasoning, text

LOGS: dict[str, Callable[[], Session]] = {
    "no completed turn": lambda: a_log(turns=0, open_turn=True),
    "parallel tools, open turn": lambda: a_log(turns=3, tools=4, open_turn=True),
    "each way to end": lambda: a_log(
        turns=6,
        tools=1,
        reasons={1: "aborted", 2: "error", 3: "interrupted", 4: "max-tokens", 5: "one-of-tomorrow"},
    ),
    "calls without results": lambda: a_log(turns=4, tools=2, unanswered=(2, 4)),
    "notices and thoughts": lambda: a_log(turns=3, notices=2, thinks=True),
    "seed within a seed": lambda: a_log(turns=4, tools=1, inherited=2),
    "compaction in a turn": lambda: a_log(turns=5, compacted={4: 3}),
    "no system message at all": lambda: a_log(turns=3, tools=1, bookkeeping=False),
    "chained compactions": lambda: a_log(turns=6, tools=1, compacted={3: 4, 4: 2, 6: 2}),
}


def built(name: str) -> Callable[[Callable[[LogWriter], Any]], Callable[[LogWriter], Any]]:
    """Enter what the function writes among the logs."""

    def enter(write: Callable[[LogWriter], Any]) -> Callable[[LogWriter], Any]:
        def log() -> Session:
            writer = LogWriter()
            write(writer)
            return writer.session

        LOGS[name] = log
        return write

    return enter


def exchange(writer: LogWriter, words: str, *, tools: int = 0) -> list[int]:
    """A whole turn; the seqs of its results."""
    writer.open_turn(f"question {words}")
    results = answer_with_tools(writer, words, tools) if tools else []
    writer.assistant(text(f"answer {words}"))
    writer.close_turn()
    return results


def answer_with_tools(writer: LogWriter, words: str, tools: int) -> list[int]:
    """A step that calls tools and has their results; the next step is open after it."""
    blocks = writer.calls(tools)
    writer.assistant(text(f"looking {words}"), *blocks)
    begun = [writer.call(block) for block in blocks]
    results = [
        writer.result(call, block, f"long result {words}") for call, block in zip(begun, blocks, strict=True)
    ]
    writer.open_step()
    return results


def rewrite(writer: LogWriter, result: int, words: str) -> int:
    """Put a shorter result in the place of one, as a compaction of tool results does."""
    data = writer.rows[result]["data"]
    message = {**data["message"], "content": [text(words)]}
    return replace(writer, "tool/result", {**data, "message": message}, result, result)


def replace(writer: LogWriter, kind: str, data: dict[str, Any], first: int, last: int) -> int:
    """A row in the place of the live rows `first` to `last`."""
    start, end = writer.live.index(first), writer.live.index(last)
    gone = writer.live[start : end + 1]
    operation = {"op": "replace", "startSeq": first, "endSeq": last}
    seq = writer.add(kind, data, sourceEventSeqs=gone, surfaceOp=operation)
    writer.live[start : end + 1] = [seq]
    return seq


@built("results rewritten")
def results_rewritten(writer: LogWriter) -> None:
    """In the same turn, in the next, and across two."""
    (first,) = exchange(writer, "1", tools=1)
    (second,) = exchange(writer, "2", tools=1)
    writer.open_turn("question 3")
    rewrite(writer, second, "short result 2")
    (third,) = answer_with_tools(writer, "3", 1)
    rewrite(writer, third, "short result 3")
    writer.assistant(text("answer 3"))
    writer.close_turn()
    writer.open_turn("question 4")
    rewrite(writer, first, "short result 1")
    writer.assistant(text("answer 4"))
    writer.close_turn()
    exchange(writer, "5")


@built("replacement from within a turn")
def replacement_from_within(writer: LogWriter) -> None:
    """A summary that begins in the middle of turn 2 and ends in the middle of turn 3."""
    exchange(writer, "1")
    writer.open_turn("question 2")
    answer_with_tools(writer, "2", 1)
    first = writer.assistant(text("answer 2"))
    writer.close_turn()
    last = writer.open_turn("question 3")
    writer.assistant(text("answer 3"))
    writer.compact("summary of 2 and 3", first=first, last=last)
    writer.close_turn()
    exchange(writer, "4")


@built("system prompt changes")
def system_changes(writer: LogWriter) -> None:
    """Twice in the place of the first."""
    exchange(writer, "1")
    for number in (2, 3):
        writer.open_turn(f"question {number}")
        new_rules(writer, f"rules of turn {number}")
        writer.assistant(text(f"answer {number}"))
        writer.close_turn()
    exchange(writer, "4")


@built("system messages in the middle")
def later_systems(writer: LogWriter) -> None:
    """Appended behind other messages, one of them replaced later by another."""
    exchange(writer, "1")
    writer.open_turn("question 2")
    second = writer.system("More rules.")
    writer.assistant(text("answer 2"))
    writer.close_turn()
    writer.open_turn("question 3")
    message = {**writer.rows[second]["data"]["message"], "content": [text("Other rules.")]}
    replace(writer, "system/message", {**writer.frame, "message": message}, second, second)
    writer.assistant(text("answer 3"))
    writer.close_turn()
    exchange(writer, "4")


@built("developer messages")
def developer_messages(writer: LogWriter) -> None:
    """Text of a plugin, and a tool that came: its message names the request header of turn 1."""
    exchange(writer, "1")
    header = next(row["seq"] for row in writer.rows if row["type"] == "request/header")
    for number in (2, 3):
        writer.open_turn(f"question {number}")
        blocks = [text(f"a word of a plugin {number}")] if number == 2 else [tool_came("read")]
        more = {} if number == 2 else {"headerSeq": header}
        message = {
            "role": "developer",
            "content": blocks,
            "source": {"kind": "some-plugin"},
            "id": writer.name("developer"),
        }
        writer.show("developer/message", {**writer.frame, "message": message, **more})
        writer.assistant(text(f"answer {number}"))
        writer.close_turn()
    exchange(writer, "4")


def tool_came(name: str) -> dict[str, Any]:
    return {"type": "tool-addition", "toolName": name}


def new_rules(writer: LogWriter, words: str) -> None:
    head = writer.live[0]
    message = {**writer.rows[head]["data"]["message"], "content": [text(words)], "id": writer.name("system")}
    replace(writer, "system/message", {**writer.frame, "message": message}, head, head)


@built("rows of tomorrow")
def rows_of_tomorrow(writer: LogWriter) -> None:
    """Unknown types that may be skipped: with data of any shape, inside, between and before turns."""
    writer.add("tomorrow/first", {}, ignorable=True)
    for number in (1, 2, 3):
        writer.open_turn(f"question {number}")
        row = writer.add("tomorrow/thing", {"turn": number, "seq": 99, "deep": [{"x": None}]}, ignorable=True)
        writer.rows[row]["data"] = [1, "two", None] if number == 2 else writer.rows[row]["data"]
        writer.assistant(text(f"answer {number}"))
        writer.close_turn()
        writer.add("tomorrow/between", {"n": number}, ignorable=True)


@built("turns with no step")
def no_step(writer: LogWriter) -> None:
    """Aborted before they did anything: the first, two amid others, the last."""
    empty_turn(writer)
    open_turn_with_system(writer, "question 2")
    writer.assistant(text("answer 2"))
    writer.close_turn()
    empty_turn(writer)
    empty_turn(writer)
    exchange(writer, "5", tools=1)
    empty_turn(writer)


def empty_turn(writer: LogWriter) -> None:
    writer.turn += 1
    writer.step = 0
    writer.add("turn/start", {"turn": writer.turn})
    writer.close_turn("aborted")


def open_turn_with_system(writer: LogWriter, words: str) -> None:
    """The first turn with a step: the harness writes its system message there."""
    message = writer.user_message(words)
    writer.inbox("next-turn", [message])
    writer.turn += 1
    writer.step = 0
    writer.add("turn/start", {"turn": writer.turn})
    writer.inbox("next-turn", [], removed=1)
    writer.open_step()
    writer.system("Rules.")
    writer.show("user/message", message)


@built("images, some taken out")
def images(writer: LogWriter) -> None:
    """Images of two turns; some are taken out in their own turn, some in a later one."""
    first = pictures(writer, "1", 2)
    writer.assistant(text("seen 1"))
    writer.close_turn()
    second = pictures(writer, "2", 3)
    writer.add("image/offload", {"targets": [{"seq": second, "imageIndexes": [0, 2]}]})
    writer.assistant(text("seen 2"))
    writer.close_turn()
    writer.open_turn("question 3")
    targets = [{"seq": first, "imageIndexes": [1]}, {"seq": second, "imageIndexes": [1]}]
    writer.add("image/offload", {"targets": targets})
    writer.assistant(text("seen 3"))
    writer.close_turn()
    exchange(writer, "4")


def pictures(writer: LogWriter, words: str, count: int) -> int:
    """Open a turn with images, each with an attachment of its own."""
    seq = writer.open_turn(f"look at {words}", images=count)
    blocks = [block for block in writer.rows[seq]["data"]["content"] if block["type"] == "image"]
    for place, block in enumerate(blocks):
        digest = f"{seq:04x}{place:04x}".ljust(64, "0")
        block["attachment"] = {
            "kind": "image",
            "attachmentId": f"sha256:{digest}",
            "mediaType": "image/png",
            "width": 1,
            "height": 1,
            "bytes": 70,
        }
    return seq


@built("calls of a tool's program")
def nested_calls(writer: LogWriter) -> None:
    """A tool runs a program that calls tools, which call further ones."""
    exchange(writer, "1")
    for number in (2, 3):
        writer.open_turn(f"question {number}")
        (block,) = writer.calls(1, name="program")
        writer.assistant(block)
        call = writer.call(block)
        root = {"rootCallId": block["id"], "parentCallId": block["id"]}
        outer = {**root, "subCallId": f"sub-{number}", "name": "read", "arguments": "{}"}
        inner = {**outer, "subCallId": f"sub-{number}-1", "parentCallId": outer["subCallId"]}
        for dispatch in (outer, inner):
            writer.add("tool/ptc-dispatch-start", dispatch)
        for dispatch in (inner, outer):
            writer.add("tool/ptc-dispatch", {**dispatch, "content": [text("done")], "isError": False})
        writer.result(call, block, f"the program {number} has ended")
        writer.open_step()
        writer.assistant(text(f"answer {number}"))
        writer.close_turn()


@built("queued input claimed later")
def queued_input(writer: LogWriter) -> None:
    """What is typed while turn 2 runs is claimed by turn 3; more waits at the end of the log."""
    exchange(writer, "1")
    writer.open_turn("question 2")
    waiting = writer.user_message("typed while 2 ran")
    writer.inbox("next-turn", [waiting])
    writer.assistant(text("answer 2"))
    writer.close_turn()
    writer.turn += 1
    writer.step = 0
    writer.add("turn/start", {"turn": writer.turn})
    writer.inbox("next-turn", [], removed=1)
    writer.open_step()
    writer.show("user/message", waiting)
    writer.assistant(text("answer 3"))
    writer.close_turn()
    exchange(writer, "4")
    writer.inbox("next-turn", [writer.user_message("typed after 4")])


@built("steered within a turn")
def steered(writer: LogWriter) -> None:
    """Notices wait for the next step over a turn's border."""
    exchange(writer, "1")
    writer.open_turn("question 2")
    late = writer.user_message("a child has ended", kind="subagent-settled")
    writer.inbox("next-step", [late])
    writer.assistant(text("answer 2"))
    writer.close_turn()
    writer.open_turn("question 3")
    writer.inbox("next-step", [], removed=1)
    writer.show("user/message", late)
    writer.assistant(text("answer 3"))
    writer.close_turn()


@built("model retried")
def retried(writer: LogWriter) -> None:
    """Retries of a model call, the answer that came after them, and a turn that gave up."""
    exchange(writer, "1")
    for number in (2, 3):
        writer.open_turn(f"question {number}")
        for count in (1, 2):
            chain = {
                **writer.frame,
                "provider": ROUTE["provider"],
                "policyKey": "p",
                "retryId": f"r{number}",
                "retry": count,
                "delayMs": 1,
            }
            writer.add("llm/retry", chain)
            writer.add("llm/retry-started", {**writer.frame, "retryId": f"r{number}", "retry": count})
        if number == 2:
            writer.assistant(text("answer 2"))
        writer.close_turn("completed" if number == 2 else "error")
    exchange(writer, "4")


@built("commands and titles")
def commands(writer: LogWriter) -> None:
    """Commands over a turn's border and titles that cite messages of earlier turns."""
    said = []
    for number in (1, 2, 3):
        said.append(writer.open_turn(f"question {number}"))
        writer.assistant(text(f"answer {number}"))
        writer.close_turn()
        writer.add("command/run", {"commandId": f"c{number}", "name": "model"})
        if number > 1:
            writer.add("command/done", {"commandId": f"c{number - 1}", "kind": "success"})
        writer.add("session/title", {"title": "t", "messageSeqs": list(said), "source": {"kind": "llm"}})


@built("compaction between turns")
def compaction_between(writer: LogWriter) -> None:
    """By a command, in no turn."""
    exchange(writer, "1", tools=2)
    first = writer.live[1]
    exchange(writer, "2")
    number, writer.turn = writer.turn, None  # type: ignore[assignment]
    writer.compact("summary of 1 and 2", first=first, last=writer.live[-1])
    writer.turn = number
    exchange(writer, "3")
    exchange(writer, "4")


@built("compaction of everything")
def compaction_of_everything(writer: LogWriter) -> None:
    """The last turn's summary stands for all that was said."""
    for number in (1, 2, 3):
        exchange(writer, str(number), tools=1)
    writer.open_turn("question 4")
    writer.compact("summary of all", first=writer.live[1], last=writer.live[-1])
    writer.assistant(text("answer 4"))
    writer.close_turn()


@built("empty answers")
def empty_answers(writer: LogWriter) -> None:
    """Answers with no blocks, with thoughts alone, with empty text."""
    for number, blocks in enumerate(((), (reasoning("only thoughts"),), (text(""),)), start=1):
        writer.open_turn(f"question {number}")
        writer.assistant(*blocks)
        writer.close_turn("max-tokens")
    exchange(writer, "4")


@built("plain end of an inherited part")
def plain_markers(writer: LogWriter) -> None:
    """A log that was resumed: markers that end no seed."""
    exchange(writer, "1")
    writer.add("session/end-seed", {})
    exchange(writer, "2", tools=1)
    writer.add("session/end-seed", {})
    exchange(writer, "3")


@built("a child's own compaction of its seed")
def child_compacts(writer: LogWriter) -> None:
    """Rows behind the marker take the place of rows before it."""
    exchange(writer, "1", tools=1)
    exchange(writer, "2")
    writer.add("session/end-seed", {"inherited": True})
    writer.open_turn("question 3")
    writer.compact("summary of the seed", first=writer.live[1], last=writer.live[-2])
    writer.assistant(text("answer 3"))
    writer.close_turn()
    exchange(writer, "4")


@built("repairs of a fork")
def fork_repairs(writer: LogWriter) -> None:
    """Results that a fork wrote for calls which never began; one of them was rewritten since."""
    exchange(writer, "1")
    for number in (2, 3):
        writer.open_turn(f"question {number}")
        seq = not_started(writer)
        writer.open_step()
        writer.assistant(text(f"answer {number}"))
        writer.close_turn()
    writer.open_turn("question 4")
    rewrite(writer, seq, "shorter")
    writer.assistant(text("answer 4"))
    writer.close_turn()


def not_started(writer: LogWriter) -> int:
    """A call, and the result of a fork that cut it off."""
    (block,) = writer.calls(1)
    writer.assistant(text("looking"), block)
    return writer.repair(block, "The branch has no record of this call.")
