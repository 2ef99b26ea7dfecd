"""Where a child is, from the end of its log."""

from __future__ import annotations

from typing import Any

from dsh_tasks.progress import TEXT_MOST_BYTES, Reading
from dsh_tasks.session import Event
from dsh_tasks.task import Status
from tests.fake_client import a_task

RUNNING = a_task(status=Status.RUNNING)


def row(kind: str, **data: Any) -> Event:
    return Event.from_row({"type": kind, "seq": 0, "time": 1_000, "data": data})


def said(text: str, *calls: str) -> Event:
    blocks = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool-call", "id": one, "name": "read", "arguments": "{}"} for one in calls]
    return row("assistant/message", turn=1, step=2, message={"content": blocks})


def called(call_id: str) -> Event:
    return row("tool/call", turn=1, step=2, callId=call_id, name="read", arguments="{}")


def answered(call_id: str) -> Event:
    return row("tool/result", turn=1, step=2, message={"toolCallId": call_id})


def read(*rows: Event) -> Reading:
    reading = Reading()
    reading.take(reversed(rows))
    return reading


def test_the_calls_at_work_are_those_that_have_begun_and_have_no_result() -> None:
    rows = [row("step/start", turn=1, step=2), said("I look", "a", "b", "c")]
    reading = read(*rows, called("a"), called("b"), answered("a"))
    progress = reading.progress(RUNNING)
    assert (progress.turn, progress.step, progress.text) == (1, 2, "I look")
    assert [(call.name, call.call_id, call.since_ms) for call in progress.calls] == [("read", "b", 1_000)]
    assert reading.is_complete


def test_what_an_earlier_attempt_had_begun_is_at_work_no_more() -> None:
    rows = [row("step/start", turn=1, step=2), said("x", "a"), called("a")]
    assert read(*rows, row("dsh-tasks/attempt", attempt=2)).progress(RUNNING).calls == ()


def test_of_a_task_that_does_not_run_nothing_is_at_work() -> None:
    reading = read(row("step/start", turn=1, step=2), said("x", "a"), called("a"))
    assert reading.progress(a_task(status=Status.QUEUED)).calls == ()


def test_the_last_text_is_that_of_the_last_answer_that_holds_any() -> None:
    progress = read(said("first"), said("  "), said("", "a")).progress(RUNNING)
    assert (progress.text, progress.text_bytes, progress.said_ms) == ("first", 5, 1_000)


def test_a_long_text_is_told_from_its_end_and_with_its_length() -> None:
    progress = read(said("ä" * 10_000 + "end")).progress(RUNNING)
    assert len(progress.text.encode()) <= TEXT_MOST_BYTES
    assert (progress.text[-3:], progress.text_bytes) == ("end", 20_003)


def test_an_empty_log_is_no_turn_and_no_text() -> None:
    progress = read().progress(RUNNING)
    assert (progress.turn, progress.step, progress.text, progress.said_ms) == (0, 0, "", None)


def test_a_turn_that_has_just_begun_has_no_step() -> None:
    progress = read(row("step/start", turn=1, step=7), row("turn/start", turn=2)).progress(RUNNING)
    assert (progress.turn, progress.step) == (2, 0)
