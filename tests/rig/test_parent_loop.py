"""The public parent loop: notices at step borders, once, across crashes; the wake budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dsh_tasks import format as log_format
from dsh_tasks.client import AsyncClient
from dsh_tasks.errors import SpeakerTaken
from dsh_tasks.notice import NOTICE_KIND
from dsh_tasks.parent_loop import ParentLoop, SessionLog
from dsh_tasks.settings import Settings
from tests.prompts import waiting
from tests.rig_tools import Rig

pytestmark = pytest.mark.rig

Scenario = Callable[[AsyncClient], Awaitable[None]]


def with_client(settings: Settings, scenario: Scenario) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings) as client:
            await scenario(client)

    asyncio.run(main())


def told_ids(log: SessionLog) -> list[str]:
    """Every id that a notice in the log names, in order."""
    rows = [e for e in log.events if e.type == "user/message" and e.data["source"]["kind"] == NOTICE_KIND]
    return [task_id for row in rows for task_id in row.data["source"]["taskIds"]]


def a_parent(tmp_path: Path) -> SessionLog:
    return SessionLog.open(tmp_path / "parent.jsonl", session_id="parent")


async def ended(client: AsyncClient, *prompts: str) -> list[str]:
    """Start children and wait until each has ended, as somebody whose look holds nothing back."""
    runs = [
        await client.for_owner("parent").start("spawn", prompt=prompt, label=prompt[:20])
        for prompt in prompts
    ]
    for run in runs:
        await client.output(run.id, wait=True)
    return [run.id for run in runs]


async def says(loop: ParentLoop) -> str:
    return "noted"


def test_endings_of_a_busy_parent_come_with_its_next_step_as_one_message(
    rig: Rig, tmp_path: Path, settings: Settings
) -> None:
    rig.worker()

    async def scenario(client: AsyncClient) -> None:
        steps = 0
        ids: list[str] = []

        async def works(loop: ParentLoop) -> str:
            nonlocal steps
            steps += 1
            if steps == 1:
                ids.extend(await ended(client, "one", "two", "three"))
            return f"step {steps}"

        log = a_parent(tmp_path)
        async with ParentLoop(client, log) as loop:
            assert await loop.turn("go", works) == "step 2", "the turn does not close over a pending notice"
            assert await client.for_owner("parent").notices() == ()
        assert sorted(told_ids(log)) == sorted(ids)
        notices = [e for e in log.events if e.type == "user/message"][1:]
        assert len(notices) == 1, "several endings cost one step"
        assert all(len(line.encode()) <= 1024 for line in notices[0].data["content"][0]["text"].splitlines())
        assert [turn.reason for turn in log_format.read(log.path).turns()] == ["completed"]

    with_client(settings, scenario)


class Crash(Exception):
    pass


@pytest.mark.parametrize(
    ("crashes_at", "was_written"),
    [
        ("dsh_tasks.store.inbox.Inbox.acknowledge", True),
        ("dsh_tasks.parent_loop.notice_row", False),
    ],
    ids=["between log and acknowledgement", "before the log"],
)
def test_a_crash_on_the_way_of_a_notice_neither_loses_nor_repeats_it(
    rig: Rig,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    crashes_at: str,
    was_written: bool,
) -> None:
    rig.worker()

    def crash(*_: object, **__: object) -> None:
        raise Crash

    async def scenario(client: AsyncClient) -> None:
        log = a_parent(tmp_path)
        loop = ParentLoop(client, log)
        await loop.__aenter__()
        (task_id,) = await ended(client, "one")
        monkeypatch.setattr(crashes_at, crash)
        with pytest.raises(Crash):
            await loop.turn("go", says)
        monkeypatch.undo()
        await loop.__aexit__(None, None, None)
        assert told_ids(log) == [task_id] * was_written

        again = a_parent(tmp_path)
        async with ParentLoop(client, again) as restarted:
            pending = await client.for_owner("parent").notices()
            assert len(pending) == (not was_written), "what the log holds is acknowledged at once"
            await restarted.turn("and now", says)
        assert told_ids(again) == [task_id]
        assert [turn.reason for turn in log_format.read(again.path).turns()] == ["interrupted", "completed"]

    with_client(settings, scenario)


def test_an_idle_parent_is_woken_within_its_budget_and_a_user_refills_it(
    rig: Rig, tmp_path: Path, make_settings: Callable[..., Settings], make_rig: Callable[[Settings], Rig]
) -> None:
    settings = make_settings(max_consecutive_wakes=2)
    make_rig(settings).worker()

    async def scenario(client: AsyncClient) -> None:
        async def spawns_more(loop: ParentLoop) -> str:
            await loop.client.start("spawn", prompt="again", parent=loop.session)
            return "one more"

        async with ParentLoop(client, a_parent(tmp_path)) as loop:
            await loop.turn("go", spawns_more)
            woken = 0
            while await loop.wait_for_wake(spawns_more, timeout_s=5):
                woken += 1
            assert woken == 2
            assert not loop.budget.may_wake
            told = len(told_ids(loop.log))
            (last,) = (await loop.client.list_tasks())[-1:]
            await client.output(last.id, wait=True)
            await loop.turn("a user's message", says)
            assert len(told_ids(loop.log)) > told, "a spent budget degrades to the next step"
            assert loop.budget.may_wake

    with_client(settings, scenario)


def test_a_result_that_the_log_holds_gets_no_notice(rig: Rig, tmp_path: Path, settings: Settings) -> None:
    rig.worker()

    async def scenario(client: AsyncClient) -> None:
        async with ParentLoop(client, a_parent(tmp_path)) as loop:

            async def reads(loop: ParentLoop) -> str:
                run = await loop.client.start("spawn", prompt="!say read", parent=loop.session)
                text = (await run.result()).text
                await loop.saw([run.id])
                return text

            assert await loop.turn("go", reads) == "read"
            assert told_ids(loop.log) == []
            assert await client.for_owner("parent").notices() == ()

    with_client(settings, scenario)


def test_a_second_process_may_read_and_not_speak(rig: Rig, tmp_path: Path, settings: Settings) -> None:
    rig.worker()

    async def scenario(client: AsyncClient) -> None:
        async with ParentLoop(client, a_parent(tmp_path)):
            await ended(client, "one")
            other = client.for_owner("parent")
            assert len(await other.notices()) == 1
            with pytest.raises(SpeakerTaken):
                await other.notices(acknowledge=True)
            with pytest.raises(SpeakerTaken):
                async with ParentLoop(client, a_parent(tmp_path)):
                    pass
        assert len(await client.for_owner("parent").notices(acknowledge=True)) == 1

    with_client(settings, scenario)


def test_children_outlive_their_parents_process(rig: Rig, tmp_path: Path, settings: Settings) -> None:
    rig.worker()

    async def scenario(client: AsyncClient) -> None:
        async with ParentLoop(client, a_parent(tmp_path)) as loop:

            async def leaves(loop: ParentLoop) -> str:
                await loop.client.start("spawn", prompt=waiting(1), label="lives on", parent=loop.session)
                return "bye"

            await loop.turn("go", leaves)
        async with ParentLoop(client, a_parent(tmp_path)) as returned:
            assert await returned.wait_for_wake(says, timeout_s=10)
            assert len(told_ids(returned.log)) == 1

    with_client(settings, scenario)
