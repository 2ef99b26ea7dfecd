"""The record under every change of state, on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dsh_tasks import seed
from dsh_tasks.errors import (
    LimitReached,
    OwnerNotRunning,
    SessionRefused,
    SpeakerTaken,
    StoreUnavailable,
    TaskNotFound,
)
from dsh_tasks.settings import Settings
from dsh_tasks.store import (
    Claimed,
    Fence,
    FencedOff,
    Inbox,
    Link,
    NewTask,
    NotClaimed,
    Settled,
    Store,
    connect,
)
from dsh_tasks.store.packed import MAGIC
from dsh_tasks.task import ALLOWED, USAGE_FIELDS, Cause, Outcome, Status, Usage

Scenario = Callable[[Store], Awaitable[None]]

GRACE_MS = 0


def on_store(settings: Settings, scenario: Scenario) -> None:
    """Run a scenario over a store of its own."""

    async def main() -> None:
        assert settings.redis_url is not None
        link = Link(connect(settings.redis_url, timeout_ms=5000), timeout_ms=5000)
        try:
            await scenario(Store(link, settings))
        finally:
            await link.close()

    asyncio.run(main())


def a_task(owner: str = "s-1", **given: Any) -> NewTask:
    """A submission with nothing special about it."""
    fields: dict[str, Any] = {
        "id": f"subagent-{secrets.token_hex(16)}",
        "owner": owner,
        "header_depth": 0,
        "label": "a label",
        "provider": "spawn",
        "engine": "agent",
        "prompt": json.dumps([{"type": "text", "text": "go"}]),
        "policy": "{}",
        "header": "{}",
        "depth_cap": 3,
        "seed": seed.empty(),
        "call_key": "",
        "call": "{}",
    }
    return NewTask(**(fields | given))


async def running(store: Store, new: NewTask, *, fence: Fence | None = None) -> Fence:
    """Submit and claim."""
    await store.submit(new, fence=fence)
    token = secrets.token_hex(8)
    claimed = await store.claim(new.id, token, "w")
    assert isinstance(claimed, Claimed)
    return Fence(claimed.attempt, token)


async def status_of(store: Store, task_id: str) -> Status:
    return (await store.read(task_id, caller="")).record.task.status


USED = Usage(*range(3, 3 + len(USAGE_FIELDS)))


def done(text: str = "the answer") -> Outcome:
    return Outcome(Status.COMPLETED, output=text, usage=USED)


async def settle(
    store: Store, new: NewTask, fence: Fence, outcome: Outcome, first: int = 0
) -> Settled | FencedOff:
    return await store.settle(new.id, new.owner, fence, outcome, first, [])


async def reap(store: Store, task_id: str, *, losses: int = 3, lost: int = 10, pause_ms: int = 0) -> str:
    k = store.keys
    answer = await store.link.script(
        "reap",
        [k.task(task_id), k.leases, k.stops, k.due],
        [k.prefix, task_id, GRACE_MS, losses, lost, pause_ms],
    )
    return str(answer[0].decode())


async def expire_lease(store: Store, task_id: str) -> None:
    await store.link.command("HSET", store.keys.task(task_id), "lease_until", 1)


def test_a_submitted_task_is_queued_due_and_listed(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        accepted = await store.submit(new)
        assert (accepted.task_id, accepted.depth, accepted.repeated) == (new.id, 1, False)
        assert await status_of(store, new.id) is Status.QUEUED
        assert await store.started_by(["s-1"]) == [[new.id]]
        assert await store.link.command("ZSCORE", store.keys.due, new.id) is not None

    on_store(settings, scenario)


def test_a_submission_sent_again_is_the_same_task(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task(call_key="k", call='{"prompt": "1"}')
        await store.submit(new)
        again = await store.submit(a_task(call_key="k", call='{"prompt": "2"}'))
        assert (again.task_id, again.repeated, again.call) == (new.id, True, '{"prompt": "1"}')
        assert await store.link.command("SCARD", store.keys.live("s-1")) == 1

    on_store(settings, scenario)


def test_a_claim_repeats_its_answer_to_its_own_token_only(settings: Settings) -> None:
    """Seen: a lost claim reply, and the only claimer was told `taken`."""

    async def scenario(store: Store) -> None:
        new = a_task()
        await store.submit(new)
        first = await store.claim(new.id, "mine", "w")
        again = await store.claim(new.id, "mine", "w")
        other = await store.claim(new.id, "other", "w2")
        assert isinstance(first, Claimed) and isinstance(again, Claimed)
        assert (first.attempt, again.attempt) == (1, 1)
        assert other == NotClaimed("taken", worker="w")

    on_store(settings, scenario)


def test_an_attempt_that_is_fenced_off_changes_nothing(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        stale = await running(store, new)
        await expire_lease(store, new.id)
        assert await reap(store, new.id) == "requeued"
        fresh_token = "fresh"
        claimed = await store.claim(new.id, fresh_token, "w2")
        assert isinstance(claimed, Claimed) and claimed.attempt == 2
        before = await store.link.command("HGETALL", store.keys.task(new.id))
        assert await store.append(new.id, stale, 0, [b"{}"], ended_steps=0, activity="") == FencedOff(
            "running"
        )
        assert await settle(store, new, stale, done()) == FencedOff("running")
        assert await store.hand_back(new.id, stale) is False
        wrong_token = Fence(2, "guess")
        assert await settle(store, new, wrong_token, done()) == FencedOff("running")
        assert await store.link.command("HGETALL", store.keys.task(new.id)) == before

    on_store(settings, scenario)


def test_a_log_is_contiguous_and_a_repeated_append_writes_once(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        rows = [b'{"n":0}', b'{"n":1}']
        assert await store.append(new.id, fence, 0, rows, ended_steps=0, activity="model") == 2
        assert await store.append(new.id, fence, 0, rows, ended_steps=0, activity="model") == 2
        with pytest.raises(StoreUnavailable, match="does not continue"):
            await store.append(new.id, fence, 5, rows, ended_steps=0, activity="model")
        assert await store.own_rows(new.id) == rows

    on_store(settings, scenario)


def test_settling_is_one_step_and_repeats_its_answer(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        first = await settle(store, new, fence, done("grüße"))
        again = await settle(store, new, fence, done("another"))
        assert first == again and isinstance(first, Settled)
        page = await store.read(new.id, caller="", length=100)
        assert page.page.decode() == "grüße"
        task = page.record.task
        assert (task.status, task.usage) == (Status.COMPLETED, USED)
        assert await store.link.command("SCARD", store.keys.live("s-1")) == 0
        notices = await Inbox(store.link, settings, "s-1").take()
        assert [(n.task_id, n.status) for n in notices] == [(new.id, Status.COMPLETED)]
        assert await store.link.command("HGET", store.keys.tree("s-1"), "output_tokens") == b"4"
        assert await store.usage("s-1") == USED

    on_store(settings, scenario)


@pytest.mark.parametrize("first", [Status.COMPLETED, Status.FAILED, Status.KILLED])
def test_the_first_terminal_status_is_sticky(settings: Settings, first: Status) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        await settle(
            store, new, fence, Outcome(first, Cause.ERROR if first is not Status.COMPLETED else None)
        )
        for change in (Outcome(Status.COMPLETED), Outcome(Status.FAILED, Cause.ERROR)):
            await settle(store, new, Fence(fence.attempt, "other"), change)
        receipt = await store.kill(new.id, caller="s-1", token="t", detail="")
        assert (receipt.accepted, receipt.status, receipt.took) == (False, first, ())
        assert await reap(store, new.id) == "over"
        assert await store.claim(new.id, "t2", "w") == NotClaimed("over", status=first.value, worker="w")
        assert await status_of(store, new.id) is first

    on_store(settings, scenario)


def test_a_queued_task_that_is_killed_never_starts(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        await store.submit(new)
        receipt = await store.kill(new.id, caller="s-1", token="t", detail="enough")
        assert receipt.took == ((new.id, Status.QUEUED),)
        assert await store.claim(new.id, "c", "w") == NotClaimed("over", status="killed")
        task = (await store.read(new.id, caller="")).record.task
        assert (task.cause, task.detail) == (Cause.OWNER, "enough")

    on_store(settings, scenario)


def test_a_kill_takes_the_subtree_and_only_the_subtree(settings: Settings) -> None:
    """P7: root -> A -> {A1 running -> A1a running, A2 queued, A3 completed}; root -> B running."""

    async def scenario(store: Store) -> None:
        a, b = a_task(), a_task()
        fence_a, _ = await running(store, a), await running(store, b)
        a1, a2, a3 = a_task(a.id), a_task(a.id), a_task(a.id)
        fence_a1 = await running(store, a1, fence=fence_a)
        await store.submit(a2, fence=fence_a)
        fence_a3 = await running(store, a3, fence=fence_a)
        await settle(store, a3, fence_a3, done("kept"))
        a1a = a_task(a1.id)
        await running(store, a1a, fence=fence_a1)

        receipt = await store.kill(a.id, caller="s-1", token="t", detail="")
        assert receipt.took == (
            (a.id, Status.RUNNING),
            (a1.id, Status.RUNNING),
            (a1a.id, Status.RUNNING),
            (a2.id, Status.QUEUED),
        )
        assert await store.kill(a.id, caller="s-1", token="t", detail="") == receipt, "a lost reply repeats"
        assert await status_of(store, b.id) is Status.RUNNING
        assert await status_of(store, a3.id) is Status.COMPLETED
        with pytest.raises(OwnerNotRunning):
            await store.submit(a_task(a.id), fence=fence_a)

        settled = await settle(store, a, fence_a, done("late"))
        assert isinstance(settled, Settled) and settled.status is Status.KILLED
        page = await store.read(a.id, caller="", length=10)
        assert (page.page, page.record.task.partial) == (b"late", True)
        mine = await Inbox(store.link, settings, "s-1").take()
        assert mine == (), "an own kill holds its notice back"
        assert await store.link.command("SCARD", store.keys.live("s-1")) == 1

    on_store(settings, scenario)


def test_a_kill_of_a_large_subtree_goes_on_in_steps(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        below = [a_task(top.id) for _ in range(1_500)]
        for start in range(0, len(below), 100):
            await asyncio.gather(*(store.submit(one, fence=fence) for one in below[start : start + 100]))
        receipt = await store.kill(top.id, caller="", token="t", detail="")
        assert len(receipt.took) == 1_501 and len(set(receipt.took)) == 1_501
        assert await store.link.command("SCARD", store.keys.live(top.id)) == 0
        assert await store.link.command("ZCARD", store.keys.kills) == 0

    on_store(settings.model_copy(update={"live_per_owner": 10_000}), scenario)


def test_a_lost_lease_is_requeued_with_a_pause_and_bounded(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        await running(store, new)
        assert await reap(store, new.id) == "alive", "a heartbeat that came first wins"
        await expire_lease(store, new.id)
        assert await reap(store, new.id, pause_ms=60_000) == "requeued"
        paused = await store.claim(new.id, "t", "w")
        assert isinstance(paused, NotClaimed) and paused.why == "paused" and paused.until_ms > 0
        for expected in ("requeued", "failed"):
            await store.link.command("HDEL", store.keys.task(new.id), "not_before")
            assert isinstance(await store.claim(new.id, secrets.token_hex(4), "w"), Claimed)
            await expire_lease(store, new.id)
            assert await reap(store, new.id) == expected
        task = (await store.read(new.id, caller="")).record.task
        assert (task.status, task.cause, task.attempt) == (Status.FAILED, Cause.WORKER_LOST, 3)
        assert "3 times" in task.detail

    on_store(settings, scenario)


def test_a_finished_step_forgives_earlier_losses(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        await running(store, new)
        await expire_lease(store, new.id)
        await reap(store, new.id)
        claimed = await store.claim(new.id, "t", "w")
        assert isinstance(claimed, Claimed) and claimed.record.task.losses == 1
        await store.append(new.id, Fence(2, "t"), 0, [b"{}"], ended_steps=1, activity="")
        assert (await store.read(new.id, caller="")).record.task.losses == 0

    on_store(settings, scenario)


def test_large_rows_lie_small_on_the_server_and_come_back_as_they_were(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        rows = [
            b'{"n":1}',
            b'{"text":"' + b"0123456789" * 100_000 + b'"}',
            b'{"noise":"' + os.urandom(50_000) + b'"}',
        ]
        await store.append(new.id, fence, 0, rows, ended_steps=0, activity="")
        assert await store.own_rows(new.id) == rows
        assert await store.own_rows(new.id, 1, most=1) == rows[1:2]
        assert await store.link.command("MEMORY", "USAGE", store.keys.log(new.id), "SAMPLES", 0) < 100_000
        await store.link.command("XADD", store.keys.log(new.id), "9-0", "r", MAGIC + b"damaged")
        with pytest.raises(SessionRefused, match="damaged"):
            await store.own_rows(new.id)

    on_store(settings, scenario)


def test_pauses_grow_with_every_loss_also_where_steps_are_finished_between(settings: Settings) -> None:
    """P2: a child that finishes a step and then takes its worker down."""

    async def scenario(store: Store) -> None:
        new = a_task()
        await running(store, new)
        pauses = []
        for attempt in (2, 3, 4):
            await expire_lease(store, new.id)
            assert await reap(store, new.id, pause_ms=60_000) == "requeued"
            paused = await store.claim(new.id, "t", "w")
            assert isinstance(paused, NotClaimed)
            now_ms = (await store.read(new.id, caller="")).record.task.now_ms
            pauses.append(round((paused.until_ms - now_ms) / 60_000))
            await store.link.command("HDEL", store.keys.task(new.id), "not_before")
            assert isinstance(await store.claim(new.id, "t", "w"), Claimed)
            await store.append(new.id, Fence(attempt, "t"), attempt - 2, [b"{}"], ended_steps=1, activity="")
        assert pauses == [1, 2, 4]

    on_store(settings, scenario)


def test_a_kill_that_nobody_confirms_settles_by_itself(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        await store.kill(new.id, caller="s-1", token="t", detail="")
        assert await reap(store, new.id) == "alive"
        await store.link.command("HSET", store.keys.task(new.id), "stop_until", 1)
        assert await reap(store, new.id) == "killed"
        task = (await store.read(new.id, caller="")).record.task
        assert (task.status, task.cause, task.detail) == (
            Status.KILLED,
            Cause.OWNER,
            "worker did not confirm",
        )
        assert await settle(store, new, fence, done()) == FencedOff("killed")

    on_store(settings, scenario)


def test_a_hand_back_is_no_loss_and_has_no_pause(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        assert await store.hand_back(new.id, fence) is True
        assert await store.hand_back(new.id, fence) is True, "a lost reply repeats"
        claimed = await store.claim(new.id, "t", "w")
        assert isinstance(claimed, Claimed)
        assert (claimed.attempt, claimed.record.task.losses) == (2, 0)

    on_store(settings, scenario)


def test_a_hand_back_of_what_is_being_killed_ends_it(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        await store.kill(new.id, caller="s-1", token="t", detail="")
        assert await store.hand_back(new.id, fence) is False
        assert await status_of(store, new.id) is Status.KILLED

    on_store(settings, scenario)


def test_the_eleventh_live_child_is_refused_and_a_settled_one_makes_room(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        tasks = [a_task() for _ in range(10)]
        fences = [await running(store, new) for new in tasks]
        with pytest.raises(LimitReached, match="live_per_owner") as refused:
            await store.submit(a_task())
        assert (refused.value.facts["value"], refused.value.facts["cap"]) == (10, 10)
        await store.kill(tasks[1].id, caller="s-1", token="t", detail="")
        with pytest.raises(LimitReached):
            await store.submit(a_task())  # being stopped still counts
        await settle(store, tasks[0], fences[0], done())
        await store.submit(a_task())

    on_store(settings, scenario)


def test_depth_comes_from_the_recorded_parent(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        child = a_task(top.id, header_depth=-5)
        accepted = await store.submit(child, fence=fence)
        assert accepted.depth == 2
        with pytest.raises(LimitReached, match="depth"):
            await store.submit(a_task(top.id, depth_cap=1), fence=fence)
        with pytest.raises(LimitReached, match="depth"):
            await store.submit(a_task(header_depth=3))
        with pytest.raises(OwnerNotRunning):
            await store.submit(a_task(top.id))

    on_store(settings, scenario)


def test_a_strangers_id_reads_like_a_random_one(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        await store.submit(new)
        for call in (
            lambda name: store.read(name, caller="s-2"),
            lambda name: store.kill(name, caller="s-2", token=secrets.token_hex(4), detail=""),
        ):
            texts = []
            for name in (new.id, "subagent-" + "0" * 32):
                with pytest.raises(TaskNotFound) as refused:
                    await call(name)
                texts.append(str(refused.value).replace(name, "ID"))
            assert texts[0] == texts[1]
        assert await status_of(store, new.id) is Status.QUEUED

    on_store(settings, scenario)


def test_an_ancestor_reads_what_is_below_it_and_a_child_not_what_is_above(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        top = a_task()
        fence = await running(store, top)
        child = a_task(top.id)
        await store.submit(child, fence=fence)
        assert (await store.read(child.id, caller="s-1")).record.task.id == child.id
        with pytest.raises(TaskNotFound):
            await store.read(top.id, caller=child.id)

    on_store(settings, scenario)


def test_an_owners_look_holds_the_notice_back_and_it_comes_back_unacknowledged(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        await settle(store, new, fence, done())
        inbox = Inbox(store.link, settings, "s-1")
        await store.read(new.id, caller="", hold=True)
        assert len(await inbox.take()) == 1, "an operator's look holds nothing"
        await store.read(new.id, caller="s-1", hold=True)
        assert await inbox.take() == ()
        await store.link.command("HSET", store.keys.holds("s-1"), new.id, 1)
        (notice,) = await inbox.take()
        assert notice.id == f"notice-{new.id}"
        assert await inbox.acknowledge([new.id]) == 1
        assert await inbox.acknowledge([new.id]) == 0
        assert await inbox.take() == ()
        assert await store.link.command("EXISTS", store.keys.holds("s-1")) == 0

    on_store(settings, scenario)


def test_one_process_speaks_for_a_session(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        inbox = Inbox(store.link, settings, "s-1")
        await inbox.speak("a")
        await inbox.speak("a")
        with pytest.raises(SpeakerTaken):
            await inbox.speak("b")
        with pytest.raises(SpeakerTaken):
            await inbox.take(token="b")
        with pytest.raises(SpeakerTaken):
            await inbox.acknowledge(["x"], token="b")
        assert await inbox.take() == (), "a second process may read"
        await inbox.fall_silent("b")
        with pytest.raises(SpeakerTaken):
            await inbox.speak("b")
        await inbox.fall_silent("a")
        await inbox.speak("b")

    on_store(settings, scenario)


def test_due_takes_what_is_overdue_once_and_moves_it_on(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        await store.submit(new)
        assert await store.due() == []
        await store.link.command("ZADD", store.keys.due, 1, new.id)
        (due,) = await store.due()
        assert (due.task_id, due.attempt, due.label, due.owner) == (new.id, 0, "a label", "s-1")
        assert await store.due() == []
        await store.kill(new.id, caller="", token="t", detail="")
        await store.link.command("ZADD", store.keys.due, 1, new.id)
        assert await store.due() == []
        assert await store.link.command("ZCARD", store.keys.due) == 0

    on_store(settings, scenario)


def test_a_server_that_is_full_can_still_end_work(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new, other = a_task(), a_task()
        fence = await running(store, new)
        await running(store, other)
        await store.link.command("CONFIG", "SET", "maxmemory", "1")
        try:
            with pytest.raises(StoreUnavailable):
                await store.submit(a_task())
            assert isinstance(await settle(store, new, fence, done()), Settled)
            assert (await store.kill(other.id, caller="s-1", token="t", detail="")).accepted
        finally:
            await store.link.command("CONFIG", "SET", "maxmemory", "0")

    on_store(settings, scenario)


CHANGES = (
    "claim",
    "completed",
    "failed",
    "kill",
    "hand back",
    "lose the lease",
    "lose it for good",
    "unconfirmed",
)


@pytest.mark.parametrize("start", list(Status))
@pytest.mark.parametrize("change", CHANGES)
def test_the_scripts_make_only_the_changes_that_the_table_allows(
    settings: Settings, start: Status, change: str
) -> None:
    """Lua decides, `task.ALLOWED` explains: each change is tried from each status."""

    async def scenario(store: Store) -> None:
        new = a_task()
        await store.submit(new)
        fence = Fence(0, "none")
        if start is not Status.QUEUED:
            claimed = await store.claim(new.id, "mine", "w")
            assert isinstance(claimed, Claimed)
            fence = Fence(claimed.attempt, "mine")
        if start in (Status.STOPPING, Status.KILLED):
            await store.kill(new.id, caller="s-1", token="first", detail="")
        if start.is_terminal:
            cause = None if start is Status.COMPLETED else Cause.ERROR
            await settle(store, new, fence, Outcome(start, cause))
        assert await status_of(store, new.id) is start

        match change:
            case "claim":
                await store.claim(new.id, "another", "w2")
            case "completed":
                await settle(store, new, fence, done())
            case "failed":
                await settle(store, new, fence, Outcome(Status.FAILED, Cause.ERROR))
            case "kill":
                await store.kill(new.id, caller="s-1", token="second", detail="")
            case "hand back":
                await store.hand_back(new.id, fence)
            case "unconfirmed":
                await store.link.command("HSET", store.keys.task(new.id), "stop_until", 1)
                await reap(store, new.id)
            case _:
                await expire_lease(store, new.id)
                await reap(store, new.id, losses=1 if change == "lose it for good" else 9)
        after = await status_of(store, new.id)
        assert after is start or after in ALLOWED[start]

    on_store(settings, scenario)


def test_a_record_and_a_tree_of_an_earlier_release_say_that_they_know_no_cost(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task()
        fence = await running(store, new)
        await settle(store, new, fence, done())
        later = USAGE_FIELDS[3:]
        for key in (store.keys.task(new.id), store.keys.tree("s-1")):
            await store.link.command("HDEL", key, *later)
        task = (await store.read(new.id, caller="")).record.task
        assert task.usage == Usage(*range(3, 6))
        assert (task.usage.cost_usd, await store.usage("s-1")) == (None, task.usage)

    on_store(settings, scenario)
