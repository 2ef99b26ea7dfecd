"""Waiting: how a client waits for ends. A parent watches the record; a worker runs the tasks itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeVar

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.store import Store, Wakeups

T = TypeVar("T")

Until = Literal["any", "all"]

POLL_S = 1.0
"""The slow poll behind every wake-up."""
UNAVAILABLE_FOR_S = 60.0
"""How long a wait without an end bears a server that does not answer."""
REST_PER_TASK_S = 0.0002
"""Between two looks, for each task waited for: a thousand ends at once are not a million looks."""


class Waiter(Protocol):
    """How a client waits for ends. In a parent it watches the record; a worker runs the tasks itself."""

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """Return when the task has ended or the time is over. Raises StoreUnavailable."""

    async def until_left(self, task_id: str, timeout_s: float | None) -> None:
        """Return when a task that is waited for in the foreground has ended, or goes on in the background,
        or the time is over. Raises StoreUnavailable.
        """

    async def until_enough(self, task_ids: Sequence[str], until: Until, timeout_s: float | None) -> None:
        """Return when one or all of the tasks have ended, or the time is over. Raises StoreUnavailable."""

    async def until_inbox(self, session: str, differs: Look, timeout_s: float | None) -> None:
        """Return when a look at the session's inbox says so, or the time is over. Raises StoreUnavailable."""


Look = Callable[[], Awaitable[bool]]
"""One look at the server: whether what is waited for is there. Raises StoreUnavailable."""


class RecordWaiter:
    """Waits on the record: a push wakes, a slow poll stands behind it."""

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """See Waiter. Without a timeout it bears a silent server for a minute."""
        await self.until_enough([task_id], "all", timeout_s)

    async def until_left(self, task_id: str, timeout_s: float | None) -> None:
        """See Waiter."""

        async def left() -> bool:
            return (await self._store.awaited(task_id)).is_left

        await watch(self._wakeups, [self._store.keys.ended(task_id)], left, timeout_s)

    async def until_enough(self, task_ids: Sequence[str], until: Until, timeout_s: float | None) -> None:
        """See Waiter."""
        live = list(task_ids)

        async def enough() -> bool:
            statuses = await self._store.statuses(live)
            # A record that is gone was pruned, so its task had ended.
            left = [one for one in live if (s := statuses[one]) is not None and not s.is_terminal]
            some_ended = len(left) < len(live)
            live[:] = left
            return not left or (until == "any" and some_ended)

        channels = [self._store.keys.ended(one) for one in task_ids]
        await watch(self._wakeups, channels, enough, timeout_s, rest_s=REST_PER_TASK_S * len(channels))

    async def until_inbox(self, session: str, differs: Look, timeout_s: float | None) -> None:
        """See Waiter."""
        await watch(self._wakeups, [self._store.keys.inbox(session)], differs, timeout_s)


async def watch(
    wakeups: Wakeups, channels: Sequence[str], look: Look, timeout_s: float | None, *, rest_s: float = 0.0
) -> bool:
    """Look whenever a channel speaks, and each second; False where the time was over first.

    Raises StoreUnavailable where the server does not answer at the end of the time, or for a minute.
    """
    clock = time.monotonic
    deadline = None if timeout_s is None else clock() + timeout_s
    answered = clock()
    async with wakeups.on(*channels) as woken:
        while True:
            woken.clear()
            began = clock()
            try:
                if await in_time(look(), None if deadline is None else deadline - began):
                    return True
                answered = clock()
            except StoreUnavailable:
                over = deadline is not None and clock() >= deadline
                if over or clock() - answered > UNAVAILABLE_FOR_S:
                    raise
            left = POLL_S if deadline is None else min(POLL_S, deadline - clock())
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await woken.wait()
                    await asyncio.sleep(began + rest_s - clock())


async def in_time(call: Awaitable[T], left_s: float | None) -> T:
    """`call`, which a frozen server must not hold past the end of a wait. Raises StoreUnavailable."""
    try:
        async with asyncio.timeout(None if left_s is None else max(left_s, 0) + POLL_S):
            return await call
    except TimeoutError:
        msg = "no answer in time"
        raise StoreUnavailable(msg) from None
