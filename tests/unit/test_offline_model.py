"""The offline model reads what it is given, and follows directives (docs/offline-model.md)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, SystemPromptPart, TextPart, UserPromptPart

from dsh_tasks.task import Cause, Status
from tests.fake_run import FakeRun, a_child, a_tool, play, run_child
from tests.prompts import delegating
from workers.engines.agent.directives import Calls, Say, ToolUse, parse
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.offline import OfflineModel, Shown
from workers.engines.base import StopReason, ToolAnswer


def answered(prompt: str, **given: Any) -> str:
    return run_child(AgentEngine(), a_child(prompt, **given), [a_tool()])[0].output


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("The codeword is MARMALADE. What is the codeword?", "The codeword is MARMALADE."),
        ("what is the codeword?\nthe CODEWORD is v1.2-x.", "The codeword is v1.2-x."),
        ("The red key is A. The red key is B. What is the red  key?", "The red key is B."),
        ('He wrote: "The port is 80." What is the port?', "The port is 80."),
        ("The a is 1. The b is 2.\nWhat is the a? What is the b?", "The a is 1.\nThe b is 2."),
        ("What is the codeword?", "I cannot know the codeword, because nothing I was shown says so."),
        (
            "The other is X. What is the codeword?",
            "I cannot know the codeword, because nothing I was shown says so.",
        ),
    ],
)
def test_a_question_is_answered_from_the_last_sentence_that_says_so(prompt: str, answer: str) -> None:
    assert answered(prompt) == answer


def test_a_child_knows_what_its_seed_says_and_no_other_child_does() -> None:
    _, parent = run_child(AgentEngine(), a_child("The codeword is MARMALADE."))
    seed = parent.session.events
    assert answered("What is the codeword?", seed=seed) == "The codeword is MARMALADE."
    assert answered("What is the codeword?").startswith("I cannot know")


def test_what_it_could_not_know_once_does_not_become_a_fact() -> None:
    _, parent = run_child(AgentEngine(), a_child("What is the codeword?"))
    assert answered("What is the codeword?", seed=parent.session.events).startswith("I cannot know")


def test_a_tools_result_can_say_it() -> None:
    prompt = '!call echo {"text": "The word is B."}\nWhat is the word?'
    assert answered(prompt) == "The word is B.\necho said: The word is B."


def test_a_plain_prompt_is_acknowledged_by_a_model_that_calls_itself_offline() -> None:
    assert answered("hello") == "This is the offline model: no real model answered. I was shown 1 message."
    assert "I was shown 2 messages." in answered("hello", persona="You are P.")


def test_a_question_inside_a_delegated_prompt_is_the_childs_to_answer() -> None:
    prompt = delegating("What is the codeword?")
    tool = a_tool("subagent", lambda arguments: f"asked: {arguments['prompt']}")
    outcome, _ = run_child(AgentEngine(), a_child(prompt), [tool])
    assert outcome.output == "subagent said: asked: What is the codeword?"


def test_directives_run_in_order_one_model_step_for_each_line_that_calls() -> None:
    prompt = '!say first\n!call echo {"text": "a"}\n!say second\n!call echo {"text": "b"}\n!say third'
    outcome, run = run_child(AgentEngine(), a_child(prompt), [a_tool()])
    assert outcome.output == "third\necho said: a\necho said: b"
    assert outcome.usage.model_calls == 3
    texts = [
        row["data"]["message"]["content"][0]["text"] for row in run.rows if row["type"] == "assistant/message"
    ]
    assert texts[:2] == ["first", "second"]


def test_several_calls_of_one_line_stand_in_one_answer() -> None:
    calls = json.dumps([{"tool": "echo", "arguments": {"text": "a"}}, {"tool": "echo"}, {"tool": "nope"}])
    outcome, _ = run_child(AgentEngine(), a_child(f"!calls {calls}"), [a_tool()])
    assert outcome.usage.model_calls == 2
    assert outcome.output == "echo said: a\necho said: \nnope failed: Error: unknown tool 'nope'"


def test_a_chain_of_three_nests_in_json() -> None:
    prompt = delegating(delegating(delegating("!say the bottom was here")))

    async def below(arguments: Any) -> str:
        run = FakeRun(a_child(arguments["prompt"]), [a_tool("subagent", below)])
        return (await play(AgentEngine(), run)).output

    outcome, _ = run_child(AgentEngine(), a_child(prompt), [a_tool("subagent", below)])
    assert outcome.output == "subagent said: subagent said: subagent said: the bottom was here"


def test_the_short_form_of_delegate_takes_the_rest_of_the_line() -> None:
    program = parse('!delegate subagent "look at it": What is the codeword?')
    arguments = {"description": "look at it", "prompt": "What is the codeword?"}
    assert program.directives == (Calls((ToolUse("subagent", arguments),)),)


def test_the_placeholder_is_the_last_task_that_this_turn_started() -> None:
    task = "subagent-" + "a" * 32
    seen: list[Any] = []
    tools = [
        a_tool("subagent", lambda arguments: f"started background subagent task {task}"),
        a_tool("task_output", lambda arguments: seen.append(dict(arguments)) or "ok"),
    ]
    prompt = (
        '!call subagent {"prompt": "$task stays"}\n!call task_output {"task_id": "$task", "ids": ["$task"]}'
    )
    run_child(AgentEngine(), a_child(prompt), tools)
    assert seen == [{"task_id": task, "ids": [task]}]


def test_a_failure_ends_the_child_and_keeps_what_was_streamed() -> None:
    outcome, run = run_child(AgentEngine(), a_child("!say half\n!fail with my secret"))
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.ERROR)
    assert outcome.output.strip() == "half"
    assert outcome.partial
    assert "secret" not in outcome.detail
    assert run.session.turns()[-1].reason == "error"


def test_a_cut_off_answer_fails_with_its_cause_and_its_text() -> None:
    outcome, run = run_child(AgentEngine(), a_child("!say half\n!max-tokens"))
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.MAX_TOKENS)
    assert outcome.output.startswith("half")
    assert run.session.turns()[-1].reason == "max-tokens"


def test_a_refusal_fails_with_its_cause() -> None:
    outcome, _ = run_child(AgentEngine(), a_child("!refuse"))
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.REFUSAL)


def test_a_stream_has_so_many_words() -> None:
    assert len(answered("!stream 120").split()) == 120


def test_a_wait_streams_a_word_at_once_and_is_killed_in_its_middle() -> None:
    run = FakeRun(a_child("!wait 3600"))

    async def killed() -> Any:
        run.task = asyncio.ensure_future(AgentEngine().run(run))
        while "model" not in run.activities:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        run.stop(StopReason.KILL)
        return await run.task

    outcome = asyncio.run(killed())
    assert (outcome.status, outcome.output) == (Status.KILLED, "Waiting 3600 s: ")


@pytest.mark.parametrize(
    "line",
    [
        "!wait soon",
        "!wait -1",
        "!stream x",
        "!call",
        "!call echo {bad",
        '!call echo ["x"]',
        "!calls []",
        "!calls {}",
    ],
)
def test_a_directive_that_is_not_written_right_is_told_in_words(line: str) -> None:
    assert answered(line).startswith(f"(offline: the directive {line.split()[0]} is not written as")


def test_lines_that_are_no_directive_are_plain_text() -> None:
    program = parse("!important: read\n  !say indented\nplain")
    assert (program.directives, program.plain) == ((Say("indented"),), "!important: read\nplain")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "!say",
                "!call",
                "!calls",
                "!delegate",
                "!stream",
                "!wait 0",
                "What is the",
                "The",
                "is",
                "?",
                ".",
                "x",
                "{}",
                "[",
                "$task",
                '"a":',
                "\n",
                "\ud800",
                "\x00",
            ]
        ),
        max_size=12,
    )
)
def test_no_prompt_breaks_it(words: list[str]) -> None:
    outcome, _ = run_child(AgentEngine(), a_child(" ".join(words)), [a_tool()])
    assert outcome.status is Status.COMPLETED


def test_it_counts_every_message_that_it_was_shown() -> None:
    history = [
        ModelRequest([SystemPromptPart("s"), UserPromptPart("u")]),
        ModelResponse([TextPart("a")]),
        ModelRequest([UserPromptPart(["b", "c"])]),
    ]
    shown = Shown.of(history)
    assert (shown.count, shown.prompt, shown.texts) == (4, "b\nc", ("s", "u", "a", "b\nc"))


def test_it_is_a_model_of_pydantic_ai_streamed_or_not() -> None:
    agent = Agent(OfflineModel())

    async def both() -> list[str]:
        plain = await agent.run("The word is A. What is the word?")
        async with agent.run_stream("The word is B. What is the word?") as stream:
            return [plain.output, await stream.get_output()]

    assert asyncio.run(both()) == ["The word is A.", "The word is B."]


def test_an_errored_result_is_told_as_one() -> None:
    tool = a_tool("subagent", lambda arguments: ToolAnswer("Error: refused", is_error=True))
    outcome, _ = run_child(AgentEngine(), a_child("!call subagent"), [tool])
    assert outcome.output == "subagent failed: Error: refused"


def test_the_document_names_every_directive() -> None:
    from workers.engines.agent import directives

    text = (Path(__file__).parents[2] / "docs" / "offline-model.md").read_text("utf-8")
    assert all(f"`{name}" in text for name in directives._PARSERS)
    assert all(f"    {name}" in (directives.__doc__ or "") for name in directives._PARSERS)
