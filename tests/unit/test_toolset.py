"""The tools under pydantic-ai: the agent's model is scripted, the client too."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from dsh_tasks.config import Config, SubagentToolConfig, load_config
from dsh_tasks.errors import LimitReached
from dsh_tasks.provider import Kind, Provider, Registry
from dsh_tasks.session import Event, Header, Session
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from dsh_tasks.tools import mount
from dsh_tasks.toolset import DshTasksToolset, assistant_seq
from tests.fake_client import RUN_ID, FakeClient, FakeReceipt, FakeRun, an_output

TASK = {"description": "count files", "prompt": "Count the files."}


def default_config() -> Config:
    return load_config(settings=Settings())


def calls(*made: ToolCallPart) -> Callable[[list[ModelMessage], AgentInfo], ModelResponse]:
    """A model that makes these calls in its first answer, then says what it was told."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        answers = returned(messages)
        if not answers:
            return ModelResponse(parts=list(made))
        return ModelResponse(parts=[TextPart(" | ".join(str(part.content) for part in answers))])

    return model


def returned(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def run_agent(client: FakeClient, *made: ToolCallPart, config: Config | None = None, **more: Any) -> Any:
    toolset = DshTasksToolset(client, config or default_config(), **more)
    agent = Agent(FunctionModel(calls(*made)), toolsets=[toolset])
    return asyncio.run(agent.run("go"))


def test_a_model_is_shown_the_same_schemas_as_under_any_loop() -> None:
    client, config, seen = FakeClient(), default_config(), []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(info.function_tools)
        return ModelResponse(parts=[TextPart("ok")])

    asyncio.run(Agent(FunctionModel(model), toolsets=[DshTasksToolset(client, config)]).run("go"))
    assert [
        {"name": t.name, "description": t.description, "parameters": t.parameters_json_schema} for t in seen
    ] == [tool.schema() for tool in mount(client, config)]


def test_exclusive_tools_are_sequential_and_the_others_are_not() -> None:
    config = Config(
        Registry(),
        (
            SubagentToolConfig(provider="spawn"),
            SubagentToolConfig(provider="spawn", tool_name="free", overlapping_calls=True),
        ),
    )
    model = TestModel(call_tools=[])
    asyncio.run(Agent(model, toolsets=[DshTasksToolset(FakeClient(), config)]).run("go"))
    shown = model.last_model_request_parameters
    assert shown is not None
    assert {tool.name: tool.sequential for tool in shown.function_tools} == {
        "subagent": True,
        "free": False,
        "task_output": False,
        "task_list": False,
        "task_kill": False,
    }


def test_a_foreground_call_gives_the_text_to_the_model_and_the_value_to_the_loop() -> None:
    client = FakeClient(run=FakeRun(RUN_ID, output=an_output("There are 42.")))
    result = run_agent(client, ToolCallPart("subagent", TASK, tool_call_id="c1"))
    assert result.output == "There are 42."
    [part] = returned(result.all_messages())
    assert part.metadata == {
        "kind": "foreground",
        "runId": RUN_ID,
        "output": [{"type": "text", "text": "There are 42."}],
    }
    assert client.run.disposed == 1


def test_a_background_call_and_the_task_tools_work_in_one_answer() -> None:
    client = FakeClient(
        outputs={RUN_ID: an_output("", status=Status.RUNNING)},
        receipt=FakeReceipt(RUN_ID, accepted=False, status=Status.KILLED),
    )
    result = run_agent(
        client,
        ToolCallPart("subagent_fork", {**TASK, "run_in_background": True}, tool_call_id="c1"),
        ToolCallPart("task_output", {"task_id": RUN_ID}, tool_call_id="c2"),
        ToolCallPart("task_list", {}, tool_call_id="c3"),
        ToolCallPart("task_kill", {"task_id": RUN_ID}, tool_call_id="c4"),
    )
    assert result.output.split(" | ") == [
        f"started background subagent task {RUN_ID}",
        "No output yet.\n[status: running]",
        "No tasks.",
        f"{RUN_ID} has already finished, status killed; nothing was changed",
    ]


@pytest.mark.parametrize(
    ("client", "arguments", "text"),
    [
        (FakeClient(), {"description": "d"}, "Error: prompt: it is required"),
        (
            FakeClient(raises=LimitReached("max_depth", value=4, cap=3, way_out="do the work here")),
            TASK,
            "Error: limit max_depth reached: 4 of 3; do the work here",
        ),
    ],
)
def test_an_errored_result_is_a_failed_call_in_the_same_words_and_is_not_tried_again(
    client: FakeClient, arguments: dict[str, Any], text: str
) -> None:
    result = run_agent(client, ToolCallPart("subagent", arguments, tool_call_id="c1"))
    [part] = returned(result.all_messages())
    assert (part.content, part.outcome) == (text, "failed")
    assert len(client.asked) <= 1


def test_a_delegation_that_waits_is_let_go_by_its_call_id() -> None:
    async def scenario() -> str:
        run = FakeRun(RUN_ID, ends=asyncio.Event())
        toolset = DshTasksToolset(FakeClient(run=run), default_config())
        call = ToolCallPart("subagent", TASK, tool_call_id="c1")
        running = asyncio.ensure_future(Agent(FunctionModel(calls(call)), toolsets=[toolset]).run("go"))
        await run.waiting.wait()
        assert await toolset.promote("c2") is False
        assert await toolset.promote("c1") is True
        output = (await running).output
        assert await toolset.promote("c1") is False
        return output

    assert asyncio.run(scenario()).startswith(f"started background subagent task {RUN_ID}")


def test_two_delegations_of_one_answer_do_not_run_at_once() -> None:
    client, toolset = FakeClient(), FunctionToolset()
    running = 0
    most = 0

    class Counted(FakeRun):
        async def result(self, *, promote_after_ms: int | None = None) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(20):
                await asyncio.sleep(0)
            running -= 1
            return await super().result()

    client.run = Counted(RUN_ID)
    made = [ToolCallPart("subagent", TASK, tool_call_id=f"c{n}") for n in range(3)]
    agent = Agent(FunctionModel(calls(*made)), toolsets=[DshTasksToolset(client, default_config()), toolset])
    asyncio.run(agent.run("go"))
    assert (most, len(client.asked)) == (1, 3)


def test_declared_overlap_lets_them_run_at_once() -> None:
    client = FakeClient()
    together = asyncio.Barrier(2)

    class Meeting(FakeRun):
        async def result(self, *, promote_after_ms: int | None = None) -> Any:
            async with asyncio.timeout(10):
                await together.wait()
            return await super().result()

    client.run = Meeting(RUN_ID)
    config = Config(Registry(), (SubagentToolConfig(provider="spawn", overlapping_calls=True),))
    made = [ToolCallPart("subagent", TASK, tool_call_id=f"c{n}") for n in range(2)]
    assert run_agent(client, *made, config=config).output == "42 | 42"


def test_a_withdrawn_provider_takes_its_tool_away_at_the_next_step_and_brings_it_back() -> None:
    client, seen = FakeClient(), []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(next((tool for tool in info.function_tools if tool.name == "subagent_fork"), None))
        if len(seen) == 1:
            client.registry.withdraw("fork")
        elif len(seen) == 2:
            client.registry.register(Provider("fork", Kind.SPAWN))
        else:
            return ModelResponse(parts=[TextPart("ok")])
        return ModelResponse(parts=[ToolCallPart("task_list", {}, tool_call_id=f"c{len(seen)}")])

    asyncio.run(Agent(FunctionModel(model), toolsets=[DshTasksToolset(client, default_config())]).run("go"))
    first, gone, back = seen
    assert gone is None
    assert "knowing the completed turns" in first.description
    assert "sees nothing of this conversation" in back.description


# -- the caller ---------------------------------------------------------------------------------


def a_session(*, call_id: str) -> Session:
    content = [
        {"type": "text", "text": "on it"},
        {"type": "tool-call", "id": call_id, "name": "subagent", "arguments": "{}"},
    ]
    source = {"kind": "model", "provider": "p", "model": "m"}
    message = {"role": "assistant", "content": content, "source": source, "id": "a"}
    rows = [
        ("turn/start", {"turn": 1}),
        ("step/start", {"turn": 1, "step": 1}),
        ("assistant/message", {"turn": 1, "step": 1, "message": message, "stream": []}),
        ("tool/call", {"turn": 1, "step": 1, "callId": call_id}),
    ]
    events = tuple(
        Event.from_row({"type": type, "seq": seq, "time": 1, "data": data})
        for seq, (type, data) in enumerate(rows)
    )
    return Session(Header(version=4, id="s-9", created_at=1), events)


def test_a_call_is_keyed_by_the_place_of_its_message_where_the_log_holds_it() -> None:
    client, session = FakeClient(owner=None), a_session(call_id="c1")
    run_agent(client, ToolCallPart("subagent", TASK, tool_call_id="c1"), session=lambda ctx: session)
    [(_, asked)] = client.asked
    assert (asked["owner"], asked["key"], asked["parent"]) == ("s-9", "call:2:c1", session)


def test_a_call_without_a_log_is_keyed_by_run_and_step() -> None:
    client = FakeClient()
    result = run_agent(client, ToolCallPart("subagent", TASK, tool_call_id="c1"))
    [(_, asked)] = client.asked
    run_id = result.all_messages()[0].run_id
    assert (asked["key"], asked["parent"]) == (f"run:{run_id}:1:c1", None)


def test_the_place_of_a_call_is_none_where_no_message_holds_it() -> None:
    session = a_session(call_id="c1")
    assert assistant_seq(session, "c1") == 2
    assert assistant_seq(session, "c2") is None
    assert assistant_seq(session, None) is None


def test_a_cancelled_agent_disposes_of_its_child() -> None:
    async def scenario() -> FakeRun:
        run = FakeRun(RUN_ID, ends=asyncio.Event())
        toolset: DshTasksToolset[None] = DshTasksToolset(FakeClient(run=run), default_config())
        model = FunctionModel(calls(ToolCallPart("subagent", TASK, tool_call_id="c1")))
        running = asyncio.ensure_future(Agent(model, toolsets=[toolset]).run("go"))
        await run.waiting.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return run

    assert asyncio.run(scenario()).disposed == 1


def test_the_other_tools_need_no_pydantic_ai() -> None:
    script = "import sys, dsh_tasks.tools; print(json.dumps('pydantic_ai' in sys.modules))"
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", f"import json; {script}"], cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(printed.stdout) is False
