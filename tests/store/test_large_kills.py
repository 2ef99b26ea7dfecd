"""Kills of subtrees that are too large for one step: whatever stands below is as good as dead at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from dsh_tasks.errors import OwnerNotRunning, TaskNotFound
from dsh_tasks.settings import Settings
from dsh_tasks.store import Fence, FencedOff, Inbox, NewTask, NotClaimed, Settled, Store
from dsh_tasks.store import store as store_module
from dsh_tasks.task import Cause, Status
from tests.store.test_records import a_task, done, on_store, running, settle


@dataclass
class Tree:
    """A running top with children that run, and one that waits, all below the reach of the first step."""

    top: NewTask
    running: list[tuple[NewTask, Fence]]
    queued: NewTask


async def tree(store: Store) -> Tree:
    top = a_task()
    fence = await running(store, top)
    below = []
    for _ in range(6):
        child = a_task(top.id)
        below.append((child, await running(store, child, fence=fence)))
    waits = a_task(top.id)
    await store.submit(waits, fence=fence)
    return Tree(top, below, waits)


async def first_step(store: Store, top: NewTask) -> dict[str, str]:
    answer = await store._kill_step(top.id, caller="s-1", token="t:0", detail="", fence=None)
    assert int(answer[1]) == 1, "more is to come"
    names = [part.decode() for part in answer[2:]]
    return dict(zip(names[::2], names[1::2], strict=True))


def in_steps(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Store], Awaitable[None]]
) -> None:
    monkeypatch.setattr(store_module, "NODES_PER_KILL", 2)
    on_store(settings, scenario)


def test_between_two_steps_nothing_below_can_go_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: Store) -> None:
        made = await tree(store)
        reached = await first_step(store, made.top)
        rest = [(task, fence) for task, fence in made.running if task.id not in reached]
        (appends, a), (settles, b), (hands_back, c), (spawns, d) = rest[:4]

        answer = await store.append(appends.id, a, 0, [b"{}"], ended_steps=0, activity="")
        assert answer == FencedOff("stopping")
        assert await store.own_rows(appends.id) == []
        settled = await settle(store, settles, b, done("too late"))
        assert isinstance(settled, Settled) and settled.status is Status.KILLED
        assert not await store.hand_back(hands_back.id, c)
        with pytest.raises(OwnerNotRunning, match="stopping"):
            await store.submit(a_task(spawns.id), fence=d)
        refused = await store.claim(made.queued.id, "t", "w")
        assert isinstance(refused, NotClaimed) and (refused.why, refused.status) == ("over", "killed")

        receipt = await store.kill(made.top.id, caller="s-1", token="u", detail="")
        took = reached | {name: status.value for name, status in receipt.took}
        assert took == {
            made.top.id: "running",
            **{task.id: "running" for task, _ in made.running},
            made.queued.id: "queued",
        }
        for task, fence in made.running:
            await settle(store, task, fence, done())
        ended = await store.tasks([made.queued.id, *(task.id for task, _ in made.running)])
        assert {(one.status, one.cause, one.detail) for one in ended} == {
            (Status.KILLED, Cause.ANCESTOR, f"killed with {made.top.id}")
        }
        assert await Inbox(store.link, store.settings, made.top.id).take() == (), "no notice of descendants"
        left = [
            await store.link.command("EXISTS", key)
            for key in (store.keys.kills, store.keys.killing(made.top.id))
        ]
        assert left == [0, 0]

    in_steps(settings, monkeypatch, scenario)


def test_each_step_walks_on_where_the_last_one_stopped(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: Store) -> None:
        made = await tree(store)
        receipt = await store.kill(made.top.id, caller="s-1", token="t", detail="")
        order = [made.top.id, *(task.id for task, _ in made.running), made.queued.id]
        assert [name for name, _ in receipt.took] == order, "pre-order, each once"
        again = await store.kill(made.top.id, caller="s-1", token="u", detail="")
        assert [name for name, _ in again.took] == [made.top.id], "stopping still"

    in_steps(settings, monkeypatch, scenario)


def test_a_stranger_beside_the_subtree_goes_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: Store) -> None:
        made = await tree(store)
        beside = a_task()
        fence = await running(store, beside)
        await first_step(store, made.top)
        assert await store.append(beside.id, fence, 0, [b"{}"], ended_steps=0, activity="") == 1
        await store.submit(a_task(beside.id), fence=fence)
        settled = await settle(store, beside, fence, done(), first=1)
        assert isinstance(settled, Settled) and settled.status is Status.COMPLETED

    in_steps(settings, monkeypatch, scenario)


def test_hints_about_a_record_that_is_gone_go_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: Store) -> None:
        made = await tree(store)
        await first_step(store, made.top)
        await store.link.command("ZADD", store.keys.deadlines, 1, made.top.id)
        await store.link.command("DEL", store.keys.task(made.top.id))
        with pytest.raises(TaskNotFound):
            await store.kill(made.top.id, caller="", token="u", detail="")
        keys = [store.keys.kills, store.keys.killing(made.top.id), store.keys.deadlines]
        assert await store.link.command("EXISTS", *keys) == 0

    in_steps(settings, monkeypatch, scenario)
