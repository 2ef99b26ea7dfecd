"""Queue: all that crosses Celery: names, headers, ids-only messages, settings of both sides."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.app.control import Control
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from kombu.pidbox import Mailbox

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.settings import Settings

log = logging.getLogger(__name__)

RUN_CHILD = "dsh_tasks.run_child"
"""Task function that runs one child; found by name, never imported by the library."""

VISIBILITY_TIMEOUT_S = 7 * 24 * 3600
REPLY_KEPT_MS = 60_000
SHOWN_BYTES = 120
"""A name in a message, as JSON writes it: a message stays below 2 KiB in any script."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is published for a queued task: its id, and what makes Flower readable. No content."""

    task_id: str
    attempt: int
    """Attempts that have ended before; a later attempt's message has an id of its own."""
    label: str
    provider: str
    depth: int
    owner: str

    @property
    def message_id(self) -> str:
        """Celery's id of the message: the task's, and the attempt where it is not the first."""
        return self.task_id if self.attempt == 0 else f"{self.task_id}:{self.attempt + 1}"

    @property
    def shown(self) -> str:
        """What Flower shows in place of arguments."""
        label = json.dumps(in_short(self.label), ensure_ascii=False)
        return (
            f"{label} provider={self.provider} depth={self.depth} owner={in_short(self.owner)} {self.task_id}"
        )

    @property
    def headers(self) -> Mapping[str, Any]:
        """Custom headers of the message."""
        return {
            "dsh_task": self.task_id,
            "dsh_label": in_short(self.label),
            "dsh_provider": self.provider,
            "dsh_depth": self.depth,
            "dsh_owner": in_short(self.owner),
            "dsh_attempt": self.attempt + 1,
        }


def in_short(text: str) -> str:
    """One line of `text` whose JSON has at most SHOWN_BYTES, cut with three dots."""
    line = " ".join(text.split())
    if len(json.dumps(line[: SHOWN_BYTES + 1])) <= SHOWN_BYTES:
        return line
    short = line[:SHOWN_BYTES]
    while len(json.dumps(short)) > SHOWN_BYTES - 3:
        short = short[:-1]
    return f"{short}..."


class PromptConnection(Connection):
    """A connection that comes back: tried again every two seconds at most, and closed without a crash.

    Celery's own pauses grow to thirty seconds.
    """

    def maybe_close_channel(self, channel: Any) -> None:
        """See kombu. What cannot be put back into the queue is sent again from its record."""
        try:
            super().maybe_close_channel(channel)  # type: ignore[no-untyped-call]
        except AttributeError:
            # kombu 5.7 looks for the address of a connection that is gone, if a message was unacknowledged
            # as it broke; that ended the worker (P25).
            log.warning("the queue's connection broke with a message in hand")

    def ensure_connection(
        self,
        errback: Callable[..., Any] | None = None,
        max_retries: int | None = None,
        interval_start: float = 0.2,
        interval_step: float = 0.5,
        interval_max: float = 2.0,
        **more: Any,
    ) -> Any:
        """See kombu."""
        return super().ensure_connection(  # type: ignore[no-untyped-call]
            errback, max_retries, interval_start, interval_step, interval_max, **more
        )


class TidyMailbox(Mailbox):
    """Remote control whose late answers go away.

    kombu lets only the asker's process give the list of answers an expiry: what a worker answers after the
    asker has gone would stay on the server for ever (P25).
    """

    def _publish_reply(
        self,
        reply: Any,
        exchange: str,
        routing_key: str,
        ticket: str,
        channel: Any = None,
        producer: Any = None,
        **opts: Any,
    ) -> None:
        of_asker = channel or self.connection.default_channel  # type: ignore[union-attr]
        with self.producer_or_acquire(producer, of_asker) as held:
            # A transport other than Redis has no such table.
            expiries: dict[str, int] = getattr(held.channel, "_expires", {})
            queue = f"{routing_key}.{exchange}"
            is_ours = queue not in expiries
            if is_ours:
                expiries[queue] = REPLY_KEPT_MS
            try:
                super()._publish_reply(  # type: ignore[no-untyped-call]
                    reply, exchange, routing_key, ticket, channel=of_asker, producer=held, **opts
                )
            finally:
                if is_ours:
                    expiries.pop(queue, None)


class TidyControl(Control):  # type: ignore[misc]
    """Celery's remote control over that mailbox."""

    Mailbox = TidyMailbox


def make_app(settings: Settings, *, publishes: bool = False) -> Celery:
    """The Celery application as both sides configure it.

    One that only `publishes` has a deadline on each answer of the broker; a consumer waits as it must.
    """
    app = Celery(
        "dsh_tasks",
        broker=settings.effective_broker_url,
        backend=None,
        set_as_current=False,
        control=TidyControl,
    )
    app.amqp.Connection = PromptConnection
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        task_default_queue=settings.queue,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        # Early acknowledgement: claim, lease and reaper carry durability; late acknowledgement ended
        # workers for good after an outage (celery 5.7).
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        # A full worker would hoard one to two times its slots.
        worker_disable_prefetch=True,
        worker_send_task_events=True,
        task_send_sent_event=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "global_keyprefix": f"{settings.prefix}celery:",
            "socket_connect_timeout": settings.call_timeout_ms / 1000,
            **({"socket_timeout": settings.call_timeout_ms / 1000} if publishes else {}),
            "max_retries": 2,
            "interval_start": 0.05,
            "interval_step": 0.2,
            "interval_max": 0.5,
        },
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        task_create_missing_queues=True,
    )
    return app


def publish(app: Celery, message: Message) -> None:
    """Send the wake-up for a queued task. Raises StoreUnavailable; the record stays and is due again."""
    try:
        app.send_task(
            RUN_CHILD,
            args=(message.task_id,),
            task_id=message.message_id,
            argsrepr=message.shown,
            kwargsrepr="",
            headers=dict(message.headers),
            ignore_result=True,
            retry=False,
        )
    except (OperationalError, OSError, KeyError, ValueError) as error:
        # KeyError: a broker URL of a kind that kombu does not know.
        msg = f"the queue refused the message ({type(error).__name__})"
        raise StoreUnavailable(msg) from None
