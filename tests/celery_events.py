"""Celery's events as they are sent, through outages of the broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dsh_tasks.queue import make_app
from dsh_tasks.settings import Settings


@contextmanager
def events_of(settings: Settings) -> Iterator[list[dict[str, Any]]]:
    """Every event meanwhile; those of an outage are lost."""
    app = make_app(settings)
    seen: list[dict[str, Any]] = []
    listens, ends = threading.Event(), threading.Event()

    def capture() -> None:
        while not ends.is_set():
            try:
                with app.connection_for_read() as connection:
                    receiver = app.events.Receiver(connection, handlers={"*": seen.append})
                    # One consumer for all the time: what is sent while nobody listens is lost.
                    with receiver.consumer_context(wakeup=False) as (listening, _channel, _consumers):
                        listens.set()
                        while not ends.is_set():
                            with suppress(TimeoutError):
                                listening.drain_events(timeout=0.2)
            except Exception:  # the broker is away, and kombu raises what it likes
                ends.wait(0.1)

    thread = threading.Thread(target=capture, daemon=True)
    thread.start()
    assert listens.wait(20)
    try:
        yield seen
    finally:
        ends.set()
        thread.join(10)
