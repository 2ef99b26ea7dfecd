"""A child's log over a border of attempts: the runtime opens it and goes on, with the history that the child had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsh_tasks.session import Event
from tests.fake_run import a_child, a_tool, next_attempt, run_child
from tests.harness.expected import history_of
from tests.harness.judging import fault_of
from tests.harness.oracle import Oracle, prompt_of, reply_to
from tests.unit.test_agent_engine import a_parent_log
from workers.engines.agent.engine import AgentEngine

pytestmark = pytest.mark.harness

CALLS = [{"tool": "once"}, {"tool": "again"}, {"tool": "alone"}]
PROMPT = f"!say looking\n!calls {json.dumps(CALLS)}\n!calls {json.dumps(CALLS[:2])}\n!say done"


def test_the_runtime_opens_and_continues_a_child_that_went_on_in_mid_turn(tmp_path: Path) -> None:
    """A worker died after each of its writes; the next attempt finished the turn."""
    tools = [a_tool("once"), a_tool("again", idempotent=True), a_tool("alone", exclusive=True)]
    child = a_child(PROMPT, seed=a_parent_log(), persona="You are Q.")
    _, first = run_child(AgentEngine(), child, tools)
    sessions = {}
    for writes in range(1, len(first.appends) + 1):
        rows = first.rows[: sum(len(kinds) for kinds in first.appends[:writes])]
        _, again = run_child(AgentEngine(), next_attempt(child, map(Event.from_row, rows)), tools)
        assert "dsh-tasks/attempt" in again.kinds()
        sessions[f"child-{writes}"] = again.session
    with Oracle(tmp_path) as oracle:
        found = oracle.judge({name: oracle.file_of(session, name) for name, session in sessions.items()})
        oracle.restart()
        again = oracle.judge(list(sessions))
    for name, session in sessions.items():
        history = history_of([event.row() for event in session.events], None)
        assert fault_of(history, found[name], prompt_of(name, 1)) is None
        said = [(prompt_of(name, 1), reply_to(prompt_of(name, 1)))]
        assert fault_of(history, again[name], prompt_of(name, 2), said) is None
