"""Structured output of the agent engine, against a scripted model over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dsh_tasks.task import Cause, Outcome, Status
from tests.fake_run import FakeRun, a_child, a_tool, next_attempt, play, run_child, without_settlement
from tests.model_server import MODEL, ModelServer, Reply, Request
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.judging import Judge
from workers.engines.agent.structured import INSTRUCTION, MAX_INVALID, REMINDER, Progress, StructuredOutput
from workers.engines.base import StopReason

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def in_order(*replies: Reply) -> Callable[[Request], Reply]:
    return lambda request: replies[request.number]


def giving(arguments: Any) -> Reply:
    """An answer that calls the tool; a text is sent as it is."""
    return Reply("", tools=[("structured_output", arguments)])


def wanting(schema: dict[str, Any] = SCHEMA, turns: int = 1, **given: Any) -> tuple[Outcome, FakeRun]:
    engine = AgentEngine(structured_repair_turns=turns)
    return run_child(engine, a_child("go", model=MODEL, output_schema=schema, **given), [a_tool()])


def told(run: FakeRun) -> list[str]:
    return [row["data"]["message"]["content"][0]["text"] for row in run.rows if row["type"] == "tool/result"]


# -- one repair turn ----------------------------------------------------------------------------------


def test_a_child_that_ends_without_its_value_is_told_what_is_missing_and_goes_on(model: ModelServer) -> None:
    model.answer = in_order(Reply("I am done"), giving({"n": 4}))
    outcome, run = wanting()
    assert (outcome.status, outcome.structured, outcome.usage.model_calls) == (Status.COMPLETED, {"n": 4}, 2)
    assert model.requests[1].messages[-2:] == [
        {"role": "assistant", "content": "I am done"},
        {"role": "user", "content": REMINDER},
    ]
    assert run.kinds()[-9:-5] == ["assistant/message", "step/end", "step/start", "user/message"]
    assert [turn.reason for turn in run.session.turns()] == ["completed"]


def test_after_its_repair_turn_it_has_failed_and_its_last_words_are_kept(model: ModelServer) -> None:
    model.answer = in_order(Reply("first words"), Reply("last words"))
    outcome, _ = wanting()
    assert (outcome.status, outcome.cause, outcome.has_structured) == (Status.FAILED, Cause.SCHEMA, False)
    assert (outcome.output, outcome.partial, outcome.usage.model_calls) == ("last words", True, 2)


@pytest.mark.parametrize("turns", [0, 3])
def test_the_number_of_repair_turns_is_the_operators(model: ModelServer, turns: int) -> None:
    outcome, _ = wanting(turns=turns)
    assert (outcome.status, outcome.cause, outcome.usage.model_calls) == (
        Status.FAILED,
        Cause.SCHEMA,
        turns + 1,
    )


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_answer_that_did_not_end_well_is_not_mended(model: ModelServer, finish: str) -> None:
    model.answer = in_order(Reply("half", finish=finish))
    outcome, _ = wanting()
    assert (outcome.status, outcome.usage.model_calls) == (Status.FAILED, 1)
    assert outcome.cause in (Cause.MAX_TOKENS, Cause.REFUSAL)


def test_a_child_without_a_schema_is_told_nothing(model: ModelServer) -> None:
    outcome, _ = run_child(AgentEngine(), a_child("go", model=MODEL))
    assert (outcome.status, len(model.requests)) == (Status.COMPLETED, 1)


def test_an_answer_that_says_nothing_is_not_sent_back_as_an_empty_message(model: ModelServer) -> None:
    model.answer = in_order(Reply("", finish="stop"), giving({"n": 1}))
    outcome, _ = wanting()
    assert outcome.structured == {"n": 1}
    assert [message["role"] for message in model.requests[1].messages] == ["system", "user", "user"]


def test_a_kill_after_a_clean_end_without_a_value_is_a_kill(model: ModelServer) -> None:
    run = FakeRun(a_child("go", model=MODEL, output_schema=SCHEMA))

    def kill(kinds: list[str]) -> None:
        if "user/message" in kinds and "assistant/message" in kinds:
            run.stop(StopReason.KILL)

    run.on_append = kill
    outcome = asyncio.run(play(AgentEngine(), run))
    assert (outcome.status, outcome.has_structured, len(model.requests)) == (Status.KILLED, False, 1)


# -- tries -------------------------------------------------------------------------------------------


def test_every_kind_of_invalid_value_counts_and_is_told_with_its_place(model: ModelServer) -> None:
    wrong = ['{"n": "x"}', '{"n": 1', '{"n": NaN}', '{"n": 1, "n": 2}', '[{"n": 1}]']
    assert len(wrong) == MAX_INVALID
    model.answer = in_order(*(giving(one) for one in wrong))
    outcome, run = wanting()
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.SCHEMA)
    faults = [text.splitlines()[1] for text in told(run)]
    assert faults[0] == "$.n: 'x' is not of type 'integer'"
    assert "no JSON" in faults[1]
    assert "NaN" in faults[2]
    assert "stands twice" in faults[3]
    assert "is not of type 'object'" in faults[4]
    assert [text.splitlines()[-1] for text in told(run)][-2:] == [
        "Call the tool again; 1 more tries.",
        "There are no more tries.",
    ]


def test_tries_are_bounded_within_one_answer_too(model: ModelServer) -> None:
    calls = [("structured_output", {})] * MAX_INVALID + [
        ("structured_output", {"n": 1}),
        ("echo", {"text": "x"}),
    ]
    model.answer = in_order(Reply("", tools=calls))
    outcome, run = wanting()
    assert (outcome.status, outcome.has_structured) == (Status.FAILED, False)
    assert told(run)[-2:] == [f"Error: refused, {MAX_INVALID} values did not fit the schema"] * 2


def test_a_value_that_is_too_large_is_told_so(model: ModelServer) -> None:
    model.answer = in_order(giving({"n": 1, "s": "x" * 1_100_000}), giving({"n": 1}))
    outcome, run = wanting()
    assert "at most 1048576" in told(run)[0]
    assert outcome.structured == {"n": 1}


# -- any type, to the letter ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [3, 1, 2]),
        ({"type": "string"}, "ä"),
        ({"type": "number"}, 1.5),
        ({"type": "null"}, None),
        ({"type": "boolean"}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "object", "required": ["a"]}]}, {"a": 1}),
        ({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}),
        ({"$defs": {"x": {"type": "string"}}, "type": "array", "items": {"$ref": "#/$defs/x"}}, ["y"]),
        ({}, {"value": {"value": 1}}),
    ],
)
def test_a_value_of_any_type_is_asked_for_as_an_object_and_comes_out_as_it_is(
    model: ModelServer, schema: dict[str, Any], value: Any
) -> None:
    model.answer = in_order(
        giving({"value": {"x": 1} if value != {"value": {"value": 1}} else value}), giving({"value": value})
    )
    outcome, _ = wanting(schema)
    assert (outcome.status, outcome.structured, outcome.has_structured) == (Status.COMPLETED, value, True)
    shown = model.requests[0].body["tools"][-1]["function"]
    assert shown["parameters"]["type"] == "object"
    assert "`value`" in shown["description"]


@pytest.mark.parametrize(
    "written",
    [
        "1.0",
        "1",
        "1E5",
        "-0.0",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
        '"ä\\u00e4\\n\\ud83d\\ude00"',
        '{"b": 1, "a": {"z": 1.0, "y": []}}',
        "[ 1,\n\t2 ]",
        "null",
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_value_is_the_models_json_to_the_letter(model: ModelServer, written: str, wrapped: bool) -> None:
    text = f' {{"value" : {written}}} ' if wrapped else f' {{"n": 1, "x": {written}}} '
    model.answer = in_order(giving(text))
    outcome, _ = wanting({} if wrapped else SCHEMA)
    assert outcome.structured_text == (written if wrapped else text.strip())
    assert repr(outcome.structured) == repr(json.loads(outcome.structured_text))


@pytest.mark.parametrize(
    "written", ["1e400", "NaN", "Infinity", '{"a": 1, "a": 1}', '"\\ud800"', "1" * 5_000]
)
def test_what_a_reader_could_not_read_back_is_told_and_can_be_mended(
    model: ModelServer, written: str
) -> None:
    model.answer = in_order(giving(f'{{"value": {written}}}'), giving('{"value": 7}'))
    outcome, run = wanting({})
    assert told(run)[0].startswith("Error: the value does not fit its schema:\n$: ")
    assert outcome.structured_text == "7"


# -- its instruction -------------------------------------------------------------------------------------


def systems(request: Request) -> list[str]:
    return [message["content"] for message in request.messages if message["role"] == "system"]


def seed_of(run: FakeRun) -> tuple[Any, ...]:
    """What a fork of the child inherits."""
    return tuple(run.session.events)


@pytest.mark.parametrize("persona", [None, "You are P."])
def test_a_fork_of_a_child_that_was_asked_for_a_value_is_not_asked_for_it(
    model: ModelServer, persona: str | None
) -> None:
    model.answer = in_order(giving({"n": 1}), Reply("plain"))
    _, parent = wanting(persona=persona)
    assert systems(model.requests[0]) == ["\n\n".join(part for part in (persona, INSTRUCTION) if part)]
    outcome, run = run_child(AgentEngine(), a_child("go on", model=MODEL, seed=seed_of(parent)))
    assert (outcome.output, systems(model.requests[1])) == ("plain", [persona] if persona else [])
    assert "structured_output" not in model.requests[1].tool_names
    assert len(run.session.turns()) == 2


def test_a_fork_that_is_asked_for_a_value_itself_is_told_once(model: ModelServer) -> None:
    model.answer = in_order(giving({"n": 1}), giving({"n": 2}), giving({"n": 3}))
    _, parent = wanting(persona="You are P.")
    wanting(seed=seed_of(parent))
    wanting(seed=seed_of(parent), persona="You are Q.")
    assert systems(model.requests[1]) == [f"You are P.\n\n{INSTRUCTION}"]
    assert systems(model.requests[2]) == [f"You are Q.\n\n{INSTRUCTION}"]


# -- after a lost worker -------------------------------------------------------------------------------


def crashed(model: ModelServer, *replies: Reply, rows: int) -> tuple[Any, FakeRun]:
    """A child whose worker died after so many of its rows; its next attempt, and the rows of the first."""
    model.answer = in_order(*replies)
    child = a_child("go", model=MODEL, output_schema=SCHEMA)
    outcome, run = run_child(AgentEngine(), child)
    log = without_settlement(run, outcome)
    model.requests.clear()
    return next_attempt(child, log[:rows] if rows else log), run


def test_tries_and_reminders_are_read_from_the_log(model: ModelServer) -> None:
    child, run = crashed(
        model, giving({}), giving({"n": "x"}), Reply("done"), giving({}), Reply("done"), rows=0
    )
    assert Progress.of(run.rows) == Progress(None, invalid=3, reminders=1)
    assert Progress.of(event.row() for event in child.log) == Progress(None, invalid=3, reminders=1)


def test_a_value_that_was_accepted_before_the_crash_ends_the_next_attempt_without_a_model_call(
    model: ModelServer,
) -> None:
    child, _ = crashed(model, giving(' {"n": 1.0} '), rows=0)
    outcome, run = run_child(AgentEngine(), child)
    assert (outcome.status, outcome.structured_text, len(model.requests)) == (
        Status.COMPLETED,
        '{"n": 1.0}',
        0,
    )


def test_a_reminder_that_was_sent_before_the_crash_is_not_sent_again(model: ModelServer) -> None:
    child, _ = crashed(model, Reply("first"), Reply("second"), rows=0)
    model.answer = in_order(Reply("third"))
    outcome, _ = run_child(AgentEngine(), child)
    assert (outcome.status, outcome.cause, len(model.requests)) == (Status.FAILED, Cause.SCHEMA, 1)


def test_a_call_whose_result_was_not_stored_is_judged_again_without_a_model_call(model: ModelServer) -> None:
    child, _ = crashed(model, giving({"n": 1}), rows=0)
    last = max(place for place, event in enumerate(child.log) if event.type == "tool/result")
    child = replace(child, log=child.log[:last])
    assert Progress.of(event.row() for event in child.log) == Progress()
    outcome, run = run_child(AgentEngine(), child)
    assert (outcome.structured, model.requests) == ({"n": 1}, [])
    assert Progress.of(event.row() for event in run.own) == Progress('{"n": 1}')


@pytest.mark.parametrize("ends_well", [True, False])
def test_wherever_the_worker_is_lost_the_child_ends_as_without_it(
    model: ModelServer, ends_well: bool
) -> None:
    """Cut after each write: tries and reminders are counted over all attempts, and no step is paid for twice."""
    replies = [
        giving({}),
        Reply("done"),
        giving({"n": "x"}),
        giving({"n": 1}) if ends_well else Reply("done"),
    ]
    said = Reply("x", tools=[("echo", {"text": "a"}), ("structured_output", {"n": None})])
    replies.insert(1, said)

    def answer(request: Request) -> Reply:
        return replies[sum(message["role"] == "assistant" for message in request.messages)]

    model.answer = answer
    child = a_child("go", model=MODEL, output_schema=SCHEMA)
    whole, run = run_child(AgentEngine(), child, [a_tool()])
    assert whole.status is (Status.COMPLETED if ends_well else Status.FAILED)
    assert whole.usage.model_calls == len(replies)
    at = 0
    for kinds in run.appends:
        at += len(kinds)
        log = run.own[:at]
        answered = sum(event.type == "assistant/message" for event in log)
        model.requests.clear()
        outcome, after = run_child(AgentEngine(), next_attempt(child, log), [a_tool()])
        assert (outcome.status, outcome.cause) == (whole.status, whole.cause), at
        assert (outcome.structured, outcome.output) == (whole.structured, whole.output), at
        assert len(model.requests) == len(replies) - answered, at
        assert Progress.of(event.row() for event in after.own) == Progress.of(run.rows), at


def test_the_tool_judges_decoded_arguments_too() -> None:
    structured = StructuredOutput(SCHEMA)
    assert asyncio.run(structured.tool.call({"n": 1}, "c")).is_error is False
    assert structured.json == '{"n": 1}'


# -- a check that takes long ----------------------------------------------------------------------------

ENDLESS = {"type": "string", "pattern": "^(a+)+$"}


def test_a_check_that_does_not_end_stops_no_other_child_and_is_told(model: ModelServer) -> None:
    """Python's regular expressions hold the interpreter: on the loop the whole worker would stand still."""
    model.answer = in_order(giving({"value": "a" * 40 + "!"}), giving({"value": "aaa"}))
    run = FakeRun(a_child("go", model=MODEL, output_schema=ENDLESS))
    pauses: list[float] = []

    async def main() -> Outcome:
        async def beat() -> None:
            at = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                pauses.append(time.monotonic() - at)
                at = time.monotonic()

        beating = asyncio.create_task(beat())
        try:
            return await play(AgentEngine(judge=Judge(3.0)), run)
        finally:
            beating.cancel()

    outcome = asyncio.run(main())
    assert outcome.structured == "aaa"
    assert (
        told(run)[0].splitlines()[1] == "$: the check of this value took longer than 3 s; give a simpler one"
    )
    assert max(pauses) < 1.5


def test_a_kill_ends_a_check_that_does_not_end(model: ModelServer) -> None:
    model.answer = in_order(giving({"value": "a" * 40 + "!"}))
    run = FakeRun(a_child("go", model=MODEL, output_schema=ENDLESS))

    def kill(words: str) -> None:
        if words.startswith("tool:"):
            asyncio.get_running_loop().call_later(0.5, run.stop, StopReason.KILL)

    run.on_activity = kill
    began = time.monotonic()
    outcome = asyncio.run(play(AgentEngine(), run))
    assert (outcome.status, outcome.has_structured) == (Status.KILLED, False)
    assert time.monotonic() - began < 8


def test_a_large_value_is_judged_beside_the_loop_as_a_small_one_on_it(model: ModelServer) -> None:
    schema = {"type": "array", "items": {"type": "object", "required": ["n"]}}
    large = [{"n": number} for number in range(5_000)]
    model.answer = in_order(giving({"value": [*large, {}]}), giving({"value": large}))
    outcome, run = wanting(schema)
    assert told(run)[0].splitlines()[1] == "$.value[5000]: 'n' is a required property"
    assert outcome.structured == large
