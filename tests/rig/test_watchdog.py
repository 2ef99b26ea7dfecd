"""A child is watched by its progress: what stands still is shown, stopped, tried again within bounds, and failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.task import Cause, Status
from tests.cli_tools import alive
from tests.model_server import ModelServer, Reply
from tests.prompts import delegating, waiting
from tests.rig_tools import Rig, config_with_tools
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

MakeClient = Callable[..., Client]


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    """A child may be silent for 3 s, a tool for 2 s."""
    return make_settings(step_silence_ms=3_000, tool_silence_ms=2_000, losses=2)


def calling(tool: str, **arguments: str) -> str:
    return f"!call {tool} {json.dumps(arguments)}"


def test_a_tool_that_hangs_is_shown_tried_again_and_then_fails_its_child(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    rig.worker(DSH_TASKS_CONFIG=config_with_tools(tmp_path, "tests.worker_tools:hang"))
    run = client.start("spawn", prompt=f"!say I try\n{calling('hang', told=str(told))}")
    wait_until(lambda: client.task(run.id).stalled_ms, "the stall is seen before it is ended")
    done = run.result()
    assert (done.task.status, done.task.cause) == (Status.FAILED, Cause.STALLED)
    assert "no progress for 2 s in tool:hang (tool_silence_ms is 2000)" in done.task.detail
    assert "2 attempts were lost or stalled" in done.task.detail
    assert (done.task.attempt, len(told.read_text().splitlines())) == (2, 2)
    # What it had said is kept, its log is whole, and it is at work no more.
    assert (done.text, done.task.stalled_ms) == ("I try", 0)
    assert client.session(run.id).turns()[-1].reason == "error"
    assert "stalled" in rig.workers[0].log.read_text()


def test_after_a_tool_that_may_not_run_again_the_child_goes_on(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    rig.worker(DSH_TASKS_CONFIG=config_with_tools(tmp_path, "tests.worker_tools:hold"))
    prompt = calling("hold", told=str(tmp_path / "told"), release=str(tmp_path / "never"))
    done = client.start("spawn", prompt=prompt).result()
    assert (done.task.status, done.task.attempt) == (Status.COMPLETED, 2)
    assert "hold failed" in done.text and "outcome" in done.text


def test_a_synchronous_tool_that_hangs_is_killed_with_its_process(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    rig.worker(DSH_TASKS_CONFIG=config_with_tools(tmp_path, "tests.held_tools:spin"))
    run = client.start("spawn", prompt=calling("spin", told=str(told)))
    pid = int(wait_until(lambda: told.exists() and told.read_text(), "the tool runs"))
    wait_until(lambda: not alive({pid}), "its process is gone")
    assert run.result().task.attempt == 2


def test_a_model_that_says_little_but_says_it_is_alive_and_its_deadline_holds(
    rig: Rig, client: Client
) -> None:
    rig.worker()
    slow = client.start("spawn", prompt=waiting(8))
    endless = client.start("spawn", prompt=waiting(40), deadline_ms=5_000)
    assert (slow.result().task.status, slow.result().task.attempt) == (Status.COMPLETED, 1)
    done = endless.result()
    assert (done.task.status, done.task.cause, done.task.attempt) == (Status.KILLED, Cause.DEADLINE, 1)


def test_a_model_that_says_nothing_stalls_its_child(rig: Rig, client: Client) -> None:
    with ModelServer(lambda request: Reply(is_silent=True)) as model:
        rig.worker(**model.environment)
        done = client.start("spawn", prompt="hello").result()
        assert (done.task.status, done.task.cause) == (Status.FAILED, Cause.STALLED)
        assert "in model (step_silence_ms is 3000)" in done.task.detail
        wait_until(lambda: all(one.has_hung_up for one in model.requests), "the worker hung up")


def test_a_parent_that_waits_for_its_child_does_not_stall(rig: Rig, client: Client) -> None:
    rig.worker(concurrency=1)
    done = client.start("spawn", prompt=delegating(waiting(7))).result()
    assert (done.task.status, done.task.attempt) == (Status.COMPLETED, 1)
    assert {task.attempt for task in client.list_tasks()} == {1}


def test_an_engine_that_ignores_its_end_is_left_and_its_slot_is_free(
    make_settings: Callable[..., Settings], make_rig: Callable[[Settings], Rig], make_client: MakeClient
) -> None:
    settings = make_settings(step_silence_ms=1_000, losses=1)
    rig, client = make_rig(settings), make_client(settings, owner="s")
    rig.worker(concurrency=1, module="tests.poison_worker")
    run = client.start("spawn", prompt="stubborn", engine="poison")
    done = run.result()
    assert (done.task.status, done.task.cause, done.task.attempt) == (Status.FAILED, Cause.STALLED, 1)
    assert client.start("spawn", prompt="hello").result().task.status is Status.COMPLETED


def test_a_child_that_stalls_may_still_be_killed(
    make_settings: Callable[..., Settings], make_rig: Callable[[Settings], Rig], make_client: MakeClient
) -> None:
    settings = make_settings(step_silence_ms=1_000, losses=5)
    rig, client = make_rig(settings), make_client(settings, owner="s")
    rig.worker(module="tests.poison_worker")
    run = client.start("spawn", prompt="stubborn", engine="poison")
    wait_until(
        lambda: "stalled" in rig.workers[0].log.read_text() or client.task(run.id).stalled_ms, "stalls"
    )
    client.kill(run.id)
    done = run.result()
    assert (done.task.status, done.task.cause) == (Status.KILLED, Cause.OWNER)
