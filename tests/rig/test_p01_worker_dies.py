"""P1. A worker dies in mid run (hermes#76994, celery#1628, kombu#305)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsh_tasks.client import AsyncClient, Client
from dsh_tasks.parent_loop import ParentLoop, SessionLog
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status, Task
from tests.census import census_of
from tests.cli_tools import Cli, bare_environment
from tests.model_server import ModelServer, Reply, Request
from tests.parent_process import Parent, told
from tests.rig_tools import Rig, by_tool, config_with_tools, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

NOTE = "tests.worker_tools:note"
LEASE_MS, GRACE_MS = 3_000, 1_000
BOUND_S = (LEASE_MS + GRACE_MS) / 1000 + 5
"""Within which attempt 2 runs, counted from the later of the death and the start of a replacement."""


@dataclass
class Script:
    """Step 1 of an attempt notes `attempt,step`; step 2 blocks until the worker dies, then comes the final text."""

    ledger: Path
    first_steps: int = 0
    second_steps: int = 0
    worker_died: bool = False

    def __call__(self, request: Request) -> Reply:
        if not request.results:
            self.first_steps += 1
            return Reply(tools=[("note", {"path": str(self.ledger), "line": f"{self.first_steps},1"})])
        self.second_steps += 1
        return Reply("the final text", blocks=not self.worker_died)

    @property
    def lines(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


@dataclass
class Polls:
    """What lists said while a worker was gone."""

    seen: list[tuple[float, Task, str]] = field(default_factory=list)

    def check(self, died_s: float, replaced_s: float) -> None:
        """An expired lease is never shown as plainly running, and not at all once its time is over."""
        expired = [at for at, task, _ in self.seen if task.lease_lost]
        assert expired, "the list was read while the lease was lost"
        for _, task, line in self.seen:
            assert ("running (lease lost)" in line) is task.lease_lost
        for at in expired:
            assert at <= max(died_s, replaced_s) + BOUND_S
        assert len(self.seen) > 20


@contextmanager
def polling(client: Client, settings: Settings) -> Iterator[Polls]:
    """Read the list again and again, as record and as a model reads it. One read each: both tell one moment."""
    polls, ends = Polls(), threading.Event()

    def poll() -> None:
        with Client(settings, owner=client.owner) as looker:
            while not ends.wait(0.03):
                (task,) = looker.list_tasks()
                line = by_tool(looker, "task_list").text
                (again,) = looker.list_tasks()
                if (task.lease_lost, task.status) == (again.lease_lost, again.status):
                    polls.seen.append((time.monotonic(), task, line))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield polls
    finally:
        ends.set()
        thread.join()


def second_attempt(client: Client, task_id: str) -> Callable[[], bool]:
    return lambda: client.task(task_id).attempt == 2


def check_ending(client: Client, task_id: str, script: Script, settings: Settings) -> None:
    """Completed by attempt 2, which is visible, with the border in the transcript."""
    wait_until(lambda: client.task(task_id).is_terminal, "it ended")
    task = client.task(task_id)
    assert (task.status, task.attempt, task.losses <= 1) == (Status.COMPLETED, 2, True)
    (listed,) = by_tool(client, "task_list").value["tasks"]
    assert (listed["attempt"], listed["status"]) == (2, "completed")
    rows = client.session(task_id).events
    assert [row.data["attempt"] for row in rows if row.type == "dsh-tasks/attempt"] == [2]
    assert script.lines == ["1,1"], "step 1 is not done again"
    # The worker died before or after it had asked for step 2.
    assert script.first_steps == 1
    assert script.second_steps in (1, 2)
    with census_of(settings) as census:
        assert census.raw.get(census.keys.output(task_id)) == b"the final text"
        assert census.pending_notices(task.owner) == 1


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "ledger")


@pytest.fixture
def model(script: Script) -> Iterator[ModelServer]:
    with ModelServer(script) as model:
        yield model


@pytest.fixture
def settings(make_settings: Callable[..., Settings], tmp_path: Path) -> Settings:
    config = config_with_tools(tmp_path, NOTE)
    return make_settings(lease_ms=LEASE_MS, grace_ms=GRACE_MS, config=config)


def test_a_the_worker_process_alone_dies_and_its_supervisor_starts_the_next(
    settings: Settings,
    tmp_path: Path,
    model: ModelServer,
    script: Script,
    make_client: Callable[..., Client],
) -> None:
    """(a), under `dsh-tasks up`."""
    env = bare_environment(tmp_path / "state") | environment(settings, **model.environment)
    with Cli(env).running("up", "--concurrency", "1", "--loglevel", "INFO", "--json", folder=tmp_path) as up:
        state = up.document()
        (worker_pid,), log = state["processes"].values(), Path(state["dir"]) / "worker-1.log"
        client = make_client(settings, owner="parent")
        run = client.start("spawn", prompt="P1")
        wait_until(lambda: script.lines, "the ledger has its first line")
        with polling(client, settings) as polls:
            script.worker_died = True
            os.kill(worker_pid, signal.SIGKILL)
            died_s = time.monotonic()
            up.await_words("starts again")
            wait_until(lambda: log.read_text().count(" ready.") == 2, "its supervisor started the next")
            replaced_s = time.monotonic()
            wait_until(second_attempt(client, run.id), "attempt 2 runs", within_s=BOUND_S)
            check_ending(client, run.id, script, settings)
        polls.check(died_s, replaced_s)
        assert up.said.count("worker 1: started") == 2
        assert [notice.task_id for notice in client.notices()] == [run.id]
        assert up.end() == 0


def test_b_the_worker_group_dies_and_a_new_worker_takes_the_child(
    settings: Settings,
    make_rig: Callable[[Settings], Rig],
    model: ModelServer,
    script: Script,
    make_client: Callable[..., Client],
) -> None:
    """(b)."""
    rig, client = make_rig(settings), make_client(settings, owner="parent")
    worker = rig.worker(concurrency=1, **model.environment)
    run = client.start("spawn", prompt="P1")
    wait_until(lambda: script.lines, "the ledger has its first line")
    with polling(client, settings) as polls:
        script.worker_died = True
        worker.kill()
        died_s = time.monotonic()
        rig.worker(concurrency=1, **model.environment)
        replaced_s = time.monotonic()
        wait_until(second_attempt(client, run.id), "attempt 2 runs", within_s=BOUND_S)
        check_ending(client, run.id, script, settings)
    polls.check(died_s, replaced_s)
    assert [notice.task_id for notice in client.notices()] == [run.id]


def test_c_worker_and_parent_die_and_one_notice_waits_for_the_parent(
    settings: Settings,
    make_rig: Callable[[Settings], Rig],
    model: ModelServer,
    script: Script,
    tmp_path: Path,
    make_client: Callable[..., Client],
) -> None:
    """(c)."""
    settings = settings.model_copy(update={"speaker_lease_ms": 2_000})
    rig, client = make_rig(settings), make_client(settings, owner="parent")
    worker = rig.worker(concurrency=1, **model.environment)
    parent = Parent.start(tmp_path / "parent.jsonl", "parent", settings)
    try:
        parent.tell(turn=[[["start", "P1"]]])
        task_id = parent.hears("started")
        wait_until(lambda: script.lines, "the ledger has its first line")
    finally:
        script.worker_died = True
        worker.kill()
        parent.kill()
    died_s = time.monotonic()
    with polling(client, settings) as polls:
        rig.worker(concurrency=1, **model.environment)
        replaced_s = time.monotonic()
        wait_until(second_attempt(client, task_id), "attempt 2 runs", within_s=BOUND_S)
        check_ending(client, task_id, script, settings)
    polls.check(died_s, replaced_s)
    assert told(attached_again(settings, tmp_path / "parent.jsonl")) == [[task_id]]
    assert told(attached_again(settings, tmp_path / "parent.jsonl")) == [[task_id]], "and only once"


def attached_again(settings: Settings, path: Path) -> SessionLog:
    """The parent's log after its next process was woken by what waited."""
    log = SessionLog.open(path, session_id="parent")

    async def says(_loop: ParentLoop) -> str:
        return "noted"

    async def again() -> None:
        async with AsyncClient.connect(settings) as client, ParentLoop(client, log) as loop:
            while await loop.wait_for_wake(says, timeout_s=0.5):
                pass

    asyncio.run(again())
    return log
