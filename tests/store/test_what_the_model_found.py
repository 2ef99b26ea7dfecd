"""Faults that the model found beside the scripts (tests/model), each in the fewest steps that show it."""

from __future__ import annotations

import pytest

from dsh_tasks.errors import OwnerNotRunning
from dsh_tasks.settings import Settings
from dsh_tasks.store import Fence, Inbox, Store
from tests.store.test_records import a_task, done, on_store, running, settle

FAR = 1 << 52


async def forget(store: Store, task_id: str) -> str:
    return await store.forget(task_id, ended_before_ms=FAR, notice_before_ms=FAR)


def test_a_child_whose_record_is_gone_may_not_act(settings: Settings) -> None:
    """A worker that slept over the retention of its child: it was taken for a session at the top of a tree."""

    async def scenario(store: Store) -> None:
        top = a_task()
        stale = await running(store, top)
        await settle(store, top, stale, done())
        assert await forget(store, top.id) == "forgotten"
        with pytest.raises(OwnerNotRunning, match="missing"):
            await store.submit(a_task(top.id), fence=stale)
        with pytest.raises(OwnerNotRunning, match="missing"):
            await store.kill(top.id, caller=top.id, token="t", detail="", fence=stale)
        with pytest.raises(OwnerNotRunning, match="missing"):
            await Inbox(store.link, settings, top.id).acknowledge(["x"], fence=Fence(1, "guess"))
        assert await store.started_by([top.id]) == [[]]

    on_store(settings, scenario)


def test_a_kill_in_steps_ends_with_the_record_of_its_top(settings: Settings) -> None:
    """Its caller died after the first step, all below had ended: the mark stayed for ever, with a walk to nowhere."""

    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        child = a_task(top.id)
        below = await running(store, child, fence=fence)
        await settle(store, child, below, done())
        await store.hand_back(top.id, fence)
        k = store.keys
        keys = [k.task(top.id), k.answer("t"), k.kills, k.killing(top.id)]
        first = await store.link.script("kill", keys, [k.prefix, top.id, "", "", "", "", 0, 0, 60_000, 1, ""])
        assert first == [b"killed", 1, top.id.encode(), b"queued"]
        assert [await forget(store, one.id) for one in (child, top)] == ["forgotten", "forgotten"]
        assert await store.link.command("EXISTS", k.kills, k.killing(top.id)) == 0

    on_store(settings, scenario)


def test_a_deadline_of_what_is_being_killed_is_no_hint_any_more(settings: Settings) -> None:
    """Until the attempt confirmed, a reaper asked for its end again in each round, and counted it as expired."""

    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        child = a_task(top.id, deadline_ms=1)
        await running(store, child, fence=fence)
        await store.kill(top.id, caller="s-1", token="t", detail="")
        assert await store.link.command("ZCARD", store.keys.deadlines) == 0

    on_store(settings, scenario)
