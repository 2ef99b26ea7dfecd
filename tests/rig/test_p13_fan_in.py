"""P13. Fan-in does not storm (oh-my-openagent#4016, openclaw#25590, claude-code#76021, #23463)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dsh_tasks.client import AsyncClient
from dsh_tasks.notice import NOTICE_KIND
from dsh_tasks.parent_loop import ParentLoop, SessionLog
from dsh_tasks.session import Event
from dsh_tasks.settings import Settings
from dsh_tasks.task import Task
from tests.model_server import ModelServer, Reply
from tests.parent_process import told
from tests.rig_tools import Rig

pytestmark = pytest.mark.rig

CHILDREN = 40
ANSWER = "0123456789abcdef" * (100 * 1024 // 16)
WAKES = 3


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda request: Reply(ANSWER, blocks=request.prompt != "one more")) as model:
        yield model


@pytest.fixture
def settings(
    make_settings: Callable[..., Settings], make_rig: Callable[[Settings], Rig], model: ModelServer
) -> Settings:
    settings = make_settings(live_per_owner=100)
    assert settings.max_consecutive_wakes == WAKES
    make_rig(settings).worker(concurrency=CHILDREN, **model.environment)
    return settings


@asynccontextmanager
async def a_parent(settings: Settings, folder: Path) -> AsyncIterator[ParentLoop]:
    log = SessionLog.open(folder / "parent.jsonl", session_id="parent")
    async with AsyncClient.connect(settings) as client, ParentLoop(client, log) as loop:
        yield loop


async def says(_loop: ParentLoop) -> str:
    return "noted"


async def forty(loop: ParentLoop, model: ModelServer) -> list[str]:
    """Forty children, each with its model."""
    ids = [
        (await loop.client.start("spawn", prompt=f"child {n}", label=f"child {n}", parent=loop.session)).id
        for n in range(CHILDREN)
    ]
    async with asyncio.timeout(60):
        while len(model.calls) < CHILDREN:
            await asyncio.sleep(0.01)
    return ids


async def all_ended(loop: ParentLoop, count: int = CHILDREN) -> list[Task]:
    async with asyncio.timeout(60):
        while len(ended := [t for t in await loop.client.list_tasks() if t.is_terminal]) < count:
            await asyncio.sleep(0.02)
    return ended


def turns(loop: ParentLoop) -> int:
    return len([event for event in loop.log.events if event.type == "turn/start"])


def notices(loop: ParentLoop) -> list[Event]:
    events = loop.log.events
    return [e for e in events if e.type == "user/message" and e.data["source"]["kind"] == NOTICE_KIND]


def check(loop: ParentLoop, ids: list[str]) -> None:
    """Each id is named once over all messages, which are small and hold no answer."""
    texts = [event.data["content"][0]["text"] for event in notices(loop)]
    assert Counter(one for batch in told(loop.log) for one in batch) == dict.fromkeys(ids, 1)
    lines = [line for text in texts for line in text.splitlines()]
    assert Counter(task_id for task_id in ids for line in lines if task_id in line) == dict.fromkeys(ids, 1)
    assert len(lines) == len(ids)
    assert sum(len(text.encode()) for text in texts) < 16 * 1024
    assert ANSWER[:16] not in "".join(texts)


def test_forty_endings_wake_an_idle_parent_within_its_budget(
    settings: Settings, model: ModelServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with a_parent(settings, tmp_path) as loop:
            ids = await forty(loop, model)
            released = asyncio.get_running_loop().time()
            model.release()
            woken = 0
            while await loop.wait_for_wake(says, timeout_s=3 if woken else 60):
                woken += 1
            ended = await all_ended(loop)
            assert 1 <= woken <= WAKES
            assert turns(loop) == woken
            first_ended_ms = min(task.ended_ms or 0 for task in ended)
            assert notices(loop)[0].time - first_ended_ms <= 2_000, "delivery to the idle parent has started"
            assert asyncio.get_running_loop().time() > released
            # What came behind the budget waits for the next message of the user.
            await loop.turn("what came of them?", says)
            assert turns(loop) == woken + 1
            check(loop, ids)

    asyncio.run(scenario())


def test_forty_endings_of_a_busy_parent_wake_nobody_and_cost_one_message(
    settings: Settings, model: ModelServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        ids: list[str] = []

        async def works(loop: ParentLoop) -> str:
            if not ids:
                ids.extend(await forty(loop, model))
                model.release()
                await all_ended(loop)
            return "worked"

        async with a_parent(settings, tmp_path) as loop:
            await loop.turn("go", works)
            assert await loop.wait_for_wake(says, timeout_s=0.5) is False
            assert (turns(loop), len(notices(loop))) == (1, 1)
            check(loop, ids)

    asyncio.run(scenario())


def test_turns_that_each_start_one_more_child_stop_at_the_budget_and_go_on_after_a_user(
    settings: Settings, tmp_path: Path
) -> None:
    async def scenario() -> None:
        ids: list[str] = []

        async def starts_one_more(loop: ParentLoop) -> str:
            run = await loop.client.start("spawn", prompt="one more", parent=loop.session)
            ids.append(run.id)
            return "one more"

        async def excited(loop: ParentLoop) -> int:
            woken = 0
            while await loop.wait_for_wake(starts_one_more, timeout_s=5):
                woken += 1
            await all_ended(loop, len(ids))
            return woken

        async with a_parent(settings, tmp_path) as loop:
            ids.append((await loop.client.start("spawn", prompt="one more", parent=loop.session)).id)
            assert await excited(loop) == WAKES
            assert not loop.budget.may_wake
            assert await loop.wait_for_wake(starts_one_more, timeout_s=1) is False
            before = turns(loop)
            assert before == WAKES
            await loop.turn("go on", says)
            assert turns(loop) == before + 1
            assert loop.budget.may_wake, "a user's message refills it"
            check(loop, ids)
            ids.append((await loop.client.start("spawn", prompt="one more", parent=loop.session)).id)
            assert await excited(loop) == WAKES, "and it resumes"
            assert turns(loop) == before + 1 + WAKES

    asyncio.run(scenario())
