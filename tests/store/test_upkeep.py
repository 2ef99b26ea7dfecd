"""Retention, and the sweep that puts lost hints back."""

from __future__ import annotations

import secrets
import time

import pytest

from dsh_tasks.settings import Settings
from dsh_tasks.store import Inbox, NewTask, Store, connect_sync
from dsh_tasks.task import Status
from tests.store.test_records import a_task, done, on_store, running, settle
from workers import upkeep as upkeep_module
from workers.upkeep import LOOK_AGAIN_MS, Upkeep

DAY_MS = 24 * 3_600_000


def upkeep_of(settings: Settings) -> Upkeep:
    assert settings.redis_url is not None
    return Upkeep(connect_sync(settings.redis_url, timeout_ms=5_000), settings)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def ended(store: Store, new: NewTask, *, days_ago: int, seen: bool = True) -> None:
    """A task that has ended so long ago."""
    fence = await running(store, new)
    await settle(store, new, fence, done())
    if seen:
        await Inbox(store.link, store.settings, new.owner).acknowledge([new.id])
    await make_older(store, new, days_ago)


async def make_older(store: Store, new: NewTask, days_ago: int) -> None:
    at = now_ms() - days_ago * DAY_MS
    await store.link.command("HSET", store.keys.task(new.id), "ended", at)
    await store.link.command("ZADD", store.keys.endings, at, new.id)


async def left(store: Store, tasks: list[NewTask]) -> list[str]:
    return [task.id for task in await store.tasks([one.id for one in tasks])]


def test_a_record_goes_after_its_time_and_not_before(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        old, young, unseen, ancient = a_task(), a_task(), a_task(), a_task()
        await ended(store, old, days_ago=8)
        await ended(store, young, days_ago=6)
        await ended(store, unseen, days_ago=8, seen=False)
        await ended(store, ancient, days_ago=31, seen=False)
        upkeep = upkeep_of(settings)
        upkeep.round(now_ms())
        assert await left(store, [old, young, unseen, ancient]) == [young.id, unseen.id]
        assert upkeep.counts["forgotten"] == 2
        assert (await store.stats())["notices_expired"] == 1, "the ancient one"
        again = await store.link.command("ZSCORE", store.keys.endings, unseen.id)
        assert float(again) == pytest.approx(now_ms() - 7 * DAY_MS + LOOK_AGAIN_MS, abs=60_000)

    on_store(settings, scenario)


def test_what_stands_below_goes_first(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        below = a_task(top.id)
        inner = await running(store, below, fence=fence)
        await settle(store, below, inner, done())
        await settle(store, top, fence, done())
        await Inbox(store.link, store.settings, "s-1").acknowledge([top.id])
        await make_older(store, top, 9)
        await make_older(store, below, 8)
        upkeep = upkeep_of(settings)
        upkeep.round(now_ms())
        assert await left(store, [top, below]) == [top.id]
        upkeep.round(now_ms() + LOOK_AGAIN_MS)
        assert await left(store, [top, below]) == []

    on_store(settings, scenario)


def test_without_a_retention_nothing_goes_by_itself(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        old = a_task()
        await ended(store, old, days_ago=400)
        upkeep_of(settings.model_copy(update={"retention_ms": 0})).round(now_ms())
        assert await left(store, [old]) == [old.id]

    on_store(settings, scenario)


def test_every_lost_hint_is_put_back(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        k = store.keys
        waits, runs, stops, ends = a_task(deadline_ms=60_000), a_task(), a_task(), a_task()
        await store.submit(waits)
        await running(store, runs)
        await running(store, stops)
        await store.kill(stops.id, caller="", token="t", detail="")
        await settle(store, ends, await running(store, ends), done())
        hints = [k.due, k.leases, k.stops, k.endings, k.deadlines]
        before = [await members(store, key) for key in hints]
        assert before == [{waits.id}, {runs.id, stops.id}, {stops.id}, {ends.id}, {waits.id}]
        await store.link.command("DEL", *hints, k.live("s-1"), k.index("s-1"))
        upkeep = upkeep_of(settings)
        sweep(upkeep, now_ms())
        assert [await members(store, key) for key in hints] == before
        assert await store.link.command("SCARD", k.live("s-1")) == 3
        assert set((await store.started_by(["s-1"]))[0]) == {waits.id, runs.id, stops.id, ends.id}
        assert upkeep.counts["hints"] == 6 + 3 + 4
        sweep(upkeep, now_ms() + settings.sweep_ms + 1)
        assert upkeep.counts["hints"] == 13, "nothing is lost any more"

    on_store(settings, scenario)


def sweep(upkeep: Upkeep, at_ms: int) -> None:
    """One whole look: other tests' records on the same server take pages, too."""
    upkeep.round(at_ms)
    while upkeep.sweeps:
        upkeep.round(at_ms)


async def members(store: Store, key: str) -> set[str]:
    return {raw.decode() for raw in await store.link.command("ZRANGE", key, 0, -1)}


def test_one_worker_sweeps_at_a_time(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        await store.submit(a_task())
        await store.link.command("SET", store.keys.sweeper, secrets.token_hex(4), "PX", 60_000)
        await store.link.command("DEL", store.keys.due)
        upkeep = upkeep_of(settings)
        upkeep.round(now_ms())
        assert upkeep.counts["hints"] == 0
        await store.link.command("DEL", store.keys.sweeper)
        sweep(upkeep, now_ms() + settings.sweep_ms)
        assert upkeep.counts["hints"] == 1
        assert await store.link.command("EXISTS", store.keys.sweeper) == 0

    on_store(settings, scenario)


def test_a_sweeper_that_dies_in_mid_sweep_holds_up_nobody(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in CI: the next worker waited for half a minute."""
    monkeypatch.setattr(upkeep_module, "LOOK_A_ROUND", 1)
    monkeypatch.setattr(upkeep_module, "SWEEP_FOR_S", 0)

    async def scenario(store: Store) -> None:
        for number in range(50):
            await store.submit(a_task(f"s-{number}"))
        dies = upkeep_of(settings)
        dies.round(now_ms())
        assert dies.sweeps
        left_ms = await store.link.command("PTTL", store.keys.sweeper)
        assert 0 < left_ms <= 5_000

    on_store(settings, scenario)


def test_prune_takes_a_whole_tree_and_says_what_stays(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        below = [a_task(top.id) for _ in range(5)]
        for child in below:
            await settle(store, child, await running(store, child, fence=fence), done())
        await settle(store, top, fence, done())
        unseen, lives = a_task(), a_task()
        await settle(store, unseen, await running(store, unseen), done())
        await store.submit(lives)
        await Inbox(store.link, store.settings, "s-1").acknowledge([top.id])
        # The top stands first: it ended before those below it, says its score.
        await store.link.command("ZADD", store.keys.endings, 1, top.id)
        assert await store.prune(older_than_ms=-1) == {"forgotten": 6, "notice": 1}
        assert await left(store, [top, *below, unseen, lives]) == [unseen.id, lives.id]
        assert (await store.tasks([lives.id]))[0].status is Status.QUEUED

    on_store(settings, scenario)
