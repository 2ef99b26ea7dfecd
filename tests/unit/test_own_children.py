"""A child and its own children: endings told once at a step's border, and what the end of a turn does about them."""

from __future__ import annotations

import asyncio

import pytest

from dsh_tasks.notice import NOTICE_KIND, Notice
from dsh_tasks.session import Event
from dsh_tasks.task import Status
from tests.fake_run import FakeHousehold, FakeRun, a_child, a_tool, next_attempt, play, run_child
from tests.model_server import MODEL, ModelServer, Reply, Request
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.own_children import AtEnd
from workers.engines.base import ChildTool, StopReason, ToolAnswer

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ONE, TWO = "subagent-" + "1" * 32, "subagent-" + "2" * 32


@pytest.fixture
def model(model: ModelServer) -> ModelServer:
    model.answer = hears
    return model


def hears(request: Request) -> Reply:
    """Starts, says that it waits, and ends with what it was told."""
    if news := [message for message in request.messages if "ended. [status:" in str(message["content"])]:
        return Reply(f"heard {len(news)} times")
    if any(message["role"] == "tool" for message in request.messages):
        return Reply("now I wait")
    return Reply("", tools=[("subagent", {})])


def starts(household: FakeHousehold, *ids: str) -> ChildTool:
    def call(_arguments: object) -> str:
        household.alive += ids
        return f"started {' '.join(ids)}"

    return a_tool("subagent", call, idempotent=True)


def news_in(run: FakeRun) -> list[list[str]]:
    return [
        row["data"]["source"]["taskIds"]
        for row in run.rows
        if row["type"] == "user/message" and row["data"]["source"]["kind"] == NOTICE_KIND
    ]


def ending(task_id: str) -> Notice:
    return Notice(f"n-{task_id}", task_id, "count", Status.COMPLETED, None, 1)


def http_child() -> object:
    return a_child("go", model=MODEL)


def test_the_end_of_a_turn_waits_for_its_children_and_the_model_hears_of_them_once(
    model: ModelServer,
) -> None:
    household = FakeHousehold()
    run_given = {"household": household}
    outcome, run = run_child(AgentEngine(), http_child(), [starts(household, ONE, TWO)], **run_given)
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "heard 1 times")
    assert news_in(run) == [[ONE, TWO]]
    assert household.told == [ONE, TWO]
    assert "waits for 2 of its children" in run.activities
    assert len(run.session.turns()) == 1


@pytest.mark.parametrize(("at_end", "killed"), [(AtEnd.KILL, [ONE]), (AtEnd.LEAVE, [])])
def test_an_operator_may_have_them_killed_or_left(
    model: ModelServer, at_end: AtEnd, killed: list[str]
) -> None:
    household = FakeHousehold()
    outcome, _ = run_child(
        AgentEngine(children_at_end=at_end), http_child(), [starts(household, ONE)], household=household
    )
    assert (outcome.output, household.killed, household.told) == ("now I wait", killed, [])


def test_an_ending_is_told_at_the_next_border_and_never_again(model: ModelServer) -> None:
    household = FakeHousehold(pending=[ending(ONE)])
    outcome, run = run_child(AgentEngine(), http_child(), household=household)
    assert news_in(run) == [[ONE]]
    assert (outcome.output, len(model.requests)) == ("heard 1 times", 1)
    assert household.told == [ONE]


def test_an_ending_that_a_result_told_has_no_notice(model: ModelServer) -> None:
    household = FakeHousehold()

    def call(_arguments: object) -> ToolAnswer:
        household.pending.append(ending(ONE))
        return ToolAnswer("it said 42", seen=(ONE,))

    outcome, run = run_child(AgentEngine(), http_child(), [a_tool("subagent", call)], household=household)
    assert (outcome.output, news_in(run), household.told) == ("now I wait", [], [ONE])


def test_what_the_log_tells_is_acknowledged_by_the_next_attempt_and_not_told_again(
    model: ModelServer,
) -> None:
    """The worker died between a row and its acknowledgement."""
    household = FakeHousehold(pending=[ending(ONE)])
    _, first = run_child(AgentEngine(), http_child(), household=household)
    rows = [row for row in first.rows if row["type"] != "turn/end"]
    cut = next(n for n, row in enumerate(rows) if row["type"] == "assistant/message")
    again = FakeHousehold(pending=[ending(ONE)])
    child = next_attempt(first.child, map(Event.from_row, rows[:cut]))
    outcome, run = run_child(AgentEngine(), child, household=again)
    assert (again.told, news_in(run), outcome.output) == ([ONE], [], "heard 1 times")


@pytest.mark.parametrize(
    ("value", "status", "left"), [(7, Status.COMPLETED, []), ("no", Status.FAILED, [ONE])]
)
def test_a_value_waits_for_children_too_and_a_failure_does_not(
    model: ModelServer, value: object, status: Status, left: list[str]
) -> None:
    household = FakeHousehold(alive=[ONE])
    model.answer = lambda request: Reply("", tools=[("structured_output", {"n": value})])
    child = a_child("go", model=MODEL, output_schema=SCHEMA)
    outcome, run = run_child(AgentEngine(), child, household=household)
    assert (outcome.status, household.alive, news_in(run)) == (status, left, [])


def test_a_child_that_waits_for_its_children_is_handed_back_and_waits_again(model: ModelServer) -> None:
    household = FakeHousehold(ends=asyncio.Event())
    first = FakeRun(http_child(), [starts(household, ONE)], household=household)

    async def handed_back() -> None:
        first.on_activity = lambda words: (
            first.stop(StopReason.HAND_BACK) if words.startswith("waits") else None
        )
        first.task = asyncio.ensure_future(AgentEngine().run(first))
        await first.task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(handed_back())
    assert first.kinds()[-1] == "assistant/message", "the answer stands while its child waits"
    household.ends = None
    second = FakeRun(next_attempt(first.child, first.own), [starts(household)], household=household)
    outcome = asyncio.run(play(AgentEngine(), second))
    assert (outcome.output, news_in(second), len(model.requests)) == ("heard 1 times", [[ONE]], 3)
