"""Client: the same verbs for plain code, over an AsyncClient on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from dsh_tasks.client.asynchronous import AsyncClient, AsyncRun
from dsh_tasks.client.endings import AsyncSubscription, OnEndings
from dsh_tasks.client.output import Output
from dsh_tasks.client.starting import Start
from dsh_tasks.client.waiting import Until
from dsh_tasks.client.waits import InboxSeen, Waited
from dsh_tasks.dollars import Dollars
from dsh_tasks.errors import DshTasksError, StoreUnavailable
from dsh_tasks.notice import Notice
from dsh_tasks.progress import Progress
from dsh_tasks.provider import Registry
from dsh_tasks.session import Event, Session
from dsh_tasks.session_file import SessionFile
from dsh_tasks.settings import Settings, load
from dsh_tasks.store import KillReceipt, Promotion
from dsh_tasks.store.audit import AuditReport
from dsh_tasks.store.locate import located
from dsh_tasks.submission import AgentOptions, MaxDepth, Mode, Prompt, ToolFilter
from dsh_tasks.task import Task, Usage

T = TypeVar("T")

ENDING_CALLS_S = 10.0
"""How long closing a client waits for cancelled calls to clean up."""


class Run:
    """A started child, for plain code."""

    def __init__(self, client: Client, run: AsyncRun) -> None:
        self._client = client
        self._run = run
        self.id = run.id
        self.repeated = run.repeated
        self.depth = run.depth
        self.mode = run.mode

    def result(self, *, promote_after_ms: int | None = None) -> Output:
        """Wait for the end, however long; see AsyncRun.result. Raises Promoted, StoreUnavailable."""
        return self._client.call(self._run.result(promote_after_ms=promote_after_ms))

    def promote(self) -> Promotion:
        """Turn the wait for this run into a background task; see AsyncClient.promote."""
        return self._client.call(self._run.promote())

    def dispose(self) -> bool:
        """Kill what still runs and wait until it has ended. Twice is once. What was promoted stays: False."""
        return self._client.call(self._run.dispose())


class Subscription:
    """A callback at work, for plain code; `stop`, or leave its `with`, to end it."""

    def __init__(self, client: Client, subscription: AsyncSubscription) -> None:
        self._client = client
        self._subscription = subscription

    def stop(self) -> None:
        """Take no more, let a callback that runs return; see AsyncSubscription.stop. Twice is once."""
        self._client.call(self._subscription.stop())

    @property
    def is_running(self) -> bool:
        """It has not been told to stop."""
        return self._subscription.is_running

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Client:
    """The same verbs for plain code: an AsyncClient on an event loop in a thread of its own."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        registry: Registry | None = None,
        owner: str | None = None,
        tool_names: Collection[str] | None = None,
    ) -> None:
        """Connect like `AsyncClient.connect`. Raises StoreUnavailable where no server is known."""
        found = located(settings or load())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dsh-client", daemon=True)
        self._thread.start()
        self._calls: set[asyncio.Task[Any]] = set()
        self._client = self.call(_connected(found, registry, owner, tool_names))
        self._owns_loop = True

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        this = asyncio.current_task()
        assert this is not None
        self._calls.add(this)
        try:
            return await coroutine
        finally:
            self._calls.discard(this)

    async def _end(self) -> None:
        """A call that Ctrl-C cancelled may still be killing what it had started: let it."""
        this = asyncio.current_task()
        if others := {call for call in self._calls if call is not this}:
            await asyncio.wait(others, timeout=ENDING_CALLS_S)
        await self._client.close()

    @property
    def settings(self) -> Settings:
        """The settings in force, with the server's URL."""
        return self._client.settings

    @property
    def registry(self) -> Registry:
        """The providers that a start may name."""
        return self._client.registry

    @property
    def owner(self) -> str | None:
        """The session that this client is bound to; None for the operator."""
        return self._client.owner

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop and wait for it; Ctrl-C cancels it."""
        if self._loop.is_closed():
            coroutine.close()
            msg = "this client is closed"
            raise StoreUnavailable(msg)
        future = asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def for_owner(self, owner: str) -> Client:
        """The same connections, bound to a session. Closing it closes nothing."""
        other = object.__new__(Client)
        other._loop, other._thread = self._loop, self._thread
        other._client = self._client.for_owner(owner)
        other._calls = self._calls
        other._owns_loop = False
        return other

    def start(
        self,
        provider: str,
        *,
        prompt: Prompt,
        parent: Session | SessionFile | None = None,
        owner: str | None = None,
        label: str = "",
        agent_options: AgentOptions | Mapping[str, Any] | None = None,
        tool_filter: ToolFilter | Mapping[str, Any] | None = None,
        persona: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        max_depth: MaxDepth = 3,
        key: str | None = None,
        mode: Mode = "background",
        instance: str | None = None,
        engine: str | None = None,
        deadline_ms: int | None = None,
        fenced_output: bool = False,
        working_folder: str | None = None,
        cost_budget: Dollars | None = None,
    ) -> Run:
        """Start one child; see AsyncClient.start."""
        run = self.call(
            self._client.start(
                provider,
                prompt=prompt,
                parent=parent,
                owner=owner,
                label=label,
                agent_options=agent_options,
                tool_filter=tool_filter,
                persona=persona,
                output_schema=output_schema,
                max_depth=max_depth,
                key=key,
                mode=mode,
                instance=instance,
                engine=engine,
                deadline_ms=deadline_ms,
                fenced_output=fenced_output,
                working_folder=working_folder,
                cost_budget=cost_budget,
            )
        )
        return Run(self, run)

    def start_many(
        self,
        starts: Sequence[Start],
        *,
        parent: Session | SessionFile | None = None,
        owner: str | None = None,
    ) -> list[Run | DshTasksError]:
        """Start children in one step, each with a run or the error that refused it; see AsyncClient."""
        verdicts = self.call(self._client.start_many(starts, parent=parent, owner=owner))
        return [one if isinstance(one, DshTasksError) else Run(self, one) for one in verdicts]

    def output(
        self,
        task_id: str,
        *,
        wait: bool = False,
        timeout_ms: int | None = None,
        offset: int = 0,
        limit_bytes: int | None = None,
    ) -> Output:
        """The status and a page of the final text; see AsyncClient.output."""
        return self.call(
            self._client.output(
                task_id, wait=wait, timeout_ms=timeout_ms, offset=offset, limit_bytes=limit_bytes
            )
        )

    def wait(self, task_ids: Sequence[str], *, until: Until = "all", timeout_ms: int | None = None) -> Waited:
        """Wait until one or each of the tasks has ended; see AsyncClient.wait."""
        return self.call(self._client.wait(task_ids, until=until, timeout_ms=timeout_ms))

    def task(self, task_id: str) -> Task:
        """The record. Raises TaskNotFound."""
        return self.call(self._client.task(task_id))

    def usage(self, root: str) -> Usage:
        """Tokens and model calls of a whole tree; see AsyncClient.usage."""
        return self.call(self._client.usage(root))

    def stats(self) -> dict[str, int]:
        """Counters of the installation; see AsyncClient.stats."""
        return self.call(self._client.stats())

    def list_tasks(self, *, tree: bool = True, all_owners: bool = False) -> list[Task]:
        """Tasks of this session and below; see AsyncClient.list_tasks."""
        return self.call(self._client.list_tasks(tree=tree, all_owners=all_owners))

    def session(self, task_id: str) -> Session:
        """The child's whole log so far. Raises TaskNotFound, SeedRefused."""
        return self.call(self._client.session(task_id))

    def follow(self, task_id: str, *, start: int = 0) -> Iterator[Event]:
        """The child's own rows as they come, until it has ended; see AsyncClient.follow."""
        rows = self._client.follow(task_id, start=start)
        while True:
            try:
                yield self.call(_next(rows))
            except StopAsyncIteration:
                return

    def progress(self, task_id: str) -> Progress:
        """Where a child is now; see AsyncClient.progress."""
        return self.call(self._client.progress(task_id))

    def kill(self, task_id: str, *, reason: str | None = None) -> KillReceipt:
        """Kill a task and all below it; see AsyncClient.kill."""
        return self.call(self._client.kill(task_id, reason=reason))

    def promote(self, task_id: str, *, after_ms: int | None = None) -> Promotion:
        """Turn the wait of a foreground call into a background task; see AsyncClient.promote."""
        return self.call(self._client.promote(task_id, after_ms=after_ms))

    def dispose(self, task_id: str, *, unless_promoted: bool = False) -> bool:
        """Kill what still runs and wait until it has ended; see AsyncClient.dispose."""
        return self.call(self._client.dispose(task_id, unless_promoted=unless_promoted))

    def prune(self, *, older_than_ms: int) -> dict[str, int]:
        """Remove the records of tasks that ended so long ago; see AsyncClient.prune."""
        return self.call(self._client.prune(older_than_ms=older_than_ms))

    def audit(self) -> AuditReport:
        """Whether everything under the prefix fits together; see AsyncClient.audit."""
        return self.call(self._client.audit())

    def census(self) -> dict[str, int]:
        """Keys without an expiry by kind; see AsyncClient.census."""
        return self.call(self._client.census())

    def notices(self, *, acknowledge: bool = False) -> tuple[Notice, ...]:
        """Endings not yet acknowledged; see AsyncClient.notices."""
        return self.call(self._client.notices(acknowledge=acknowledge))

    def wait_for_inbox(self, *, since: Sequence[Notice] = (), timeout_ms: int | None = None) -> InboxSeen:
        """Wait until the inbox holds other notices than `since`; see AsyncClient.wait_for_inbox."""
        return self.call(self._client.wait_for_inbox(since=since, timeout_ms=timeout_ms))

    def on_endings(self, callback: OnEndings) -> Subscription:
        """Let `callback` hear of every ending of this session; see AsyncClient.on_endings.

        A plain function may use this client; a coroutine function runs on the client's own loop and may not.
        """
        return Subscription(self, self.call(self._client.on_endings(callback)))

    def close(self) -> None:
        """End the callbacks and close the connections. Children live on."""
        if not self._owns_loop:
            return
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _connected(
    settings: Settings, registry: Registry | None, owner: str | None, tool_names: Collection[str] | None
) -> AsyncClient:
    return AsyncClient.connect(settings, registry=registry, owner=owner, tool_names=tool_names)


async def _next(rows: AsyncIterator[Event]) -> Event:
    return await anext(rows)
