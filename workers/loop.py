"""Loop: one event loop per worker process, in a thread of its own; it owns and awaits every coroutine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 0.1


class EventLoop:
    """A running event loop that says when it last turned."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ticked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="dsh-loop", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._tick()
        self.loop.run_forever()

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        self.loop.call_later(TICK_S, self._tick)

    @property
    def silent_s(self) -> float:
        """Seconds since the loop last turned."""
        return time.monotonic() - self._ticked

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """Stop turning; what still runs is dropped."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)
