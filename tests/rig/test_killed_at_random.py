"""SIGKILL of the worker at random instants of its children: each goes on, and pays for nothing finished again."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.session import Event
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import Rig, config_with_tools
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

STEPS, CALLS = 5, 2
"""Five steps with two tool calls each, then the answer: 6 model calls, 10 tool calls."""
STEP_S = 0.12


@dataclass
class Script:
    """Answers by what came before, so that any attempt can go on with it; tools note into a ledger."""

    ledger: Path
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __call__(self, request: Request) -> Reply:
        done = len(request.results)
        self.asked[request.prompt, done // CALLS] += 1
        if done == STEPS * CALLS:
            return Reply(f"{request.prompt} ended after {done} results", seconds=STEP_S, chunks=4)
        lines = [f"{request.prompt}/{done + number}" for number in range(CALLS)]
        tools = [("slow_note", {"path": str(self.ledger), "line": line}) for line in lines]
        return Reply(f"step {done // CALLS}", tools=tools, seconds=STEP_S, chunks=4)

    @property
    def noted(self) -> Counter[str]:
        return Counter(self.ledger.read_text().splitlines() if self.ledger.exists() else [])


def finished(log: tuple[Event, ...], prompt: str) -> tuple[set[int], set[str]]:
    """Steps with an answer, and calls with a result, as a log holds them."""
    calls = [row for row in log if row.type == "tool/call"]
    ids = {row.data["message"]["toolCallId"] for row in log if row.type == "tool/result"}
    places = {row.data["callId"]: place for place, row in enumerate(calls)}
    answers = sum(1 for row in log if row.type == "assistant/message")
    return set(range(answers)), {f"{prompt}/{places[one]}" for one in ids}


@pytest.mark.parametrize(
    ("rounds", "children"), [(1, 10), pytest.param(5, 10, marks=pytest.mark.long, id="50 instants")]
)
def test_a_kill_at_a_random_instant_repeats_nothing_that_had_finished(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
    rounds: int,
    children: int,
) -> None:
    chance = random.Random(5)
    config = config_with_tools(tmp_path, "tests.worker_tools:slow_note")
    for number in range(rounds):
        settings = make_settings(
            lease_ms=2_000, grace_ms=500, live_per_owner=children, live_per_tree=children, config=config
        )
        script = Script(tmp_path / f"ledger-{number}")
        rig, client = make_rig(settings), make_client(settings, owner="parent")
        with ModelServer(script) as model:
            worker = rig.worker(**model.environment)
            runs = []
            for child in range(children):
                runs.append(client.start("spawn", prompt=f"child-{number}-{child}"))
                # They are at different places when the worker dies.
                pause_until = time.monotonic() + chance.uniform(0, 2 * STEP_S)
                wait_until(lambda at=pause_until: time.monotonic() >= at, "its turn")
            progress = chance.randrange(1, STEPS * CALLS)
            wait_until(lambda: len(script.noted) >= progress, "some have come that far")
            worker.kill()
            before = {
                run.id: finished(client.session(run.id).events, f"child-{number}-{n}")
                for n, run in enumerate(runs)
            }
            asked, noted = script.asked.copy(), script.noted
            rig.worker(**model.environment)
            for n, run in enumerate(runs):
                wait_until(lambda run=run: client.task(run.id).is_terminal, f"child {n} ended")
            # Looked at before any output is read: nothing is held back.
            assert sorted(one.task_id for one in client.notices()) == sorted(run.id for run in runs)
            for n, run in enumerate(runs):
                prompt = f"child-{number}-{n}"
                task = client.task(run.id)
                assert (task.status, task.detail) == (Status.COMPLETED, "")
                assert client.output(run.id).text == f"{prompt} ended after {STEPS * CALLS} results"
                steps, calls = before[run.id]
                for step in steps:
                    assert script.asked[prompt, step] == asked[prompt, step], "its answer was in the log"
                for line in calls:
                    assert script.noted[line] == noted[line] == 1, "its result was in the log"
                assert max(script.noted[f"{prompt}/{place}"] for place in range(STEPS * CALLS)) == 1
                assert task.usage.model_calls >= STEPS + 1
