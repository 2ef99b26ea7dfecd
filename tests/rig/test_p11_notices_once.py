"""P11. Notices exactly once, in every phase and across restarts.

Origin: claude-code#88545, codex#26728, claude_skills#232, pi-subagents#265, ironclaw#4089.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsh_tasks import format as log_format
from dsh_tasks.client import Client
from dsh_tasks.notice import NOTICE_KIND
from dsh_tasks.parent_loop import SessionLog
from dsh_tasks.settings import Settings
from dsh_tasks.store import connect_sync
from dsh_tasks.task import Status
from tests.census import census_of
from tests.crashing_parent import CRASHED
from tests.model_server import ModelServer, Reply
from tests.parent_process import Parent, told
from tests.rig_tools import ROOT, Rig, environment
from tests.waiting import wait_until
from workers.reaper import Reaper

pytestmark = pytest.mark.rig

OUTPUT = "the output text that no notice may hold"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda _request: Reply(OUTPUT, blocks=True)) as model:
        yield model


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(speaker_lease_ms=1_000)


def log_at(path: Path) -> SessionLog:
    return SessionLog(path, log_format.read(path))


def test_six_children_end_in_six_phases_and_each_is_told_once(
    rig: Rig, settings: Settings, model: ModelServer, tmp_path: Path, make_client: Callable[..., Client]
) -> None:
    """The one that ends in the tool call is read by that call: five notices."""
    rig.worker(**model.environment)
    operator = make_client(settings)
    path = tmp_path / "parent.jsonl"
    parent = Parent.start(path, "parent", settings)
    names = ["model", "tool", "border", "compacted", "idle", "down"]
    ids: dict[str, str] = {}

    def end(name: str) -> None:
        model.release(name)
        wait_until(lambda: operator.task(ids[name]).is_terminal, f"{name} ended")

    try:
        parent.tell(turn=[[["start", name] for name in names]])
        for name in names:
            ids[name] = parent.hears("started")
        parent.hears("turned")

        parent.tell(turn=[[["pause", "model"], ["wait", ids["tool"]], ["border"]], [["compact"]]])
        parent.hears("phase")
        end("model")
        wait_until(lambda: len(model.calls) == len(names), "every child is with its model")
        parent.tell(go=True)
        end("tool")
        assert parent.hears("waited") == "completed"
        assert parent.hears("phase") == "between steps"
        end("border")
        parent.tell(go=True)
        assert parent.hears("phase") == "compacted"
        end("compacted")
        parent.tell(go=True)
        parent.hears("turned")

        parent.tell(idle=30)
        end("idle")
        assert parent.hears("woken") is True
        parent.tell(idle=30)
    finally:
        parent.kill()
    end("down")
    assert told(log_at(path)) == [[ids["model"], ids["border"]], [ids["compacted"]], [ids["idle"]]]

    check_restarted(path, settings, woken=True)
    order = [name for batch in told(log_at(path)) for name in batch]
    assert order == [ids[name] for name in names if name != "tool"], "in the order of completion"
    reaper = Reaper(connect_sync(settings.redis_url or "", timeout_ms=5_000), settings, lambda _message: None)
    for second in range(10):
        reaper.round(float(second))
    check_restarted(path, settings, woken=False)
    assert [name for batch in told(log_at(path)) for name in batch] == order, "nothing is repeated"

    with census_of(settings) as census:
        assert census.pending_notices("parent") == 0
    for event in log_at(path).events:
        if event.type == "user/message" and event.data["source"]["kind"] == NOTICE_KIND:
            (block,) = event.data["content"]
            assert OUTPUT not in json.dumps(event.data)
            assert all(len(line.encode()) <= 1024 for line in block["text"].splitlines())


def check_restarted(path: Path, settings: Settings, *, woken: bool) -> None:
    """The parent's next process waits for a wake: it comes, or does not. It ends without a farewell, too."""
    with census_of(settings) as census:
        wait_until(
            lambda: not census.raw.exists(census.keys.speaker("parent")), "the last one's lease is over"
        )
    parent = Parent.start(path, "parent", settings)
    try:
        parent.tell(idle=10 if woken else 1)
        assert parent.hears("woken") is woken
    finally:
        parent.kill()


def test_a_parent_that_crashes_after_any_command_tells_each_ending_once(
    rig: Rig, settings: Settings, tmp_path: Path, make_client: Callable[..., Client]
) -> None:
    """Every command from becoming the speaker to falling silent, one run for each."""
    settings = settings.model_copy(update={"speaker_lease_ms": 300})
    rig.worker()
    operator = make_client(settings)
    sessions = [f"parent-{n}" for n in range(30)]
    runs = {name: operator.start("spawn", prompt="hello", owner=name, engine="scripted") for name in sessions}
    for run in runs.values():
        run.result()
    crashing = subprocess.run(
        [sys.executable, "-m", "tests.crashing_parent", str(tmp_path), *sessions],
        env=environment(settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    done = [json.loads(line) for line in crashing.stdout.splitlines()]
    assert crashing.returncode == 0, crashing.stderr
    assert [one["code"] for one in done] == [CRASHED] * (len(done) - 1) + [0], crashing.stderr
    assert 8 <= len(done) < len(sessions), "every command of the path has had its run"
    with census_of(settings) as census:
        for one, (session, run) in zip(done, runs.items(), strict=False):
            assert one["again"] == 0, crashing.stderr
            log = log_at(tmp_path / f"{session}.jsonl")
            assert told(log) == [[run.id]], f"crashed after command {one['command']}"
            assert census.pending_notices(session) == 0


def test_a_worker_that_crashes_after_any_command_of_an_attempt_leaves_one_notice(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    """Claim, append, settle: each is one script, and one run has a worker that dies right behind it."""
    settings = make_settings(lease_ms=2_000, grace_ms=300, republish_ms=1_000)
    rig, client = make_rig(settings), make_client(settings, owner="s")
    scripts = ("claim", "append", "settle")
    crashing = [
        rig.start_worker(concurrency=1, module="tests.poison_worker", CRASH_AFTER=name) for name in scripts
    ]
    for worker in crashing:
        worker.await_ready()
    runs = [client.start("spawn", prompt="hello", engine="scripted", label=name) for name in scripts]
    for worker in crashing:
        worker.process.wait(60)
    assert [worker.process.returncode for worker in crashing] == [-9] * len(scripts)
    rig.worker()
    for run in runs:
        wait_until(lambda run=run: client.task(run.id).is_terminal, "it ended")
    assert {client.task(run.id).status for run in runs} == {Status.COMPLETED}
    assert sorted(notice.task_id for notice in client.notices()) == sorted(run.id for run in runs)
    with census_of(settings) as census:
        assert census.pending_notices("s") == len(runs)
        assert (census.live("s"), census.hints()) == (0, 0)
