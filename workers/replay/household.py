"""RecordedChildren: the replayed child's own children, as its log tells of them: what it heard, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from dsh_tasks.notice import NOTICE_KIND, Notice
from dsh_tasks.task import Status
from workers.engines.open_turn import Row
from workers.engines.transcript import PARTIAL, text_of

BEFORE_NEWS = ("assistant/message", "step/end", "step/start")
"""Rows in front of news that reopens a turn; the answer among them may stand already."""


@dataclass(frozen=True, slots=True)
class RecordedNotice(Notice):
    """An ending in the words of the log."""

    words: str = ""

    @property
    def text(self) -> str:
        """See Notice."""
        return self.words


class RecordedChildren:
    """See workers.engines.base.Household."""

    has_any = True

    def __init__(
        self, following: Callable[[], Sequence[Row]], stopped: Callable[[], Awaitable[NoReturn]]
    ) -> None:
        """`following` are the recorded rows that are still to be made; `stopped` ends the attempt."""
        self._following = following
        self._stopped = stopped
        self._turn_ends = False

    async def notices(self) -> Sequence[Notice]:
        """The endings that the log tells next, where it does so here."""
        skipped, self._turn_ends = BEFORE_NEWS if self._turn_ends else (), False
        row = next((row for row in self._following() if row["type"] not in skipped), None)
        if row is None or row["type"] != "user/message" or row["data"]["source"].get("kind") != NOTICE_KIND:
            return ()
        lines = text_of(row["data"]["content"]).split("\n")
        return [
            RecordedNotice(task_id, task_id, "", Status.COMPLETED, None, 0, line)
            for task_id, line in zip(row["data"]["source"]["taskIds"], lines, strict=True)
        ]

    async def acknowledge(self, task_ids: Sequence[str]) -> None:
        """Nobody waits for it."""

    async def living(self) -> Sequence[str]:
        """Who asks is at the end of a turn: some live where the attempt was stopped in its wait for them."""
        self._turn_ends = True
        return ("a child",) if self._ends_in_the_wait() else ()

    def _ends_in_the_wait(self) -> bool:
        rows = self._following()
        # The answer is written before the wait.
        left = rows[1:] if rows and rows[0]["type"] == "assistant/message" else rows
        if not left:
            return True
        ends = [row["data"]["reason"] for row in left if row["type"] == "turn/end"]
        is_next = all(row["type"] in ("step/end", "turn/end", PARTIAL) for row in left)
        return is_next and bool(ends) and ends[-1]["kind"] != "completed"

    async def ended(self, task_ids: Sequence[str]) -> None:  # noqa: ARG002 - Household's names
        """Here the attempt was stopped, or lost."""
        await self._stopped()

    async def kill(self, task_ids: Sequence[str]) -> None:
        """Nobody is there."""
