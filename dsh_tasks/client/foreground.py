"""Foreground: a call that waits for its child, until that ends or goes on in the background."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from dsh_tasks.client.waiting import POLL_S, UNAVAILABLE_FOR_S, Waiter
from dsh_tasks.errors import Promoted, StoreUnavailable
from dsh_tasks.store import Promotion, Store
from dsh_tasks.task import Task


class Client(Protocol):
    """What a wait needs of its client."""

    @property
    def store(self) -> Store: ...
    @property
    def waiter(self) -> Waiter: ...
    async def task(self, task_id: str) -> Task: ...
    async def promote(self, task_id: str, *, after_ms: int | None = None) -> Promotion: ...


async def foreground_end(client: Client, task_id: str, promote_after_ms: int | None) -> None:
    """Return when the task has ended and this call is the one that tells it.

    Raises Promoted where the task goes on, or went on, in the background: then its notice tells the end.
    `promote_after_ms` counts from its acceptance, so that a call that is asked again waits no longer.
    """
    if promote_after_ms is None:
        await client.waiter.until_left(task_id, None)
    else:
        await _ended_or_promoted(client, task_id, promote_after_ms)
    # Nobody can promote what has ended: this look is the last word.
    if not (await client.store.awaited(task_id)).is_foreground:
        task = await client.task(task_id)
        raise Promoted(task_id, after_ms=task.promoted_after_ms)


async def _ended_or_promoted(client: Client, task_id: str, after_ms: int) -> None:
    began = time.monotonic()
    while True:
        try:
            left_ms = after_ms - (await client.task(task_id)).age_ms
            await client.waiter.until_left(task_id, max(left_ms, 0) / 1000)
            if not (await client.store.awaited(task_id)).is_left:
                await client.promote(task_id, after_ms=after_ms)
        except StoreUnavailable:
            # The time is over on a server that is away: it is told as soon as it is back.
            if time.monotonic() - began > after_ms / 1000 + UNAVAILABLE_FOR_S:
                raise
            await asyncio.sleep(POLL_S)
            continue
        if (await client.store.awaited(task_id)).is_left:
            return
