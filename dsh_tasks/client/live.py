"""Live: a child's log as it grows, and where the child is. It only reads: what it costs, the server pays."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable

from dsh_tasks.client.waiting import POLL_S, UNAVAILABLE_FOR_S
from dsh_tasks.errors import StoreUnavailable, TaskNotFound
from dsh_tasks.pauses import GrowingPause
from dsh_tasks.progress import Progress, Reading
from dsh_tasks.session import Event
from dsh_tasks.store import Store

ROWS_AT_ONCE = 64
BACKWARDS_AT_ONCE = 16
BACKWARDS_MOST = 256
BLOCKED_MOST = 8
"""Readers that hold a connection of the pool while they wait; more than these look four times a second."""
LOOK_S = POLL_S / 4
RECONNECT_S, LONGEST_RECONNECT_S = 0.1, 2.0


class LiveReader:
    """Reads logs for one client and those that share its connections."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._blocked = asyncio.Semaphore(BLOCKED_MOST)

    async def rows(self, task_id: str, start: int, *, caller: str) -> AsyncIterator[Event]:
        """See AsyncClient.follow."""
        await self._store.look([task_id], caller=caller)
        place, answered = start, time.monotonic()
        pause = GrowingPause(RECONNECT_S, LONGEST_RECONNECT_S)
        while True:
            try:
                # Before the rows: what ends a task writes its last rows in the same step.
                status = (await self._store.statuses([task_id]))[task_id]
                has_ended = status is None or status.is_terminal
                found = await self._next(task_id, place, waits=not has_ended)
            except StoreUnavailable:
                if time.monotonic() - answered > UNAVAILABLE_FOR_S:
                    raise
                await asyncio.sleep(pause.after_failure())
                continue
            answered = time.monotonic()
            pause.after_success()
            for event in found:
                yield event
            place += len(found)
            if has_ended and not found:
                return

    async def _next(self, task_id: str, place: int, *, waits: bool) -> list[Event]:
        if waits and not self._blocked.locked():
            async with self._blocked:
                block_ms = min(round(POLL_S * 1000), self._store.settings.call_timeout_ms // 2)
                return events(await self._store.rows_from(task_id, place, ROWS_AT_ONCE, block_ms=block_ms))
        found = events(await self._store.rows_from(task_id, place, ROWS_AT_ONCE))
        if waits and not found:
            await asyncio.sleep(LOOK_S)
        return found

    async def progress(self, task_id: str, *, caller: str) -> Progress:
        """See AsyncClient.progress."""
        await self._store.look([task_id], caller=caller)
        reading, before, left = Reading(), None, BACKWARDS_MOST
        while left > 0 and not reading.is_complete:
            rows = await self._store.rows_before(task_id, before, BACKWARDS_AT_ONCE)
            reading.take(events(row for _, row in rows))
            if len(rows) < BACKWARDS_AT_ONCE or rows[-1][0] == 0:
                break
            before, left = rows[-1][0], left - len(rows)
        tasks = await self._store.tasks([task_id])
        if not tasks:
            raise TaskNotFound(task_id)
        return reading.progress(tasks[0])


def events(rows: Iterable[bytes]) -> list[Event]:
    """Stored rows as events."""
    return [Event.from_row(json.loads(row)) for row in rows]
