"""A process that was paused and wakes up after a takeover: it can change nothing, and stops by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(lease_ms=1_500, grace_ms=300)


def test_a_paused_worker_that_wakes_after_the_takeover_writes_nothing_and_goes_on(
    rig: Rig, client: Client
) -> None:
    def blocks_at_first(request: Request) -> Reply:
        return Reply("late", blocks=True) if request.number == 0 else Reply("the answer of attempt 2")

    with ModelServer(blocks_at_first) as model:
        first = rig.worker(**model.environment)
        run = client.start("spawn", prompt="go")
        wait_until(lambda: model.requests, "attempt 1 asks the model")
        first.signal(signal.SIGSTOP)
        rig.worker(**model.environment)
        done = run.result()
        assert (done.task.status, done.task.attempt, done.text) == (
            Status.COMPLETED,
            2,
            "the answer of attempt 2",
        )
        before = client.session(run.id)
        first.signal(signal.SIGCONT)
        wait_until(lambda: "lost its lease" in first.lines or first.process.poll() is not None, "it stops")
        wait_until(lambda: model.requests[0].has_hung_up, "its model call ended")
        assert client.session(run.id) == before
        assert replace(client.task(run.id), now_ms=done.task.now_ms) == done.task
        assert client.notices() == (), "its owner has read it"
        assert len(model.requests) == 2

        # It is a worker again, unless it ended to be restarted.
        if first.process.poll() is None:
            again = [client.start("spawn", prompt=f"again {n}") for n in range(4)]
            assert {one.result().task.status for one in again} == {Status.COMPLETED}
