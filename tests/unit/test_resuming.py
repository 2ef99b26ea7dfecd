"""An attempt that goes on where an earlier one stopped, in the middle of a turn: nothing finished is done again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from dsh_tasks.session import Event
from dsh_tasks.surface import messages
from dsh_tasks.task import Cause, Outcome, Status
from tests.fake_run import CHILD, FakeRun, a_child, a_tool, check_log, next_attempt, play, run_child
from tests.model_server import MODEL, ModelServer, Reply, Request
from tests.unit.test_agent_engine import SCHEMA, a_parent_log, as_openai, received
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.structured import MAX_INVALID, TOOL_NAME
from workers.engines.agent.tools import call_key
from workers.engines.base import ChildTool, Fenced, StopReason

ASKED = "go"


@pytest.fixture
def model(model: ModelServer) -> ModelServer:
    model.answer = by_results
    return model


def by_results(request: Request) -> Reply:
    """Four steps, told apart by what came before: a script that any attempt can go on with."""
    match len(request.results):
        case 0:
            return Reply("one", tools=[("once", {"n": 1}), ("again", {"n": 2}), ("alone", {"n": 3})])
        case 3:
            return Reply("two", tools=[("alone", {"n": 4}), ("once", {"n": 5})])
        case 5:
            return Reply("", tools=[("again", {"n": 6})])
        case _:
            return Reply("the end")


class Ledger:
    """What tools did, by argument; and under which keys."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()
        self.keys: dict[int, set[str]] = {}

    def tools(self) -> list[ChildTool]:
        return [
            a_tool("once", self._ran),
            a_tool("again", self._ran, idempotent=True),
            a_tool("alone", self._ran, exclusive=True),
        ]

    def _ran(self, arguments: Mapping[str, Any]) -> str:
        number = arguments["n"]
        self.ran[number] += 1
        self.keys.setdefault(number, set()).add(call_key.get())
        return f"ran {number}"


def http_child(**given: Any) -> Any:
    return a_child(ASKED, **({"model": MODEL} | given))


def crashed_after(run: FakeRun, appends: int) -> tuple[Event, ...]:
    """The log as it stands when the worker dies after so many of its writes."""
    rows = sum(len(kinds) for kinds in run.appends[:appends])
    return tuple(Event.from_row(row) for row in run.rows[:rows])


def unanswered(log: tuple[Event, ...]) -> set[int]:
    """Arguments of the calls that have a mark and no result."""
    begun = {
        row.data["callId"]: json.loads(row.data["arguments"])["n"] for row in log if row.type == "tool/call"
    }
    for row in log:
        if row.type == "tool/result":
            begun.pop(row.data["message"]["toolCallId"])
    return set(begun.values())


def test_after_a_crash_at_each_write_nothing_finished_is_done_again(model: ModelServer) -> None:
    whole, first = run_child(AgentEngine(), http_child(seed=a_parent_log()), Ledger().tools())
    assert (whole.output, len(model.requests)) == ("the end", 4)
    for writes in range(1, len(first.appends) + 1):
        log, ledger = crashed_after(first, writes), Ledger()
        answered = sum(1 for row in log if row.type == "assistant/message")
        finished = {1, 2, 3, 4, 5, 6} - unanswered(log)
        begun = [json.loads(row.data["arguments"])["n"] for row in log if row.type == "tool/call"]
        model.requests.clear()
        outcome, run = run_child(AgentEngine(), next_attempt(first.child, log), ledger.tools())
        assert (outcome.status, outcome.output) == (Status.COMPLETED, "the end")
        assert len(model.requests) == 4 - answered
        assert outcome.usage == whole.usage, "what the first attempt paid for is counted, and once"
        for number in range(1, 7):
            may_run = number not in begun or (number in unanswered(log) and number in (2, 6))
            assert ledger.ran[number] == may_run, (writes, number, finished)
        assert [turn.reason for turn in run.session.turns()][-1] == "completed"
        assert [row.data["attempt"] for row in run.own if row.type == "dsh-tasks/attempt"] == [2]
        assert "interrupted" not in [turn.reason for turn in run.session.turns()][2:]


def test_each_request_of_a_later_attempt_is_the_fold_of_the_log_so_far(model: ModelServer) -> None:
    _, first = run_child(
        AgentEngine(), http_child(seed=a_parent_log(), persona="You are Q."), Ledger().tools()
    )
    for writes in range(1, len(first.appends) + 1):
        model.requests.clear()
        again = next_attempt(first.child, crashed_after(first, writes))
        _, run = run_child(AgentEngine(), again, Ledger().tools())
        answers = [row.seq for row in run.session.events if row.type == "assistant/message"]
        for request, seq in zip(model.requests, answers[-len(model.requests) :], strict=True):
            assert received(request) == as_openai(run.session.events[:seq])


def test_a_lost_call_reads_as_unknown_and_one_that_never_began_is_run(model: ModelServer) -> None:
    _, first = run_child(AgentEngine(), http_child(), Ledger().tools())
    log, ledger = crashed_after(first, 2), Ledger()
    assert unanswered(log) == {1, 2}
    _, run = run_child(AgentEngine(), next_attempt(first.child, log), ledger.tools())
    texts = [message["content"][0]["text"] for message in messages(run.own) if message["role"] == "tool"]
    assert "outcome is unknown" in texts[0]
    assert texts[1:3] == ["ran 2", "ran 3"]
    assert run.kinds()[:3] == ["dsh-tasks/attempt", "tool/result", "tool/result"]


def test_attempts_that_die_again_and_again_end_with_one_whole_turn(model: ModelServer) -> None:
    """Each attempt gets two writes further than the last one."""
    child, log, ledger = http_child(), (), Ledger()
    for _ in range(30):
        run = FakeRun(child if not log else next_attempt(child, log), ledger.tools())
        left = [2]

        def fence(_kinds: list[str], run: FakeRun = run, left: list[int] = left) -> None:
            left[0] -= 1
            run.refuses = left[0] == 0

        run.on_append = fence
        try:
            outcome = asyncio.run(play(AgentEngine(), run))
        except Fenced:
            child, log = run.child, tuple(run.own)
            continue
        break
    assert outcome.output == "the end"
    assert len([row for row in run.own if row.type == "dsh-tasks/attempt"]) >= 4
    assert len(run.session.turns()) == 1
    assert len([row for row in run.own if row.type == "assistant/message"]) == 4
    assert all(times == 1 for number, times in ledger.ran.items() if number in (1, 3, 4, 5))


def test_a_calls_key_is_the_same_in_every_attempt_and_differs_between_calls(model: ModelServer) -> None:
    """The provider gives the same id to calls of different answers."""
    model.answer = lambda request: (
        Reply("", tools=[("again", {"n": len(request.results)})], call_ids=["c"])
        if len(request.results) < 3
        else Reply()
    )
    ledger = Ledger()
    _, first = run_child(AgentEngine(), http_child(), ledger.tools())
    _, second = run_child(AgentEngine(), next_attempt(first.child, crashed_after(first, 4)), ledger.tools())
    keys = [next(iter(ledger.keys[number])) for number in range(3)]
    assert [len(ledger.keys[number]) for number in range(3)] == [1, 1, 1]
    assert len(set(keys)) == 3
    assert keys[0] == f"{CHILD}/c"
    assert ledger.ran[1] == 2
    assert second.session.turns()[-1].reason == "completed"


def test_text_that_streamed_as_the_worker_left_is_kept_and_asked_for_again(model: ModelServer) -> None:
    model.answer = lambda request: Reply("half and half", blocks=len(model.requests) == 1)
    first = FakeRun(http_child())

    async def handed_back() -> None:
        first.task = asyncio.ensure_future(AgentEngine().run(first))
        async with asyncio.timeout(20):
            while not model.active:
                await asyncio.sleep(0.001)
            for _ in range(100):
                await asyncio.sleep(0.001)
        first.stop(StopReason.HAND_BACK)
        await first.task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(handed_back())
    assert first.row("dsh-tasks/partial")["text"] == "half an"
    outcome, run = run_child(AgentEngine(), next_attempt(first.child, first.own))
    assert outcome.output == "half and half"
    assert [message["role"] for message in messages(run.own)] == ["user", "assistant"]
    killed = FakeRun(
        next_attempt(first.child, first.own), lease_is_past=False, stop_reason=StopReason.KILL, refuses=True
    )
    assert asyncio.run(_ended(killed)).output == "half an"


async def _ended(run: FakeRun) -> Outcome:
    return await AgentEngine().run(run)


def test_a_value_that_was_given_is_not_asked_for_again(model: ModelServer) -> None:
    model.answer = lambda request: Reply("", tools=[(TOOL_NAME, {"n": 7})])
    whole, first = run_child(AgentEngine(), http_child(output_schema=SCHEMA))
    assert (whole.structured, first.appends[-1]) == ({"n": 7}, ["tool/result"])
    model.requests.clear()
    outcome, _ = run_child(AgentEngine(), next_attempt(first.child, crashed_after(first, len(first.appends))))
    assert (outcome.structured, outcome.status, model.requests) == ({"n": 7}, Status.COMPLETED, [])


def test_the_tries_of_all_attempts_are_bounded_together(model: ModelServer) -> None:
    model.answer = lambda request: Reply("", tools=[(TOOL_NAME, {"n": "no"})])
    whole, first = run_child(AgentEngine(), http_child(output_schema=SCHEMA))
    assert (whole.cause, len(model.requests)) == (Cause.SCHEMA, MAX_INVALID)
    for writes in range(1, len(first.appends) + 1):
        log = crashed_after(first, writes)
        model.requests.clear()
        outcome, _ = run_child(AgentEngine(), next_attempt(first.child, log))
        answered = sum(1 for row in log if row.type == "assistant/message")
        assert (outcome.cause, len(model.requests)) == (Cause.SCHEMA, MAX_INVALID - answered)


def test_a_tool_that_is_gone_or_filtered_on_the_next_worker_is_an_errored_answer(model: ModelServer) -> None:
    _, first = run_child(AgentEngine(), http_child(), Ledger().tools())
    outcome, run = run_child(AgentEngine(), next_attempt(first.child, crashed_after(first, 2)), [])
    assert outcome.status is Status.COMPLETED
    headers = [row for row in run.own if row.type == "request/header"]
    assert ["tools" in row.data["header"] for row in headers] == [True, False], (
        "the log tells what it was shown"
    )
    check_log(run.session)
