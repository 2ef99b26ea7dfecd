"""Inbox: the notices of a session, taken by the one process that speaks for it, and acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsh_tasks.errors import OwnerNotRunning, SpeakerTaken
from dsh_tasks.notice import Notice
from dsh_tasks.settings import Settings
from dsh_tasks.store.answers import Fence
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys
from dsh_tasks.store.store import NO_FENCE
from dsh_tasks.task import Cause, Status

MOST = 1_000


class Inbox:
    """Notices of one session. `token` names the speaking process; without one it only looks."""

    def __init__(self, link: Link, settings: Settings, session: str) -> None:
        self._link = link
        self._settings = settings
        self._keys = Keys(settings.prefix)
        self.session = session

    async def speak(self, token: str) -> None:
        """Become or stay the one process that speaks for the session. Raises SpeakerTaken."""
        answer = await self._speaker(token, self._settings.speaker_lease_ms)
        if answer[0] == b"taken":
            raise SpeakerTaken(self.session, for_ms=int(answer[1]))

    async def fall_silent(self, token: str) -> None:
        """Give the owner lease up."""
        await self._speaker(token, 0)

    async def _speaker(self, token: str, lease_ms: int) -> Any:
        return await self._link.script("speak", [self._keys.speaker(self.session)], [token, lease_ms])

    async def take(self, *, token: str = "", most: int = MOST) -> tuple[Notice, ...]:
        """Unacknowledged notices that nothing holds back, in order of the endings.

        With a token this renews the owner lease. Raises SpeakerTaken.
        """
        answer = await self._link.script(
            "take", self._inbox_keys(), [token, self._settings.speaker_lease_ms, most]
        )
        if answer[0] == b"taken":
            raise SpeakerTaken(self.session, for_ms=int(answer[1]))
        return notices_of(answer[2:])

    async def acknowledge(
        self, task_ids: Sequence[str], *, token: str = "", fence: Fence | None = None
    ) -> int:
        """The owner's log holds these endings now; their notices go. Returns how many went.

        Raises SpeakerTaken, OwnerNotRunning.
        """
        if not task_ids:
            return 0
        attempt, fence_token = (fence.attempt, fence.token) if fence else NO_FENCE
        answer = await self._link.script(
            "ack",
            self._inbox_keys(),
            [
                self._keys.prefix,
                self.session,
                token,
                self._settings.speaker_lease_ms,
                attempt,
                fence_token,
                *task_ids,
            ],
        )
        if answer[0] == b"taken":
            raise SpeakerTaken(self.session, for_ms=int(answer[1]))
        if answer[0] == b"not_running":
            raise OwnerNotRunning(self.session, status=answer[1].decode())
        return int(answer[1])

    def _inbox_keys(self) -> list[str]:
        k = self._keys
        return [k.inbox(self.session), k.holds(self.session), k.speaker(self.session)]


def notices_of(flat: Sequence[Any]) -> tuple[Notice, ...]:
    """The answer of `take`, typed."""
    found: list[Notice] = []
    at = 0
    while at < len(flat):
        size = int(flat[at + 1])
        parts = [part.decode() for part in flat[at + 2 : at + 2 + size]]
        raw = dict(zip(parts[::2], parts[1::2], strict=True))
        found.append(
            Notice(
                id=raw["id"],
                task_id=raw["task"],
                label=raw["label"],
                status=Status(raw["status"]),
                cause=Cause(raw["cause"]) if raw["cause"] else None,
                at_ms=int(float(raw["at"])),
            )
        )
        at += 2 + size
    return tuple(found)
