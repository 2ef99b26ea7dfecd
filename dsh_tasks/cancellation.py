"""Cancellation: finish what must be finished, and notice a cancel that a library swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(work: Awaitable[T]) -> T:
    """Finish `work`, however often this coroutine is cancelled; the cancellation is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at, so that asyncio does not report it as lost
        raise cancelled
    return task.result()


async def heeding_cancel(call: Awaitable[T]) -> T:
    """`call`, and the CancelledError that it swallowed.

    Python 3.11's `asyncio.wait_for`, which redis-py sends through, drops a cancel that lands as its inner
    call ends (seen: 27 of 4,500).
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        return await call
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
