"""Wakeups: one subscription per process for all waits. It only wakes; the record is read afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio as aredis
from redis.exceptions import RedisError

from dsh_tasks.pauses import GrowingPause

log = logging.getLogger(__name__)

CONFIRM_S = 0.5
"""How long a wait stands still for the confirmation of its subscription."""
RECONNECT_S = 0.5
LONGEST_RECONNECT_S = 2.0
"""A kill is pushed through this connection: a server that came back must not wait long for us."""


class Wakeups:
    """Listens on channels while somebody waits on them. After a reconnect every waiter is woken."""

    def __init__(self, client: aredis.Redis) -> None:
        self._client = client
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._confirmed: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._payloads: dict[str, asyncio.Queue[bytes]] = {}
        # A server that restarts meets all of its clients at once.
        self._pause = GrowingPause(RECONNECT_S, LONGEST_RECONNECT_S)

    @asynccontextmanager
    async def on(self, *channels: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when one of `channels` speaks. Clear it, read the record, then wait."""
        woken = asyncio.Event()
        for channel in channels:
            self._waiters[channel].add(woken)
        confirmed = [self._want(channel) for channel in channels]
        try:
            # Not confirmed in time: the slow poll behind every wait covers it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_S):
                    for one in confirmed:
                        await one.wait()
            yield woken
        finally:
            for channel in channels:
                self._leave(channel, woken)

    def _leave(self, channel: str, woken: asyncio.Event) -> None:
        self._waiters[channel].discard(woken)
        if not self._waiters[channel]:
            del self._waiters[channel]
            self._changed.set()

    async def messages(self, channel: str) -> AsyncIterator[bytes]:
        """Payloads of a channel, for as long as the caller listens; what is sent meanwhile queues."""
        queue = self._payloads.setdefault(channel, asyncio.Queue())
        async with self.on(channel):
            while True:
                yield await queue.get()

    def _want(self, channel: str) -> asyncio.Event:
        confirmed = self._confirmed.setdefault(channel, asyncio.Event())
        self._changed.set()
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        return confirmed

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError) as error:
                log.debug("subscription lost: %s", type(error).__name__)
            for confirmed in self._confirmed.values():
                confirmed.clear()
            await asyncio.sleep(self._pause.after_failure())
            self._changed.set()
            self._wake_all()

    async def _listen_once(self) -> None:
        asked: set[str] = set()
        async with self._client.pubsub() as pubsub:
            reader: asyncio.Task[None] | None = None
            try:
                while True:
                    self._changed.clear()
                    await self._reconcile(pubsub, asked)
                    if reader is None and pubsub.subscribed:
                        reader = asyncio.create_task(self._read(pubsub))
                    await self._changed_or_dead(reader)
                    if reader is not None and reader.done():
                        failed, reader = reader, None
                        if not failed.cancelled() and (error := failed.exception()):
                            raise error
            finally:
                if reader is not None:
                    reader.cancel()
                    with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
                        await reader

    async def _changed_or_dead(self, reader: asyncio.Task[None] | None) -> None:
        change = asyncio.create_task(self._changed.wait())
        watched: set[asyncio.Task[object]] = {change}
        if reader is not None:
            watched.add(reader)
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    async def _reconcile(self, pubsub: aredis.client.PubSub, asked: set[str]) -> None:
        wanted = set(self._waiters)
        fresh, stale = sorted(wanted - asked), sorted(asked - wanted)
        asked.update(fresh)
        asked.difference_update(stale)
        for name in stale:
            # Before the await: whoever wants it again meanwhile makes a new event and is asked for anew.
            self._confirmed.pop(name, None)
        if fresh:
            await pubsub.subscribe(*fresh)
        if stale:
            await pubsub.unsubscribe(*stale)

    async def _read(self, pubsub: aredis.client.PubSub) -> None:
        while pubsub.subscribed:
            message = await pubsub.get_message(timeout=None)
            if message is None:
                continue
            channel = message["channel"].decode()
            if message["type"] == "subscribe":
                self._pause.after_success()
                if channel in self._confirmed:
                    self._confirmed[channel].set()
            elif message["type"] == "message":
                if channel in self._payloads:
                    self._payloads[channel].put_nowait(message["data"])
                self._wake(channel)

    def _wake(self, channel: str) -> None:
        for woken in tuple(self._waiters.get(channel, ())):
            woken.set()

    def _wake_all(self) -> None:
        for channel in tuple(self._waiters):
            self._wake(channel)

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    async def disconnect(self) -> None:
        """Close the connections too."""
        await self._client.aclose()
        await self._client.connection_pool.disconnect()
