"""An attempt and a server that is away: the child waits while its lease lasts, and then the lease decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.store import Fence
from workers import attempt as attempts
from workers.attempt import Attempt
from workers.clock import elapsed_s
from workers.engines.base import Fenced

ROW = {"type": "step/end", "seq": 0, "time": 1, "data": {}}


class AwayFor:
    """A store that does not answer so many times, and then does."""

    def __init__(self, times: float) -> None:
        self.left = times
        self.asked = 0

    async def append(self, *_: Any, **__: Any) -> int:
        self.asked += 1
        self.left -= 1
        if self.left >= 0:
            raise StoreUnavailable("no connection")
        return 1


def an_attempt(store: AwayFor, *, lease_s: float) -> Attempt:
    class Child:
        task_id = "subagent-1"

    return Attempt(store, Child(), "s", Fence(1, "t"), elapsed_s() + lease_s)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PAUSES_S", (0.0,))


def test_a_server_that_is_away_for_long_fails_no_child_while_its_lease_lasts() -> None:
    """Seen under chaos: after six tries, some four seconds, the child had failed with `error`."""
    store = AwayFor(100)
    attempt = an_attempt(store, lease_s=60)
    asyncio.run(attempt.append([ROW]))
    assert (store.asked, len(attempt.rows)) == (101, 1)


def test_a_server_that_is_away_beyond_the_lease_ends_the_attempt_and_not_the_child() -> None:
    store = AwayFor(float("inf"))
    with pytest.raises(Fenced):
        asyncio.run(an_attempt(store, lease_s=0.05).append([ROW]))
    assert store.asked > 1


def test_reading_the_seed_of_a_server_that_is_away_is_repeated_likewise() -> None:
    async def main() -> tuple[int, int]:
        store = AwayFor(9)
        return await an_attempt(store, lease_s=60).insisting(store.append), store.asked

    assert asyncio.run(main()) == (1, 10)
