"""What real workers wrote comes out again: through hand-backs, losses, kills, forks and delegation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.task import Status
from tests.cli_tools import Cli
from tests.factories import a_log
from tests.model_server import ModelServer, Reply, Request
from tests.prompts import delegating, failing, waiting
from tests.rig_tools import Rig, config_with_tools, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


@pytest.fixture
def cli(rig: Rig, tmp_path: Path) -> Cli:
    return Cli(environment(rig.settings, DSH_TASKS_STATE_DIR=str(tmp_path / "state")), rig.fork_server)


def assert_same(cli: Cli, task_id: str) -> None:
    done = cli("replay", task_id)
    assert (done.returncode, done.stdout.startswith("no difference in")) == (0, True), (
        done.stdout,
        done.stderr,
    )


def test_children_of_a_real_worker_come_out_again(rig: Rig, client: Client, cli: Cli, tmp_path: Path) -> None:
    rig.worker()
    killed = client.start("spawn", prompt=waiting(60))
    fork = client.start("fork", parent=a_log(2), prompt=delegating("!say below"), persona="Be brief.")
    failed = client.start("spawn", prompt=failing("so"))
    wait_until(lambda: client.progress(killed.id).task.streamed, "it streams")
    assert client.kill(killed.id).accepted
    for run, status in ((killed, Status.KILLED), (fork, Status.COMPLETED), (failed, Status.FAILED)):
        assert run.result().task.status is status
        assert_same(cli, run.id)
    path = tmp_path / "fork.jsonl"
    assert cli("log", fork.id, "-o", str(path)).returncode == 0
    assert cli.json("replay", "--file", str(path))["difference"] is None
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    mark = [line for line in lines if line.get("type") == "request/header"][-1]
    mark["data"]["reason"] = "initial"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    different = cli("replay", "--file", str(path))
    assert (different.returncode, "request/header: another row" in different.stdout) == (1, True)


def test_a_task_of_another_engine_is_refused(rig: Rig, client: Client, cli: Cli) -> None:
    refused = cli("replay", client.start("spawn", prompt="x", engine="scripted").id)
    assert (refused.returncode, "only 'agent' is replayed" in refused.stderr) == (6, True)


def test_attempts_that_were_handed_back_lost_and_stopped_are_one_run(
    rig: Rig, client: Client, cli: Cli, tmp_path: Path
) -> None:
    config = config_with_tools(tmp_path, "tests.worker_tools:hold")
    told = tmp_path / "told"
    hold = ("hold", {"told": str(told), "release": str(tmp_path / "never")})

    def answer(request: Request) -> Reply:
        if not request.results:
            return Reply("I look", tools=[hold], reasoning="first")
        return Reply("the end", seconds=4, chunks=20)

    with ModelServer(answer) as model:
        first = rig.worker(DSH_TASKS_CONFIG=config, **model.environment)
        run = client.start("spawn", prompt="go")
        wait_until(told.exists, "the tool runs")
        first.kill()
        second = rig.worker(DSH_TASKS_CONFIG=config, **model.environment)
        wait_until(lambda: len(model.requests) == 2, "attempt 2 asks with the unknown outcome", within_s=40)
        wait_until(lambda: (task := client.task(run.id)).attempt == 2 and task.streamed, "attempt 2 streams")
        assert second.stop() == 0
        rig.worker(DSH_TASKS_CONFIG=config, **model.environment)
        assert run.result().task.status is Status.COMPLETED
    log = client.session(run.id)
    assert [row.data["attempt"] for row in log.events if row.type == "dsh-tasks/attempt"] == [2, 3]
    assert_same(cli, run.id)
