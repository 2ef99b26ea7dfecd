"""What a model sees of a log."""

from __future__ import annotations

import json

import pytest

from dsh_tasks import format as log_format
from dsh_tasks import surface
from dsh_tasks.errors import SessionRefused
from dsh_tasks.session import Event, Replace
from tests.factories import LogWriter, a_log, file_of, lines_of, text


def words(events: tuple[Event, ...]) -> list[str]:
    return [
        block["text"]
        for message in surface.messages(events)
        for block in message["content"]
        if "text" in block
    ]


def test_messages_come_in_the_order_in_which_they_were_shown() -> None:
    assert words(a_log(2).events) == [
        "You are a helpful software engineer assistant.",
        "question 1.",
        "answer 1",
        "question 2.",
        "answer 2",
    ]


def test_rows_for_people_and_programs_are_never_shown() -> None:
    log = a_log(1, tools=1)
    shown = {node.event.type for node in surface.fold(log.events)}
    assert shown == {"system/message", "user/message", "assistant/message", "tool/result"}


def test_a_summary_stands_where_the_summarised_messages_stood() -> None:
    log = a_log(4, compacted={3: 4})
    assert words(log.events) == [
        "You are a helpful software engineer assistant.",
        "summary by turn 3",
        "question 3.",
        "answer 3",
        "question 4.",
        "answer 4",
    ]


def test_parallel_calls_are_answered_each_by_its_own_result() -> None:
    log = a_log(1, tools=3)
    shown = surface.messages(log.events)
    calls = surface.calls_of(shown[2])
    assert [message["toolCallId"] for message in shown[3:6]] == calls
    assert all(message["role"] == "tool" and message["isError"] is False for message in shown[3:6])


def test_a_message_is_shown_as_it_was_logged() -> None:
    log = a_log(1, images=2, thinks=True)
    user, assistant = surface.messages(log.events)[1:]
    assert [block["type"] for block in user["content"]] == ["text", "image", "image"]
    assert [block["type"] for block in assistant["content"]] == ["reasoning", "text"]


def test_a_call_of_a_completed_turn_without_a_result_is_answered_as_unknown() -> None:
    shown = surface.messages(a_log(1, unanswered=(1,)).events)
    assert shown[-1]["role"] == "tool"
    assert shown[-1]["isError"] is True
    assert shown[-1]["toolCallId"] == surface.calls_of(shown[-2])[0]
    assert shown[-1]["content"][0]["text"] == surface.UNKNOWN_OUTCOME


def test_calls_of_an_open_turn_stay_unanswered() -> None:
    shown = surface.messages(a_log(1, open_turn=True).events)
    calls = surface.calls_of(shown[-2])
    assert len(calls) == 4
    assert [message["toolCallId"] for message in shown if message["role"] == "tool"] == calls[:1]


def test_a_result_whose_call_was_summarised_away_is_not_shown() -> None:
    writer = LogWriter(bookkeeping=False)
    asked = writer.open_turn("question")
    (block,) = writer.calls(1)
    answered = writer.assistant(block)
    begun = writer.call(block)
    writer.result(begun, block, "kept")
    writer.compact("summary", first=asked, last=answered)
    writer.close_turn()
    assert words(writer.session.events) == ["summary"]


def test_an_empty_answer_holds_its_place_and_is_not_shown() -> None:
    writer = LogWriter(bookkeeping=False)
    writer.open_turn("question")
    writer.assistant()
    writer.close_turn("max-tokens")
    assert len(surface.fold(writer.session.events)) == 2
    assert words(writer.session.events) == ["question"]


def test_a_result_that_was_rewritten_is_shown_in_its_new_words() -> None:
    writer = LogWriter(bookkeeping=False)
    writer.open_turn("question")
    (block,) = writer.calls(1)
    writer.assistant(block)
    old = writer.result(writer.call(block), block, "long")
    data = json.loads(json.dumps(writer.rows[old]["data"]))
    data["message"]["content"] = [text("short")]
    writer.add(
        "tool/result",
        data,
        sourceEventSeqs=[old],
        surfaceOp={"op": "replace", "startSeq": old, "endSeq": old},
    )
    writer.close_turn()
    log = writer.session
    assert log_format.parse(log_format.write(log)) == log
    assert words(log.events)[-1] == "short"


def test_an_image_that_was_taken_out_is_marked() -> None:
    log = a_log(1, images=3)
    lines = lines_of(log)
    seq = next(event.seq for event in log.events if event.type == "user/message")
    data = {"targets": [{"seq": seq, "imageIndexes": [0, 2]}]}
    lines.append({"type": "image/offload", "seq": len(lines) - 1, "time": 1, "data": data})
    blocks = surface.messages(log_format.parse(file_of(lines)).events)[1]["content"]
    assert [block.get("offloaded", False) for block in blocks] == [False, True, False, True]


def test_announcements_of_tools_are_not_shown_and_words_of_a_plugin_are() -> None:
    log = a_log(1)
    lines = lines_of(log)
    end = next(place for place, line in enumerate(lines) if line["type"] == "step/end")
    blocks = [{"type": "tool-removal", "toolName": "read"}]
    for content in (blocks, [*blocks, text("now without read")]):
        message = {
            "role": "developer",
            "id": f"d{len(content)}",
            "source": {"kind": "plan-mode"},
            "content": content,
        }
        row = {"type": "developer/message", "time": 1, "data": {"turn": 1, "step": 1, "message": message}}
        lines.insert(end, {**row, "surfaceOp": "append"})
    for seq, line in enumerate(lines[1:]):
        line["seq"] = seq
    shown = surface.messages(log_format.parse(file_of(lines)).events)
    assert [message["content"] for message in shown if message["role"] == "developer"] == [
        [text("now without read")]
    ]


def test_a_replacement_of_what_is_not_there_is_refused() -> None:
    log = a_log(1)
    seq = len(log.events)
    stray = Event("user/message", seq, 0, log.events[5].data, (1,), Replace(1, 1))
    with pytest.raises(SessionRefused):
        surface.fold((*log.events, stray))
