"""Workers that die, leave, or are told to stop: no accepted child is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.task import Cause, Status
from tests.prompts import waiting
from tests.rig_tools import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


def status_is(client: Client, task_id: str, status: Status) -> Callable[[], bool]:
    return lambda: client.task(task_id).status is status


def attempt_runs(client: Client, task_id: str, attempt: int) -> Callable[[], bool]:
    def condition() -> bool:
        task = client.task(task_id)
        return task.status is Status.RUNNING and task.attempt == attempt

    return condition


def test_a_killed_workers_children_start_again_on_the_other_one(rig: Rig, client: Client) -> None:
    """P1 (b): SIGKILL of the whole worker; attempt 2 runs within lease + grace + 5 s, one notice each."""
    first = rig.worker()
    runs = [client.start("spawn", prompt=waiting(4), label=f"child {n}") for n in range(3)]
    for run in runs:
        # It has begun its log: what the next attempt finds.
        wait_until(lambda run=run: client.task(run.id).activity == "model", "attempt 1 streams")
    first.kill()
    # The bound counts from the later of the death and the start of a replacement.
    rig.worker()
    bound_s = (rig.settings.lease_ms + rig.settings.grace_ms) / 1000 + 5
    for run in runs:
        wait_until(attempt_runs(client, run.id, 2), "attempt 2 runs", within_s=bound_s)
    for run in runs:
        wait_until(status_is(client, run.id, Status.COMPLETED), "completed")
    # Looked at without reading any output: nothing is held back.
    assert sorted(notice.task_id for notice in client.notices()) == sorted(run.id for run in runs)
    assert {client.task(run.id).attempt for run in runs} == {2}
    log = client.session(runs[0].id)
    assert [row.data["attempt"] for row in log.events if row.type == "dsh-tasks/attempt"] == [2]
    assert [turn.reason for turn in log.turns()] == ["completed"], "the turn goes on, it does not begin again"


def test_a_worker_that_is_told_to_end_hands_its_children_back_at_once(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    # No lease ends while this test waits: only a hand-back starts another attempt.
    settings = make_settings(lease_ms=600_000, republish_ms=600_000)
    rig, client = make_rig(settings), make_client(settings, owner="s")
    first = rig.worker()
    run = client.start("spawn", prompt=waiting(3))
    wait_until(attempt_runs(client, run.id, 1), "attempt 1 runs")
    assert first.stop() == 0
    rig.worker()
    wait_until(attempt_runs(client, run.id, 2), "attempt 2 runs")
    done = run.result()
    assert (done.task.status, done.task.losses, done.task.attempt) == (Status.COMPLETED, 0, 2)


def test_a_killed_running_child_keeps_its_partial_text_and_frees_its_slot(rig: Rig, client: Client) -> None:
    rig.worker(concurrency=1)
    run = client.start("spawn", prompt=waiting(60))
    wait_until(lambda: client.task(run.id).activity == "model", "the model streams")
    receipt = client.kill(run.id, reason="not needed")
    assert (receipt.accepted, receipt.status) == (True, Status.RUNNING)
    done = run.result()
    assert (done.task.status, done.task.cause, done.task.detail) == (Status.KILLED, Cause.OWNER, "not needed")
    assert client.session(run.id).turns()[-1].reason == "aborted"
    assert client.start("spawn", prompt="hello").result().task.status is Status.COMPLETED
    again = client.kill(run.id)
    assert (again.accepted, again.status) == (False, Status.KILLED)


def test_a_killed_queued_child_makes_no_model_call_after_workers_start(rig: Rig, client: Client) -> None:
    run = client.start("spawn", prompt="hello")
    client.kill(run.id)
    other = client.start("spawn", prompt="hello")
    rig.worker()
    assert other.result().task.status is Status.COMPLETED
    killed = client.task(run.id)
    assert (killed.status, killed.attempt, killed.usage.model_calls) == (Status.KILLED, 0, 0)
    assert client.session(run.id).events == ()


def test_a_kill_reaches_every_level_below(rig: Rig, client: Client) -> None:
    from tests.prompts import delegating

    rig.worker(concurrency=1)
    run = client.start("spawn", prompt=delegating(delegating(waiting(60))))
    wait_until(lambda: len(client.list_tasks()) == 3, "a chain of three")
    wait_until(lambda: all(t.status is Status.RUNNING for t in client.list_tasks()), "all run")
    receipt = client.kill(run.id)
    assert [status for _, status in receipt.took] == [Status.RUNNING] * 3
    wait_until(lambda: all(t.status is Status.KILLED for t in client.list_tasks()), "all killed", within_s=10)
    causes = [task.cause for task in client.list_tasks()]
    assert causes == [Cause.OWNER, Cause.ANCESTOR, Cause.ANCESTOR]


def test_a_chain_of_depth_three_with_waits_ends_on_one_slot(rig: Rig, client: Client) -> None:
    from tests.prompts import delegating

    rig.worker(concurrency=1)
    run = client.start("spawn", prompt=delegating(delegating("!say the bottom was here")))
    done = run.result()
    assert done.task.status is Status.COMPLETED
    assert "the bottom was here" in done.text
    tasks = client.list_tasks()
    assert [task.depth for task in tasks] == [1, 2, 3]
    assert {task.status for task in tasks} == {Status.COMPLETED}
    assert all((task.worker or "").startswith("inline in ") for task in tasks[1:])


def test_children_survive_a_server_that_is_killed_and_comes_back(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: object,
) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "server"
    server = embedded.start(folder=folder)
    settings = make_settings(redis_url=server.url, lease_ms=5_000)
    client = make_client(settings, owner="s")
    make_rig(settings).worker()
    runs = [client.start("spawn", prompt=waiting(6)) for _ in range(5)]
    for run in runs:
        wait_until(attempt_runs(client, run.id, 1), "running")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    server = embedded.start(port=server.port, folder=folder)
    try:
        for run in runs:
            wait_until(status_is(client, run.id, Status.COMPLETED), "completed", within_s=40)
        assert {client.task(run.id).attempt for run in runs} == {1}
        assert len(client.notices()) == 5
        assert client.start("spawn", prompt="hello").result().task.status is Status.COMPLETED
    finally:
        server.stop()
