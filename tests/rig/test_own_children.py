"""A child that ends its turn while its own children run: on one slot, over a killed worker, each ending told once."""

from __future__ import annotations

import json

import pytest

from dsh_tasks.client import Client
from dsh_tasks.notice import NOTICE_KIND
from dsh_tasks.session import Session
from dsh_tasks.task import Status, Task
from tests.prompts import waiting
from tests.rig_tools import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


def starting(count: int, prompt: str) -> str:
    """The child starts so many in the background, says that it has, and ends its turn."""
    arguments = {"prompt": prompt, "run_in_background": True}
    calls = [
        {"tool": "subagent", "arguments": {"description": f"number {n}"} | arguments} for n in range(count)
    ]
    return f"!calls {json.dumps(calls)}\n!say they run"


def told(log: Session) -> list[str]:
    """Ids of the endings that the child's model was told, in order."""
    found: list[str] = []
    for row in log.events:
        if row.type == "user/message" and row.data["source"]["kind"] == NOTICE_KIND:
            found += row.data["source"]["taskIds"]
    return found


def below(client: Client, run_id: str) -> list[Task]:
    return [task for task in client.list_tasks() if task.owner == run_id]


def test_it_waits_for_them_on_a_pool_of_one_and_hears_of_each_once(rig: Rig, client: Client) -> None:
    rig.worker(concurrency=1)
    run = client.start("spawn", prompt=starting(3, "!say I am done"))
    done = run.result()
    assert (done.task.status, done.text.startswith("they run")) == (Status.COMPLETED, True)
    children = below(client, run.id)
    assert [task.status for task in children] == [Status.COMPLETED] * 3
    assert all(task.ended_ms <= done.task.ended_ms for task in children)
    log = client.session(run.id)
    assert sorted(told(log)) == sorted(task.id for task in children)
    assert len(log.turns()) == 1
    assert client.notices(acknowledge=True) == ()


def test_its_worker_dies_while_it_waits_and_nothing_is_told_twice(rig: Rig, client: Client) -> None:
    worker = rig.worker()
    run = client.start("spawn", prompt=starting(2, waiting(3)))
    wait_until(lambda: client.task(run.id).activity.startswith("waits for 2"), "it waits")
    worker.kill()
    rig.worker()
    wait_until(lambda: client.task(run.id).is_terminal, "it ended", within_s=40)
    task = client.task(run.id)
    assert (task.status, task.attempt) == (Status.COMPLETED, 2)
    children = below(client, run.id)
    assert [task.status for task in children] == [Status.COMPLETED] * 2, "they were not started again"
    log = client.session(run.id)
    assert sorted(told(log)) == sorted(task.id for task in children)
    assert [notice.task_id for notice in client.notices()] == [run.id]
