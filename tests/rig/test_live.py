"""Where a child is can be read at any time, and its log can be followed: through attempts and restarts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.task import Status
from tests.cli_tools import Cli
from tests.prompts import failing, waiting
from tests.rig_tools import Rig, config_with_tools, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


def cli_of(settings: Settings, folder: Path) -> Cli:
    return Cli(environment(settings, DSH_TASKS_STATE_DIR=str(folder / "state")))


def holding(told: Path, release: Path) -> str:
    call = {"told": str(told), "release": str(release)}
    return f"!call hold {json.dumps(call)}\n!wait 1\n!say the end"


def test_a_tool_at_work_the_step_and_the_last_text_are_seen_while_they_last(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    told, release = tmp_path / "told", tmp_path / "release"
    rig.worker(DSH_TASKS_CONFIG=config_with_tools(tmp_path, "tests.worker_tools:hold"))
    run = client.start("spawn", prompt=f"!say I look\n{holding(told, release)}", label="a child")
    wait_until(told.exists, "the tool runs")
    seen = client.progress(run.id)
    assert (seen.turn, seen.step, seen.text) == (1, 1, "I look")
    assert [call.name for call in seen.calls] == ["hold"]
    beat = wait_until(lambda: (t := client.task(run.id)).streamed and t, "a heartbeat told how far it is")
    assert (beat.activity, beat.answers, beat.stalled_ms) == ("tool:hold", 1, 0)
    assert beat.activity_since_ms is not None and beat.activity_since_ms <= beat.now_ms
    cli = cli_of(rig.settings, tmp_path)
    shown = cli("show", run.id).stdout
    assert "turn 1, step 1" in shown and "at work: hold" in shown and "  I look" in shown
    listed = cli("list", "--live").stdout
    assert "turn 1, step 1; hold for" in listed and "“I look”" in listed
    assert "I look" not in cli("list").stdout
    release.touch()
    assert run.result().task.status is Status.COMPLETED
    ended = client.progress(run.id)
    assert (ended.calls, ended.step, "the end" in ended.text) == ((), 2, True)
    assert "I look" not in rig.workers[0].log.read_text()


def test_progress_of_a_foreign_task_and_of_none_look_the_same(rig: Rig, client: Client) -> None:
    from dsh_tasks.errors import TaskNotFound

    run = client.start("spawn", prompt="hello")
    assert client.progress(run.id).task.status is Status.QUEUED
    with pytest.raises(TaskNotFound):
        client.for_owner("stranger").progress(run.id)


def test_following_ends_with_the_status_of_the_child(rig: Rig, client: Client, tmp_path: Path) -> None:
    rig.worker()
    cli = cli_of(rig.settings, tmp_path)
    prompts = {"!say a": 0, failing("so"): 1}
    for prompt, code in prompts.items():
        assert cli("log", client.start("spawn", prompt=prompt).id, "--follow").returncode == code
    run = client.start("spawn", prompt=waiting(60))
    with cli.running("log", run.id, "--follow", folder=tmp_path) as following:
        wait_until(lambda: client.task(run.id).activity == "model", "it streams")
        client.kill(run.id)
        assert following.process.wait(20) == 8
        assert "turn/end: aborted" in following.lines[-1]


def test_following_goes_on_through_a_new_attempt_and_shows_its_border(
    rig: Rig, client: Client, tmp_path: Path
) -> None:
    first = rig.worker()
    run = client.start("spawn", prompt=waiting(2))
    with cli_of(rig.settings, tmp_path).running("log", run.id, "--follow", folder=tmp_path) as following:
        wait_until(lambda: any("user/message" in line for line in following.lines), "its rows come")
        first.kill()
        rig.worker()
        assert following.process.wait(40) == 0
        seqs = [int(line.split()[0]) for line in following.lines]
        assert seqs == list(range(len(seqs)))
        assert any("dsh-tasks/attempt: attempt 2 begins" in line for line in following.lines)


def test_following_goes_on_through_a_restart_of_the_server(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    server = embedded.start(folder=tmp_path / "server")
    settings = make_settings(redis_url=server.url, lease_ms=10_000)
    client = make_client(settings, owner="s")
    make_rig(settings).worker()
    run = client.start("spawn", prompt=waiting(5))
    try:
        with cli_of(settings, tmp_path).running("log", run.id, "--follow", folder=tmp_path) as following:
            wait_until(lambda: any("user/message" in line for line in following.lines), "its rows come")
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            server = embedded.start(port=server.port, folder=tmp_path / "server")
            assert following.process.wait(60) == 0
            seqs = [int(line.split()[0]) for line in following.lines]
            assert seqs == list(range(len(seqs))) and "turn/end: completed" in following.lines[-1]
    finally:
        server.stop()
