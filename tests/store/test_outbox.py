"""The outbox on a real server: what comes into it, who takes it, when it comes again, when it goes."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from dsh_tasks.settings import Settings
from dsh_tasks.store import Gone, Inbox, Outbox, Store
from dsh_tasks.task import Status
from dsh_tasks.webhook import Ending
from tests.store.test_records import a_task, done, on_store, running, settle

HERE, THERE = "endpoint-1", "endpoint-2"


async def ended(store: Store, owner: str = "s-1") -> str:
    new = a_task(owner)
    await settle(store, new, await running(store, new), done())
    return new.id


async def claim(outbox: Outbox, token: str = "t", endpoint: str = HERE, most: int = 10) -> list[str]:
    found = await outbox.claim(endpoint, token, most=most)
    assert not isinstance(found, Gone)
    return [ending.notice.task_id for ending in found]


async def due_now(store: Store, task_id: str) -> None:
    await store.link.command("ZADD", store.keys.hooks, 1, task_id)


async def score(store: Store, task_id: str) -> int | None:
    found = await store.link.command("ZSCORE", store.keys.hooks, task_id)
    return None if found is None else int(float(found))


async def now_of(store: Store) -> int:
    seconds, micros = await store.link.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def test_nothing_comes_into_the_outbox_before_a_worker_wants_it(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await ended(store)
        assert await claim(outbox) == []
        assert (await outbox.state()).waiting == 0
        second = await ended(store)
        assert await claim(outbox) == [second]
        ttl = int(await store.link.command("PTTL", store.keys.hooks))
        assert 0 < ttl <= 7 * 24 * 3_600_000

    on_store(settings, scenario)


def test_an_ending_is_taken_once_and_comes_again_by_itself_later(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        task_id = await ended(store)
        (ending,) = await outbox.claim(HERE, "t1", most=10)  # type: ignore[misc]
        assert isinstance(ending, Ending)
        assert (ending.owner, ending.tries, ending.notice.status) == ("s-1", 1, Status.COMPLETED)
        assert (ending.notice.id, ending.notice.label) == (f"notice-{task_id}", "a label")
        assert await claim(outbox, "t2") == []
        busy_ms = (await score(store, task_id) or 0) - await now_of(store)
        # The try's deadline, two seconds, and the first pause with its spread.
        assert 17_000 + 2_000 < busy_ms <= 17_000 + 7_500
        await due_now(store, task_id)
        assert await claim(outbox, "t3") == [task_id]
        assert not await outbox.done(task_id, "t1", HERE, "delivered")
        assert await score(store, task_id) is not None
        for _ in range(2):  # the reply may be lost
            assert await outbox.done(task_id, "t3", HERE, "delivered")
        assert await score(store, task_id) is None
        state = await outbox.state()
        assert (state.delivered, state.waiting, state.failed) == (1, 0, 0)

    on_store(settings, scenario)


def test_pauses_grow_with_each_failure_and_heed_the_receivers_wish(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        task_id = await ended(store)
        for base_s in (5, 25, 125, 625, 3_125, 7_200, 7_200):
            await due_now(store, task_id)
            token = secrets.token_hex(4)
            assert await claim(outbox, token) == [task_id]
            assert await outbox.done(task_id, token, HERE, "failed", why="HTTP 500")
            pause_ms = (await score(store, task_id) or 0) - await now_of(store)
            assert base_s * 490 <= pause_ms <= base_s * 1_500
        await due_now(store, task_id)
        await claim(outbox, "wish")
        await outbox.done(task_id, "wish", HERE, "failed", why="HTTP 503", not_before_ms=50_000_000)
        assert (await score(store, task_id) or 0) - await now_of(store) > 49_000_000
        state = await outbox.state()
        assert (state.failed, state.failed_why, state.waiting) == (8, "HTTP 503", 1)

    on_store(settings, scenario)


def test_what_its_owner_acknowledged_is_not_sent_any_more(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        known, unknown = await ended(store), await ended(store)
        await Inbox(store.link, settings, "s-1").acknowledge([known])
        assert await claim(outbox) == [unknown]
        state = await outbox.state()
        assert (state.known, state.dropped, state.waiting) == (1, 0, 1)

    on_store(settings, scenario)


def test_what_its_owner_looked_at_waits_until_the_hold_is_over(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        task_id = await ended(store)
        await store.read(task_id, caller="s-1", hold=True)
        assert await claim(outbox) == []
        held = int(await store.link.command("HGET", store.keys.holds("s-1"), task_id))
        assert await score(store, task_id) == held
        await store.link.command("HSET", store.keys.holds("s-1"), task_id, 1)
        await due_now(store, task_id)
        (ending,) = await outbox.claim(HERE, "t", most=1)  # type: ignore[misc]
        assert isinstance(ending, Ending) and ending.tries == 1

    on_store(settings, scenario)


def test_an_ending_is_given_up_after_its_time_and_counted(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(webhook_give_up_ms=1_000)

    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        task_id = await ended(store)
        await claim(outbox)
        await store.link.command("HINCRBY", store.keys.task(task_id), "hook_first", -2_000)
        await due_now(store, task_id)
        gone = await ended(store)
        await store.link.command("DEL", store.keys.task(gone))
        assert await claim(outbox) == []
        state = await outbox.state()
        assert (state.dropped, state.waiting) == (2, 0)

    on_store(settings, scenario)


def test_a_kill_with_all_below_it_sends_the_one_ending_that_puts_a_notice(settings: Settings) -> None:
    """Also where a client that knows of no webhook ends it."""

    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        top = a_task()
        fence = await running(store, top)
        await store.submit(a_task(top.id), fence=fence)
        await store.kill(top.id, caller="", token="k", detail="")
        await settle(store, top, fence, done())
        assert await claim(outbox) == [top.id]

    on_store(settings, scenario)


def test_after_410_nothing_is_taken_until_the_endpoint_is_another(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        task_id = await ended(store)
        await claim(outbox, "t")
        await outbox.done(task_id, "t", HERE, "gone", why="HTTP 410")
        assert isinstance(await outbox.claim(HERE, "t2", most=1), Gone)
        await ended(store)
        state = await outbox.state()
        assert (state.wanted, state.waiting) == (False, 1)
        assert state.gone_ms > 0
        await due_now(store, task_id)
        assert await claim(outbox, "t3", endpoint=THERE) == [task_id]

    on_store(settings, scenario)


def test_a_record_in_words_that_this_release_does_not_know_holds_up_no_other(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        outbox = Outbox(store.link, settings)
        await claim(outbox)
        strange, plain = await ended(store), await ended(store)
        await store.link.command(
            "HSET", store.keys.task(strange), "status", "completed", "cause", "of-tomorrow"
        )
        assert await claim(outbox) == [plain]
        assert (await outbox.state()).waiting == 2

    on_store(settings, scenario)
