"""Waiting: how a client waits for an end. A parent watches the record; a worker runs the task itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.store import Store, Wakeups

POLL_S = 1.0
"""The slow poll behind every wake-up."""
UNAVAILABLE_FOR_S = 60.0
"""How long a wait without an end bears a server that does not answer."""


class Waiter(Protocol):
    """How a client waits for an end. In a parent it watches the record; a worker runs the task itself."""

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """Return when the task has ended or the time is over. Raises StoreUnavailable."""


class RecordWaiter:
    """Waits on the record: a push wakes, a slow poll stands behind it."""

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """See Waiter. Without a timeout it bears a silent server for a minute."""
        clock = time.monotonic
        deadline = None if timeout_s is None else clock() + timeout_s
        answered = clock()
        async with self._wakeups.on(self._store.keys.ended(task_id)) as woken:
            while True:
                woken.clear()
                left = None if deadline is None else deadline - clock()
                try:
                    if await self._has_ended(task_id, left):
                        return
                    answered = clock()
                except StoreUnavailable:
                    over = deadline is not None and clock() >= deadline
                    if over or clock() - answered > UNAVAILABLE_FOR_S:
                        raise
                left = POLL_S if deadline is None else min(POLL_S, deadline - clock())
                if left <= 0:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken.wait()

    async def _has_ended(self, task_id: str, left_s: float | None) -> bool:
        try:
            # A frozen server must not hold a wait past its end.
            async with asyncio.timeout(None if left_s is None else max(left_s, 0) + POLL_S):
                tasks = await self._store.tasks([task_id])
        except TimeoutError:
            msg = "no answer in time"
            raise StoreUnavailable(msg) from None
        return not tasks or tasks[0].is_terminal
