"""Events: what monitors such as Flower hear of this worker goes out in groups.

Celery sends its task events as groups already, one for each turn of its loop: with messages that come one by
one that is a publication for nearly every event, and kombu makes a client for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from celery import bootsteps

LATEST_S = 0.05
"""How long an event waits for others."""
GROUP = 200
"""Events that do not wait for more."""


class Hub(Protocol):
    """What is used of kombu's loop; `call_soon` may be called from any thread."""

    def call_soon(self, callback: Callable[[], None]) -> Any: ...
    def call_later(self, delay: float, callback: Callable[[], None]) -> Any: ...


class Batch:
    """Events that wait; every one of them is sent by a flush that begins after it was buffered."""

    def __init__(self, hub: Hub, flush: Callable[[], None]) -> None:
        self._hub = hub
        self._flush = flush
        self._is_due = False

    def wanted(self) -> None:
        """An event was buffered, in any thread."""
        if not self._is_due:
            self._is_due = True
            self._hub.call_soon(self._later)

    def _later(self) -> None:
        self._hub.call_later(LATEST_S, self.send)

    def send(self) -> None:
        """Send what waits. What is buffered from here on asks again."""
        self._is_due = False
        self._flush()


class Batching(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of Celery's consumer that lets events wait for each other."""

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, consumer: Any) -> None:
        """Each connection has a dispatcher of its own."""
        dispatcher = consumer.event_dispatcher
        if consumer.hub is not None and dispatcher is not None:
            dispatcher.buffer_limit = GROUP
            dispatcher.on_send_buffered = Batch(consumer.hub, dispatcher.flush).wanted

    def stop(self, consumer: Any) -> None:
        """Nothing waits any more: the loop turns no further."""
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.on_send_buffered = None
            consumer.event_dispatcher.flush()
