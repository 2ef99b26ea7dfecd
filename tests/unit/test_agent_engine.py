"""The agent engine over a scripted HTTP model and over the offline one: requests, rows, endings."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic_ai import ModelRetry

from dsh_tasks.errors import ConfigRefused, DshTasksError, OptionRefused
from dsh_tasks.session import Event
from dsh_tasks.submission import Policy
from dsh_tasks.surface import messages
from dsh_tasks.task import Cause, Outcome, Status
from tests.fake_run import (
    CHILD,
    FakeRun,
    a_child,
    a_tool,
    check_log,
    next_attempt,
    play,
    run_child,
    without_settlement,
)
from tests.waiting import wait_until
from tests.model_server import MODEL, SECRET, ModelServer, Reply, Request, text_of
from workers.engines.agent.engine import AgentEngine, Histories
from workers.engines.agent.history import history
from workers.engines.agent.model import Models, route_name
from workers.engines.agent.patience import Patience
from workers.engines.agent.structured import MAX_INVALID
from workers.engines.agent.tools import call_key, python_tool
from workers.engines.base import ChildTool, Fenced, StopReason, ToolAnswer

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def http_child(prompt: Any = "hello", **given: Any) -> Any:
    return a_child(prompt, **({"model": MODEL} | given))


def in_order(*replies: Reply) -> Callable[[Request], Reply]:
    """The replies one after the other, whatever is asked."""
    left = list(replies)
    return lambda request: left.pop(0)


def as_openai(log: tuple[Event, ...]) -> list[dict[str, Any]]:
    """An independent fold of a log into what a chat completions model is sent."""
    sent = []
    for message in messages(log):
        text = "".join(block.get("text", "") for block in message["content"] if block["type"] == "text")
        calls = [block for block in message["content"] if block["type"] == "tool-call"]
        row: dict[str, Any] = {"role": message["role"], "text": text}
        if message["role"] == "tool":
            row["id"] = message["toolCallId"]
        if calls:
            row["calls"] = [(block["id"], block["name"], json.loads(block["arguments"])) for block in calls]
        sent.append(row)
    return sent


def received(request: Request) -> list[dict[str, Any]]:
    """What the model got, in the same words."""
    got = []
    for message in request.messages:
        row: dict[str, Any] = {"role": message["role"], "text": text_of(message.get("content"))}
        if message["role"] == "tool":
            row["id"] = message["tool_call_id"]
        if message.get("tool_calls"):
            row["calls"] = [
                (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message["tool_calls"]
            ]
        got.append(row)
    return got


def a_parent_log() -> tuple[Event, ...]:
    """Two turns of the offline model: one with tool calls, an error among them; with a system message."""
    calls = json.dumps([{"tool": "echo", "arguments": {"text": "a"}}, {"tool": "nope"}])
    tools = [a_tool()]
    first = run_child(AgentEngine(), a_child(f"!say looking\n!calls {calls}", persona="You are P."), tools)[1]
    second = run_child(AgentEngine(), a_child("The word is B.", log=first.own, attempt=2), tools)[1]
    return second.session.events


# -- what the model is sent -------------------------------------------------------------------------


def test_the_request_is_the_fold_of_the_seed_and_then_the_prompt(model: ModelServer) -> None:
    seed = a_parent_log()
    outcome, _ = run_child(AgentEngine(), http_child("do this", seed=seed))
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "done")
    assert received(model.requests[0]) == [*as_openai(seed), {"role": "user", "text": "do this"}]


def test_each_later_request_is_the_fold_of_the_log_so_far(model: ModelServer) -> None:
    model.answer = in_order(
        Reply("one moment", tools=[("echo", {"text": "x"}), ("echo", {"text": "y"})]),
        Reply("", tools=[("echo", {})]),
        Reply(),
    )
    _, run = run_child(AgentEngine(), http_child("go", seed=a_parent_log()), [a_tool()])
    answers = [row.seq for row in run.session.events if row.type == "assistant/message"][-3:]
    for request, seq in zip(model.requests, answers, strict=True):
        assert received(request) == as_openai(run.session.events[:seq])


def test_prompt_blocks_are_sent_as_they_are_and_images_where_they_can_be(model: ModelServer) -> None:
    blocks = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "image", "attachment": {"id": "elsewhere"}},
        {"type": "text", "text": "at it"},
    ]
    _, run = run_child(AgentEngine(), http_child(blocks))
    parts = model.requests[0].messages[-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "text"]
    assert [part.get("text") for part in parts] == ["look", None, "[image is not shown here]", "at it"]
    assert run.row("user/message")["content"] == blocks


def test_a_persona_takes_the_place_of_the_inherited_system_text(model: ModelServer) -> None:
    run_child(AgentEngine(), http_child(seed=a_parent_log(), persona="You are a critic."))
    systems = [message["content"] for message in model.requests[0].messages if message["role"] == "system"]
    assert systems == ["You are a critic."]
    assert model.requests[0].messages[0]["role"] == "system"


def test_the_token_limit_of_the_start_reaches_the_model_and_the_log(model: ModelServer) -> None:
    _, run = run_child(AgentEngine(), http_child(agent_options={"maxTokens": 77}))
    body = model.requests[0].body
    assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert run.row("request/header")["header"]["config"] == {
        "provider": "openai-chat",
        "model": "scripted",
        "maxTokens": 77,
    }


def test_tools_are_shown_with_their_schemas_and_logged(model: ModelServer) -> None:
    tool = ChildTool(
        "look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}, a_tool().call
    )
    _, run = run_child(AgentEngine(), http_child(), [tool])
    function = model.requests[0].body["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("look", "Looks.")
    assert function["parameters"]["properties"] == {"at": {"type": "string"}}
    assert [one["name"] for one in run.row("request/header")["header"]["tools"]] == ["look"]


def test_reasoning_goes_back_to_its_provider_with_the_answer_and_to_no_other(model: ModelServer) -> None:
    model.answer = in_order(Reply("yes", reasoning="hm"), Reply())
    first = run_child(AgentEngine(), http_child("think"))[1]
    content = first.row("assistant/message")["message"]["content"]
    assert [block["type"] for block in content] == ["reasoning", "text"]
    kept = history(messages(first.session.events), provider="openai")
    dropped = history(messages(first.session.events), provider="anthropic")
    assert [[part.part_kind for part in one.parts] for one in kept] == [["user-prompt"], ["thinking", "text"]]
    assert [[part.part_kind for part in one.parts] for one in dropped] == [["user-prompt"], ["text"]]
    run_child(AgentEngine(), http_child(seed=first.session.events))
    assert text_of(model.requests[1].messages[1]["content"]) == "yes"
    assert model.requests[1].messages[1]["reasoning_content"] == "hm"


def test_calls_and_results_are_paired_whatever_a_history_holds() -> None:
    def tool(call: str) -> dict[str, Any]:
        return {
            "role": "tool",
            "toolCallId": call,
            "content": [{"type": "text", "text": call}],
            "isError": False,
        }

    def call(*ids: str) -> dict[str, Any]:
        blocks = [{"type": "tool-call", "id": one, "name": "t", "arguments": "{}"} for one in ids]
        return {"role": "assistant", "content": blocks, "source": {"kind": "model"}}

    user = {"role": "user", "content": [{"type": "text", "text": "u"}]}
    made = history(
        [user, call("a", "b"), tool("b"), tool("z"), user, call("a"), tool("a"), call("c")], provider="p"
    )
    assert [[(part.part_kind, getattr(part, "tool_call_id", "")) for part in one.parts] for one in made] == [
        [("user-prompt", "")],
        [("tool-call", "a"), ("tool-call", "b")],
        [("tool-return", "b"), ("tool-return", "a"), ("user-prompt", "")],
        [("tool-call", "a")],
        [("tool-return", "a")],
        [("tool-call", "c")],
        [("tool-return", "c")],
    ]
    assert "unknown" in str(made[2].parts[1].content)  # type: ignore[union-attr]


# -- rows and tools ---------------------------------------------------------------------------------


def test_an_answer_and_the_mark_of_its_call_are_stored_before_the_tool_runs() -> None:
    seen: list[list[str]] = []
    run = FakeRun(a_child("!call look"))
    run.tools = [a_tool("look", lambda arguments: seen.append(run.kinds()[-2:]) or "ok")]
    asyncio.run(play(AgentEngine(), run))
    assert seen == [["assistant/message", "tool/call"]]
    assert run.appends[1:] == [["assistant/message", "tool/call"], ["tool/result", "step/end", "step/start"]]
    mark = next(row for row in run.rows if row["type"] == "tool/call")
    result = next(row for row in run.rows if row["type"] == "tool/result")
    assert result["sourceEventSeqs"] == [mark["seq"]]


def test_exclusive_tools_run_alone_and_others_beside_each_other() -> None:
    running: list[str] = []
    crowds: dict[str, set[str]] = {}

    def tool(name: str, *, exclusive: bool = False) -> ChildTool:
        async def call(arguments: Mapping[str, Any]) -> str:
            running.append(name)
            for _ in range(20):
                await asyncio.sleep(0)
                crowds.setdefault(name, set()).update(running)
            running.remove(name)
            return name

        return a_tool(name, call, exclusive=exclusive)

    tools = [tool("a"), tool("b"), tool("only", exclusive=True), tool("c")]
    calls = json.dumps([{"tool": name} for name in ("a", "b", "only", "only", "c")])
    outcome, run = run_child(AgentEngine(), a_child(f"!calls {calls}"), tools)
    assert crowds == {"a": {"a", "b"}, "b": {"a", "b"}, "only": {"only"}, "c": {"c"}}
    assert outcome.output.count("said") == 5
    marks = [kinds.count("tool/call") for kinds in run.appends if "tool/call" in kinds]
    assert marks == [2, 1, 1, 1]


def test_results_are_written_as_they_come_and_sent_in_that_order(model: ModelServer) -> None:
    model.answer = in_order(Reply("", tools=[("slow", {}), ("fast", {})]), Reply())
    released = asyncio.Event()

    async def slow(arguments: Mapping[str, Any]) -> str:
        await released.wait()
        return "slow"

    run = FakeRun(http_child(), [a_tool("slow", slow), a_tool("fast", lambda arguments: "fast")])
    run.on_append = lambda kinds: released.set() if kinds == ["tool/result"] else None
    asyncio.run(play(AgentEngine(), run))
    results = [
        row["data"]["message"]["content"][0]["text"] for row in run.rows if row["type"] == "tool/result"
    ]
    assert results == ["fast", "slow"]
    assert model.requests[1].results == ["fast", "slow"]


class Bare(BaseException):
    """Of a tool's own making."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException) -> Callable[[Mapping[str, Any]], Any]:
    def call(arguments: Mapping[str, Any]) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad"), "Error: ValueError: bad"),
        (SystemExit(3), "Error: SystemExit: 3"),
        (ModelRetry("again please"), "Error: again please"),
        (asyncio.CancelledError(), "Error: the tool cancelled itself"),
        (KeyboardInterrupt(), "Error: KeyboardInterrupt: "),
        (GeneratorExit(), "Error: GeneratorExit: "),
        (Bare("x"), "Error: Bare: x"),
        (Wordless(), "Error: Wordless"),
        (BaseExceptionGroup("g", [SystemExit(1)]), "Error: BaseExceptionGroup: g (1 sub-exception)"),
    ],
)
def test_whatever_a_tool_raises_is_an_errored_result(error: BaseException, text: str) -> None:
    outcome, run = run_child(AgentEngine(), a_child("!call bad"), [a_tool("bad", raising(error))])
    assert outcome.status is Status.COMPLETED
    message = run.row("tool/result")["message"]
    assert (message["isError"], message["content"][0]["text"]) == (True, text)


@pytest.mark.parametrize("beside", [0, 1])
def test_a_tool_that_cancels_its_own_task_cancels_its_call_alone(beside: int) -> None:
    async def cancel_me(arguments: Mapping[str, Any]) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return ""

    calls = json.dumps([{"tool": "bad"}, *[{"tool": "echo", "arguments": {"text": "x"}}] * beside])
    outcome, _ = run_child(AgentEngine(), a_child(f"!calls {calls}"), [a_tool("bad", cancel_me), a_tool()])
    assert outcome.status is Status.COMPLETED
    assert set(outcome.output.splitlines()) == {
        "bad failed: Error: the tool cancelled itself",
        *["echo said: x"] * beside,
    }


class Silent(DshTasksError):
    code = "silent"

    def __init__(self) -> None:
        super().__init__("the server is silent")


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (Bare("secret"), "the engine raised Bare"),
        (RuntimeError("secret"), "the engine raised RuntimeError"),
        (asyncio.CancelledError("secret"), "the engine cancelled itself"),
        (Silent(), "the server is silent"),
    ],
)
def test_a_fault_inside_leaves_a_closed_log(error: BaseException, detail: str) -> None:
    run = FakeRun(a_child("!call echo"), [a_tool()])

    def fault(words: str) -> None:
        if words == "tool:echo":
            raise error

    run.on_activity = fault
    outcome = asyncio.run(play(AgentEngine(), run))
    assert (outcome.status, outcome.cause, outcome.detail) == (Status.FAILED, Cause.ERROR, detail)
    assert [row["type"] for row in outcome.rows] == ["tool/result", "step/end", "turn/end"]
    assert run.session.turns()[-1].reason == "error"


def test_arguments_that_are_no_json_object_are_told_and_kept_verbatim(model: ModelServer) -> None:
    model.answer = in_order(Reply("", tools=[("echo", '{"text": '), ("echo", "[1]")]), Reply())
    _, run = run_child(AgentEngine(), http_child(), [a_tool()])
    assert model.requests[1].results == ["Error: the arguments are not a JSON object"] * 2
    assert [row["data"]["arguments"] for row in run.rows if row["type"] == "tool/call"] == [
        '{"text": ',
        "[1]",
    ]


def test_call_ids_that_repeat_within_an_answer_are_told_apart(model: ModelServer) -> None:
    twice = [("echo", {"text": "a"}), ("echo", {"text": "b"})]
    model.answer = in_order(Reply("", tools=twice, call_ids=["same", "same"]), Reply())
    _, run = run_child(AgentEngine(), http_child(), [a_tool()])
    assert model.requests[1].results == ["a", "b"]
    assert len({row["data"]["callId"] for row in run.rows if row["type"] == "tool/call"}) == 2


def test_activity_names_known_tools_only() -> None:
    _, run = run_child(AgentEngine(), a_child("!call echo\n!call secret"), [a_tool()])
    assert run.activities == ["model", "tool:echo", "model", "tool", "model"]


def test_usage_is_summed_over_the_model_calls(model: ModelServer) -> None:
    model.answer = in_order(Reply("", tools=[("echo", {})]), Reply())
    outcome, run = run_child(AgentEngine(), http_child(), [a_tool()])
    used = outcome.usage
    assert (used.input_tokens, used.output_tokens, used.model_calls) == (22, 14, 2)
    assert run.row("assistant/message")["usage"] == {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}


# -- the filter -------------------------------------------------------------------------------------


def test_a_filtered_tool_is_neither_shown_nor_run() -> None:
    ran: list[str] = []
    tools = [a_tool("kept"), a_tool("gone", lambda arguments: ran.append("gone") or "")]
    outcome, run = run_child(AgentEngine(), a_child("!call gone", tool_filter={"deny": ["gone"]}), tools)
    assert [one["name"] for one in run.row("request/header")["header"]["tools"]] == ["kept"]
    assert ran == []
    assert outcome.output == "gone failed: Error: unknown tool 'gone'"


def test_an_allow_list_keeps_what_it_names_and_a_deny_list_the_rest() -> None:
    tools = [a_tool(name) for name in "abc"]

    def kept(**names: list[str]) -> list[str]:
        _, run = run_child(AgentEngine(), a_child(tool_filter=names), tools)
        return [one["name"] for one in run.row("request/header")["header"].get("tools", ())]

    assert kept(allow=["a", "b"]) == ["a", "b"]
    assert kept(deny=["a"]) == ["b", "c"]
    assert kept(allow=["a", "b"], deny=["b"]) == ["a"]
    assert kept(allow=[]) == []


@pytest.mark.parametrize("option", ["allow", "deny"])
def test_a_filter_with_a_name_that_no_tool_has_fails_before_any_model_call(option: str) -> None:
    outcome, run = run_child(AgentEngine(), a_child(tool_filter={option: ["b"]}), [a_tool("a")])
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.ERROR)
    assert outcome.detail == f"toolFilter.{option}: no tool is called 'b'"
    assert outcome.usage.model_calls == 0
    assert run.session.turns()[-1].reason == "error"


# -- structured output ------------------------------------------------------------------------------


def wanting(prompt: str, **given: Any) -> tuple[Outcome, FakeRun]:
    return run_child(AgentEngine(), a_child(prompt, output_schema=SCHEMA, **given), [a_tool()])


def value_call(value: Any) -> str:
    return f"!call structured_output {json.dumps(value)}"


def test_a_valid_value_ends_the_turn_without_a_further_model_step() -> None:
    outcome, run = wanting(value_call({"n": 3}))
    assert (outcome.status, outcome.structured, outcome.has_structured) == (Status.COMPLETED, {"n": 3}, True)
    assert outcome.usage.model_calls == 1
    assert run.session.turns()[-1].reason == "completed"


def test_an_invalid_value_is_told_with_its_violations_and_can_be_mended() -> None:
    outcome, run = wanting(f"{value_call({'n': 'x'})}\n{value_call({})}\n{value_call({'n': 1})}")
    assert (outcome.structured, outcome.usage.model_calls) == ({"n": 1}, 3)
    errors = [row["data"]["message"] for row in run.rows if row["type"] == "tool/result"][:2]
    assert all(message["isError"] for message in errors)
    assert "$.n" in errors[0]["content"][0]["text"]
    assert "'n' is a required property" in errors[1]["content"][0]["text"]


def test_a_model_that_gives_no_valid_value_is_stopped() -> None:
    outcome, _ = wanting("\n".join([value_call({})] * (MAX_INVALID + 3)))
    assert (outcome.status, outcome.cause, outcome.usage.model_calls) == (
        Status.FAILED,
        Cause.SCHEMA,
        MAX_INVALID,
    )


def test_calls_before_the_value_stand_and_calls_after_it_are_refused() -> None:
    calls = [
        {"tool": "echo", "arguments": {"text": "before"}},
        {"tool": "structured_output", "arguments": {"n": 1}},
        {"tool": "echo", "arguments": {"text": "after"}},
        {"tool": "structured_output", "arguments": {"n": 2}},
    ]
    outcome, run = wanting(f"!calls {json.dumps(calls)}")
    assert outcome.structured == {"n": 1}
    texts = [row["data"]["message"]["content"][0]["text"] for row in run.rows if row["type"] == "tool/result"]
    assert texts == ["before", "accepted", *["Error: refused, the result was already given"] * 2]


def test_the_tool_and_its_instruction_exist_only_where_they_are_asked_for(model: ModelServer) -> None:
    model.answer = in_order(
        Reply("", tools=[("structured_output", {"n": 1})]),
        Reply(),
        Reply("", tools=[("structured_output", {"n": 1})]),
    )
    plain, _ = run_child(AgentEngine(), http_child())
    assert (plain.status, plain.has_structured) == (Status.COMPLETED, False)
    assert model.requests[0].tool_names == []
    assert "unknown tool" in model.requests[1].results[0]
    assert all(message["role"] != "system" for message in model.requests[0].messages)
    run_child(AgentEngine(), http_child(output_schema=SCHEMA, persona="You are P."))
    assert model.requests[2].tool_names == ["structured_output"]
    system = model.requests[2].messages[0]["content"]
    assert system.startswith("You are P.\n\n")
    assert "structured_output" in system


def test_two_children_at_once_see_each_their_own_schema() -> None:
    other = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}

    async def both() -> list[Outcome]:
        engine = AgentEngine()
        runs = [
            FakeRun(a_child(f"!call echo\n{value_call(value)}", output_schema=schema), [a_tool()])
            for schema, value in ((SCHEMA, {"n": 1}), (other, {"s": "x"}))
        ]
        return list(await asyncio.gather(*(play(engine, run) for run in runs)))

    assert [outcome.structured for outcome in asyncio.run(both())] == [{"n": 1}, {"s": "x"}]


def test_a_value_whose_result_was_not_stored_is_none() -> None:
    run = FakeRun(a_child(value_call({"n": 1}), output_schema=SCHEMA))

    def refuse(kinds: list[str]) -> None:
        run.refuses, run.stop_reason = "tool/call" in kinds, StopReason.KILL

    run.on_append = refuse
    outcome = asyncio.run(play(AgentEngine(), run))
    assert (outcome.status, outcome.has_structured) == (Status.KILLED, False)


# -- endings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "cause", "reason"),
    [
        (Reply("half", finish="length"), Cause.MAX_TOKENS, "max-tokens"),
        (Reply("half", finish="content_filter"), Cause.REFUSAL, "error"),
        (Reply("half", finish="something new"), Cause.ERROR, "error"),
        (Reply("half" * 2, is_cut=True), Cause.ERROR, "error"),
    ],
)
def test_an_answer_that_does_not_end_well_fails_and_keeps_its_text(
    model: ModelServer, reply: Reply, cause: Cause, reason: str
) -> None:
    model.answer = in_order(reply)
    outcome, run = run_child(AgentEngine(patience=Patience(tries=1)), http_child())
    assert (outcome.status, outcome.cause, outcome.output) == (Status.FAILED, cause, "half")
    assert run.session.turns()[-1].reason == reason


def test_calls_of_an_answer_that_was_cut_off_do_not_run(model: ModelServer) -> None:
    model.answer = in_order(Reply("half", tools=[("echo", '{"te')], finish="length"))
    outcome, run = run_child(AgentEngine(), http_child(), [a_tool()])
    assert outcome.cause is Cause.MAX_TOKENS
    assert "tool/call" not in run.kinds()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "failed (HTTP 400)"),
        (401, "refused the key (HTTP 401)"),
        (404, "is not known to its provider (HTTP 404)"),
    ],
)
def test_a_refused_request_fails_with_a_detail_that_tells_no_content(
    model: ModelServer, status: int, words: str
) -> None:
    model.answer = in_order(Reply(status=status))
    outcome, run = run_child(AgentEngine(), http_child("a secret prompt"))
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.ERROR)
    assert outcome.detail == f"the model openai-chat:scripted {words}"
    assert SECRET not in outcome.detail
    error = run.row("turn/end")["reason"]["error"]
    assert (error["status"], error["message"]) == (status, outcome.detail)


def test_a_model_that_cannot_be_reached_fails_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer() as closed:
        environment = closed.environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome, _ = run_child(AgentEngine(patience=Patience(tries=2, first_pause_ms=1)), http_child())
    assert outcome.cause is Cause.ERROR
    assert outcome.detail.endswith("could not be reached, or the connection broke, tried 2 times")
    assert "127.0.0.1" not in outcome.detail


def test_a_text_before_a_tool_is_no_answer_over_a_later_one_and_stays_where_none_follows(
    model: ModelServer,
) -> None:
    model.answer = in_order(Reply("early", tools=[("echo", {})]), Reply(""))
    outcome, _ = run_child(AgentEngine(), http_child(), [a_tool()])
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "early")


# -- kill, hand-back, lost leases -------------------------------------------------------------------


async def stopped(
    run: FakeRun, reason: StopReason, when: Callable[[], bool], engine: AgentEngine | None = None
) -> Outcome:
    """Run until `when`, then stop it as a runner does."""
    run.task = asyncio.ensure_future((engine or AgentEngine()).run(run))
    async with asyncio.timeout(20):
        while not when():
            await asyncio.sleep(0.001)
    run.stop(reason)
    outcome = await run.task
    run._keep(outcome.rows)
    check_log(run.session)
    return outcome


async def for_ever(arguments: Mapping[str, Any]) -> str:
    await asyncio.Event().wait()
    return ""


def test_a_kill_in_mid_answer_keeps_the_text_and_hangs_up(model: ModelServer) -> None:
    model.answer = lambda request: Reply("half and half", blocks=True)
    run = FakeRun(http_child())

    async def killed() -> Outcome:
        engine = AgentEngine()
        run.task = asyncio.ensure_future(engine.run(run))
        async with asyncio.timeout(20):
            while not model.active:
                await asyncio.sleep(0.001)
            for _ in range(100):
                await asyncio.sleep(0.001)
        run.stop(StopReason.KILL)
        outcome = await run.task
        async with asyncio.timeout(20):
            while not model.requests[0].has_hung_up:
                await asyncio.sleep(0.001)
        return outcome

    outcome = asyncio.run(killed())
    run._keep(outcome.rows)
    check_log(run.session)
    assert (outcome.status, outcome.output, outcome.partial) == (Status.KILLED, "half an", True)
    assert run.row("turn/end")["reason"] == {"kind": "aborted", "reason": {"kind": "parent"}}


def test_a_kill_while_a_tool_runs_cancels_it_and_marks_its_outcome_unknown() -> None:
    calls = json.dumps([{"tool": "block"}, {"tool": "echo", "arguments": {"text": "x"}}])
    run = FakeRun(a_child(f"!say so far\n!calls {calls}"), [a_tool("block", for_ever), a_tool()])
    outcome = asyncio.run(stopped(run, StopReason.KILL, lambda: ["tool/result"] in run.appends))
    assert (outcome.status, outcome.output) == (Status.KILLED, "so far")
    assert [row["type"] for row in outcome.rows] == ["tool/result", "step/end", "turn/end"]
    assert outcome.rows[0]["data"]["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"


def test_a_call_that_waits_for_an_exclusive_one_is_closed_as_not_started() -> None:
    calls = json.dumps([{"tool": "block"}, {"tool": "echo"}])
    run = FakeRun(a_child(f"!calls {calls}"), [a_tool("block", for_ever, exclusive=True), a_tool()])
    outcome = asyncio.run(stopped(run, StopReason.KILL, lambda: "tool:block" in run.activities))
    codes = [row["data"]["error"]["code"] for row in outcome.rows if row["type"] == "tool/result"]
    assert codes == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]


@pytest.mark.parametrize("reason", [StopReason.KILL, StopReason.HAND_BACK])
def test_a_tool_that_swallows_the_stop_does_not_keep_its_child_going(reason: StopReason) -> None:
    async def swallow(arguments: Mapping[str, Any]) -> str:
        try:
            return await for_ever(arguments)
        except asyncio.CancelledError:
            return "swallowed"

    run = FakeRun(a_child("!call block\n!say after"), [a_tool("block", swallow)])
    stopping = stopped(run, reason, lambda: "tool:block" in run.activities)
    if reason is StopReason.KILL:
        assert asyncio.run(stopping).status is Status.KILLED
    else:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(stopping)
    assert run.activities == ["model", "tool:block"]


def test_a_hand_back_passes_as_a_cancellation() -> None:
    run = FakeRun(a_child("!call block"), [a_tool("block", for_ever)])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped(run, StopReason.HAND_BACK, lambda: "tool:block" in run.activities))


@pytest.mark.parametrize("stops", [[StopReason.KILL], [StopReason.HAND_BACK, StopReason.KILL]])
def test_a_write_that_was_accepted_while_the_kill_came_is_not_written_again(stops: list[StopReason]) -> None:
    run = FakeRun(a_child("hello"))
    run.on_append = lambda kinds: [run.stop(reason) for reason in stops]
    outcome = asyncio.run(killed_in_append(run))
    assert outcome.status is Status.KILLED
    assert [row["type"] for row in outcome.rows] == ["step/end", "turn/end"]


def test_a_result_that_was_accepted_while_the_kill_came_stands() -> None:
    calls = json.dumps([{"tool": "block"}, {"tool": "echo", "arguments": {"text": "x"}}])
    run = FakeRun(a_child(f"!calls {calls}"), [a_tool("block", for_ever), a_tool()])
    run.on_append = lambda kinds: run.stop(StopReason.KILL) if kinds == ["tool/result"] else None
    outcome = asyncio.run(killed_in_append(run))
    assert [row["type"] for row in outcome.rows] == ["tool/result", "step/end", "turn/end"]
    assert run.row("tool/result", 0)["message"]["content"][0]["text"] == "x"


async def killed_in_append(run: FakeRun) -> Outcome:
    run.task = asyncio.ensure_future(AgentEngine().run(run))
    outcome = await run.task
    run._keep(outcome.rows)
    check_log(run.session)
    return outcome


def test_a_kill_before_the_first_write_leaves_an_empty_log() -> None:
    run = FakeRun(a_child("hello"), refuses=True, stop_reason=StopReason.KILL)
    outcome = asyncio.run(play(AgentEngine(), run))
    assert (outcome.status, outcome.rows, run.rows) == (Status.KILLED, (), [])


@pytest.mark.parametrize("what", ["lease_is_past", "refuses"])
def test_a_lost_lease_stops_the_child_before_its_next_model_call(what: str) -> None:
    run = FakeRun(a_child("hello"), **{what: True})
    with pytest.raises(Fenced):
        asyncio.run(play(AgentEngine(), run))
    assert "model" not in run.activities


def test_a_lease_that_is_lost_in_mid_turn_stops_the_child_before_its_next_tool_call() -> None:
    ran: list[int] = []
    run = FakeRun(a_child("!call echo"), [a_tool("echo", lambda arguments: ran.append(1) or "")])

    def lose(kinds: list[str]) -> None:
        run.lease_is_past = "tool/call" in kinds

    run.on_append = lose
    with pytest.raises(Fenced):
        asyncio.run(play(AgentEngine(), run))
    assert ran == []


def test_no_call_is_left_running_when_one_beside_it_is_fenced() -> None:
    ended: list[str] = []

    async def fenced(arguments: Mapping[str, Any]) -> str:
        raise Fenced

    async def beside(arguments: Mapping[str, Any]) -> str:
        try:
            return await for_ever(arguments)
        finally:
            ended.append("beside")

    calls = json.dumps([{"tool": "beside"}, {"tool": "fenced"}])
    run = FakeRun(a_child(f"!calls {calls}"), [a_tool("beside", beside), a_tool("fenced", fenced)])
    with pytest.raises(Fenced):
        asyncio.run(play(AgentEngine(), run))
    assert ended == ["beside"]


# -- python tools -----------------------------------------------------------------------------------


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def where() -> str:
    """Tell the key."""
    return call_key.get()


def leave() -> None:
    """End the process."""
    sys.exit(1)


def which_thread() -> str:
    """Name the thread, and the key."""
    return f"{threading.current_thread().name} {call_key.get()}"


def broken(thing: ChildTool) -> None:
    """Has a signature that no schema describes."""


def test_a_callable_becomes_a_tool_with_schema_and_description() -> None:
    tool = python_tool(add)
    assert (tool.name, tool.description, tool.exclusive) == ("add", "Add two numbers.", False)
    assert tool.parameters["required"] == ["a"]
    assert tool.parameters["properties"]["a"]["description"] == "The first."


def test_arguments_are_checked_before_a_callable_runs() -> None:
    outcome, _ = run_child(AgentEngine([add]), a_child('!call add {"a": 2}\n!call add {"a": "x"}'))
    assert outcome.output.startswith("add said: 3\nadd failed: Error: a: ")


def test_synchronous_callables_run_in_threads_and_know_the_key_of_their_call() -> None:
    outcome, run = run_child(AgentEngine([which_thread, where]), a_child("!call which_thread\n!call where"))
    ids = [row["data"]["callId"] for row in run.rows if row["type"] == "tool/call"]
    assert outcome.output.startswith("which_thread said: tool_")
    assert outcome.output.splitlines()[0].endswith(f" {CHILD}/{ids[0]}")
    assert outcome.output.splitlines()[1] == f"where said: {CHILD}/{ids[1]}"


def test_a_tool_that_ends_the_process_ends_nothing() -> None:
    outcome, _ = run_child(AgentEngine([leave]), a_child("!call leave"))
    assert outcome.output == "leave failed: Error: SystemExit: 1"


def test_a_callable_that_ends_an_iteration_is_an_errored_result() -> None:
    def stop() -> None:
        """Stop."""
        raise StopIteration

    outcome, _ = run_child(AgentEngine([stop]), a_child("!call stop"))
    assert outcome.output == "stop failed: Error: StopIteration: "


def test_tools_are_found_by_their_import_path() -> None:
    outcome, _ = run_child(AgentEngine(["tests.held_tools:add"]), a_child('!call add {"a": 1}'))
    assert outcome.output == "add said: 2"


@pytest.mark.parametrize("path", ["no_such_module_x:f", "json:no_such_function", "json:decoder"])
def test_a_tool_that_does_not_import_is_refused_at_load(path: str) -> None:
    with pytest.raises(ConfigRefused, match=path.partition(":")[0]):
        AgentEngine([path])


def test_a_callable_without_a_schema_is_refused_at_load() -> None:
    with pytest.raises(ConfigRefused, match="broken"):
        AgentEngine([broken])


def test_a_tool_that_returns_no_text_is_told_as_json() -> None:
    async def listed() -> list[dict[str, int]]:
        """Give a list."""
        return [{"a": 1}]

    outcome, _ = run_child(AgentEngine([listed]), a_child("!call listed"))
    assert outcome.output == 'listed said: [{"a":1}]'


# -- routes and sharing -----------------------------------------------------------------------------

KEY = {"DEEPSEEK_API_KEY": "k"}
PARENT = {"provider": "deepseek-official", "model": "deepseek-v4-flash"}


@pytest.mark.parametrize(
    ("policy", "operator", "environment", "name"),
    [
        ({}, None, {}, "offline"),
        ({}, None, KEY, "deepseek:deepseek-chat"),
        ({}, "offline", KEY, "offline"),
        ({}, "openai-chat:m", KEY, "openai-chat:m"),
        ({"parent_route": PARENT}, None, {}, "offline"),
        ({"parent_route": PARENT}, None, KEY, "deepseek:deepseek-v4-flash"),
        ({"parent_route": PARENT}, "openai-chat:m", KEY, "openai-chat:m"),
        ({"parent_route": {"provider": "offline", "model": "offline"}}, None, {}, "offline"),
        ({"parent_route": {"provider": "unknown", "model": "m"}}, None, {}, "offline"),
        ({"agent_options": {"maxTokens": 5}}, None, {}, "offline"),
        ({"agent_options": {"model": "x"}}, "openai-chat:m", {}, "openai-chat:x"),
        ({"agent_options": {"model": "x"}, "parent_route": PARENT}, None, KEY, "deepseek:x"),
        ({"agent_options": {"provider": "openai-chat"}}, "deepseek:m", {}, "openai-chat:m"),
        ({"agent_options": {"provider": "anthropic", "model": "y"}}, None, {}, "anthropic:y"),
        ({"agent_options": {"provider": "deepseek-official", "model": "y"}}, None, {}, "deepseek:y"),
        ({"agent_options": {"model": "anthropic:y"}}, None, {}, "anthropic:y"),
        ({"agent_options": {"model": "offline"}}, "deepseek:m", KEY, "offline"),
    ],
)
def test_a_route_comes_from_options_operator_parent_key_or_is_offline(
    policy: dict[str, Any], operator: str | None, environment: dict[str, str], name: str
) -> None:
    assert route_name(Policy(**policy), operator, environment)[0] == name


@pytest.mark.parametrize("options", [{"model": "x"}, {"provider": "openai-chat"}])
def test_half_a_route_with_nothing_to_inherit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionRefused, match="agentOptions"):
        route_name(Policy(agent_options=options), None, {})


@pytest.mark.parametrize(
    ("name", "why"),
    [("nonsense", "is no model"), ("nobody:m", "is no model"), ("deepseek:m", "DEEPSEEK_API_KEY")],
)
def test_a_model_that_cannot_be_had_fails_the_child_with_the_reason(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    outcome, run = run_child(AgentEngine(), a_child(model=name))
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.ERROR)
    assert why in outcome.detail
    assert run.session.turns()[-1].reason == "error"


def test_children_of_one_route_share_one_model(model: ModelServer) -> None:
    models = Models()
    one = models.resolve(Policy(), MODEL)
    assert models.resolve(Policy(), MODEL) is one
    assert (
        models.resolve(Policy(agent_options={"model": "other"}), MODEL).model.provider is one.model.provider
    )


def test_a_seed_is_turned_into_messages_once_for_children_that_open_together() -> None:
    seed = a_parent_log()

    async def two() -> tuple[bool, int]:
        histories = Histories()
        async with histories.of(seed, "p") as first, histories.of(seed, "p") as second:
            return first[1] is second[1], len(histories._held)

    assert asyncio.run(two()) == (True, 1)


def test_a_seed_shared_by_many_children_is_changed_by_none(model: ModelServer) -> None:
    seed = a_parent_log()
    before = json.dumps([event.row() for event in seed])

    async def many() -> None:
        engine = AgentEngine()
        runs = [FakeRun(http_child(f"child {n}", seed=seed, persona=f"You are {n}.")) for n in range(20)]
        await asyncio.gather(*(play(engine, run) for run in runs))

    asyncio.run(many())
    assert json.dumps([event.row() for event in seed]) == before
    for request in model.requests:
        number = request.prompt.split()[-1]
        assert text_of(request.messages[0]["content"]) == f"You are {number}."
        assert sum(message["role"] == "user" for message in request.messages) == 3


def test_a_hundred_children_are_at_the_model_at_once(model: ModelServer) -> None:
    model.answer = lambda request: Reply("word " * 4, blocks=True)

    async def many() -> list[Outcome]:
        engine = AgentEngine()
        children = asyncio.gather(*(play(engine, FakeRun(http_child(f"child {n}"))) for n in range(100)))
        await asyncio.to_thread(wait_until, lambda: model.active == 100, "all hundred are at the model")
        model.release()
        return list(await children)

    assert {outcome.status for outcome in asyncio.run(many())} == {Status.COMPLETED}
    assert model.peak == 100
