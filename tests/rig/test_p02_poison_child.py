"""P2. A poison child is bounded (OasisPlatform#975, backfield#170, celery#10462)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.task import Cause, Status
from tests.census import Census, census_of
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import Kept, Rig, config_with_tools
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

LEASE_MS, GRACE_MS, PAUSE_MS = 2_000, 300, 1_000
TOOLS = ["tests.worker_tools:" + name for name in ("note", "kill_worker", "no_memory", "leaves", "recurses")]


def settle_down(client: Client, census: Census, *ids: str) -> None:
    """All ended, and nothing of them is left in the queue, unacknowledged, in a slot or among the hints."""
    for task_id in ids:
        wait_until(lambda task_id=task_id: client.task(task_id).is_terminal, "it ended", within_s=120)
    wait_until(lambda: census.queued_messages() == 0, "the queue is empty, nothing is unacknowledged")
    assert (census.live("s"), census.live_in_tree("s"), census.hints()) == (0, 0, 0)
    assert census.pending_notices("s") == len(ids), "one notice each"


@pytest.mark.parametrize("finished_steps", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_child_that_kills_its_worker_every_time_starts_only_so_often(
    finished_steps: int,
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    """With a finished step before the poisonous one the losses are not in a row: `max_attempts` bounds them."""
    ledger = tmp_path / "starts"

    def answer(request: Request) -> Reply:
        if request.prompt == "harmless":
            return Reply("fine")
        if len(request.results) < finished_steps:
            return Reply(tools=[("note", {"path": str(tmp_path / "steps"), "line": "a step"})])
        return Reply(tools=[("kill_worker", {"path": str(ledger)})])

    with ModelServer(answer) as model:
        settings = make_settings(
            lease_ms=LEASE_MS,
            grace_ms=GRACE_MS,
            first_pause_ms=PAUSE_MS,
            losses=3 if finished_steps == 0 else 100,
            max_attempts=10 if finished_steps == 0 else 3,
            config=config_with_tools(tmp_path, *TOOLS),
        )
        kept = make_rig(settings).keep(concurrency=1, **model.environment)
        client = make_client(settings, owner="s")
        with census_of(settings) as census:
            poison = client.start("spawn", prompt="poison", label="poison")
            harmless = client.start("spawn", prompt="harmless", label="harmless")
            pauses = pauses_of(census, poison.id, 2)
            settle_down(client, census, poison.id, harmless.id)
    task = client.task(poison.id)
    starts = [float(line) for line in ledger.read_text().splitlines()]
    assert len(starts) == task.attempt == 3
    assert len(kept.workers) == 4, "each start took one worker"
    assert (task.status, task.cause) == (Status.FAILED, Cause.WORKER_LOST)
    assert "worker was lost 3 times" in task.detail
    assert min(later - sooner for sooner, later in zip(starts, starts[1:], strict=False)) * 1000 > PAUSE_MS
    assert pauses[0] <= PAUSE_MS < pauses[1] <= 2 * PAUSE_MS, "the pauses grow"
    done = client.task(harmless.id)
    assert (done.status, done.attempt) == (Status.COMPLETED, 1)


def pauses_of(census: Census, task_id: str, count: int) -> list[int]:
    """What was left of each pause when it was first seen, ms."""
    pauses: list[int] = []

    def seen() -> bool:
        status, until, lost, (seconds, micros) = (
            *census.raw.hmget(census.keys.task(task_id), "status", "not_before", "lost"),
            census.raw.time(),
        )
        if status == b"queued" and until and int(lost) == len(pauses) + 1:
            pauses.append(int(float(until)) - (seconds * 1000 + micros // 1000))
        return len(pauses) == count

    wait_until(seen, f"{count} pauses", within_s=90, every_s=0.005)
    return pauses


@pytest.mark.parametrize("where", ["tests.worker_tools", "tests.held_tools"])
def test_an_exception_of_a_tool_that_ends_programs_is_an_answer_and_ends_no_worker(
    where: str,
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    """MemoryError, sys.exit and RecursionError, in the worker's process and in a tool's own."""
    in_worker = where == "tests.worker_tools"
    names = ["no_memory", "leaves", "recurses"] if in_worker else ["out_of_memory", "leave", "recurse"]
    words = dict(zip(names, ["ran out of memory", "SystemExit", "RecursionError"], strict=True))

    def answer(request: Request) -> Reply:
        if request.prompt not in words:
            return Reply("fine")
        if request.results:
            return Reply(request.results[-1])
        arguments = {"path": str(tmp_path / request.prompt)} if in_worker else {}
        return Reply(tools=[(request.prompt, arguments)])

    with ModelServer(answer) as model:
        config = config_with_tools(tmp_path, *(f"{where}:{name}" for name in words))
        settings = make_settings(config=config)
        kept = make_rig(settings).keep(concurrency=1, **model.environment)
        client = make_client(settings, owner="s")
        runs = {name: client.start("spawn", prompt=name) for name in words}
        harmless = client.start("spawn", prompt="harmless")
        with census_of(settings) as census:
            settle_down(client, census, harmless.id, *(run.id for run in runs.values()))
        for name, run in runs.items():
            output = client.output(run.id)
            assert words[name] in output.text
            assert output.task.attempt == 1
        assert client.task(harmless.id).status is Status.COMPLETED
        assert len(kept.workers) == 1, "the worker lived"


def test_an_exception_that_ends_programs_fails_its_child_and_no_other(
    settings: Settings, rig: Rig, make_client: Callable[..., Client]
) -> None:
    """MemoryError, sys.exit and RecursionError of the engine itself: the reason names each."""
    kept: Kept = rig.keep(concurrency=1, module="tests.poison_worker", DSH_TASKS_MODEL="offline")
    client = make_client(settings, owner="s")
    names = ("MemoryError", "SystemExit", "RecursionError")
    runs = {name: client.start("spawn", prompt=name, engine="poison") for name in names}
    harmless = client.start("spawn", prompt="hello")
    with census_of(settings) as census:
        settle_down(client, census, harmless.id, *(run.id for run in runs.values()))
    for name, run in runs.items():
        task = client.task(run.id)
        assert (task.status, task.cause, task.attempt) == (Status.FAILED, Cause.ERROR, 1)
        assert name in task.detail
    assert client.task(harmless.id).status is Status.COMPLETED
    assert len(kept.workers) == 1, "the worker lived"
