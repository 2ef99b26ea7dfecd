"""Both clients tell the same story: one scenario, driven twice."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from dsh_tasks.client import AsyncClient, Client
from dsh_tasks.errors import TaskNotFound
from tests.factories import a_log
from tests.prompts import waiting
from tests.rig_tools import Rig

pytestmark = pytest.mark.rig

PARENT = a_log(turns=2, facts=[("codeword", "marmalade"), ("budget", "42")])


async def settled(value: Any) -> Any:
    """The value of a verb, whether it is awaited or not."""
    return await value if inspect.isawaitable(value) else value


async def rows_of(followed: Any) -> list[str]:
    if hasattr(followed, "__aiter__"):
        return [row.type async for row in followed]
    return [row.type for row in followed]


async def story(client: Client | AsyncClient) -> list[Any]:
    """Everything that a caller sees, without ids and times."""
    told: list[Any] = []
    run = await settled(
        client.start("fork", parent=PARENT, prompt="What is the codeword?", label="a", key="k")
    )
    again = await settled(
        client.start("fork", parent=PARENT, prompt="What is the codeword?", label="a", key="k")
    )
    told += [again.id == run.id, again.repeated, run.depth]
    done = await settled(run.result())
    told += [done.text, done.task.status, done.total_bytes, done.next_offset, done.task.seed_turns]
    page = await settled(client.output(run.id, offset=4, limit_bytes=8))
    told += [page.text, page.offset, page.next_offset]
    long = await settled(client.start("spawn", parent=PARENT, prompt=waiting(60), label="b"))
    timed_out = await settled(client.output(long.id, wait=True, timeout_ms=200))
    told += [timed_out.timed_out]
    receipt = await settled(client.kill(long.id, reason="enough"))
    told += [receipt.accepted, len(receipt.took)]
    await settled(long.dispose())
    told += [(await settled(client.task(long.id))).detail]
    told += [[task.label for task in await settled(client.list_tasks())]]
    told += [await rows_of(client.follow(run.id))]
    told += [[turn.reason for turn in (await settled(client.session(run.id))).turns()]]
    told += [len(await settled(client.notices())), len(await settled(client.notices(acknowledge=True)))]
    with pytest.raises(TaskNotFound):
        await settled(client.for_owner("stranger").output(run.id))
    return told


def test_both_clients_tell_the_same_story(rig: Rig, make_client: Callable[..., Client]) -> None:
    rig.worker()

    async def awaited() -> list[Any]:
        async with AsyncClient.connect(rig.settings, owner="one") as client:
            return await story(client)

    plain = make_client(rig.settings, owner="two")
    told = asyncio.run(awaited())
    assert asyncio.run(story(plain)) == told
    assert "The codeword is marmalade." in told
