"""AsyncClient: the verbs for event loops.

A client is bound to a caller: a session (`owner`) that sees its own tasks and those below, or, without
one, the operator who sees all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from dsh_tasks.cancellation import to_the_end
from dsh_tasks.client.endings import AsyncSubscription, OnEndings
from dsh_tasks.client.foreground import foreground_end
from dsh_tasks.client.live import LiveReader
from dsh_tasks.client.output import Output, Page, check_page, check_timeout
from dsh_tasks.client.parents import Forked, Parents
from dsh_tasks.client.publisher import Publisher
from dsh_tasks.client.starting import BATCH_MOST, Start, life_ms
from dsh_tasks.client.waiting import RecordWaiter, Until, Waiter, in_time
from dsh_tasks.client.waits import InboxSeen, Waited, WaitTime, checked_wait
from dsh_tasks.dollars import Dollars
from dsh_tasks.errors import (
    DshTasksError,
    InputRefused,
    KeyConflict,
    LimitReached,
    OptionRefused,
    StoreUnavailable,
    TaskNotFound,
)
from dsh_tasks.notice import Notice
from dsh_tasks.progress import Progress
from dsh_tasks.provider import Provider, Registry
from dsh_tasks.queue import Message, make_app
from dsh_tasks.seed import Seed, decode, too_large
from dsh_tasks.session import Event, Session
from dsh_tasks.session_file import SessionFile
from dsh_tasks.settings import Settings, load
from dsh_tasks.store import (
    Accepted,
    Fence,
    Inbox,
    KillReceipt,
    Link,
    NewTask,
    Promotion,
    Record,
    Store,
    Wakeups,
    connect,
)
from dsh_tasks.store.audit import AuditReport, audit, census
from dsh_tasks.store.locate import located
from dsh_tasks.store.seeds import fetch
from dsh_tasks.submission import (
    LABEL_MAX_BYTES,
    NAME_MAX_BYTES,
    AgentOptions,
    MaxDepth,
    Mode,
    Policy,
    Prompt,
    ToolFilter,
    call_of,
    checked_mode,
    checked_text,
    depth_cap,
    depth_of,
    policy_text,
    prompt_blocks,
    resolve_policy,
)
from dsh_tasks.task import Task, Usage

LARGE_LOG_EVENTS = 2_000
"""A log of more is cut off the event loop; a shorter one in the caller's own step."""
LIST_MOST = 10_000
BUILT_IN_ENGINE = "agent"
"""The engine whose tools the settings file names."""


class AsyncRun:
    """A started child: `result()` waits for its end, `dispose()` frees what it still holds."""

    def __init__(self, client: AsyncClient, accepted: Accepted, mode: Mode = "background") -> None:
        self._client = client
        self.id = accepted.task_id
        self.mode = mode
        """As it was started: a run in the foreground is waited for by the call that started it."""
        self.repeated = accepted.repeated
        """The call had started this task before; nothing was started now."""
        self.depth = accepted.depth

    async def result(self, *, promote_after_ms: int | None = None) -> Output:
        """Wait for the end, however long. Raises StoreUnavailable where the server stays away.

        A run in the foreground raises Promoted where it was turned into a background task: by `promote`,
        from another process too, or by this wait, where it has not ended `promote_after_ms` after its start.
        """
        if self.mode == "foreground":
            await foreground_end(self._client, self.id, promote_after_ms)
        else:
            await self._client.waiter.until_ended(self.id, None)
        return await self._client.output(self.id, limit_bytes=self._client.settings.output_max_bytes)

    async def promote(self) -> Promotion:
        """Turn the wait for this run into a background task; see AsyncClient.promote."""
        return await self._client.promote(self.id)

    async def dispose(self) -> bool:
        """Kill what still runs and wait until it has ended. Twice is once.

        What was promoted stays: False.
        """
        return await self._client.dispose(self.id, unless_promoted=self.mode == "foreground")


class AsyncClient:
    """The verbs over one installation; use it as `async with AsyncClient.connect() as client`."""

    def __init__(
        self,
        store: Store,
        wakeups: Wakeups,
        publisher: Publisher,
        *,
        registry: Registry | None = None,
        owner: str | None = None,
        fence: Fence | None = None,
        waiter: Waiter | None = None,
        parents: Parents | None = None,
        tool_names: Collection[str] | None = None,
    ) -> None:
        self.store = store
        self.settings = store.settings
        self.registry = registry or Registry()
        # An empty name would be the operator.
        self.owner = None if owner is None else checked_text("owner", owner, NAME_MAX_BYTES)
        self.fence = fence
        self._tool_names = tool_names
        self._wakeups = wakeups
        self._publisher = publisher
        self.waiter: Waiter = waiter or RecordWaiter(store, wakeups)
        self._parents = parents or Parents()
        self._subscriptions: set[AsyncSubscription] = set()
        self._live = LiveReader(store)
        self._speaker = secrets.token_hex(8)

    @classmethod
    def connect(
        cls,
        settings: Settings | None = None,
        *,
        registry: Registry | None = None,
        owner: str | None = None,
        tool_names: Collection[str] | None = None,
    ) -> AsyncClient:
        """A client of the server that `settings`, the environment or `dsh-tasks up` name.

        `tool_names` (`Config.tool_names`) are the tools of the workers: a filter with another name is refused
        at the start; where they are not known here, by the worker. Raises StoreUnavailable where no server
        is known. Connections open at the first call.
        """
        found = located(settings or load())
        assert found.redis_url is not None
        link = Link(
            connect(found.redis_url, timeout_ms=found.call_timeout_ms),
            timeout_ms=found.call_timeout_ms,
            replicas=found.replicas,
        )
        listens = connect(found.redis_url, timeout_ms=found.call_timeout_ms, pool_size=2, listens=True)
        return cls(
            Store(link, found),
            Wakeups(listens),
            Publisher(make_app(found, publishes=True), timeout_ms=found.call_timeout_ms),
            registry=registry,
            owner=owner,
            tool_names=tool_names,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the callbacks and close the connections. Children live on."""
        await asyncio.gather(*(one.stop() for one in tuple(self._subscriptions)))
        await self._wakeups.close()
        await self._wakeups.disconnect()
        self._publisher.close()
        await self.store.link.close()

    def for_owner(self, owner: str) -> AsyncClient:
        """The same connections, bound to a session."""
        other = AsyncClient(
            self.store,
            self._wakeups,
            self._publisher,
            registry=self.registry,
            owner=owner,
            waiter=self.waiter,
            parents=self._parents,
            tool_names=self._tool_names,
        )
        # Whoever closes the connections ends what uses them.
        other._subscriptions = self._subscriptions
        other._live = self._live
        return other

    @property
    def caller(self) -> str:
        """Session that asks; '' is the operator."""
        return self.owner or ""

    # -- start ----------------------------------------------------------------------------------

    async def start(
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
    ) -> AsyncRun:
        """Start one child of `provider` with a frozen seed of `parent`, and return once it is accepted.

        The owner is `owner`, else the client's, else the parent log's session. `key` makes the call
        idempotent for this owner: asked again it returns the same task; with another prompt, label, mode
        or instance it is a KeyConflict. `max_depth` is absolute; 0 forbids. `deadline_ms` is its longest
        life from acceptance, waiting included: past it the task ends, cause `deadline`. `fenced_output`:
        tools show its words to a model in a fence that names them as its own. `working_folder`: an absolute
        path on the workers where it, and what it starts, works; left out, the parent log's. `cost_budget`:
        US dollars that its own model calls may cost (0.5, `"0.50"`, a Decimal); the call that would follow
        ends it, cause `budget`. A file as `parent` is read as it is now. Events are values: what an earlier
        start has seen of them is not looked at again.

        Raises OptionRefused, SchemaRefused, SeedRefused, KeyConflict, LimitReached, OwnerNotRunning,
        StoreUnavailable; then nothing was started.
        """
        asked = Start(
            provider=provider,
            prompt=prompt,
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
        if isinstance(parent, SessionFile):
            await asyncio.to_thread(parent.refresh)
        (verdict,) = await self._submit([await self._prepared(asked, parent, owner)])
        return self._run_of(verdict, asked)

    async def start_many(
        self,
        starts: Sequence[Start],
        *,
        parent: Session | SessionFile | None = None,
        owner: str | None = None,
    ) -> list[AsyncRun | DshTasksError]:
        """Start children of one parent in one step; each gets a run, or the error that refused it.

        They are accepted in their order, and each counts for the limits of those after it. At most 1,000.
        Raises OptionRefused for a batch that is too large, StoreUnavailable; then nothing was started.
        """
        if len(starts) > BATCH_MOST:
            raise OptionRefused("starts", f"{len(starts)} in one batch, at most {BATCH_MOST}")
        if isinstance(parent, SessionFile):
            await asyncio.to_thread(parent.refresh)
        prepared: list[NewTask | DshTasksError] = []
        for asked in starts:
            try:
                prepared.append(await self._prepared(asked, parent, owner))
            except (InputRefused, LimitReached) as error:
                prepared.append(error)
        verdicts = iter(await self._submit([new for new in prepared if isinstance(new, NewTask)]))
        return [
            self._run_or_error(next(verdicts) if isinstance(new, NewTask) else new, asked)
            for new, asked in zip(prepared, starts, strict=True)
        ]

    def _run_or_error(self, verdict: Accepted | DshTasksError, asked: Start) -> AsyncRun | DshTasksError:
        return verdict if isinstance(verdict, DshTasksError) else AsyncRun(self, verdict, asked.mode)

    def _run_of(self, verdict: Accepted | DshTasksError, asked: Start) -> AsyncRun:
        if isinstance(verdict, DshTasksError):
            raise verdict
        return AsyncRun(self, verdict, asked.mode)

    async def _prepared(
        self, asked: Start, parent: Session | SessionFile | None, owner: str | None
    ) -> NewTask:
        """A start with everything checked and its seed frozen. Raises InputRefused, LimitReached."""
        if parent is not None and not isinstance(parent, Session | SessionFile):
            raise OptionRefused("parent", "a Session, a SessionFile, or none")
        mode = checked_mode(asked.mode)
        policy = resolve_policy(
            parent=parent,
            agent_options=asked.agent_options,
            tool_filter=asked.tool_filter,
            persona=asked.persona,
            output_schema=asked.output_schema,
            max_depth=asked.max_depth,
            fenced_output=asked.fenced_output,
            working_folder=asked.working_folder,
            cost_budget=asked.cost_budget,
        )
        session = owner if owner is not None else self.owner
        if session is None and parent is not None:
            session = parent.header.id
        if session is None:
            raise OptionRefused("owner", "name the session that starts this child, or give its log as parent")
        engine = asked.engine or self.settings.engine
        checked_text("owner", session, NAME_MAX_BYTES)
        checked_text("label", asked.label, LABEL_MAX_BYTES, may_be_empty=True)
        checked_text("engine", engine, NAME_MAX_BYTES)
        for option, given in (("key", asked.key), ("instance", asked.instance)):
            if given is not None:
                checked_text(option, given, NAME_MAX_BYTES)
        checked_text("provider", asked.provider, NAME_MAX_BYTES)
        if policy.tool_filter is not None and self._tool_names is not None and engine == BUILT_IN_ENGINE:
            policy.tool_filter.check_names(self._tool_names)
        policy = policy.model_copy(update={"tool_ceiling": await self._ceiling(session)})
        deadline_ms = life_ms(asked.deadline_ms, self.settings)
        blocks = prompt_blocks(asked.prompt, self.settings.prompt_max_bytes)
        source = self.registry.get(asked.provider)
        self.registry.check_start(asked.provider, policy)
        seed = await self._seed(source, parent)
        if seed.raw_bytes > self.settings.seed_max_bytes:
            raise too_large(seed, "seed_max_bytes", self.settings.seed_max_bytes)
        return NewTask(
            id=f"subagent-{secrets.token_hex(16)}",
            owner=session,
            header_depth=depth_of(parent),
            label=asked.label,
            provider=asked.provider,
            engine=engine,
            prompt=json.dumps(blocks, ensure_ascii=False),
            policy=policy_text(policy),
            header=json.dumps(
                {"cwd": policy.working_folder or (parent.header.cwd if parent is not None else None)}
            ),
            depth_cap=depth_cap(policy, self.settings),
            seed=seed,
            call_key=asked.key or "",
            call=call_of(blocks, label=asked.label, mode=mode, instance=asked.instance or asked.provider),
            deadline_ms=deadline_ms,
            mode=mode,
        )

    async def _ceiling(self, owner: str) -> tuple[ToolFilter, ...] | None:
        """What narrows the tools of a child of `owner`, by the owner's record; a root session has none.

        Raises OptionRefused where the record cannot be read: it may have narrowed anything.
        """
        if self.settings.tool_ceiling == "none":
            return None
        recorded = await self.store.policy_of(owner)
        if recorded is None:
            return None
        try:
            return Policy.from_json(recorded).ceiling_below
        except ValueError:
            raise OptionRefused("tool_ceiling", "the policy in the parent's record cannot be read") from None

    async def _seed(self, source: Provider, parent: Session | SessionFile | None) -> Seed:
        if isinstance(parent, SessionFile):
            return await asyncio.to_thread(source.seed_of, parent)
        if parent is None or not source.inherits_parent_context:
            return source.seed_of(None)
        log = Forked(self._parents.of(parent), parent)
        if log.is_slow(LARGE_LOG_EVENTS):
            return await asyncio.to_thread(source.seed_of, log)
        # In the caller's step: what the caller does to its log after this call has no effect (rule 7).
        return source.seed_of(log)

    async def _submit(self, children: Sequence[NewTask]) -> list[Accepted | DshTasksError]:
        """Submit and publish. Cancelled before the answer: what was accepted meanwhile is killed."""
        accepting = asyncio.ensure_future(self._accept(children))
        try:
            return await asyncio.shield(accepting)
        except asyncio.CancelledError:
            await to_the_end(self._withdraw(accepting))
            raise

    async def _withdraw(self, accepting: asyncio.Future[list[Accepted | DshTasksError]]) -> None:
        with contextlib.suppress(DshTasksError):
            for verdict in await accepting:
                if isinstance(verdict, Accepted) and not verdict.repeated:
                    await self.abandon(verdict.task_id)

    async def abandon(self, task_id: str) -> None:
        """The caller that started it was cancelled: kill it. (A worker that leaves keeps it.)"""
        await self.kill(task_id, reason="the call that started it was cancelled")

    async def _accept(self, children: Sequence[NewTask]) -> list[Accepted | DshTasksError]:
        fence = self._fence_for(children[0].owner) if children else None
        verdicts = await self.store.submit_many(children, fence=fence)
        told: list[Accepted | DshTasksError] = []
        for new, verdict in zip(children, verdicts, strict=True):
            if isinstance(verdict, Accepted) and verdict.repeated:
                told.append(key_conflict(verdict, new.call) or verdict)
                continue
            told.append(verdict)
            if isinstance(verdict, Accepted):
                message = Message(new.id, 0, new.label, new.provider, verdict.depth, new.owner)
                # Accepted is accepted: where the queue refuses, a reaper publishes what is due.
                with contextlib.suppress(StoreUnavailable):
                    await self._publisher.publish(message)
                    await self.store.mark_published(new.id)
        return told

    def _fence_for(self, owner: str) -> Fence | None:
        return self.fence if owner == self.owner else None

    # -- read and wait --------------------------------------------------------------------------

    async def output(
        self,
        task_id: str,
        *,
        wait: bool = False,
        timeout_ms: int | None = None,
        offset: int = 0,
        limit_bytes: int | None = None,
    ) -> Output:
        """The status and a page of the final text; with `wait` after the end, or after `timeout_ms`.

        A timed-out wait leaves the task alive. The owner's look at an end holds the notice back.
        Raises OptionRefused (bounds), TaskNotFound, StoreUnavailable.
        """
        check_page(task_id, timeout_ms, offset, limit_bytes)
        started = time.monotonic()
        span = WaitTime.of(timeout_ms, self.settings)
        first = await in_time(self._read(task_id, offset, limit_bytes), span.seconds if wait else None)
        if wait and not first.task.is_terminal:
            await self.waiter.until_ended(task_id, span.seconds)
            first = await in_time(self._read(task_id, offset, limit_bytes), 0)
        waited = int((time.monotonic() - started) * 1000) if wait else 0
        return Output(
            task=first.task,
            text=first.text,
            offset=first.offset,
            total_bytes=first.task.output_bytes,
            next_offset=first.next_offset,
            timed_out=wait and not first.task.is_terminal,
            waited_ms=waited,
            wait_capped=wait and span.is_capped,
            structured=first.record.structured,
            has_structured=first.record.has_structured,
            structured_json=first.record.structured_json,
            fenced=first.record.fenced_output,
        )

    async def wait(
        self, task_ids: Sequence[str], *, until: Until = "all", timeout_ms: int | None = None
    ) -> Waited:
        """Wait until one (`any`) or each (`all`) of the tasks has ended, at most `timeout_ms`.

        1 to 1,000 ids; one that is named twice counts once. A timed-out wait leaves the tasks alive. The
        owner's look at an end holds the notice back. Raises OptionRefused (bounds), TaskNotFound for the
        first id that is unknown or not the caller's, before any waiting, and StoreUnavailable.
        """
        ids = checked_wait(task_ids, until, timeout_ms)
        started, span = time.monotonic(), WaitTime.of(timeout_ms, self.settings)
        seen = await in_time(self.store.look(ids, caller=self.caller), span.seconds)
        if not _enough([status.is_terminal for status in seen], until):
            await self.waiter.until_enough(ids, until, span.seconds)
        tasks = {task.id: task for task in await in_time(self.store.tasks(ids), 0)}
        if pruned := [one for one in ids if one not in tasks]:
            raise TaskNotFound(pruned[0])
        ended = tuple(tasks[one] for one in ids if tasks[one].is_terminal)
        if ended:
            await in_time(self.store.look([task.id for task in ended], caller=self.caller, hold=True), 0)
        return Waited(
            ended=ended,
            live=tuple(tasks[one] for one in ids if not tasks[one].is_terminal),
            timed_out=not _enough([tasks[one].is_terminal for one in ids], until),
            waited_ms=int((time.monotonic() - started) * 1000),
            wait_capped=span.is_capped,
        )

    async def _read(self, task_id: str, offset: int, limit_bytes: int | None) -> Page:
        limit = self.settings.output_read_bytes if limit_bytes is None else limit_bytes
        found = await self.store.read(task_id, caller=self.caller, offset=offset, length=limit + 4, hold=True)
        return Page.cut(found.record, found.page, offset, limit)

    async def task(self, task_id: str) -> Task:
        """The record. Raises TaskNotFound."""
        return (await self.store.read(task_id, caller=self.caller)).record.task

    async def usage(self, root: str) -> Usage:
        """Tokens and model calls of all that was ever started below a root session, ended ones included.

        A client with an owner sees its own only. Raises TaskNotFound, StoreUnavailable.
        """
        checked_text("root", root, NAME_MAX_BYTES)
        if self.owner is not None and root != self.owner:
            raise TaskNotFound(root)
        return await self.store.usage(root)

    async def stats(self) -> dict[str, int]:
        """Counters of the installation for operators; each is kept for 30 days after it last rose.

        `messages_without_record`, `messages_too_many`, `records_forgotten`, `notices_expired`.
        """
        return await self.store.stats()

    async def list_tasks(self, *, tree: bool = True, all_owners: bool = False) -> list[Task]:
        """Tasks of this session in order of acceptance, each followed by those below it.

        Without `tree` only its own. `all_owners` (operators) lists every session's. At most 10,000.
        """
        if all_owners:
            if self.owner is not None:
                raise OptionRefused("all_owners", "only a client without an owner may list every session")
            roots: Sequence[str] = await self.store.roots()
        elif self.owner is None:
            raise OptionRefused("owner", "name a session, or ask for all owners")
        else:
            roots = (self.owner,)
        return await self._tree(roots, deep=tree)

    async def _tree(self, roots: Sequence[str], *, deep: bool) -> list[Task]:
        children: dict[str, list[str]] = {}
        level, count = list(dict.fromkeys(roots)), 0
        while level and count < LIST_MOST:
            found = await self.store.started_by(level)
            children.update(zip(level, found, strict=True))
            level = [one for ids in found for one in ids if deep and one not in children]
            count += len(level)
        ids = [one for group in children.values() for one in group][:LIST_MOST]
        known = {task.id: task for task in await self.store.tasks(ids)}
        below = {one for group in children.values() for one in group}
        ordered: list[Task] = []
        stack = [root for root in reversed(list(dict.fromkeys(roots))) if root not in below or not deep]
        while stack:
            at = stack.pop()
            if at in known:
                ordered.append(known.pop(at))
            stack += reversed([one for one in children.get(at, ()) if one in known])
        return ordered

    async def session(self, task_id: str) -> Session:
        """The child's whole log so far: header, seed, its own rows. Raises TaskNotFound, SeedRefused."""
        record = (await self.store.read(task_id, caller=self.caller)).record
        seed = await self.seed_events(record)
        rows = await self.store.own_rows(task_id)
        own = tuple(Event.from_row(json.loads(row)) for row in rows)
        # A child that has written nothing yet has no end-of-seed marker either.
        return Session(record.child_header(seeded=bool(seed and own)), (*(seed if own else ()), *own))

    async def seed_events(self, record: Record) -> tuple[Event, ...]:
        """The events that a child inherited."""
        if not record.seed_digest:
            return ()
        manifest, blobs = await fetch(self.store.link, self.store.keys, record.seed_digest)
        return await asyncio.to_thread(decode, manifest, blobs.__getitem__)

    async def follow(self, task_id: str, *, start: int = 0) -> AsyncIterator[Event]:
        """The child's own rows from place `start`, as they come, until it has ended.

        The server pushes them, and what was read is not read again. Goes on through a new attempt (its
        border is a row) and, for a minute, without a server. Raises TaskNotFound, StoreUnavailable.
        """
        async for event in self._live.rows(task_id, start, caller=self.caller):
            yield event

    async def progress(self, task_id: str) -> Progress:
        """Where a child is now: turn, step, tool calls at work, last text, activity. It only reads.

        The log shows each row once it is written; the record's counts are a heartbeat old (1 s at most, or
        a fifth of the lease). Raises TaskNotFound, StoreUnavailable.
        """
        return await self._live.progress(task_id, caller=self.caller)

    # -- kill -----------------------------------------------------------------------------------

    async def kill(self, task_id: str, *, reason: str | None = None) -> KillReceipt:
        """Kill a task and all below it; answers at once with what it took.

        A finished task stays as it is (`accepted` is False). Raises TaskNotFound, OwnerNotRunning,
        StoreUnavailable.
        """
        check_page(task_id, None, 0, None)
        if reason is not None:
            checked_text("reason", reason, LABEL_MAX_BYTES, may_be_empty=True)
        return await self.store.kill(
            task_id,
            caller=self.caller,
            token=secrets.token_hex(16),
            detail=reason or "",
            fence=self.fence,
        )

    async def promote(self, task_id: str, *, after_ms: int | None = None) -> Promotion:
        """Turn the wait of a foreground call into a background task: the call returns, the task goes on.

        For its owner, in whatever process, and for operators. `after_ms` is the time that the call had, where
        that is why. It races its end, and one of the two wins: the call has the result, or a notice tells it.
        Twice is once. Raises TaskNotFound, OwnerNotRunning, StoreUnavailable.
        """
        check_page(task_id, None, 0, None)
        return await self.store.promote(task_id, caller=self.caller, fence=self.fence, after_ms=after_ms)

    async def dispose(self, task_id: str, *, unless_promoted: bool = False) -> bool:
        """Kill what still runs and wait until it has ended. Raises StoreUnavailable, StillRunning never.

        `unless_promoted`: a task that no call waits for in the foreground any more stays; then False.
        """
        task = await self.task(task_id)
        if task.is_terminal:
            return not unless_promoted or task.mode == "foreground"
        await self.store.kill(
            task_id,
            caller=self.caller,
            token=secrets.token_hex(16),
            detail="disposed by the call that started it",
            fence=self.fence,
            only_foreground=unless_promoted,
        )
        if unless_promoted and not (await self.store.awaited(task_id)).is_foreground:
            return False
        bound_s = self.settings.kill_deadline_ms / 1000 + self.settings.grace_ms / 1000 + 5
        await self.waiter.until_ended(task_id, bound_s)
        return True

    async def prune(self, *, older_than_ms: int) -> dict[str, int]:
        """Remove the records of tasks that ended so long ago, leaves first, with logs, outputs and seeds.

        For operators. A task stays while one below it does, and while its owner has not acknowledged its
        ending, at most 30 days. Returns how many were `forgotten`, and how many stay for which reason
        (`below`, `notice`). Workers do the same by themselves after `retention_ms`.
        """
        self._for_operators("prune")
        if older_than_ms < 0:
            raise OptionRefused("older_than_ms", "a whole number from 0")
        return dict(await self.store.prune(older_than_ms=older_than_ms))

    # -- looking after the installation ---------------------------------------------------------

    async def audit(self) -> AuditReport:
        """Whether everything under the prefix fits together: records, counters, references, logs, seeds.

        For operators, at any time: it only reads, page by page, and what is under way is no fault. Each
        fault names the key, what is wrong and what it should be. Raises OptionRefused, StoreUnavailable.
        """
        self._for_operators("audit")
        return await audit(self.store.link, self.store.keys)

    async def census(self) -> dict[str, int]:
        """Keys without an expiry by kind, without the queue's own. For operators.

        When all work has ended, is acknowledged and pruned, it is what it was before.
        """
        self._for_operators("take a census")
        return await census(self.store.link, self.store.keys)

    def _for_operators(self, verb: str) -> None:
        if self.owner is not None:
            raise OptionRefused("owner", f"only a client without an owner may {verb}")

    # -- notices --------------------------------------------------------------------------------

    def inbox(self, session: str | None = None) -> Inbox:
        """The inbox of a session, the client's own by default."""
        of = session if session is not None else self.owner
        if of is None:
            raise OptionRefused("owner", "name the session whose notices you want")
        return Inbox(self.store.link, self.settings, of)

    async def notices(self, *, acknowledge: bool = False) -> tuple[Notice, ...]:
        """Endings that this session has not acknowledged and does not hold back, oldest first.

        With `acknowledge` they go. Raises SpeakerTaken where a parent loop speaks for the session.
        """
        inbox = self.inbox()
        found = await inbox.take()
        if acknowledge:
            await inbox.acknowledge([notice.task_id for notice in found], fence=self.fence)
        return found

    async def wait_for_inbox(
        self, *, since: Sequence[Notice] = (), timeout_ms: int | None = None
    ) -> InboxSeen:
        """Wait until this session's inbox holds other notices than `since`, at most `timeout_ms`.

        `since` is what an earlier answer told; left out, any notice ends the wait, also one that is there
        already. It only looks: nothing is taken or acknowledged. Raises OptionRefused, StoreUnavailable.
        """
        check_timeout(timeout_ms)
        inbox, known = self.inbox(), [notice.id for notice in since]
        started, span = time.monotonic(), WaitTime.of(timeout_ms, self.settings)
        found: tuple[Notice, ...] = ()

        async def differs() -> bool:
            nonlocal found
            found = await inbox.take()
            return [notice.id for notice in found] != known

        changed = await in_time(differs(), span.seconds)
        if not changed:
            await self.waiter.until_inbox(inbox.session, differs, span.seconds)
            changed = await in_time(differs(), 0)
        return InboxSeen(
            notices=found,
            timed_out=not changed,
            waited_ms=int((time.monotonic() - started) * 1000),
            wait_capped=span.is_capped,
        )

    async def on_endings(self, callback: OnEndings) -> AsyncSubscription:
        """Let `callback` hear of every ending of this session, in batches, until it is stopped.

        It speaks for the session as a parent loop does. A batch is acknowledged after the callback returned;
        where it raised, its notices come again, each by itself, after 1 s, doubling up to a minute. Heard of
        at least once, also across restarts of server and process. A coroutine function is awaited, a plain
        one runs in a thread. Close, or `stop` of what is returned, ends it.

        Raises SpeakerTaken where another process speaks for the session, OptionRefused, StoreUnavailable.
        """
        subscription = AsyncSubscription(
            self.inbox(),
            callback,
            self.woken_by_notices,
            lease_ms=self.settings.speaker_lease_ms,
            fence=self.fence,
        )
        running = await subscription.start()
        # Known until it has ended, also where the caller keeps nothing of it.
        self._subscriptions.add(subscription)
        running.add_done_callback(lambda _: self._subscriptions.discard(subscription))
        return subscription

    @contextlib.asynccontextmanager
    async def woken_by_notices(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set when something came into this session's inbox."""
        async with self._wakeups.on(self.store.keys.inbox(self.inbox().session)) as woken:
            yield woken


def _enough(ended: Sequence[bool], until: Until) -> bool:
    return all(ended) if until == "all" else any(ended)


def key_conflict(accepted: Accepted, call: str) -> KeyConflict | None:
    """The refusal where the first call under this key was another one."""
    first, now = json.loads(accepted.call), json.loads(call)
    differs = sorted(name for name in now if first.get(name) != now[name])
    return KeyConflict(task_id=accepted.task_id, differs=differs) if differs else None
