"""The log of a child that was reminded of its structured value: the runtime opens it and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_run import a_child, run_child
from tests.harness.expected import history_of
from tests.harness.judging import fault_of
from tests.harness.oracle import Oracle, prompt_of
from tests.model_server import MODEL, ModelServer, Reply, Request
from tests.unit.test_agent_engine import SCHEMA, a_parent_log
from workers.engines.agent.engine import AgentEngine

pytestmark = pytest.mark.harness


def test_the_runtime_opens_and_continues_a_child_that_was_reminded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [
        Reply("", tools=[("structured_output", {"n": "x"})]),
        Reply("I am done"),
        Reply("", tools=[("structured_output", {"n": 1})]),
    ]

    def answer(request: Request) -> Reply:
        return replies[request.number % 3]

    sessions = {}
    with ModelServer(answer) as model:
        for name, value in model.environment.items():
            monkeypatch.setenv(name, value)
        for name, seed in (("fresh", ()), ("forked", a_parent_log())):
            child = a_child("go", model=MODEL, output_schema=SCHEMA, seed=seed, persona="You are P.")
            outcome, run = run_child(AgentEngine(), child)
            assert outcome.structured == {"n": 1}
            sessions[name] = run.session
    with Oracle(tmp_path) as oracle:
        found = oracle.judge({name: oracle.file_of(session, name) for name, session in sessions.items()})
    for name, session in sessions.items():
        history = history_of([event.row() for event in session.events], None)
        assert fault_of(history, found[name], prompt_of(name, 1)) is None
