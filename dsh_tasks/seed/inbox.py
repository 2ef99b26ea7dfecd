"""What a log says of its session's inbox, and which of these rows a child must not inherit.

Messages wait in the inbox until a turn or step takes them out; both are rows. The harness works the
inbox out anew when it resumes a log, refuses a removal of what is not there, and **runs what is left**:
a message that the parent's user typed while a turn ran would become the child's first prompt
(seen with runtime 0.2.1rc2). So a seed keeps only what begins and ends with an empty inbox inside it.
Pure: no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

TYPE = "agent/inbox/spliced"


class Inbox:
    """The inbox of a log that grows. Mutable: one per log."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[str]] = {"next-turn": [], "next-step": []}
        self._ids: set[str] = set()
        """Of all that wait."""
        self._since_empty: list[int] = []
        """Places of the rows since the inbox was last empty."""
        self._spells: list[list[int]] = []
        """The rows of each spell in which it was not empty, for good."""
        self._first: list[int] = []
        """First row of each spell."""
        self._at_cut: tuple[int, list[int], int] = (0, [], 0)
        self._is_broken = False

    def splice(self, data: dict[str, Any], place: int) -> None:
        """Take a row of the inbox, at `place`."""
        self._since_empty.append(place)
        self._is_broken = self._is_broken or not self._apply(data)
        if not self._is_broken and not any(self._waiting.values()):
            self._spells.append(self._since_empty)
            self._first.append(self._since_empty[0])
            self._since_empty = []

    def cut(self) -> None:
        """A turn has ended here: what comes later does not count until the next end."""
        self._at_cut = (len(self._spells), self._since_empty, len(self._since_empty))

    def loose(self, first: int) -> set[int]:
        """Places from `first` on of rows that belong to messages which wait at `first` or at the cut."""
        ended, open_rows, count = self._at_cut
        rows = open_rows[:count]
        before = bisect_right(self._first, first - 1, hi=ended) - 1
        if before >= 0:
            rows = self._spells[before] + rows
        return {place for place in rows if place >= first}

    def _apply(self, data: dict[str, Any]) -> bool:
        """Apply one row; False where it takes out what is not there, or puts in what waits already."""
        waiting = self._waiting.get(data["target"]) if isinstance(data.get("target"), str) else None
        if waiting is None:
            return False
        start, count = data["start"], data.get("removedCount", 0)
        if start + count > len(waiting):
            return False
        fresh = [str(message.get("id")) for message in data["inserted"]]
        self._ids.difference_update(waiting[start : start + count])
        waiting[start : start + count] = fresh
        before = len(self._ids)
        self._ids.update(fresh)
        return len(self._ids) == before + len(fresh)
