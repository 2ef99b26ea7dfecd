"""Publisher: sends messages off the event loop, within a deadline."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from celery import Celery

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.queue import Message, publish


class Publisher:
    """Publishes messages off the event loop; kombu's producers are synchronous."""

    def __init__(self, app: Celery, *, timeout_ms: int) -> None:
        self._app = app
        self._timeout_s = timeout_ms / 1000
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="dsh-publish")

    async def publish(self, message: Message) -> None:
        """Send one message. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                await loop.run_in_executor(self._threads, publish, self._app, message)
        except TimeoutError:
            msg = "the queue did not answer in time"
            raise StoreUnavailable(msg) from None

    def close(self) -> None:
        """Let running publishes end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
