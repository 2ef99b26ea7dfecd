"""A worker process claims no more than it has memory for, and what waits for room is not lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.factories import a_log
from tests.model_server import ModelServer, Reply
from tests.rig_tools import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(worker_bytes=1, republish_ms=600_000)


def test_different_large_seeds_run_one_after_the_other_and_equal_ones_together(
    rig: Rig, client: Client
) -> None:
    with ModelServer(lambda _: Reply("done", blocks=True)) as model:
        rig.worker(concurrency=8, **model.environment)
        one, two = a_log(turns=1), a_log(turns=2)
        first = client.start("fork", parent=one, prompt="first")
        wait_until(lambda: len(model.requests) == 1, "the first asks")
        second = client.start("fork", parent=two, prompt="second")
        wait_until(lambda: "received" in rig.workers[0].lines.split(first.id)[-1], "its message came")
        small = client.start("spawn", prompt="no seed, and no room either")
        assert {client.task(run.id).status for run in (second, small)} == {Status.QUEUED}
        assert len(model.requests) == 1
        model.release()
        for run in (first, second, small):
            assert run.result().task.status is Status.COMPLETED


def test_many_that_come_at_once_do_not_all_find_the_same_room(rig: Rig, client: Client) -> None:
    with ModelServer(lambda _: Reply("done", seconds=0.2)) as model:
        runs = [client.start("fork", parent=a_log(turns=turns), prompt="go") for turns in range(1, 7)]
        rig.worker(concurrency=8, **model.environment)
        for run in runs:
            assert run.result().task.status is Status.COMPLETED
        assert (len(model.requests), model.peak) == (6, 1)
