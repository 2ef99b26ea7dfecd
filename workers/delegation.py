"""Delegation: a running child's own client and tools, and a wait that runs its descendant here.

The only module of the workers that may import client and tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dsh_tasks.client import POLL_S, AsyncClient, Publisher
from dsh_tasks.config import Config
from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.store import Store, Wakeups
from dsh_tasks.task import Status
from dsh_tasks.tools import Call, Tool, mount
from workers.attempt import Attempt
from workers.engines.base import ChildTool, StopReason, ToolAnswer
from workers.runner import Runner


class InlineWaiter:
    """Waits for a descendant, and runs it on this loop whenever it is queued: no slot is needed (rule 10)."""

    def __init__(self, store: Store, wakeups: Wakeups, runner: Runner, attempt: Attempt) -> None:
        self._store = store
        self._wakeups = wakeups
        self._runner = runner
        self._attempt = attempt

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """See client.Waiter. A wait that times out leaves its inline child running."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._runner.waits(self._attempt):
            await self._watch(task_id, deadline)

    async def _watch(self, task_id: str, deadline: float | None) -> None:
        running: asyncio.Task[str] | None = None
        async with self._wakeups.on(self._store.keys.ended(task_id)) as woken:
            while True:
                woken.clear()
                status = await self._status(task_id)
                if status is None or status.is_terminal:
                    return
                if status is Status.QUEUED and (running is None or running.done()):
                    running = self._runner.start_inline(task_id, waiting=self._attempt.child.task_id)
                left_s = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
                if left_s <= 0:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await woken.wait()

    async def _status(self, task_id: str) -> Status | None:
        try:
            tasks = await self._store.tasks([task_id])
        except StoreUnavailable:
            # The child's own lease decides whether it may go on waiting.
            return Status.RUNNING
        return tasks[0].status if tasks else None


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
            owner=attempt.child.session_id,
            fence=attempt.fence,
            waiter=InlineWaiter(store, wakeups, runner, attempt),
        )
        self._attempt = attempt

    async def abandon(self, task_id: str) -> None:
        """Hand-back is not cancellation: the children of a tool that waits stay as they are."""
        if not self._leaves:
            await super().abandon(task_id)

    async def dispose(self, task_id: str) -> None:
        """Likewise; and a kill has taken the subtree already."""
        if not self._leaves:
            await super().dispose(task_id)

    @property
    def _leaves(self) -> bool:
        return self._attempt.stop_reason in (StopReason.HAND_BACK, StopReason.FENCED, StopReason.KILL)


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
        calls = CallKeys()
        return [child_tool(tool, attempt, calls) for tool in mount(client, self._config)]

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
            )


class CallKeys:
    """What makes a call of the next attempt the same call: tool, arguments, and which time it is.

    An attempt starts its turn again, with other message ids and places; what it asks for again is
    answered by the child that runs or has ended already, not by a second one.
    """

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The key of this call."""
        text = json.dumps([tool, arguments], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
        self._seen[digest] += 1
        return f"turn:{digest}:{self._seen[digest]}"


def child_tool(tool: Tool, attempt: Attempt, keys: CallKeys) -> ChildTool:
    """A model-facing tool as an engine takes it."""

    async def call(arguments: Mapping[str, Any], call_id: str) -> ToolAnswer:
        key = keys.of(tool.name, arguments)
        answer = await tool.call(arguments, call_context(attempt, call_id, key))
        return ToolAnswer(answer.text, answer.is_error)

    return ChildTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        call=call,
        exclusive=tool.exclusive,
        idempotent=True,
    )


def call_context(attempt: Attempt, call_id: str, key: str) -> Call:
    """Who calls, from which message, under which key."""
    session = attempt.session
    seq = next((row.seq for row in reversed(attempt.rows) if row.type == "assistant/message"), 0)
    return Call(session=session, assistant_seq=seq, call_id=call_id, key=key)
