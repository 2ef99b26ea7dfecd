"""Hooks: sends endings to the endpoint of this installation, from every worker that knows one.

Each ending is sent until it is answered by 2xx, and may be sent more than once; its id stays the same. Not
sent any more is what its owner acknowledged, what was given up, and anything after a 410.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.pauses import GrowingPause, jittered
from dsh_tasks.settings import Settings
from dsh_tasks.store import Gone, Link, Outbox
from dsh_tasks.store.outbox import Came
from dsh_tasks.webhook import Ending, Endpoint
from workers.http_post import Answer, post

log = logging.getLogger(__name__)

PERIOD_S = 0.5
AT_ONCE = 8
"""Tries of one worker that run at the same time; one while the endpoint does not answer."""
GONE_LOOK_S = 60.0
RETRY_AFTER_MOST_MS = 3_600_000


class Hooks:
    """Claims what is due, sends it, tells the outbox what came of it."""

    def __init__(self, link: Link, settings: Settings, endpoint: Endpoint) -> None:
        self._outbox = Outbox(link, settings)
        self._endpoint = endpoint
        self._timeout_s = settings.webhook_timeout_ms / 1000
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dsh-hooks")
        first_s = settings.webhook_first_pause_ms / 1000
        self._pause = GrowingPause(first_s / 5, first_s * 6)
        self._troubled = False
        self._gone = False

    async def announce(self) -> None:
        """Before anything can end here: from now on endings come into the outbox."""
        try:
            await self._outbox.claim(self._endpoint.digest, secrets.token_hex(8), most=0)
        except StoreUnavailable:
            log.warning("webhook: the server does not answer; endings are sent from when it does")

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                try:
                    pause_s = await self._round()
                except Exception as error:  # noqa: BLE001 - one bad ending must not end all sending
                    log.warning("webhook: a round ended by %s", type(error).__name__)
                    pause_s = self._pause.after_failure()
                await asyncio.sleep(pause_s)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _round(self) -> float:
        """One look at the outbox; returns the seconds until the next."""
        token = secrets.token_hex(8)
        try:
            found = await self._outbox.claim(
                self._endpoint.digest, token, most=1 if self._troubled else AT_ONCE
            )
        except StoreUnavailable:
            return jittered(PERIOD_S * 4)
        if isinstance(found, Gone):
            self._tell_gone()
            return jittered(GONE_LOOK_S)
        self._gone = False
        if not found:
            return jittered(PERIOD_S)
        answered = await asyncio.gather(*(self._send(ending, token) for ending in found))
        if any(answered):
            if self._troubled:
                log.warning("webhook: the endpoint takes endings again")
            self._troubled = False
            self._pause.after_success()
            return 0
        # One try at a time from here on, until one gets through.
        self._troubled = True
        return self._pause.after_failure()

    async def _send(self, ending: Ending, token: str) -> bool:
        """One try; True where it got through."""
        headers, body = self._endpoint.message(ending, at_s=int(time.time()))
        answer = await post(
            self._endpoint.url, headers, body, timeout_s=self._timeout_s, threads=self._threads
        )
        came = came_of(answer)
        if came != "delivered" and not self._troubled:
            log.warning("webhook: %s, try %d: %s", ending.notice.id, ending.tries, answer.why)
        try:
            await self._outbox.done(
                ending.notice.task_id,
                token,
                self._endpoint.digest,
                came,
                why=answer.why,
                not_before_ms=min(answer.retry_after_s * 1000, RETRY_AFTER_MOST_MS),
            )
        except StoreUnavailable:
            log.warning("webhook: %s: the server does not answer; it is sent again", ending.notice.id)
        return came == "delivered"

    def _tell_gone(self) -> None:
        if not self._gone:
            log.warning("webhook: the endpoint answered 410; nothing is sent until URL or secret is another")
        self._gone = True


def came_of(answer: Answer) -> Came:
    """2xx is delivered, 410 is the end, anything else, a redirect too, is tried again."""
    if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return "delivered"
    return "gone" if answer.status == HTTPStatus.GONE else "failed"
