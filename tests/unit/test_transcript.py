"""The rows that a child writes: their order, and what the strict reader and the harness' rules say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsh_tasks.session import Event, Session
from dsh_tasks.surface import messages
from dsh_tasks.task import Cause, Status
from tests.fake_run import FakeRun, a_child, check_log, next_attempt, play, run_child
from workers.engines.scripted import NoopEngine, ScriptedEngine
from workers.engines.transcript import NOT_STARTED, Inherited, RouteName, Transcript, closing, own_text

ROUTE = RouteName("p", "m")


def a_transcript(**given: Any) -> Transcript:
    child = a_child(**given)
    return Transcript(child, Inherited.of(child.seed).after(child.log), lambda: 7)


def a_seed(*, turns: int = 2) -> tuple[Event, ...]:
    """Completed turns as this project writes them, with a system message first."""
    events: tuple[Event, ...] = ()
    for turn in range(turns):
        child = a_child(f"question {turn + 1}", seed=events)
        made = Transcript(child, Inherited.of(events), lambda: 5)
        rows = made.opening(system="You are the parent.")
        rows = [row for row in rows if row["type"] not in ("session/end-seed", "subagent/descriptor")]
        rows = [{**row, "seq": len(events) + place} for place, row in enumerate(rows)]
        made.accept(rows)
        made.accept(made.answer([{"type": "text", "text": f"answer {turn + 1}"}], ROUTE))
        made.accept(made.end("completed"))
        events = (*events, *map(Event.from_row, made.rows))
    return events


def written(transcript: Transcript, child_seed: tuple[Event, ...] = ()) -> Session:
    own = tuple(Event.from_row(row) for row in transcript.rows)
    return Session(a_child(seed=child_seed).header, (*child_seed, *own))


def call_block(call_id: str, name: str = "echo") -> dict[str, Any]:
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": "{}"}


def test_a_fresh_child_opens_with_its_prompt_verbatim_and_one_descriptor_inside_the_first_turn() -> None:
    blocks = [{"type": "text", "text": "first"}, {"type": "image", "attachment": {"id": "x"}}]
    transcript = a_transcript(prompt=blocks)
    rows = transcript.opening()
    assert [row["type"] for row in rows] == [
        "agent/inbox/spliced",
        "turn/start",
        "agent/inbox/spliced",
        "subagent/descriptor",
        "step/start",
        "user/message",
    ]
    assert rows[5]["data"]["content"] == blocks
    assert rows[0]["data"]["inserted"] == [rows[5]["data"]]
    assert rows[3]["data"] == {"version": 3, "mode": "one-shot", "provider": "spawn", "label": "a label"}
    assert "surfaceOp" not in rows[3]


def test_a_seeded_child_marks_the_end_of_its_seed_and_continues_its_turn_numbers() -> None:
    seed = a_seed(turns=2)
    transcript = a_transcript(prompt="go on", seed=seed)
    rows = transcript.opening()
    assert (rows[0]["type"], rows[0]["seq"], rows[0]["data"]) == (
        "session/end-seed",
        len(seed),
        {"inherited": True},
    )
    assert next(row for row in rows if row["type"] == "turn/start")["data"] == {"turn": 3}
    transcript.accept(rows)
    transcript.accept(transcript.end("completed"))
    check_log(written(transcript, seed))


def test_a_system_text_has_a_row_only_where_it_differs_and_takes_the_inherited_ones_place() -> None:
    seed = a_seed()
    same = a_transcript(seed=seed).opening(system="You are the parent.")
    assert "system/message" not in [row["type"] for row in same]
    transcript = a_transcript(seed=seed)
    transcript.accept(transcript.opening(system="You are a critic."))
    transcript.accept(transcript.end("completed"))
    session = written(transcript, seed)
    check_log(session)
    shown = messages(session.events)
    assert [message["content"][0]["text"] for message in shown if message["role"] == "system"] == [
        "You are a critic."
    ]
    assert shown[0]["role"] == "system"


def test_a_system_text_that_cannot_stand_first_is_kept_in_a_row_that_no_model_sees() -> None:
    seed = a_transcript(prompt="hello")
    seed.accept([row for row in seed.opening() if row["type"] != "subagent/descriptor"])
    events = tuple(
        Event.from_row({**row, "seq": place})
        for place, row in enumerate([*seed.rows, *seed.end("completed")])
    )
    transcript = a_transcript(seed=events)
    transcript.accept(transcript.opening(system="You are a critic."))
    transcript.accept(transcript.end("completed"))
    check_log(written(transcript, events))
    assert "dsh-tasks/system" in [row["type"] for row in transcript.rows]


@pytest.mark.parametrize("kind", ["completed", "max-tokens", "error", "aborted", "interrupted"])
def test_a_turn_ends_with_its_reason_whatever_is_open(kind: str) -> None:
    transcript = a_transcript()
    transcript.accept(transcript.opening())
    transcript.accept(
        transcript.answer([{"type": "text", "text": "yes"}, call_block("c1"), call_block("c2")], ROUTE)
    )
    transcript.accept(transcript.calls([("c1", "echo", "{}")]))
    rows = transcript.end(kind, error={"message": "m", "code": "C"} if kind == "error" else None)
    assert [row["type"] for row in rows] == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert [row["data"]["error"]["code"] for row in rows[:2]] == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
    assert rows[1]["data"]["message"]["content"][0]["text"] == NOT_STARTED
    assert rows[-1]["data"]["reason"]["kind"] == kind
    transcript.accept(rows)
    check_log(written(transcript))


def test_a_closed_log_needs_no_closing() -> None:
    transcript = a_transcript()
    assert closing([], 0, 0, kind="aborted") == []
    transcript.accept(transcript.opening())
    transcript.accept(transcript.end("completed"))
    assert transcript.end("aborted") == []


def test_a_further_attempt_closes_the_open_turn_marks_the_border_and_asks_again() -> None:
    child = a_child("do it")
    first = Transcript(child, Inherited(), lambda: 7)
    first.accept(first.opening())
    first.accept(first.answer([call_block("c1"), call_block("c2")], ROUTE))
    first.accept(first.calls([("c1", "echo", "{}"), ("c2", "echo", "{}")]))
    first.accept(first.result("c1", "done", is_error=False))
    again = next_attempt(child, [Event.from_row(row) for row in first.rows])
    second = Transcript(again, Inherited.of(again.log), lambda: 8)
    rows = second.opening()
    assert [row["type"] for row in rows] == [
        "tool/result",
        "step/end",
        "turn/end",
        "dsh-tasks/attempt",
        "agent/inbox/spliced",
        "turn/start",
        "agent/inbox/spliced",
        "step/start",
        "user/message",
    ]
    assert rows[0]["data"]["message"]["toolCallId"] == "c2"
    assert "unknown" in rows[0]["data"]["message"]["content"][0]["text"]
    assert rows[2]["data"] == {"turn": 1, "reason": {"kind": "interrupted"}}
    assert (rows[3]["data"], rows[3]["ignorable"]) == ({"attempt": 2}, True)
    assert rows[5]["data"] == {"turn": 2}
    second.accept(rows)
    second.accept(second.end("completed"))
    check_log(written(second))


def test_the_third_attempt_follows_the_second_as_the_second_the_first() -> None:
    child = a_child("do it")
    for attempt in (1, 2, 3):
        transcript = Transcript(child, Inherited.of(child.log), lambda: 7)
        transcript.accept(transcript.opening())
        assert transcript.turn == attempt
        child = next_attempt(child, [Event.from_row(row) for row in transcript.rows])
    transcript.accept(transcript.end("completed"))
    check_log(written(transcript))
    assert [turn.reason for turn in written(transcript).turns()] == [
        "interrupted",
        "interrupted",
        "completed",
    ]


def answers(*contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "assistant/message", "data": {"message": {"content": content}}} for content in contents]


def test_the_output_is_the_last_own_message_that_holds_text() -> None:
    said = [
        {"type": "text", "text": "one "},
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "two"},
    ]
    assert own_text(answers([{"type": "text", "text": "early"}], said, [call_block("c")])) == "one two"
    assert own_text(answers(said, [])) == "one two"
    assert own_text(answers(said, [{"type": "text", "text": " \n"}])) == "one two"
    assert own_text(answers([{"type": "reasoning", "text": "hm"}]), "streamed") == "streamed"
    assert own_text([], "  ") == ""


def test_an_output_never_comes_from_the_seed() -> None:
    outcome, _ = run_child(NoopEngine(), a_child(seed=a_seed()))
    assert outcome.output == ""


def test_the_engine_that_does_nothing_writes_its_turn_with_the_settlement() -> None:
    outcome, run = run_child(NoopEngine(), a_child())
    assert (outcome.status, run.appends) == (Status.COMPLETED, [])
    assert run.session.turns()[-1].reason == "completed"


def test_the_scripted_engine_gives_its_replies_in_order_and_keeps_the_last() -> None:
    engine = ScriptedEngine(["one", RuntimeError("broken"), "three"])
    outcomes = [run_child(engine, a_child())[0] for _ in range(4)]
    assert [outcome.output for outcome in outcomes] == ["one", "", "three", "three"]
    assert (outcomes[1].status, outcomes[1].cause, outcomes[1].detail) == (
        Status.FAILED,
        Cause.ERROR,
        "broken",
    )


def test_a_seed_of_this_projects_own_turns_is_a_valid_log() -> None:
    async def two() -> None:
        for turns in (1, 3):
            await play(ScriptedEngine(), FakeRun(a_child(seed=a_seed(turns=turns))))

    asyncio.run(two())
