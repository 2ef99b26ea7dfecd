"""Waits for several tasks and for an inbox: what ends them, what refuses them, what they cost."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_tasks.client import AsyncClient, Client
from dsh_tasks.errors import OptionRefused, StoreUnavailable, TaskNotFound
from dsh_tasks.settings import Settings
from dsh_tasks.store import Store, embedded
from dsh_tasks.task import Status
from tests.store.test_records import a_task, done, running, settle

Scenario = Callable[[AsyncClient], Awaitable[None]]


def with_client(settings: Settings, scenario: Scenario, owner: str = "s-1") -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner=owner) as client:
            await scenario(client)

    asyncio.run(main())


async def live_tasks(store: Store, count: int, owner: str = "s-1") -> list[str]:
    """Tasks that run and that a test ends by `end`."""
    ids = []
    for _ in range(count):
        new = a_task(owner)
        await store.submit(new)
        ids.append(new.id)
    return ids


async def end(store: Store, task_id: str) -> None:
    await store.kill(task_id, caller="", token=secrets.token_hex(8), detail="")


async def until_pushed(client: AsyncClient, task: asyncio.Task[Any], channels: int) -> None:
    """Until a wait has subscribed to so many channels, so that what follows reaches it by a push."""
    while True:
        found = await client.store.link.command("PUBSUB", "CHANNELS", f"{client.settings.prefix}*")
        if len(found) >= channels or task.done():
            return
        await asyncio.sleep(0.01)


def test_a_wait_for_any_ends_with_the_first_end_and_names_what_goes_on(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 3)
        wait = asyncio.create_task(client.wait(ids, until="any", timeout_ms=20_000))
        await until_pushed(client, wait, 3)
        await end(client.store, ids[1])
        seen = await wait
        assert [task.id for task in seen.ended] == [ids[1]]
        assert [task.id for task in seen.live] == [ids[0], ids[2]]
        assert (seen.timed_out, seen.wait_capped, seen.ended[0].status) == (False, False, Status.KILLED)

    with_client(make_settings(), scenario)


def test_a_wait_for_all_ends_with_the_last_end(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 3)
        wait = asyncio.create_task(client.wait(ids, timeout_ms=20_000))
        await until_pushed(client, wait, 3)
        await end(client.store, ids[2])
        await end(client.store, ids[0])
        assert not (await client.wait(ids[:2], timeout_ms=1)).live == ()
        await end(client.store, ids[1])
        seen = await wait
        assert [task.id for task in seen.ended] == ids
        assert (seen.live, seen.timed_out) == ((), False)

    with_client(make_settings(), scenario)


def test_what_has_ended_before_is_told_at_once(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 2)
        await end(client.store, ids[0])
        assert (await client.wait(ids, until="any")).waited_ms < 1_000
        await end(client.store, ids[1])
        assert (await client.wait(ids, until="all")).waited_ms < 1_000

    with_client(make_settings(), scenario)


def test_a_timed_out_wait_tells_both_halves_and_leaves_all_alive(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 2)
        await end(client.store, ids[0])
        seen = await client.wait(ids, timeout_ms=300)
        assert ([t.id for t in seen.ended], [t.id for t in seen.live]) == ([ids[0]], [ids[1]])
        assert seen.timed_out
        assert 300 <= seen.waited_ms < 1_500
        assert (await client.task(ids[1])).status is Status.QUEUED

    with_client(make_settings(), scenario)


def test_a_wait_above_the_cap_is_cut_to_it_and_says_so(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 1)
        seen = await client.wait(ids, timeout_ms=3_600_000)
        assert (seen.wait_capped, seen.timed_out) == (True, True)
        assert seen.waited_ms < 1_500
        inbox = await client.wait_for_inbox(timeout_ms=3_600_000)
        assert (inbox.wait_capped, inbox.timed_out, inbox.notices) == (True, True, ())

    with_client(make_settings(wait_cap_ms=200), scenario)


def test_a_task_that_is_named_twice_counts_once(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        first, second = await live_tasks(client.store, 2)
        await end(client.store, first)
        await end(client.store, second)
        seen = await client.wait([second, first, second])
        assert [task.id for task in seen.ended] == [second, first]

    with_client(make_settings(), scenario)


@pytest.mark.parametrize("stranger", [False, True])
def test_an_unknown_or_foreign_id_is_not_found_before_any_waiting(make_settings: Any, stranger: bool) -> None:
    async def scenario(client: AsyncClient) -> None:
        mine = await live_tasks(client.store, 1)
        other = "subagent-" + "0" * 32
        if stranger:
            (other,) = await live_tasks(client.store, 1, owner="s-2")
        started = time.monotonic()
        with pytest.raises(TaskNotFound, match=other):
            await client.wait([*mine, other], until="any", timeout_ms=20_000)
        assert time.monotonic() - started < 5

    with_client(make_settings(), scenario)


@pytest.mark.parametrize(
    ("ids", "option"),
    [
        ([], "task_ids"),
        ("subagent-1", "task_ids"),
        (None, "task_ids"),
        ([f"subagent-{n}" for n in range(1_001)], "task_ids"),
        ([" "], "task_id"),
        ([7], "task_id"),
    ],
    ids=["empty", "text", "none", "too many", "blank", "number"],
)
def test_what_no_wait_can_honour_is_refused(client: Client, ids: Any, option: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        client.wait(ids)
    assert refused.value.facts["option"] == option


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True])
def test_a_time_that_is_none_is_refused(client: Client, bad: Any) -> None:
    for wait in (
        lambda: client.wait(["subagent-1"], timeout_ms=bad),
        lambda: client.wait_for_inbox(timeout_ms=bad),
    ):
        with pytest.raises(OptionRefused, match="timeout_ms"):
            wait()
    with pytest.raises(OptionRefused, match="until"):
        client.wait(["subagent-1"], until="some")  # type: ignore[arg-type]


def test_the_owners_wait_holds_the_notices_of_what_ended_back(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 3)
        for one in ids:
            await end(client.store, one)
        assert len(await client.notices()) == 3
        await client.wait(ids[:2])
        assert [notice.task_id for notice in await client.notices()] == [ids[2]]

    with_client(make_settings(), scenario)


def test_many_waits_share_one_subscription_and_a_thousand_tasks_fit_into_one(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 1_000)
        waits = [asyncio.create_task(client.wait(ids, timeout_ms=30_000))]
        waits += [asyncio.create_task(client.wait([one], timeout_ms=30_000)) for one in ids[:200]]
        await until_pushed(client, waits[0], 1_000)
        clients = (await client.store.link.command("CLIENT", "LIST", "TYPE", "pubsub")).decode()
        ours = [line for line in clients.splitlines() if " sub=1000 " in line]
        assert len(ours) == 1, clients
        for one in ids:
            await end(client.store, one)
        seen = await asyncio.gather(*waits)
        assert [len(one.ended) for one in seen] == [1_000] + [1] * 200

    with_client(make_settings(live_per_owner=2_000, call_timeout_ms=20_000), scenario)


def test_a_wait_for_the_inbox_ends_with_what_comes_in_and_with_what_goes(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        first, second = await live_tasks(client.store, 2)
        wait = asyncio.create_task(client.wait_for_inbox(timeout_ms=20_000))
        await until_pushed(client, wait, 1)
        await end(client.store, first)
        seen = await wait
        assert ([n.task_id for n in seen.notices], seen.timed_out) == ([first], False)
        # Nothing new: the same inbox again is no change.
        assert (await client.wait_for_inbox(since=seen.notices, timeout_ms=200)).timed_out
        # Without `since` what is there already is told at once.
        assert (await client.wait_for_inbox(timeout_ms=20_000)).waited_ms < 1_000
        await end(client.store, second)
        seen = await client.wait_for_inbox(since=seen.notices, timeout_ms=20_000)
        assert [n.task_id for n in seen.notices] == [first, second]
        await client.inbox().acknowledge([first])
        seen = await client.wait_for_inbox(since=seen.notices, timeout_ms=20_000)
        assert [n.task_id for n in seen.notices] == [second]

    with_client(make_settings(), scenario)


def test_a_wait_for_the_inbox_needs_a_session(make_settings: Any, make_client: Any) -> None:
    with pytest.raises(OptionRefused, match="owner"):
        make_client(make_settings()).wait_for_inbox(timeout_ms=100)


@pytest.fixture
def own_server(tmp_path: Path) -> Any:
    server = embedded.start(folder=tmp_path / "server")
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_on_a_frozen_server_a_wait_ends_in_time(make_settings: Any, own_server: Any, when: str) -> None:
    """P10: timeout + 2 s, and the message names no address."""

    async def scenario(client: AsyncClient) -> None:
        ids = await live_tasks(client.store, 2)
        calls = {
            "wait": lambda: client.wait(ids, timeout_ms=1_500),
            "inbox": lambda: client.wait_for_inbox(timeout_ms=1_500),
            "output": lambda: client.output(ids[0], wait=True, timeout_ms=1_500),
        }
        if when == "before":
            own_server.process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        waits = [asyncio.create_task(call()) for call in calls.values()]
        if when == "meanwhile":
            await until_pushed(client, waits[0], 3)
            own_server.process.send_signal(signal.SIGSTOP)
        answers = await asyncio.gather(*waits, return_exceptions=True)
        took_s = time.monotonic() - started
        own_server.process.send_signal(signal.SIGCONT)
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        assert "127.0.0.1" not in " ".join(map(str, answers))
        assert took_s < 3.5 + 0.5

    with_client(make_settings(redis_url=own_server.url), scenario)


def test_a_wait_outlives_a_server_that_is_killed_and_comes_back(make_settings: Any, own_server: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        new, other = a_task(), a_task()
        fence, others = await running(client.store, new), await running(client.store, other)
        wait = asyncio.create_task(client.wait([new.id], timeout_ms=30_000))
        inbox = asyncio.create_task(client.wait_for_inbox(timeout_ms=30_000))
        await until_pushed(client, wait, 2)
        own_server.process.kill()
        own_server.process.wait()
        again = await asyncio.to_thread(embedded.start, port=own_server.port, folder=own_server.folder)
        own_server.process = again.process
        await settle(client.store, other, others, done())
        assert [notice.task_id for notice in (await inbox).notices] == [other.id]
        await settle(client.store, new, fence, done())
        seen = await wait
        assert [task.status for task in seen.ended] == [Status.COMPLETED]

    with_client(make_settings(redis_url=own_server.url), scenario)
