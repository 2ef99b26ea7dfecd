"""Rule 10 for several: a child that waits for several descendants needs no slot for any of them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable

import pytest

from dsh_tasks.client import AsyncClient, Publisher
from dsh_tasks.config import load_config
from dsh_tasks.queue import make_app
from dsh_tasks.settings import Settings
from dsh_tasks.store import Claimed, Fence, Store
from dsh_tasks.task import Outcome, Status
from tests.store.test_records import a_task
from workers.attempt import Attempt
from workers.clock import elapsed_s
from workers.delegation import ChildClient
from workers.engines.base import Engine, Run
from workers.runner import Runner, first_view

pytestmark = pytest.mark.rig


class Gate:
    """An engine whose children end when all that are expected run at once, or after a while by themselves."""

    def __init__(self, together: int, patience_s: float = 20) -> None:
        self.together = together
        self.running = 0
        self.most = 0
        self._patience_s = patience_s
        self._all = asyncio.Event()

    async def run(self, run: Run) -> Outcome:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running >= self.together:
            self._all.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._all.wait()
        self.running -= 1
        return Outcome(Status.COMPLETED, output="done")


Scenario = Callable[[ChildClient, Store, list[str]], Awaitable[None]]


def in_a_child(settings: Settings, engine: Callable[[], Engine], below: int, scenario: Scenario) -> None:
    """Run a scenario as a running child with so many queued children, where no worker consumes."""

    async def main() -> None:
        async with AsyncClient.connect(settings) as outside:
            store, wakeups = outside.store, outside._wakeups
            runner = Runner(store, {"agent": engine()}, worker="here")
            new, token = a_task(), secrets.token_hex(8)
            await store.submit(new)
            claimed = await store.claim(new.id, token, "here")
            assert isinstance(claimed, Claimed)
            fence = Fence(claimed.attempt, token)
            attempt = Attempt(
                store=store,
                child=first_view(claimed.record, 1, None),
                root="s-1",
                fence=fence,
                lease_until_s=elapsed_s() + 60,
            )
            runner.active[new.id] = attempt
            child = ChildClient(
                attempt,
                store=store,
                wakeups=wakeups,
                publisher=Publisher(make_app(settings, publishes=True), timeout_ms=1_000),
                config=load_config(settings=settings),
                runner=runner,
            )
            ids = [f"subagent-{secrets.token_hex(16)}" for _ in range(below)]
            for one in ids:
                await store.submit(a_task(new.id, id=one), fence=fence)
            await scenario(child, store, ids)

    asyncio.run(main())


def test_a_child_runs_all_that_it_waits_for_at_once(make_settings: Callable[..., Settings]) -> None:
    engine = Gate(together=5)

    async def scenario(child: ChildClient, store: Store, ids: list[str]) -> None:
        seen = await child.wait(ids, until="all", timeout_ms=20_000)
        assert [task.status for task in seen.ended] == [Status.COMPLETED] * 5
        assert engine.most == 5
        assert all((task.worker or "").startswith("inline in ") for task in seen.ended)

    in_a_child(make_settings(lease_ms=60_000), lambda: engine, 5, scenario)


def test_with_no_inline_place_left_they_run_one_after_another(make_settings: Callable[..., Settings]) -> None:
    """Who waits makes room for one."""
    engine = Gate(together=2, patience_s=0.3)

    async def scenario(child: ChildClient, store: Store, ids: list[str]) -> None:
        seen = await child.wait(ids, timeout_ms=20_000)
        assert [task.status for task in seen.ended] == [Status.COMPLETED] * 3
        assert engine.most == 1

    settings = make_settings(lease_ms=60_000, concurrency=1, inline_children=0)
    in_a_child(settings, lambda: engine, 3, scenario)


def test_with_no_room_for_more_seeds_they_run_one_after_another(
    make_settings: Callable[..., Settings],
) -> None:
    """The first is what the parent needs; others wait for room, and are needed when it has ended."""
    engine = Gate(together=2, patience_s=0.3)

    async def scenario(child: ChildClient, store: Store, ids: list[str]) -> None:
        runner = child.waiter._runner  # type: ignore[attr-defined]
        # As if seeds under work filled the worker's bytes for good.
        runner._room.clear()
        runner._find_room = lambda: None
        seen = await child.wait(ids, timeout_ms=20_000)
        assert [task.status for task in seen.ended] == [Status.COMPLETED] * 3
        assert engine.most == 1

    in_a_child(make_settings(lease_ms=60_000), lambda: engine, 3, scenario)


def test_a_child_that_waits_for_one_of_several_gets_on_too(make_settings: Callable[..., Settings]) -> None:
    async def scenario(child: ChildClient, store: Store, ids: list[str]) -> None:
        seen = await child.wait(ids, until="any", timeout_ms=20_000)
        assert seen.ended and not seen.timed_out

    in_a_child(make_settings(lease_ms=60_000), lambda: Gate(together=1), 3, scenario)


def test_a_child_that_waits_for_its_inbox_gets_on_too(make_settings: Callable[..., Settings]) -> None:
    async def scenario(child: ChildClient, store: Store, ids: list[str]) -> None:
        told: set[str] = set()
        seen = await child.wait_for_inbox(timeout_ms=20_000)
        while not seen.timed_out and len(seen.notices) < len(ids):
            told |= {notice.task_id for notice in seen.notices}
            seen = await child.wait_for_inbox(since=seen.notices, timeout_ms=20_000)
        assert told | {notice.task_id for notice in seen.notices} == set(ids)

    in_a_child(make_settings(lease_ms=60_000), lambda: Gate(together=1), 3, scenario)
