"""Ten things that a newcomer does. Read these first.

The worker runs the offline model: it answers `What is the <noun>?` from the last sentence
`The <noun> is <value>.` that it was shown.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from dsh_tasks import (
    AsyncClient,
    Call,
    Client,
    KeyConflict,
    ParentLoop,
    Registry,
    Session,
    SessionLog,
    Settings,
    Status,
    load_config,
    mount,
    read_session,
)
from dsh_tasks.provider import fork_lite
from tests.rig_tools import ROOT, Rig

pytestmark = pytest.mark.rig


@pytest.fixture
def parent(tmp_path: Path) -> Session:
    """A real session log: three completed turns and an open one (session `autumn-release`)."""
    with as_file(files("dsh_tasks.data") / "parent.session.v4.jsonl") as packaged:
        shutil.copy(packaged, tmp_path / "parent.jsonl")
    return read_session(tmp_path / "parent.jsonl")


@pytest.fixture
def mine(rig: Rig, make_client: Callable[..., Client], parent: Session) -> Client:
    """A client that acts as the parent's session, and a worker."""
    rig.worker()
    return make_client(rig.settings, owner=parent.header.id)


def test_1_a_forked_child_knows_the_completed_turns(mine: Client, parent: Session) -> None:
    run = mine.start("fork", parent=parent, prompt="What is the codeword?")
    assert run.result().text == "The codeword is marmalade."


def test_2_a_spawned_child_knows_nothing(mine: Client, parent: Session) -> None:
    run = mine.start("spawn", parent=parent, prompt="What is the codeword?")
    assert "cannot know" in run.result().text


def test_3_no_child_knows_the_turn_that_is_open(mine: Client, parent: Session) -> None:
    run = mine.start("fork", parent=parent, prompt="What is the password?")
    assert "cannot know" in run.result().text


def test_4_a_window_of_one_turn_is_a_provider_of_its_own(
    rig: Rig, make_client: Callable[..., Client], parent: Session
) -> None:
    rig.worker()
    client = make_client(rig.settings, registry=Registry([fork_lite("last-turn", 1)]))
    assert "Friday" in client.start("last-turn", parent=parent, prompt="What is the deadline?").result().text
    assert (
        "cannot know" in client.start("last-turn", parent=parent, prompt="What is the budget?").result().text
    )


def test_5_an_ending_that_nobody_read_is_told_until_it_is_acknowledged(mine: Client, parent: Session) -> None:
    read, unread = (
        mine.start("spawn", parent=parent, prompt="hello", label=name) for name in ("read", "unread")
    )
    read.result()
    while not mine.task(unread.id).is_terminal:
        pass
    assert [notice.label for notice in mine.notices()] == ["unread"]
    mine.notices(acknowledge=True)
    assert mine.notices() == ()


def test_6_a_kill_takes_a_running_child_and_its_words_stay_readable(mine: Client, parent: Session) -> None:
    run = mine.start("spawn", parent=parent, prompt="!say I begin.\n!wait 60")
    while mine.task(run.id).activity != "model":
        pass
    assert mine.kill(run.id, reason="enough").accepted
    assert run.result().task.status is Status.KILLED


def test_7_the_same_call_again_is_the_same_task(mine: Client, parent: Session) -> None:
    first = mine.start("fork", parent=parent, prompt="hello", key="call-1")
    again = mine.start("fork", parent=parent, prompt="hello", key="call-1")
    assert (again.id, again.repeated) == (first.id, True)
    with pytest.raises(KeyConflict):
        mine.start("fork", parent=parent, prompt="something else", key="call-1")


def test_8_the_tools_of_a_model_are_called_with_plain_arguments(
    rig: Rig, settings: Settings, parent: Session
) -> None:
    rig.worker()

    async def delegate() -> None:
        config = load_config(None, settings=settings)
        async with AsyncClient.connect(settings, registry=config.registry, owner=parent.header.id) as client:
            tools = {tool.name: tool for tool in mount(client, config)}
            call = Call(session=parent, assistant_seq=40, call_id="call-1")
            started = await tools["subagent_fork"].call(
                {"description": "recall", "prompt": "What is the budget?", "run_in_background": True}, call
            )
            task_id = started.value["taskId"]
            assert started.text == f"started background subagent task {task_id}"
            read = await tools["task_output"].call({"task_id": task_id, "wait": True})
            assert read.text == "The budget is 4200 euros.\n[status: completed]"

    asyncio.run(delegate())


def test_9_a_parent_loop_writes_each_ending_into_its_log_once(
    rig: Rig, settings: Settings, tmp_path: Path
) -> None:
    rig.worker()

    async def converse() -> str:
        log = SessionLog.open(tmp_path / "mine.jsonl", session_id="my-session")
        async with AsyncClient.connect(settings) as client, ParentLoop(client, log) as loop:

            async def delegates(loop: ParentLoop) -> str:
                await loop.client.start("spawn", prompt="hello", label="greet", parent=loop.session)
                return "started"

            async def listens(loop: ParentLoop) -> str:
                return "heard"

            await loop.turn("delegate something", delegates)
            assert await loop.wait_for_wake(listens, timeout_s=10)
            assert await client.for_owner("my-session").notices() == ()
        return (tmp_path / "mine.jsonl").read_text("utf-8")

    written = asyncio.run(converse())
    assert written.count('"background-task-ended"') == 1
    assert read_session(tmp_path / "mine.jsonl").turns()[-1].reason == "completed"


def test_10_the_readmes_python_runs_as_it_stands(
    rig: Rig,
    parent: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig.worker()
    monkeypatch.chdir(tmp_path)
    for name, value in (
        ("REDIS_URL", rig.settings.redis_url),
        ("PREFIX", rig.settings.prefix),
        ("QUEUE", rig.settings.queue),
    ):
        monkeypatch.setenv(f"DSH_TASKS_{name}", str(value))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    exec(blocks[0], {})
    assert capsys.readouterr().out.endswith(" The codeword is marmalade.\n")
    looped: dict[str, object] = {}
    exec(blocks[1], looped)
    asyncio.run(looped["delegate"]())  # type: ignore[operator]
    assert "'kind': 'foreground'" in capsys.readouterr().out
