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
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from dsh_tasks.cancellation import to_the_end
from dsh_tasks.client.output import Output, Page, check_page
from dsh_tasks.client.parents import Forked, Parents
from dsh_tasks.client.publisher import Publisher
from dsh_tasks.client.waiting import POLL_S, RecordWaiter, Waiter
from dsh_tasks.errors import DshTasksError, KeyConflict, OptionRefused, StoreUnavailable
from dsh_tasks.notice import Notice
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
    Prompt,
    ToolFilter,
    call_of,
    checked_text,
    depth_cap,
    depth_of,
    policy_text,
    prompt_blocks,
    resolve_policy,
)
from dsh_tasks.task import Task

LARGE_LOG_EVENTS = 2_000
"""A log of more is cut off the event loop; a shorter one in the caller's own step."""
LIST_MOST = 10_000
NOTICE_KEPT_MS = 30 * 24 * 3_600_000
"""How long a notice that nobody acknowledges keeps its record."""


class AsyncRun:
    """A started child: `result()` waits for its end, `dispose()` frees what it still holds."""

    def __init__(self, client: AsyncClient, accepted: Accepted) -> None:
        self._client = client
        self.id = accepted.task_id
        self.repeated = accepted.repeated
        """The call had started this task before; nothing was started now."""
        self.depth = accepted.depth

    async def result(self) -> Output:
        """Wait for the end, however long. Raises StoreUnavailable where the server stays away."""
        await self._client.waiter.until_ended(self.id, None)
        return await self._client.output(self.id, limit_bytes=self._client.settings.output_max_bytes)

    async def dispose(self) -> None:
        """Kill what still runs and wait until it has ended. Twice is once."""
        await self._client.dispose(self.id)


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
    ) -> None:
        self.store = store
        self.settings = store.settings
        self.registry = registry or Registry()
        # An empty name would be the operator.
        self.owner = None if owner is None else checked_text("owner", owner, NAME_MAX_BYTES)
        self.fence = fence
        self._wakeups = wakeups
        self._publisher = publisher
        self.waiter: Waiter = waiter or RecordWaiter(store, wakeups)
        self._parents = parents or Parents()
        self._speaker = secrets.token_hex(8)

    @classmethod
    def connect(
        cls,
        settings: Settings | None = None,
        *,
        registry: Registry | None = None,
        owner: str | None = None,
    ) -> AsyncClient:
        """A client of the server that `settings`, the environment or `dsh-tasks up` name.

        Raises StoreUnavailable where none is known. Connections open at the first call.
        """
        found = located(settings or load())
        assert found.redis_url is not None
        link = Link(
            connect(found.redis_url, timeout_ms=found.call_timeout_ms), timeout_ms=found.call_timeout_ms
        )
        listens = connect(found.redis_url, timeout_ms=found.call_timeout_ms, pool_size=2, listens=True)
        return cls(
            Store(link, found),
            Wakeups(listens),
            Publisher(make_app(found, publishes=True), timeout_ms=found.call_timeout_ms),
            registry=registry,
            owner=owner,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Children live on."""
        await self._wakeups.close()
        await self._wakeups.disconnect()
        self._publisher.close()
        await self.store.link.close()

    def for_owner(self, owner: str) -> AsyncClient:
        """The same connections, bound to a session."""
        return AsyncClient(
            self.store,
            self._wakeups,
            self._publisher,
            registry=self.registry,
            owner=owner,
            waiter=self.waiter,
            parents=self._parents,
        )

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
    ) -> AsyncRun:
        """Start one child of `provider` with a frozen seed of `parent`, and return once it is accepted.

        The owner is `owner`, else the client's, else the parent log's session. `key` makes the call
        idempotent for this owner: asked again it returns the same task; with another prompt, label, mode
        or instance it is a KeyConflict. `max_depth` is absolute; 0 forbids. A file as `parent` is
        read as it is now. Events are values: what an earlier start has seen of them is not looked at again.

        Raises OptionRefused, SchemaRefused, SeedRefused, KeyConflict, LimitReached, OwnerNotRunning,
        StoreUnavailable; then nothing was started.
        """
        if isinstance(parent, SessionFile):
            await asyncio.to_thread(parent.refresh)
        policy = resolve_policy(
            parent=parent,
            agent_options=agent_options,
            tool_filter=tool_filter,
            persona=persona,
            output_schema=output_schema,
            max_depth=max_depth,
        )
        session = owner if owner is not None else self.owner
        if session is None and parent is not None:
            session = parent.header.id
        if session is None:
            raise OptionRefused("owner", "name the session that starts this child, or give its log as parent")
        checked_text("owner", session, NAME_MAX_BYTES)
        checked_text("label", label, LABEL_MAX_BYTES, may_be_empty=True)
        checked_text("engine", engine or self.settings.engine, NAME_MAX_BYTES)
        if key is not None:
            checked_text("key", key, NAME_MAX_BYTES)
        blocks = prompt_blocks(prompt, self.settings.prompt_max_bytes)
        source = self.registry.get(provider)
        self.registry.check_start(provider, policy)
        seed = await self._seed(source, parent)
        if seed.raw_bytes > self.settings.seed_max_bytes:
            raise too_large(seed, "seed_max_bytes", self.settings.seed_max_bytes)
        new = NewTask(
            id=f"subagent-{secrets.token_hex(16)}",
            owner=session,
            header_depth=depth_of(parent),
            label=label,
            provider=provider,
            engine=engine or self.settings.engine,
            prompt=json.dumps(blocks, ensure_ascii=False),
            policy=policy_text(policy),
            header=json.dumps({"cwd": parent.header.cwd if parent is not None else None}),
            depth_cap=depth_cap(policy, self.settings),
            seed=seed,
            call_key=key or "",
            call=call_of(blocks, label=label, mode=mode, instance=instance or provider),
        )
        accepted = await self._submit(new)
        return AsyncRun(self, accepted)

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

    async def _submit(self, new: NewTask) -> Accepted:
        """Submit and publish. Cancelled before the answer: what was accepted meanwhile is killed."""
        accepting = asyncio.ensure_future(self._accept(new))
        try:
            return await asyncio.shield(accepting)
        except asyncio.CancelledError:
            await to_the_end(self._withdraw(accepting))
            raise

    async def _withdraw(self, accepting: asyncio.Future[Accepted]) -> None:
        with contextlib.suppress(DshTasksError):
            accepted = await accepting
            if not accepted.repeated:
                await self.abandon(accepted.task_id)

    async def abandon(self, task_id: str) -> None:
        """The caller that started it was cancelled: kill it. (A worker that leaves keeps it.)"""
        await self.kill(task_id, reason="the call that started it was cancelled")

    async def _accept(self, new: NewTask) -> Accepted:
        accepted = await self.store.submit(new, fence=self._fence_for(new.owner))
        if accepted.repeated:
            refuse_conflict(accepted, new.call)
            return accepted
        message = Message(accepted.task_id, 0, new.label, new.provider, accepted.depth, new.owner)
        # Accepted is accepted: where the queue refuses, a reaper publishes what is due.
        with contextlib.suppress(StoreUnavailable):
            await self._publisher.publish(message)
            await self.store.mark_published(accepted.task_id)
        return accepted

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
        first = await self._read(task_id, offset, limit_bytes)
        asked = timeout_ms if timeout_ms is not None else self.settings.wait_default_ms
        capped = wait and asked > self.settings.wait_cap_ms
        if wait and not first.task.is_terminal:
            await self.waiter.until_ended(task_id, min(asked, self.settings.wait_cap_ms) / 1000)
            first = await self._read(task_id, offset, limit_bytes)
        waited = int((time.monotonic() - started) * 1000) if wait else 0
        return Output(
            task=first.task,
            text=first.text,
            offset=first.offset,
            total_bytes=first.task.output_bytes,
            next_offset=first.next_offset,
            timed_out=wait and not first.task.is_terminal,
            waited_ms=waited,
            wait_capped=capped,
            structured=first.record.structured,
            has_structured=first.record.has_structured,
        )

    async def _read(self, task_id: str, offset: int, limit_bytes: int | None) -> Page:
        limit = self.settings.output_read_bytes if limit_bytes is None else limit_bytes
        found = await self.store.read(task_id, caller=self.caller, offset=offset, length=limit + 4, hold=True)
        return Page.cut(found.record, found.page, offset, limit)

    async def task(self, task_id: str) -> Task:
        """The record. Raises TaskNotFound."""
        return (await self.store.read(task_id, caller=self.caller)).record.task

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
        """The child's own rows from place `start`, as they come, until it has ended. Raises TaskNotFound."""
        place = start
        while True:
            task = await self.task(task_id)
            rows = await self.store.own_rows(task_id, place)
            for row in rows:
                yield Event.from_row(json.loads(row))
            place += len(rows)
            if task.is_terminal and not rows:
                return
            if not rows:
                await self.waiter_for_rows(task_id)

    async def waiter_for_rows(self, task_id: str) -> None:
        """Wait a moment for more rows, or for the end."""
        async with self._wakeups.on(self.store.keys.ended(task_id)) as woken:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S / 4):
                    await woken.wait()

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

    async def dispose(self, task_id: str) -> None:
        """Kill what still runs and wait until it has ended. Raises StoreUnavailable, StillRunning never."""
        if (await self.task(task_id)).is_terminal:
            return
        await self.kill(task_id, reason="disposed by the call that started it")
        bound_s = self.settings.kill_deadline_ms / 1000 + self.settings.grace_ms / 1000 + 5
        await self.waiter.until_ended(task_id, bound_s)

    async def prune(self, *, older_than_ms: int) -> dict[str, int]:
        """Remove the records of tasks that ended so long ago, leaves first, with logs, outputs and seeds.

        For operators. A task stays while one below it does, and while its owner has not acknowledged its
        ending, at most 30 days. Returns how many were `forgotten`, and how many stay for which reason.
        """
        self._for_operators("prune")
        if older_than_ms < 0:
            raise OptionRefused("older_than_ms", "a whole number from 0")
        now_ms = time.time_ns() // 1_000_000
        told: Counter[str] = Counter()
        for task in reversed(await self.list_tasks(all_owners=True)):
            told[
                await self.store.forget(
                    task.id,
                    ended_before_ms=now_ms - older_than_ms,
                    notice_before_ms=now_ms - max(older_than_ms, NOTICE_KEPT_MS),
                )
            ] += 1
        return dict(told)

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

    @contextlib.asynccontextmanager
    async def woken_by_notices(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set when something came into this session's inbox."""
        async with self._wakeups.on(self.store.keys.inbox(self.inbox().session)) as woken:
            yield woken


def refuse_conflict(accepted: Accepted, call: str) -> None:
    """Raise KeyConflict where the first call under this key was another one."""
    first, now = json.loads(accepted.call), json.loads(call)
    differs = sorted(name for name in now if first.get(name) != now[name])
    if differs:
        raise KeyConflict(task_id=accepted.task_id, differs=differs)
