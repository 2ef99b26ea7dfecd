"""A persona shadows the parent's, once: over forks of forks, and over attempts."""

from __future__ import annotations

from typing import Any

import pytest

from dsh_tasks import seed
from dsh_tasks.session import Event
from tests.fake_run import FakeRun, a_child, a_tool, next_attempt, run_child
from tests.model_server import MODEL, ModelServer, Reply, Request
from tests.unit.test_agent_engine import a_parent_log
from workers.engines.agent.engine import AgentEngine


def systems(request: Request) -> list[str]:
    return [message["content"] for message in request.messages if message["role"] == "system"]


def child_of(given: tuple[Event, ...], persona: str | None, **more: Any) -> FakeRun:
    _, run = run_child(AgentEngine(), a_child("go", model=MODEL, seed=given, persona=persona, **more))
    return run


def fork_of(run: FakeRun) -> tuple[Event, ...]:
    return tuple(seed.cut(run.session).events)


def test_each_fork_has_its_own_persona_or_the_one_above_it_and_always_one(model: ModelServer) -> None:
    first = child_of(a_parent_log(), "You are A.")
    second = child_of(fork_of(first), None)
    third = child_of(fork_of(second), "You are B.")
    child_of(fork_of(third), "You are B.")
    fifth = child_of(fork_of(third), None)
    assert [systems(request) for request in model.requests] == [
        ["You are A."],
        ["You are A."],
        ["You are B."],
        ["You are B."],
        ["You are B."],
    ]
    assert [request.messages[0]["role"] for request in model.requests] == ["system"] * 5
    assert len([row for row in fifth.rows if row["type"] == "system/message"]) == 0, "nothing to shadow"


def test_a_fresh_child_with_a_persona_has_it_once(model: ModelServer) -> None:
    child_of((), "You are A.")
    child_of((), None)
    assert [systems(request) for request in model.requests] == [["You are A."], []]


@pytest.mark.parametrize("given", ["fresh", "forked"])
def test_a_persona_stands_once_in_each_request_of_each_attempt(model: ModelServer, given: str) -> None:
    """Cut after each write; the log holds the persona once."""
    model.answer = lambda request: Reply(
        "x", tools=[("echo", {"text": "a"})] if len(request.results) < 2 else ()
    )
    inherited = a_parent_log() if given == "forked" else ()
    child = a_child("go", model=MODEL, seed=inherited, persona="You are Q.")
    _, run = run_child(AgentEngine(), child, [a_tool()])
    at = 0
    for kinds in run.appends:
        at += len(kinds)
        _, again = run_child(AgentEngine(), next_attempt(child, run.own[:at]), [a_tool()])
        assert sum(event.type == "system/message" for event in again.own) == 1
    assert {tuple(systems(request)) for request in model.requests} == {("You are Q.",)}
