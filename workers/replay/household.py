"""RecordedChildren: the replayed child's own children, as its log tells of them: what it heard, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsh_tasks.notice import NOTICE_KIND, Notice
from dsh_tasks.task import Status
from workers.engines.open_turn import Row
from workers.engines.transcript import text_of

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

    def __init__(self, following: Callable[[], Sequence[Row]]) -> None:
        """`following` are the recorded rows that are still to be made."""
        self._following = following
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
        """What it waited for has ended. Who asks is at the end of a turn."""
        self._turn_ends = True
        return ()

    async def ended(self, task_ids: Sequence[str]) -> None:
        """Likewise."""

    async def kill(self, task_ids: Sequence[str]) -> None:
        """Likewise."""
