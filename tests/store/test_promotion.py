"""Promotion: a wait in the foreground that becomes a background task, on a real server."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dsh_tasks.client import AsyncClient, Client
from dsh_tasks.config import SubagentToolConfig
from dsh_tasks.errors import OwnerNotRunning, Promoted, TaskNotFound
from dsh_tasks.settings import Settings
from dsh_tasks.store import Claimed, Fence
from dsh_tasks.task import Outcome, Status
from dsh_tasks.tools import Call, SubagentTool
from tests.store.test_waits import until_pushed

Scenario = Callable[[AsyncClient], Awaitable[None]]
TASK = {"description": "count", "prompt": "Count."}


def with_client(settings: Settings, scenario: Scenario, owner: str = "s-1") -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner=owner) as client:
            await scenario(client)
            assert (await client_of_all(client).audit()).faults == ()

    asyncio.run(main())


def client_of_all(client: AsyncClient) -> AsyncClient:
    return AsyncClient(client.store, client._wakeups, client._publisher)


async def foreground(client: AsyncClient, **given: Any) -> Any:
    return await client.start("spawn", prompt="go", mode="foreground", **given)


async def claimed(client: AsyncClient, task_id: str) -> Fence:
    token = secrets.token_hex(8)
    taken = await client.store.claim(task_id, token, "here:1")
    assert isinstance(taken, Claimed)
    return Fence(taken.attempt, token)


async def settled(client: AsyncClient, task_id: str, fence: Fence, text: str = "said") -> None:
    root = (await client.store.read(task_id, caller="")).record.task.root
    await client.store.settle(task_id, root, fence, Outcome(Status.COMPLETED, output=text), 0, [])


def tool_of(client: AsyncClient, **config: Any) -> SubagentTool:
    return SubagentTool(client, SubagentToolConfig(provider="spawn", **config))


async def the_only_task(client: AsyncClient) -> str:
    while True:
        if tasks := await client.list_tasks():
            return tasks[0].id
        await asyncio.sleep(0.01)


def test_a_foreground_child_has_a_record_from_the_start_that_says_so(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        run = await foreground(client)
        behind = await client.start("spawn", prompt="go")
        assert [task.mode for task in await client.list_tasks()] == ["foreground", "background"]
        assert (await client.task(run.id)).promoted_ms is None
        assert (await client.promote(behind.id)).accepted is False
        assert (await client.promote(behind.id)).in_background

    with_client(settings, scenario)


def test_a_promoted_wait_ends_and_the_child_goes_on_and_its_end_is_told_by_a_notice(
    settings: Settings,
) -> None:
    async def scenario(client: AsyncClient) -> None:
        run = await foreground(client)
        fence = await claimed(client, run.id)
        waiting = asyncio.create_task(run.result())
        await until_pushed(client, waiting, 1)
        told = await run.promote()
        assert (told.accepted, told.in_background, told.status) == (True, True, Status.RUNNING)
        with pytest.raises(Promoted, match="goes on in the background; read it"):
            await waiting
        assert await run.dispose() is False
        task = await client.task(run.id)
        assert (task.mode, task.status, task.promoted_after_ms) == ("background", Status.RUNNING, None)
        assert task.promoted_ms is not None
        assert await run.promote() == told, "twice is once"
        await settled(client, run.id, fence)
        assert [notice.task_id for notice in await client.notices()] == [run.id]
        assert (await client.output(run.id)).text == "said"

    with_client(settings, scenario)


def test_what_has_ended_or_is_to_end_is_told_where_it_is_waited_for(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        ended, dying = await foreground(client), await foreground(client)
        await settled(client, ended.id, await claimed(client, ended.id))
        told = await ended.promote()
        assert (told.accepted, told.in_background, told.status) == (False, False, Status.COMPLETED)
        assert (await ended.result()).text == "said"
        await claimed(client, dying.id)
        await client.kill(dying.id)
        assert (await dying.promote()).status is Status.STOPPING
        assert (await client.task(dying.id)).mode == "foreground"
        assert await client.notices() == ()

    with_client(settings, scenario)


def test_an_end_that_a_call_waits_for_is_not_told_by_a_notice_beside_it(settings: Settings) -> None:
    """Also before the call has looked: between the end and the look a parent's loop may take notices."""

    async def scenario(client: AsyncClient) -> None:
        run = await foreground(client)
        await settled(client, run.id, await claimed(client, run.id))
        assert await client.notices() == ()
        assert (await run.result()).text == "said"
        assert await client.notices() == ()

    with_client(settings, scenario)


def test_a_caller_that_is_gone_is_told_by_a_notice_after_the_hold(make_settings: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        run = await foreground(client)
        await settled(client, run.id, await claimed(client, run.id))
        seen = await client.wait_for_inbox(timeout_ms=10_000)
        assert [notice.task_id for notice in seen.notices] == [run.id]

    with_client(make_settings(notice_hold_ms=300), scenario)


@pytest.mark.parametrize("seed", range(5))
def test_a_promotion_that_races_the_end_has_one_winner(settings: Settings, seed: int) -> None:
    """Either the call has the result, or a notice tells it: never both, never none."""
    chance = random.Random(seed)

    async def one(client: AsyncClient, other: AsyncClient) -> str:
        run = await foreground(client)
        fence = await claimed(client, run.id)
        waiting = asyncio.create_task(run.result())

        async def later(work: Awaitable[Any]) -> Any:
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            return await work

        promotion, _ = await asyncio.gather(
            later(other.promote(run.id)), later(settled(client, run.id, fence, "the answer"))
        )
        try:
            output = await waiting
        except Promoted:
            assert promotion.accepted
            assert [one.task_id for one in await client.notices() if one.task_id == run.id] == [run.id]
            return "promoted"
        assert not promotion.accepted
        assert output.text == "the answer"
        assert [one for one in await client.notices() if one.task_id == run.id] == []
        return "ended"

    async def scenario(client: AsyncClient) -> None:
        async with AsyncClient.connect(settings) as other:
            won = [await one(client, other) for _ in range(30)]
        assert set(won) == {"promoted", "ended"}, "both were seen"

    with_client(settings, scenario)


def test_a_wait_promotes_by_itself_when_its_time_is_over_and_says_so(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        tool = tool_of(client, promote_foreground_after_ms=50)
        call = Call(key="k")
        result = await tool.call(TASK, call)
        task_id = await the_only_task(client)
        assert result.value == {"kind": "background", "taskId": task_id}
        assert result.text == (
            f"started background subagent task {task_id}\n"
            "[no end within 50 ms; the subagent goes on, collect it with task_output]"
        )
        assert not result.is_error
        task = await client.task(task_id)
        assert (task.mode, task.promoted_after_ms, task.status) == ("background", 50, Status.QUEUED)
        assert await tool.call(TASK, call) == result, "a repeated call has the same answer"
        assert len(await client.list_tasks()) == 1

    with_client(settings, scenario)


def test_a_child_that_ends_in_time_is_not_promoted(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        calling = asyncio.create_task(tool_of(client, promote_foreground_after_ms=60_000).call(TASK))
        task_id = await the_only_task(client)
        await settled(client, task_id, await claimed(client, task_id))
        assert (await calling).text == "said"
        assert (await client.task(task_id)).mode == "foreground"

    with_client(settings, scenario)


def test_a_call_that_waits_is_let_go_by_its_tool(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        tool = tool_of(client)
        assert await tool.promote("c1") is False
        calling = asyncio.create_task(tool.call(TASK, Call(assistant_seq=7, call_id="c1")))
        while not await tool.promote("c1"):
            await asyncio.sleep(0.01)
        result, task_id = await calling, await the_only_task(client)
        assert result.text == (
            f"started background subagent task {task_id}\n"
            "[the call was turned into a background task; the subagent goes on, collect it with task_output]"
        )
        assert await tool.promote("c1") is False
        assert (await client.task(task_id)).status is Status.QUEUED

    with_client(settings, scenario)


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_a_call_that_is_aborted_after_its_promotion_stops_nothing(settings: Settings, how: str) -> None:
    async def scenario(client: AsyncClient) -> None:
        tool, abort = tool_of(client), asyncio.Event()
        calling = asyncio.create_task(tool.call(TASK, Call(abort=abort, call_id="c-1")))
        task_id = await the_only_task(client)
        while "c-1" not in tool._waited:
            # The start has not been answered yet: an abort would come before the child.
            await asyncio.sleep(0.001)
        # The record changes, and the wait has not heard of it when its caller goes.
        await client.store.link.command(
            "HSET", client.store.keys.task(task_id), "mode", "background", "promoted", 1
        )
        await client.store.link.command("HDEL", client.store.keys.task(task_id), "wait_hold")
        if how == "abort":
            abort.set()
            assert (await calling).value == {"kind": "background", "taskId": task_id}
        else:
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
        assert (await client.task(task_id)).status is Status.QUEUED

    with_client(settings, scenario)


def test_only_its_owner_and_operators_may_promote(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        run = await foreground(client)
        below = client.for_owner(run.id)
        below.fence = await claimed(client, run.id)
        grandchild = await foreground(below)
        for stranger in (client.for_owner("s-2"), client):
            with pytest.raises(TaskNotFound):
                await stranger.promote(grandchild.id)
        with pytest.raises(TaskNotFound):
            await client.promote("subagent-unknown")
        assert (await client_of_all(client).promote(grandchild.id)).accepted

    with_client(settings, scenario)


def test_a_child_whose_attempt_is_over_promotes_nothing(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        run = await foreground(client)
        below = client.for_owner(run.id)
        below.fence = await claimed(client, run.id)
        grandchild = await foreground(below)
        below.fence = Fence(1, "another")
        with pytest.raises(OwnerNotRunning):
            await below.promote(grandchild.id)
        assert (await client.store.read(grandchild.id, caller="")).record.task.mode == "foreground"

    with_client(settings, scenario)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (("HSET", "mode", "aside"), "mode is 'aside'"),
        (("HDEL", "wait_hold"), "wait_hold is gone and a call waits for it"),
        (("HSET", "mode", "background"), "wait_hold is there and nobody waits for it"),
        (("HSET", "promoted", "5"), "mode is foreground and it was promoted"),
        (("HSET", "promoted_after", "5"), "promoted is gone"),
    ],
)
def test_the_audit_names_what_contradicts_a_wait(
    settings: Settings, damage: tuple[str, ...], words: str
) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner="s-1") as client:
            key = client.store.keys.task((await foreground(client)).id)
            await client.store.link.command(damage[0], key, *damage[1:])
            faults = (await client_of_all(client).audit()).faults
            assert any(words in fault.what for fault in faults), faults

    asyncio.run(main())


def test_plain_code_has_the_same(settings: Settings) -> None:
    with Client(settings, owner="s-1") as client:
        run = client.start("spawn", prompt="go", mode="foreground")
        with pytest.raises(Promoted, match="after 20 ms in the foreground"):
            run.result(promote_after_ms=20)
        assert run.promote().accepted
        assert client.promote(run.id).accepted
        assert run.dispose() is False
        behind = client.start("spawn", prompt="go")
        assert behind.dispose() is True
