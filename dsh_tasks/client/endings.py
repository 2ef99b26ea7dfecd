"""Endings: a callback that hears of every ending of a session, at least once, for as long as it wants to.

It speaks for the session as a parent loop does. A batch is acknowledged after the callback returned;
what raised stays in the inbox and comes again. Waking a parent, and how often, is the parent loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from dsh_tasks.client.waiting import POLL_S
from dsh_tasks.errors import DshTasksError
from dsh_tasks.notice import Notice
from dsh_tasks.pauses import GrowingPause, jittered
from dsh_tasks.store import Fence, Inbox

log = logging.getLogger(__name__)

OnEndings = Callable[[Sequence[Notice]], Awaitable[Any] | Any]
"""Hears of one batch, oldest first. A coroutine function is awaited, a plain one runs in a thread."""

BATCH_MOST = 100
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a notice whose callback raised comes again."""
STOP_WITHIN_S = 10.0
"""How long `stop` waits for a callback that runs; after that its batch stays unacknowledged."""

_inside: ContextVar[object] = ContextVar("dsh_tasks_on_endings", default=None)


class AsyncSubscription:
    """A callback at work; `stop`, or leave its `async with`, to end it."""

    def __init__(
        self, inbox: Inbox, callback: OnEndings, woken: Woken, *, lease_ms: int, fence: Fence | None
    ) -> None:
        self._inbox = inbox
        self._callback = callback
        self._woken = woken
        self._lease_s = lease_ms / 1000
        self._fence = fence
        self._token = secrets.token_hex(16)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing: dict[str, Failing] = {}
        self._heard: set[tuple[str, int]] = set()
        """What the callback heard and no acknowledgement has reached the server for."""

    async def start(self) -> asyncio.Task[None]:
        """Become the session's speaker. Raises SpeakerTaken, StoreUnavailable."""
        await self._inbox.speak(self._token)
        self._task = asyncio.create_task(self._run())
        return self._task

    async def stop(self) -> None:
        """Take no more, let a callback that runs return, acknowledge its batch, fall silent. Twice is once.

        A callback that takes longer than ten seconds is cancelled, or left where it is a thread; its batch
        comes again. Called by the callback itself it only says so: the callback must return first.
        """
        self._stopping.set()
        if self._task is None or _inside.get() is self:
            return
        await asyncio.wait((self._task,), timeout=STOP_WITHIN_S)
        self._task.cancel()
        await asyncio.wait((self._task,))

    @property
    def is_running(self) -> bool:
        """It has not been told to stop."""
        return self._task is not None and not self._task.done() and not self._stopping.is_set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        keeping = asyncio.create_task(self._keep_speaking())
        try:
            async with self._woken() as woken:
                await self._serve(woken)
        finally:
            keeping.cancel()
            with contextlib.suppress(DshTasksError):
                await self._inbox.fall_silent(self._token)

    async def _keep_speaking(self) -> None:
        """A callback may take longer than the owner lease."""
        while True:
            await asyncio.sleep(jittered(self._lease_s / 4))
            # Taken by another meanwhile: its acknowledgements count, ours are refused.
            with contextlib.suppress(DshTasksError):
                await self._inbox.speak(self._token)

    async def _serve(self, woken: asyncio.Event) -> None:
        trouble = GrowingPause(POLL_S / 2, POLL_S * 5)
        while not self._stopping.is_set():
            woken.clear()
            try:
                told = await self._round()
            except DshTasksError as error:
                # The server is away, or another process speaks now: this one stands by.
                log.warning("on_endings: %s", error.message)
                await self._rest(self._stopping, trouble.after_failure())
                continue
            trouble.after_success()
            if not told:
                await self._rest(woken, POLL_S)

    async def _round(self) -> bool:
        """Take what is there and tell it; whether there was anything to tell."""
        taken = await self._inbox.take(token=self._token)
        there = {notice.id for notice in taken}
        self._failing = {name: failing for name, failing in self._failing.items() if name in there}
        heard = [notice for notice in taken if _mark(notice) in self._heard]
        await self._acknowledge(heard)
        batches = list(self._batches([notice for notice in taken if notice not in heard]))
        for batch in batches:
            if self._stopping.is_set():
                break
            await self._tell(batch)
        return bool(batches)

    def _batches(self, taken: Sequence[Notice]) -> Iterator[tuple[Notice, ...]]:
        """What is new together; what failed before each by itself, so that it holds up nothing else."""
        now_s = time.monotonic()
        if fresh := tuple(notice for notice in taken if notice.id not in self._failing)[:BATCH_MOST]:
            yield fresh
        for notice in taken:
            failing = self._failing.get(notice.id)
            if failing is not None and failing.until_s <= now_s:
                yield (notice,)

    async def _tell(self, batch: tuple[Notice, ...]) -> None:
        inside = _inside.set(self)
        try:
            await called(self._callback, batch)
        except BaseException as error:
            if _ends_us(error):
                raise
            self._failed(batch, error)
            return
        finally:
            _inside.reset(inside)
        self._heard.update(_mark(notice) for notice in batch)
        await self._acknowledge(batch)

    async def _acknowledge(self, heard: Sequence[Notice]) -> None:
        await self._inbox.acknowledge(
            [notice.task_id for notice in heard], token=self._token, fence=self._fence
        )
        self._heard.difference_update(_mark(notice) for notice in heard)

    def _failed(self, batch: Sequence[Notice], error: BaseException) -> None:
        # The text of a callback's exception may hold content.
        log.warning("on_endings: the callback raised %s; it hears of it again", type(error).__name__)
        log.debug("on_endings", exc_info=error)
        for notice in batch:
            failing = self._failing.setdefault(notice.id, Failing())
            failing.until_s = time.monotonic() + failing.pause.after_failure()

    async def _rest(self, woken: asyncio.Event, pause_s: float) -> None:
        """A pause that `woken`, or being told to stop, ends."""
        waits = [asyncio.create_task(event.wait()) for event in (woken, self._stopping)]
        try:
            await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()


class Failing:
    """A notice whose callback raised: when it comes again."""

    def __init__(self) -> None:
        self.pause = GrowingPause(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self.until_s = 0.0


Woken = Callable[[], contextlib.AbstractAsyncContextManager[asyncio.Event]]
"""Opens an event that is set when something came into the inbox."""


async def called(callback: OnEndings, batch: Sequence[Notice]) -> None:
    """Await a coroutine function, run a plain one in a thread: one that blocks holds nothing else up."""
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
        getattr(callback, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    ):
        await callback(batch)
        return
    answer, error = await asyncio.to_thread(_came_of, callback, batch)
    if error is not None:
        raise error
    if inspect.isawaitable(answer):
        await answer


def _came_of(callback: OnEndings, batch: Sequence[Notice]) -> tuple[Any, BaseException | None]:
    # As a value: asyncio never completes a future whose thread raised StopIteration.
    try:
        return callback(batch), None
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        return None, error


def _mark(notice: Notice) -> tuple[str, int]:
    """An ending that was taken back by a power loss and came again is another one, under the same id."""
    return notice.id, notice.at_ms


def _ends_us(error: BaseException) -> bool:
    """Whether what came out of a callback is meant for this task, not the callback's own failure."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt)
