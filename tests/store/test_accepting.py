"""Batches, limits, deadlines and budgets, on a real server."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from decimal import Decimal

import pytest

from dsh_tasks.errors import LimitReached, OwnerNotRunning
from dsh_tasks.settings import Settings
from dsh_tasks.store import Accepted, BudgetSpent, Claimed, Fence, FencedOff, Inbox, Store
from dsh_tasks.task import Cause, Status, Usage
from tests.store.test_records import a_task, done, on_store, reap, running, settle, status_of
from tests.store.test_seeds import seed_of


async def kill_expired(store: Store, task_id: str) -> str:
    """What a reaper does with a task whose time is over."""
    k = store.keys
    answer = await store.link.script(
        "kill",
        [k.task(task_id), k.answer(secrets.token_hex(4)), k.kills, k.killing(task_id)],
        [k.prefix, task_id, "", "", "", "its time was over", 0, 10_000, 60_000, 1_000, "deadline"],
    )
    return str(answer[0].decode())


def test_a_batch_is_accepted_in_one_step_with_a_verdict_each(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        first = a_task(call_key="k", call='{"prompt": "1"}')
        await store.submit(first)
        batch = [
            a_task(seed=seed_of(3)),
            a_task(call_key="k", call='{"prompt": "1"}'),
            a_task(header_depth=3),
            a_task(seed=seed_of(3)),
            a_task(),
        ]
        verdicts = await store.submit_many(batch)
        assert [type(one) for one in verdicts] == [Accepted, Accepted, LimitReached, Accepted, LimitReached]
        again = verdicts[1]
        assert isinstance(again, Accepted) and (again.task_id, again.repeated) == (first.id, True)
        limits = [one.facts["limit"] for one in verdicts if isinstance(one, LimitReached)]
        assert limits == ["depth", "live_per_owner"]
        assert await store.started_by(["s-1"]) == [[first.id, batch[0].id, batch[3].id]]
        # A lost reply: asked again it says the same, and nothing was added.
        repeated = await store.submit_many([batch[0], batch[3]])
        assert [one.repeated for one in repeated if isinstance(one, Accepted)] == [True, True]

    on_store(settings.model_copy(update={"live_per_owner": 3}), scenario)


def test_of_a_batch_whose_owner_has_ended_nothing_is_accepted(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        await settle(store, top, fence, done())
        verdicts = await store.submit_many([a_task(top.id), a_task(top.id)], fence=fence)
        assert [type(one) for one in verdicts] == [OwnerNotRunning, OwnerNotRunning]
        assert await store.submit_many([]) == []

    on_store(settings, scenario)


@pytest.mark.parametrize("ending", ["settle", "kill", "reap", "deadline"])
@pytest.mark.parametrize(
    ("limit", "is_live"),
    [
        ("live_per_owner", True),
        ("live_per_tree", True),
        ("total_per_owner", False),
        ("total_per_tree", False),
    ],
)
def test_each_limit_names_itself_and_live_ones_are_freed_by_every_ending(
    settings: Settings, limit: str, ending: str, is_live: bool
) -> None:
    async def scenario(store: Store) -> None:
        tasks = [a_task(deadline_ms=1), a_task()]
        fences = [await running(store, one) for one in tasks]
        with pytest.raises(LimitReached, match=limit) as refused:
            await store.submit(a_task())
        assert (refused.value.facts["value"], refused.value.facts["cap"]) == (2, 2)
        first = tasks[0]
        match ending:
            case "settle":
                await settle(store, first, fences[0], done())
            case "kill":
                await store.kill(first.id, caller="", token="t", detail="")
                await settle(store, first, fences[0], done())
            case "reap":
                await store.link.command("HSET", store.keys.task(first.id), "lease_until", 1)
                assert await reap(store, first.id, losses=1) == "failed"
            case _:
                while await kill_expired(store, first.id) == "over":
                    await asyncio.sleep(0)
                await settle(store, first, fences[0], done())
        assert (await status_of(store, first.id)).is_terminal
        if is_live:
            await store.submit(a_task())
        else:
            with pytest.raises(LimitReached, match=limit):
                await store.submit(a_task())
            await store.prune(older_than_ms=-1)
            await Inbox(store.link, store.settings, "s-1").acknowledge([first.id])
            await store.prune(older_than_ms=-1)
            await store.submit(a_task())

    on_store(settings.model_copy(update={limit: 2}), scenario)


def test_limits_of_a_tree_count_what_stands_below(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        await store.submit(a_task(top.id), fence=fence)
        with pytest.raises(LimitReached, match="live_per_tree"):
            await store.submit(a_task(top.id), fence=fence)
        await store.submit(a_task("another root"))

    on_store(settings.model_copy(update={"live_per_tree": 2}), scenario)


def test_a_queued_task_fails_at_its_deadline_and_a_running_one_is_stopped_with_all_below(
    settings: Settings,
) -> None:
    async def scenario(store: Store) -> None:
        waits, runs, early = a_task(deadline_ms=1), a_task(deadline_ms=1), a_task(deadline_ms=600_000)
        await store.submit_many([waits, early])
        fence = await running(store, runs)
        below = a_task(runs.id)
        await store.submit(below, fence=fence)
        while await kill_expired(store, waits.id) == "over" and not (await store.tasks([waits.id]))[0].cause:
            await asyncio.sleep(0)
        task = (await store.tasks([waits.id]))[0]
        assert (task.status, task.cause, task.detail) == (Status.FAILED, Cause.DEADLINE, "its time was over")
        assert await kill_expired(store, runs.id) == "killed"
        assert await kill_expired(store, runs.id) == "over", "told once"
        assert await kill_expired(store, early.id) == "over"
        assert await status_of(store, runs.id) is Status.STOPPING
        assert await status_of(store, below.id) is Status.KILLED
        assert await status_of(store, early.id) is Status.QUEUED
        await settle(store, runs, fence, done("so far"))
        task = (await store.tasks([runs.id]))[0]
        assert (task.status, task.cause, task.partial) == (Status.KILLED, Cause.DEADLINE, True)
        told = await Inbox(store.link, store.settings, "s-1").take()
        assert [notice.task_id for notice in told] == [waits.id, runs.id], "nobody asked for it: no hold"
        assert await store.link.command("ZRANGE", store.keys.deadlines, 0, -1) == [early.id.encode()]

    on_store(settings, scenario)


async def committed(store: Store) -> int:
    return int(await store.link.command("HGET", store.keys.tree("s-1"), "committed") or 0)


def test_a_budget_is_reserved_before_a_call_and_corrected_after_it(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        one, two = a_task(), a_task()
        first, second = await running(store, one), await running(store, two)
        for _ in range(2):  # a lost reply
            assert await store.reserve(one.id, "s-1", first, call=1, tokens=600) is None
        assert await committed(store) == 600
        refused = await store.reserve(two.id, "s-1", second, call=1, tokens=500)
        assert refused == BudgetSpent(600)
        for _ in range(2):
            assert await store.correct(one.id, "s-1", first, call=1, used=400) is None
        assert await committed(store) == 400
        assert await store.reserve(two.id, "s-1", second, call=1, tokens=500) is None
        assert await store.correct(two.id, "s-1", second, call=7, used=1) is None
        assert await committed(store) == 900, "only the open reservation can be corrected"
        forged = await store.reserve(one.id, "s-1", Fence(1, "forged"), call=2, tokens=1)
        assert forged == FencedOff("running")

    on_store(settings.model_copy(update={"tree_token_budget": 1_000}), scenario)


async def cost(store: Store) -> int:
    return int(await store.link.command("HGET", store.keys.tree("s-1"), "cost_spent") or 0)


def test_what_attempts_cost_is_told_in_whole_and_counted_once(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new, sibling = a_task(), a_task()
        fence, beside = await running(store, new), await running(store, sibling)

        async def asks(call: int, cost_nanousd: int = 0) -> BudgetSpent | FencedOff | None:
            spent = {"cost_nanousd": cost_nanousd, "cost_budget_microusd": 300}
            return await store.reserve(new.id, "s-1", fence, call=call, tokens=1, **spent)

        assert await asks(1) is None
        for _ in range(2):  # a lost reply
            assert await store.correct(new.id, "s-1", fence, call=1, used=1, cost_nanousd=299_999) is None
        assert await cost(store) == 299_999
        assert await asks(2, 299_999) is None
        await store.correct(new.id, "s-1", fence, call=2, used=1, cost_nanousd=300_000)
        assert await asks(3, 300_000) == BudgetSpent(300_000, "cost_budget")
        assert await store.reserve(sibling.id, "s-1", beside, call=1, tokens=1) is None
        await store.correct(sibling.id, "s-1", beside, call=1, used=1, cost_nanousd=200_000)
        assert await cost(store) == 500_000, "siblings add up"
        refused = await store.reserve(sibling.id, "s-1", beside, call=2, tokens=1, cost_nanousd=200_000)
        assert refused == BudgetSpent(500_000, "tree_cost_budget")
        with pytest.raises(
            LimitReached, match="tree_cost_budget reached: 0.0005 of 0.0005; US dollars"
        ) as why:
            await store.submit(a_task())
        assert (why.value.facts["value"], why.value.facts["cap"]) == ("0.0005", "0.0005")

    on_store(settings.model_copy(update={"tree_cost_budget": Decimal("0.0005")}), scenario)


def test_what_a_lost_attempt_has_paid_counts_for_its_child(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        await store.reserve(new.id, "s-1", fence, call=1, tokens=1)
        await store.correct(new.id, "s-1", fence, call=1, used=1, cost_nanousd=700)
        await store.link.command("HSET", store.keys.task(new.id), "lease_until", 1)
        assert await reap(store, new.id) == "requeued"
        claimed = await store.claim(new.id, "next", "w")
        assert isinstance(claimed, Claimed)
        again = Fence(claimed.attempt, "next")
        await store.correct(new.id, "s-1", again, call=1, used=1, cost_nanousd=300)
        assert await cost(store) == 1_000
        refused = await store.reserve(new.id, "s-1", again, call=2, tokens=1, cost_budget_microusd=1)
        assert refused == BudgetSpent(1_000, "cost_budget")

    on_store(settings, scenario)


def test_what_no_call_told_counts_for_the_tree_with_the_ending(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        told, silent = a_task(), a_task()
        fence = await running(store, told)
        await store.reserve(told.id, "s-1", fence, call=1, tokens=1, cost_nanousd=600)
        ended = replace(done("yes"), usage=Usage(cost_nanousd=1_000))
        await settle(store, told, fence, ended)
        assert await cost(store) == 1_000
        await settle(store, silent, await running(store, silent), ended)
        assert await cost(store) == 2_000

    on_store(settings, scenario)


def test_what_a_lost_attempt_reserved_stays_spent(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        await store.reserve(new.id, "s-1", fence, call=1, tokens=700)
        await store.link.command("HSET", store.keys.task(new.id), "lease_until", 1)
        assert await reap(store, new.id) == "requeued"
        claimed = await store.claim(new.id, "next", "w")
        assert isinstance(claimed, Claimed)
        assert await store.correct(new.id, "s-1", fence, call=1, used=0) == FencedOff("running")
        refused = await store.reserve(new.id, "s-1", Fence(claimed.attempt, "next"), call=1, tokens=700)
        assert refused == BudgetSpent(700)

    on_store(settings.model_copy(update={"tree_token_budget": 1_000}), scenario)
