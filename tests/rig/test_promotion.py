"""Promotion from another process, and of a call that a child makes on a worker with one slot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_tasks.client import Client
from dsh_tasks.errors import Promoted
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.cli_tools import Cli
from tests.fork_server import ForkServer
from tests.rig_tools import Rig, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


@pytest.fixture
def cli(settings: Settings, tmp_path: Path, fork_server: ForkServer) -> Cli:
    return Cli(environment(settings, DSH_TASKS_STATE_DIR=str(tmp_path / "state")), fork_server)


def test_the_command_lets_a_call_of_another_process_go(
    rig: Rig, settings: Settings, make_client: Callable[..., Client], cli: Cli
) -> None:
    rig.worker(DSH_TASKS_MODEL="offline")
    client = make_client(settings, owner="s-1")
    run = client.start("spawn", prompt="!wait 4\n!say the end", mode="foreground")
    seen: list[Any] = []

    def call() -> None:
        try:
            seen.append(run.result())
        except Promoted as promoted:
            seen.append(promoted)

    waiting = threading.Thread(target=call)
    waiting.start()
    wait_until(lambda: client.task(run.id).status is Status.RUNNING, "the child runs")
    assert cli("promote", run.id).stdout == f"{run.id} goes on in the background\n"
    waiting.join(10)
    assert isinstance(seen[0], Promoted)
    assert run.dispose() is False
    assert cli.json("promote", run.id)["accepted"] is True
    wait_until(lambda: client.task(run.id).is_terminal, "the child ended")
    assert [notice.task_id for notice in client.notices()] == [run.id]
    assert "the end" in client.output(run.id).text
    again = cli("promote", client.start("spawn", prompt="hello").id)
    assert "was started in the background; nothing was changed" in again.stdout


def test_a_childs_own_call_is_let_go_on_a_worker_with_one_slot(
    rig: Rig, settings: Settings, make_client: Callable[..., Client], tmp_path: Path
) -> None:
    """What runs inline in the child that waited goes on there, also once that child has ended."""
    config = tmp_path / "promotes.toml"
    config.write_text('[[tools]]\nprovider = "spawn"\npromoteForegroundAfterMs = 700\n', encoding="utf-8")
    rig.worker(concurrency=1, DSH_TASKS_MODEL="offline", DSH_TASKS_CONFIG=str(config))
    client = make_client(settings, owner="s-1")
    run = client.start("spawn", prompt='!delegate subagent "below": !wait 4')
    said = client.output(run.id, wait=True, timeout_ms=20_000)
    assert said.task.status is Status.COMPLETED
    above, below = client.list_tasks()
    assert f"started background subagent task {below.id}" in said.text
    assert "no end within 700 ms" in said.text
    assert (below.mode, below.promoted_after_ms, below.parent) == ("background", 700, above.id)
    ended = client.output(below.id, wait=True, timeout_ms=20_000)
    assert (ended.task.status, ended.task.attempt) == (Status.COMPLETED, 1)
