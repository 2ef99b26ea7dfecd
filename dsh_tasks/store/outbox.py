"""Outbox: the endings that an endpoint is to hear of, from the settling step until it has said so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsh_tasks.notice import Notice
from dsh_tasks.pauses import jittered
from dsh_tasks.settings import Settings
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys
from dsh_tasks.task import Cause, Status
from dsh_tasks.webhook import Ending

KEEP_MS = 7 * 24 * 3_600_000
"""How long an ending that nobody sends is kept, and how long a worker's wish to send holds."""
SPARE_MS = 2_000
"""Between the deadline of a try and the time at which another worker may begin the next."""

Came = Literal["delivered", "failed", "gone"]


@dataclass(frozen=True, slots=True)
class Gone:
    """The endpoint answered 410: it wants no more, until its URL or secret is another."""

    since_ms: int


@dataclass(frozen=True, slots=True)
class OutboxState:
    """How sending stands. Times are epoch ms, 0 for never."""

    wanted: bool
    """A worker of this installation sends endings, or did within a week."""
    waiting: int
    delivered: int
    delivered_ms: int
    failed: int
    """Tries that failed."""
    failed_ms: int
    failed_why: str
    known: int
    """Endings that their owners acknowledged before they were sent."""
    dropped: int
    """Endings that were given up."""
    gone_ms: int


class Outbox:
    """Endings to send, for one endpoint."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self._link = link
        self._settings = settings
        self._keys = Keys(settings.prefix)

    async def claim(self, endpoint: str, token: str, *, most: int) -> tuple[Ending, ...] | Gone:
        """Take what is due, at most `most`; each comes again unless `done` says otherwise.

        From the first call on, endings of this installation come into the outbox. Raises StoreUnavailable.
        """
        k, s = self._keys, self._settings
        answer = await self._link.script(
            "hook_claim",
            [k.hook, k.hooks, k.hookstats],
            [
                k.prefix,
                endpoint,
                token,
                most,
                s.webhook_timeout_ms + SPARE_MS,
                s.webhook_first_pause_ms,
                round(jittered(100)),
                s.webhook_give_up_ms,
                KEEP_MS,
            ],
        )
        return Gone(int(answer[1])) if answer[0] == b"gone" else endings_of(answer[1:])

    async def done(
        self, task_id: str, token: str, endpoint: str, came: Came, *, why: str = "", not_before_ms: int = 0
    ) -> bool:
        """Tell what came of one try; False where another one has begun. Raises StoreUnavailable."""
        k = self._keys
        answer = await self._link.script(
            "hook_done",
            [k.task(task_id), k.hook, k.hooks, k.hookstats],
            [
                task_id,
                token,
                endpoint,
                came,
                why,
                self._settings.webhook_first_pause_ms,
                round(jittered(100)),
                not_before_ms,
            ],
        )
        return bool(answer[0] == b"done")

    async def state(self) -> OutboxState:
        """How sending stands. Raises StoreUnavailable."""
        k = self._keys
        async with self._link.client.pipeline(transaction=False) as pipe:
            pipe.exists(k.hook)
            pipe.zcard(k.hooks)
            pipe.hgetall(k.hookstats)
            wanted, waiting, raw = await self._link.within(pipe.execute())
        told = {name.decode(): value.decode() for name, value in raw.items()}
        return OutboxState(
            wanted=bool(wanted),
            waiting=int(waiting),
            delivered=int(told.get("delivered", 0)),
            delivered_ms=int(told.get("delivered_at", 0)),
            failed=int(told.get("failed", 0)),
            failed_ms=int(told.get("failed_at", 0)),
            failed_why=told.get("failed_why", ""),
            known=int(told.get("known", 0)),
            dropped=int(told.get("dropped", 0)),
            gone_ms=int(told.get("gone_at", 0)) if told.get("gone") else 0,
        )


def endings_of(flat: Sequence[bytes | int]) -> tuple[Ending, ...]:
    """The answer of `hook_claim`, typed; without records that a newer release wrote in words of its own."""
    found = []
    for at in range(0, len(flat), 7):
        *texts, tries = flat[at : at + 7]
        task_id, label, status, cause, owner, ended = (
            part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in texts
        )
        try:
            notice = Notice(
                id=f"notice-{task_id}",
                task_id=task_id,
                label=label,
                status=Status(status),
                cause=Cause(cause) if cause else None,
                at_ms=int(float(ended)),
            )
        except ValueError:
            # It comes again, perhaps to a worker that reads it, until it is given up.
            continue
        found.append(Ending(notice, owner, int(tries)))
    return tuple(found)
