"""Waits: what a wait for several tasks, or for an inbox, is given and tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_tasks.client.output import check_page
from dsh_tasks.errors import OptionRefused
from dsh_tasks.notice import Notice
from dsh_tasks.settings import Settings
from dsh_tasks.task import Task

IDS_MOST = 1_000
"""Tasks that one wait takes."""


@dataclass(frozen=True, slots=True)
class Waited:
    """What a wait for several tasks saw at its end."""

    ended: tuple[Task, ...]
    """Those that have ended, in the order of the ids asked for."""
    live: tuple[Task, ...]
    """Those that have not; they go on."""
    timed_out: bool
    """The time was over before what was waited for was there."""
    waited_ms: int
    wait_capped: bool
    """The wait asked for was longer than the cap."""


@dataclass(frozen=True, slots=True)
class InboxSeen:
    """What a wait for an inbox saw at its end."""

    notices: tuple[Notice, ...]
    """Endings that the session has not acknowledged and does not hold back, oldest first."""
    timed_out: bool
    """The time was over and the inbox is as it was."""
    waited_ms: int
    wait_capped: bool
    """The wait asked for was longer than the cap."""


@dataclass(frozen=True, slots=True)
class WaitTime:
    """How long a wait may last, as asked for and as the settings allow."""

    seconds: float
    is_capped: bool

    @classmethod
    def of(cls, timeout_ms: int | None, settings: Settings) -> WaitTime:
        """The time for `timeout_ms`, the settings' default for None."""
        asked_ms = settings.wait_default_ms if timeout_ms is None else timeout_ms
        return cls(min(asked_ms, settings.wait_cap_ms) / 1000, asked_ms > settings.wait_cap_ms)


def checked_wait(task_ids: Sequence[str], until: Any, timeout_ms: float | None) -> list[str]:
    """The ids of a wait, each once. Raises OptionRefused for what no wait can honour."""
    if until not in ("any", "all"):
        raise OptionRefused("until", "'any' or 'all'")
    if isinstance(task_ids, (str, bytes)) or not isinstance(task_ids, Iterable):
        raise OptionRefused("task_ids", "a list of ids")
    ids: list[str] = []
    for task_id in task_ids:
        check_page(task_id, timeout_ms, 0, None)
        ids.append(task_id)
        if len(ids) > IDS_MOST:
            raise OptionRefused("task_ids", f"more than {IDS_MOST} ids; wait for them in parts")
    if not ids:
        raise OptionRefused("task_ids", "no id: there is nothing to wait for")
    return list(dict.fromkeys(ids))
