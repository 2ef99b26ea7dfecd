"""A child run again from its log: the same rows come out, or the first that differs is shown."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from dsh_tasks import format as log_format
from dsh_tasks.errors import SessionRefused
from dsh_tasks.session import Event, Header, Session
from tests.factories import a_log
from dsh_tasks.notice import Notice
from dsh_tasks.submission import Policy, ToolFilter
from dsh_tasks.task import Status
from tests.fake_run import FakeHousehold, FakeRun, a_child, a_tool, next_attempt, play, run_child
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.judging import Judge
from workers.engines.base import Child, ChildTool, Fenced, StopReason, ToolAnswer
from workers.replay import playing
from workers.replay.__main__ import main, replayed
from workers.replay.comparing import Difference
from workers.replay.playing import Replayed, ReplayModel
from workers.replay.recorded import Recorded

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def again(session: Session) -> Difference | None:
    return asyncio.run(replayed(Recorded.of(session)))


def run_of(prompt: str, *tools: ChildTool, seed: Any = (), **policy: Any) -> FakeRun:
    return run_child(AgentEngine(), a_child(prompt, seed=seed, **policy), tools)[1]


def assert_same(session: Session) -> None:
    found = again(session)
    assert found is None, (found, found.diff)


ECHO = '!call echo {"text": "hi"}'
BOTH = '!calls [{"tool": "echo", "arguments": {"text": "a"}}, {"tool": "slow", "arguments": {}}]'


async def late() -> str:
    for _ in range(50):
        await asyncio.sleep(0)
    return "late"


@pytest.mark.parametrize(
    "prompt",
    [
        "hello",
        f"!say I look\n{ECHO}\n{ECHO}\n!say done",
        BOTH,
        "!call nobody {}",
        "!max-tokens",
        "!refuse",
        "!fail so",
        f"{ECHO}\n!fail later",
        '!call breaks {"text": "x"}',
    ],
)
@pytest.mark.parametrize("turns", [0, 2])
def test_a_child_comes_out_as_it_was(prompt: str, turns: int) -> None:
    def broken(_arguments: Any) -> str:
        raise ValueError("no")

    tools = [a_tool(), a_tool("slow", lambda _: late()), a_tool("breaks", broken)]
    seed = a_log(turns).events if turns else ()
    assert_same(run_of(prompt, *tools, seed=seed).session)


@pytest.mark.parametrize("turns", [0, 2])
@pytest.mark.parametrize(
    "prompt", ['!call structured_output {"n": 1}', '!call structured_output {"n": "x"}', "no"]
)
def test_one_with_a_persona_and_a_schema_too(prompt: str, turns: int) -> None:
    seed = a_log(turns).events if turns else ()
    assert_same(run_of(prompt, seed=seed, persona="You are short.", output_schema=SCHEMA).session)


def test_an_exclusive_tool_runs_alone_again() -> None:
    calls = (
        '!calls [{"tool": "echo", "arguments": {"text": "a"}}, {"tool": "echo", "arguments": {"text": "b"}}]'
    )
    assert_same(run_of(calls, a_tool(exclusive=True)).session)
    assert_same(run_of(calls, a_tool()).session)


@pytest.mark.parametrize("where", ["model", "tool:echo"])
def test_a_killed_one_is_killed_again_in_the_same_place(where: str) -> None:
    async def hang(_: Any = None) -> str:
        await asyncio.Event().wait()
        return ""

    prompt = "!say so far\n!wait 60" if where == "model" else ECHO
    run = FakeRun(a_child(prompt), [a_tool(call=lambda _: hang())])
    seen: list[str] = []

    def on(words: str) -> None:
        if words == where and not seen:
            seen.append(words)
            asyncio.get_running_loop().call_later(0.2, run.stop, StopReason.KILL)

    run.on_activity = on
    asyncio.run(play(AgentEngine(), run))
    assert run.row("turn/end")["reason"]["kind"] == "aborted"
    assert_same(run.session)


def lost_after(child: Child, kinds: Callable[[list[str]], bool], *tools: ChildTool) -> list[Event]:
    """The rows of an attempt that is lost once it has written such rows."""
    run = FakeRun(child, tools)

    def check(written: list[str]) -> None:
        if kinds(written):
            run.stop_reason = StopReason.FENCED
            raise Fenced

    run.on_append = check

    async def until_lost() -> None:
        with pytest.raises(Fenced):
            await AgentEngine().run(run)

    asyncio.run(until_lost())
    return run.own


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("last", ["request/header", "tool/call", "tool/result", "step/start"])
def test_the_attempts_of_a_child_are_one_run(last: str, idempotent: bool) -> None:
    child = a_child(f"{ECHO}\n!say done")
    tool = a_tool(idempotent=idempotent)
    own = lost_after(child, lambda kinds: last in kinds, tool)
    assert_same(Session(child.header, tuple(own)))
    second = FakeRun(next_attempt(child, own), [tool])
    asyncio.run(play(AgentEngine(), second))
    assert [row.data["attempt"] for row in second.session.events if row.type == "dsh-tasks/attempt"] == [2]
    assert_same(second.session)


def altered(session: Session, kind: str, change: Callable[[dict[str, Any]], None], place: int = 0) -> Session:
    rows = [json.loads(json.dumps(event.row())) for event in session.events]
    change([row for row in rows if row["type"] == kind][place]["data"])
    return replace(session, events=tuple(map(Event.from_row, rows)))


def test_a_row_that_differs_is_shown_with_its_place_and_what_differs() -> None:
    session = run_of(f"{ECHO}\n!say done", a_tool()).session
    bad = altered(session, "tool/call", lambda data: data.update(arguments='{"text": "other"}'))
    found = again(bad)
    assert found is not None
    assert (found.type, bad.events[found.seq].type) == ("tool/call", "tool/call")
    assert any("other" in line for line in found.diff)


def test_a_row_that_is_missing_in_the_log_is_shown() -> None:
    session = run_of("hello").session
    found = again(replace(session, events=session.events[:-2] + session.events[-1:]))
    assert found is not None and found.type == "turn/end"


def test_a_log_in_which_no_model_was_asked_is_refused() -> None:
    header = Header(4, "x", 1_000)
    with pytest.raises(SessionRefused, match="no model was asked"):
        Recorded.of(Session(header, ()))


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = run_of("hello").session
    path = tmp_path / "child.jsonl"
    log_format.write_file(session, path)
    assert main([str(path)]) == 0
    assert "no difference in" in capsys.readouterr().out

    resumed = altered(session, "request/header", lambda data: data.update(reason="resume"))
    log_format.write_file(resumed, path)
    assert main([str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["difference"]["type"] == "request/header"


def test_what_a_child_heard_of_its_own_children_is_told_again_where_it_was_told() -> None:
    household = FakeHousehold()
    one, two = "subagent-" + "1" * 32, "subagent-" + "2" * 32

    def start(_arguments: Any) -> str:
        household.alive += [one]
        household.pending.append(Notice("n", two, "beside", Status.COMPLETED, None, 1))
        return "started"

    def read(_arguments: Any) -> ToolAnswer:
        return ToolAnswer("it said 42", seen=("subagent-" + "3" * 32,))

    tools = [a_tool("start", start, idempotent=True), a_tool("read", read)]
    prompt = "!call start {}\n!call read {}\n!say the end"
    _, run = run_child(AgentEngine(), a_child(prompt), tools, household=household)
    assert run.kinds().count("user/message") == 3
    assert "dsh-tasks/seen" in run.kinds()
    assert_same(run.session)


def test_a_request_that_is_not_streamed_gets_the_recorded_answer_and_is_looked_at_too() -> None:
    """pydantic-ai's other way to ask a model: the engine streams, a tool of the library need not."""
    session = run_of("!say as it was").session
    recorded = Recorded.of(session)
    place = next(n for n, row in enumerate(recorded.attempts[0]) if row["type"] == "assistant/message")

    async def ask(*told: str) -> tuple[str | None, Difference | None]:
        run = Replayed(recorded, 0, place=place)
        asked: list[Any] = [ModelRequest([UserPromptPart(one)]) for one in told]
        try:
            answer = await ReplayModel(run).request(asked, None, ModelRequestParameters())
        except Fenced:
            return None, run.difference
        return answer.text, run.difference

    assert asyncio.run(ask("!say as it was")) == ("as it was", None)
    answer, found = asyncio.run(ask("something else"))
    assert answer is None
    assert found is not None
    assert found.type == "request"


def waiting_for_a_child(reason: StopReason, attempt_2: bool = False) -> Session:
    """A child that was stopped as it waited for its own child; perhaps the next attempt ended it."""
    household = FakeHousehold(ends=asyncio.Event())

    def start(_arguments: Any) -> str:
        household.alive += ["subagent-" + "1" * 32]
        return "started"

    tools = [a_tool("start", start, idempotent=True)]
    run = FakeRun(a_child("!call start {}\n!say the end"), tools, household=household)
    run.on_activity = lambda words: run.stop(reason) if words.startswith("waits") else None
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(play(AgentEngine(), run))
    if not attempt_2:
        return run.session
    household.ends = None
    child = next_attempt(run.child, run.own)
    return run_child(AgentEngine(), child, tools, household=household)[1].session


@pytest.mark.parametrize("reason", [StopReason.KILL, StopReason.HAND_BACK])
def test_a_child_that_was_stopped_as_it_waited_for_its_children_comes_out_again(reason: StopReason) -> None:
    assert_same(waiting_for_a_child(reason))


def test_so_does_one_whose_next_attempt_waited_to_the_end() -> None:
    assert_same(waiting_for_a_child(StopReason.HAND_BACK, attempt_2=True))


def test_an_attempt_whose_worker_could_not_run_the_child_closes_its_turn_and_is_taken_as_it_is() -> None:
    run = FakeRun(a_child("!call block {}"), [a_tool("block", lambda _: late_for_ever())])
    run.on_activity = lambda words: run.stop(StopReason.HAND_BACK) if words == "tool:block" else None
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(play(AgentEngine(), run))
    child = replace(next_attempt(run.child, run.own), policy=Policy(tool_filter=ToolFilter(allow=("gone",))))
    _, again_ = run_child(AgentEngine(), child)
    assert again_.kinds() == ["dsh-tasks/attempt", "tool/result", "step/end", "turn/end"]
    assert [turn.reason for turn in again_.session.turns()] == ["error"]
    assert_same(again_.session)


async def late_for_ever() -> str:
    await asyncio.Event().wait()
    return ""


def test_a_value_that_took_long_to_judge_comes_out_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was too long is the recorded machine's word; and a check is no standstill."""
    monkeypatch.setattr(playing, "STILL_S", 0.01)
    schema = {"type": "string", "pattern": "^(a|a|aa)+$"}
    slow, fits = json.dumps({"value": "a" * 40 + "!"}), json.dumps({"value": "aaa"})
    prompt = f"!call structured_output {slow}\n!call structured_output {fits}"
    _, run = run_child(AgentEngine(judge=Judge(3.0)), a_child(prompt, output_schema=schema))
    assert "took longer" in run.row("tool/result", 0)["message"]["content"][0]["text"]
    assert_same(run.session)


def test_the_log_of_no_child_is_refused() -> None:
    with pytest.raises(SessionRefused, match="the log of no child"):
        Recorded.of(a_log(3))
