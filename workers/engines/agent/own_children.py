"""OwnChildren: what a child does about its own children: hears of their endings, and ends after them.

Endings are told at a step's border, in one message whose row names them, and acknowledged after that. The
end of a turn looks at children that still live; what it does about them is the operator's choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from dsh_tasks.notice import NOTICE_KIND, Notice
from workers.engines.base import Household, Run
from workers.engines.open_turn import Row
from workers.engines.transcript import SEEN


class AtEnd(StrEnum):
    """What becomes of children that live when the one who started them ends its turn."""

    WAIT = "wait"
    """The turn stays open until they have ended, and goes on with the news."""
    KILL = "kill"
    LEAVE = "leave"
    """They go on; nobody hears of their endings but who looks."""


class OwnChildren:
    """Mutable: the endings that the log holds already."""

    def __init__(self, run: Run, rows: Iterable[Row], at_end: AtEnd) -> None:
        self._run = run
        self._at_end = at_end
        self._told = set(told_in(rows))

    @property
    def _household(self) -> Household | None:
        household = self._run.household
        return household if household is not None and household.has_any else None

    async def catch_up(self) -> None:
        """An earlier attempt may have ended between a row and its acknowledgement."""
        if self._household is not None and self._told:
            await self._household.acknowledge(sorted(self._told))

    async def news(self) -> Sequence[Notice]:
        """Endings that the log does not hold yet."""
        if self._household is None:
            return ()
        return [one for one in await self._household.notices() if one.task_id not in self._told]

    async def told(self, task_ids: Sequence[str]) -> None:
        """The log holds these endings now."""
        self._told.update(task_ids)
        if task_ids and self._household is not None:
            await self._household.acknowledge(task_ids)

    async def living(self) -> Sequence[str]:
        """Those that the end of the turn waits for; those that it kills are dead afterwards."""
        if self._household is None or self._at_end is AtEnd.LEAVE:
            return ()
        living = await self._household.living()
        if self._at_end is AtEnd.KILL:
            await self._household.kill(living)
            return ()
        return living

    async def end(self, living: Sequence[str]) -> None:
        """Wait for them."""
        assert self._household is not None
        self._run.activity(f"waits for {len(living)} of its children")
        await self._household.ended(living)


def told_in(rows: Iterable[Row]) -> Iterable[str]:
    """Ids of the endings that these rows tell."""
    for row in rows:
        if row["type"] == SEEN:
            yield from row["data"]["taskIds"]
        elif row["type"] == "user/message" and row["data"].get("source", {}).get("kind") == NOTICE_KIND:
            yield from row["data"]["source"].get("taskIds", ())
