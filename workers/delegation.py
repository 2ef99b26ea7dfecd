"""Delegation: a running child's own client and tools, and a wait that runs its descendant here.

The only module of the workers that may import client and tools.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from dsh_tasks.client import REST_PER_TASK_S, AsyncClient, AsyncRun, Look, Publisher, Until, watch
from dsh_tasks.config import Config
from dsh_tasks.errors import OwnerNotRunning, SpeakerTaken, StoreUnavailable
from dsh_tasks.notice import Notice
from dsh_tasks.store import Store, Wakeups
from dsh_tasks.task import Status
from dsh_tasks.tools import Call, Tool, mount
from workers.attempt import Attempt
from workers.engines.base import ChildTool, ToolAnswer
from workers.runner import Runner


class InlineWaiter:
    """Waits for descendants, and runs on this loop whichever is queued: no slot is needed (rule 10)."""

    def __init__(self, store: Store, wakeups: Wakeups, runner: Runner, attempt: Attempt) -> None:
        self._store = store
        self._wakeups = wakeups
        self._runner = runner
        self._attempt = attempt

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """See client.Waiter. A wait that times out leaves its inline child running."""
        await self.until_enough([task_id], "all", timeout_s)

    async def until_left(self, task_id: str, timeout_s: float | None) -> None:
        """See client.Waiter. What goes on in the background and runs here goes on here."""
        inline = Inline(self._runner, self._attempt)

        async def left() -> bool:
            try:
                stands = await self._store.awaited(task_id)
            except StoreUnavailable:
                return False
            if not stands.is_left:
                inline.start_queued({task_id: stands.status})
            return stands.is_left

        with self._runner.waits(self._attempt):
            await watch(self._wakeups, [self._store.keys.ended(task_id)], left, timeout_s)

    async def until_enough(self, task_ids: Sequence[str], until: Until, timeout_s: float | None) -> None:
        """See client.Waiter. Also where one end is enough, all that are queued run here."""
        inline = Inline(self._runner, self._attempt)

        async def enough() -> bool:
            statuses = await self._statuses(task_ids)
            inline.start_queued(statuses)
            ended = [status is None or status.is_terminal for status in statuses.values()]
            return all(ended) if until == "all" else any(ended)

        channels = [self._store.keys.ended(one) for one in task_ids]
        with self._runner.waits(self._attempt):
            await watch(self._wakeups, channels, enough, timeout_s, rest_s=REST_PER_TASK_S * len(channels))

    async def until_inbox(self, session: str, differs: Look, timeout_s: float | None) -> None:
        """See client.Waiter. What comes into a child's inbox are ends of its children: these run here."""
        inline = Inline(self._runner, self._attempt)

        async def look() -> bool:
            try:
                if await differs():
                    return True
                inline.start_queued(await self._store.statuses(await self._store.live_of(session)))
            except StoreUnavailable:
                return False
            return False

        with self._runner.waits(self._attempt):
            await watch(self._wakeups, [self._store.keys.inbox(session)], look, timeout_s)

    async def _statuses(self, task_ids: Sequence[str]) -> Mapping[str, Status | None]:
        try:
            return await self._store.statuses(task_ids)
        except StoreUnavailable:
            # The child's own lease decides whether it may go on waiting.
            return dict.fromkeys(task_ids, Status.RUNNING)


class Inline:
    """What one wait has started on this loop."""

    def __init__(self, runner: Runner, attempt: Attempt) -> None:
        self._runner = runner
        self._waiting = attempt.child.task_id
        self._running: dict[str, asyncio.Task[str]] = {}

    def start_queued(self, statuses: Mapping[str, Status | None]) -> None:
        """Run what is queued and does not run here yet: one in any case, more as far as there is room."""
        self._running = {task_id: task for task_id, task in self._running.items() if not task.done()}
        for task_id, status in statuses.items():
            if status is not Status.QUEUED or task_id in self._running:
                continue
            started = self._runner.start_inline(task_id, waiting=self._waiting, needed=not self._running)
            if started is None:
                return
            self._running[task_id] = started


class ChildClient(AsyncClient):
    """A client that acts as one running attempt: fenced, and silent once its worker leaves."""

    def __init__(
        self,
        attempt: Attempt,
        *,
        store: Store,
        wakeups: Wakeups,
        publisher: Publisher,
        config: Config,
        runner: Runner,
    ) -> None:
        super().__init__(
            store,
            wakeups,
            publisher,
            registry=config.registry,
            tool_names=config.tool_names,
            owner=attempt.child.session_id,
            fence=attempt.fence,
            waiter=InlineWaiter(store, wakeups, runner, attempt),
        )
        self._attempt = attempt
        self.has_started = False

    async def start(self, *args: Any, **given: Any) -> AsyncRun:
        """See AsyncClient."""
        self.has_started = True
        return await super().start(*args, **given)

    async def start_many(self, *args: Any, **given: Any) -> Any:
        """See AsyncClient."""
        self.has_started = True
        return await super().start_many(*args, **given)

    async def abandon(self, task_id: str) -> None:
        """Hand-back is not cancellation: the children of a tool that waits stay as they are."""
        if not self._leaves:
            await super().abandon(task_id)

    async def dispose(self, task_id: str, *, unless_promoted: bool = False) -> bool:
        """Likewise; and a kill has taken the subtree already."""
        return self._leaves or await super().dispose(task_id, unless_promoted=unless_promoted)

    @property
    def _leaves(self) -> bool:
        return self._attempt.stop_reason is not None


class OwnChildren:
    """See Household. Silent servers are asked again, as for any write of an attempt."""

    def __init__(self, attempt: Attempt, client: ChildClient, store: Store) -> None:
        self._attempt = attempt
        self._client = client
        self._store = store

    @property
    def has_any(self) -> bool:
        """See Household."""
        return self._client.has_started or self._attempt.child.attempt > 1

    async def notices(self) -> Sequence[Notice]:
        """See Household."""
        return await self._attempt.insisting(self._client.notices)

    async def acknowledge(self, task_ids: Sequence[str]) -> None:
        """See Household."""
        if not task_ids:
            return
        inbox = self._client.inbox()
        try:
            await self._attempt.insisting(lambda: inbox.acknowledge(task_ids, fence=self._attempt.fence))
        except (OwnerNotRunning, SpeakerTaken):
            # Stopped meanwhile, or somebody else reads this inbox: who goes on acknowledges.
            return

    async def living(self) -> Sequence[str]:
        """See Household."""
        session = self._attempt.child.session_id
        return sorted(await self._attempt.insisting(lambda: self._store.live_of(session)))

    async def ended(self, task_ids: Sequence[str]) -> None:
        """See Household."""
        await self._client.waiter.until_enough(task_ids, "all", None)

    async def kill(self, task_ids: Sequence[str]) -> None:
        """See Household."""
        for task_id in task_ids:
            token = secrets.token_hex(16)
            await self._attempt.insisting(
                lambda task_id=task_id, token=token: self._store.kill(  # type: ignore[misc]
                    task_id,
                    caller=self._attempt.child.session_id,
                    token=token,
                    detail="its parent has ended",
                    fence=self._attempt.fence,
                )
            )


class Delegation:
    """Makes the tools of each attempt."""

    def __init__(
        self, store: Store, wakeups: Wakeups, publisher: Publisher, runner: Runner, config: Config
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._publisher = publisher
        self._runner = runner
        self._config = config

    def tools_for(self, attempt: Attempt) -> Sequence[ChildTool]:
        """The delegation and task tools, bound to this child and this attempt."""
        client = ChildClient(
            attempt,
            store=self._store,
            wakeups=self._wakeups,
            publisher=self._publisher,
            config=self._config,
            runner=self._runner,
        )
        attempt.household = OwnChildren(attempt, client, self._store)
        return [child_tool(tool, attempt) for tool in mount(client, self._config)]

    async def dispose_foreground(self, attempt: Attempt) -> None:
        """The attempt has ended: nobody waits any more for what it started in the foreground.

        That is what an earlier attempt of it began and this one did not ask for again.
        """
        store = self._store
        (ids,) = await store.started_by([attempt.child.session_id])
        for task_id in await store.live_foreground(ids):
            await store.kill(
                task_id,
                caller=attempt.child.session_id,
                token=secrets.token_hex(16),
                detail="the call that started it has ended",
                fence=attempt.fence,
                only_foreground=True,
            )


def child_tool(tool: Tool, attempt: Attempt) -> ChildTool:
    """A model-facing tool as an engine takes it."""

    async def call(arguments: Mapping[str, Any], call_id: str) -> ToolAnswer:
        answer = await tool.call(arguments, call_context(attempt, call_id))
        return ToolAnswer(answer.text, answer.is_error, answer.seen)

    return ChildTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        call=call,
        exclusive=tool.exclusive,
        idempotent=True,
    )


def call_context(attempt: Attempt, call_id: str) -> Call:
    """Who calls, and from which message: a later attempt that asks again asks from the same one."""
    session = attempt.session
    seq = next((row.seq for row in reversed(attempt.rows) if row.type == "assistant/message"), 0)
    return Call(session=session, assistant_seq=seq, call_id=call_id)
