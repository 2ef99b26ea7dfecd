"""Client: the verbs. `AsyncClient` for event loops, `Client` for plain code; one meaning, two ways to wait.

A client is bound to a caller: a session (`owner`) that sees its own tasks and those below, or, without
one, the operator who sees all.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from celery import Celery
from pydantic_core import PydanticSerializationError

from dsh_tasks.cancellation import to_the_end
from dsh_tasks.errors import (
    DshTasksError,
    KeyConflict,
    LimitReached,
    OptionRefused,
    StoreUnavailable,
)
from dsh_tasks.notice import Notice
from dsh_tasks.provider import Registry
from dsh_tasks.queue import Message, make_app, publish
from dsh_tasks.schema import check_schema
from dsh_tasks.seed import decode
from dsh_tasks.session import Event, Session
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
from dsh_tasks.store.locate import located
from dsh_tasks.store.seeds import fetch
from dsh_tasks.submission import AgentOptions, MaxDepth, Policy, Route, ToolFilter, checked
from dsh_tasks.task import Task

Prompt = str | Sequence[Mapping[str, Any]]
Mode = Literal["foreground", "background"]
T = TypeVar("T")

POLL_S = 1.0
"""The slow poll behind every wake-up."""
UNAVAILABLE_FOR_S = 60.0
"""How long a wait without an end bears a server that does not answer."""
LARGE_LOG_EVENTS = 2_000
LIST_MOST = 10_000
NAME_MAX_BYTES = 1_024
"""Owners, keys, engines, task ids."""
LABEL_MAX_BYTES = 4_096
DEPTH_MOST = 1_000
COUNT_MOST = 2**40
ENDING_CALLS_S = 10.0
"""How long closing a client waits for cancelled calls to clean up."""
UTF8_MASK, UTF8_CONTINUES = 0xC0, 0x80


@dataclass(frozen=True, slots=True)
class Output:
    """What a read or wait saw."""

    task: Task
    text: str
    """This page of the child's final text."""
    offset: int
    """Where the page starts, UTF-8 bytes."""
    total_bytes: int
    next_offset: int | None
    """Where the next page starts; None where this is the last."""
    timed_out: bool
    """A wait was asked for and the task had not ended by then; it goes on."""
    waited_ms: int
    wait_capped: bool
    """The wait asked for was longer than the cap."""
    structured: Any
    has_structured: bool


class Waiter(Protocol):
    """How a client waits for an end. In a parent it watches the record; a worker runs the task itself."""

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """Return when the task has ended or the time is over. Raises StoreUnavailable."""


class RecordWaiter:
    """Waits on the record: a push wakes, a slow poll stands behind it."""

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups

    async def until_ended(self, task_id: str, timeout_s: float | None) -> None:
        """See Waiter. Without a timeout it bears a silent server for a minute."""
        clock = time.monotonic
        deadline = None if timeout_s is None else clock() + timeout_s
        answered = clock()
        async with self._wakeups.on(self._store.keys.ended(task_id)) as woken:
            while True:
                woken.clear()
                left = None if deadline is None else deadline - clock()
                try:
                    if await self._has_ended(task_id, left):
                        return
                    answered = clock()
                except StoreUnavailable:
                    over = deadline is not None and clock() >= deadline
                    if over or clock() - answered > UNAVAILABLE_FOR_S:
                        raise
                left = POLL_S if deadline is None else min(POLL_S, deadline - clock())
                if left <= 0:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken.wait()

    async def _has_ended(self, task_id: str, left_s: float | None) -> bool:
        try:
            # A frozen server must not hold a wait past its end.
            async with asyncio.timeout(None if left_s is None else max(left_s, 0) + POLL_S):
                tasks = await self._store.tasks([task_id])
        except TimeoutError:
            msg = "no answer in time"
            raise StoreUnavailable(msg) from None
        return not tasks or tasks[0].is_terminal


class Publisher:
    """Publishes messages off the event loop; kombu's producers are synchronous."""

    def __init__(self, app: Celery, *, timeout_ms: int) -> None:
        self._app = app
        self._timeout_s = timeout_ms / 1000
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="dsh-publish")

    async def publish(self, message: Message) -> None:
        """Send one message. Raises StoreUnavailable."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                await loop.run_in_executor(self._threads, publish, self._app, message)
        except TimeoutError:
            msg = "the queue did not answer in time"
            raise StoreUnavailable(msg) from None

    def close(self) -> None:
        """Let running publishes end."""
        self._threads.shutdown(wait=False, cancel_futures=True)


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
        parent: Session | None = None,
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
        or instance it is a KeyConflict. `max_depth` is absolute; 0 forbids.

        Raises OptionRefused, SchemaRefused, SeedRefused, KeyConflict, LimitReached, OwnerNotRunning,
        StoreUnavailable; then nothing was started.
        """
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
        if parent is not None and len(parent.events) > LARGE_LOG_EVENTS:
            seed = await asyncio.to_thread(source.seed_of, parent)
        else:
            # In the caller's step: what the caller does to its log after this call has no effect (rule 7).
            seed = source.seed_of(parent)
        if seed.raw_bytes > self.settings.seed_max_bytes:
            raise LimitReached(
                "seed_max_bytes",
                value=seed.raw_bytes,
                cap=self.settings.seed_max_bytes,
                way_out="use a fork-lite provider with fewer turns",
            )
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

    async def _read(self, task_id: str, offset: int, limit_bytes: int | None) -> _Page:
        limit = self.settings.output_read_bytes if limit_bytes is None else limit_bytes
        found = await self.store.read(task_id, caller=self.caller, offset=offset, length=limit + 4, hold=True)
        return _Page.cut(found.record, found.page, offset, limit)

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
        manifest, chunks = await fetch(self.store.link, self.store.keys, record.seed_digest)
        return await asyncio.to_thread(decode, manifest, chunks.__getitem__)

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


@dataclass(frozen=True, slots=True)
class _Page:
    record: Record
    task: Task
    text: str
    offset: int
    next_offset: int | None

    @classmethod
    def cut(cls, record: Record, raw: bytes, offset: int, limit: int) -> _Page:
        """The page on character boundaries: `raw` holds up to 4 bytes more than `limit`."""
        skipped = 0
        while skipped < len(raw) and raw[skipped] & UTF8_MASK == UTF8_CONTINUES:
            skipped += 1
        start = offset + skipped
        page = raw[skipped:][:limit]
        text = page.decode("utf-8", "ignore")
        if not text and page:
            # A limit below one character: give that character rather than nothing for ever.
            text = raw[skipped:].decode("utf-8", "ignore")[:1]
        end = start + len(text.encode())
        total = record.task.output_bytes
        return cls(record, record.task, text, start, end if text and end < total else None)


def resolve_policy(
    *,
    parent: Session | None,
    agent_options: AgentOptions | Mapping[str, Any] | None,
    tool_filter: ToolFilter | Mapping[str, Any] | None,
    persona: str | None,
    output_schema: Mapping[str, Any] | None,
    max_depth: MaxDepth,
) -> Policy:
    """The policy of one start, checked. What was left out stays out. Raises OptionRefused, SchemaRefused."""
    if isinstance(max_depth, bool) or (isinstance(max_depth, int) and max_depth < 0):
        raise OptionRefused("max_depth", "a whole number from 0, or 'provider-managed'")
    if output_schema is not None:
        check_schema(output_schema)
    route = parent.model_route() if parent is not None else None
    given: dict[str, Any] = {
        "persona": persona,
        "output_schema": dict(output_schema) if output_schema is not None else None,
        "max_depth": max_depth,
        "parent_route": Route(provider=route[0], model=route[1]) if route else None,
    }
    if agent_options is not None:
        given["agent_options"] = (
            agent_options
            if isinstance(agent_options, AgentOptions)
            else checked(AgentOptions, "agent_options", dict(agent_options))
        )
    if tool_filter is not None:
        given["tool_filter"] = (
            tool_filter
            if isinstance(tool_filter, ToolFilter)
            else checked(ToolFilter, "tool_filter", dict(tool_filter))
        )
    return checked(Policy, "policy", given)


def policy_text(policy: Policy) -> str:
    """The policy as the record holds it. Raises OptionRefused where a text in it is no UTF-8."""
    try:
        return policy.to_json()
    except PydanticSerializationError:
        raise OptionRefused("policy", "a text in it holds half a character (a lone surrogate)") from None


def depth_of(parent: Session | None) -> int:
    """The depth that a log's header states. Raises OptionRefused for what is none."""
    depth = 0 if parent is None else parent.header.delegation_depth
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= DEPTH_MOST:
        raise OptionRefused(
            "parent", f"its header's delegationDepth is no whole number from 0 to {DEPTH_MOST}"
        )
    return depth


def checked_text(option: str, given: Any, most_bytes: int, *, may_be_empty: bool = False) -> str:
    """`given` where it is a text in UTF-8 of at most `most_bytes`. Raises OptionRefused."""
    if not isinstance(given, str):
        raise OptionRefused(option, "it must be a text")
    if not given.strip() and not may_be_empty:
        raise OptionRefused(option, "it is empty")
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise OptionRefused(option, "it holds half a character (a lone surrogate)") from None
    if size > most_bytes:
        raise OptionRefused(option, f"{size} bytes of UTF-8, at most {most_bytes}")
    return given


def depth_cap(policy: Policy, settings: Settings) -> int:
    """The smaller of the instance's cap and the operator's, also under `provider-managed`."""
    if policy.max_depth == "provider-managed":
        return settings.max_depth_ceiling
    return min(policy.max_depth, settings.max_depth_ceiling)


def prompt_blocks(prompt: Prompt, limit_bytes: int) -> list[dict[str, Any]]:
    """The prompt as content blocks, verbatim. Raises OptionRefused, LimitReached."""
    blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else _blocks(prompt)
    texts = [block.get("text") for block in blocks if block["type"] == "text"]
    if any(not isinstance(text, str) for text in texts):
        raise OptionRefused("prompt", "a text block holds a text")
    if len(texts) == len(blocks) and not any(str(text).strip() for text in texts):
        raise OptionRefused("prompt", "it is empty")
    try:
        size = len(json.dumps(blocks, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise OptionRefused("prompt", "its blocks are not plain JSON in UTF-8") from None
    if size > limit_bytes:
        raise LimitReached(
            "prompt_max_bytes", value=size, cap=limit_bytes, way_out="put the material into a file or the log"
        )
    return blocks


def _blocks(prompt: Any) -> list[dict[str, Any]]:
    wrong = OptionRefused("prompt", "a text, or a list of content blocks with a type each")
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        raise wrong
    if any(not isinstance(block, Mapping) or not isinstance(block.get("type"), str) for block in prompt):
        raise wrong
    return [dict(block) for block in prompt]


def call_of(blocks: Sequence[Mapping[str, Any]], *, label: str, mode: str, instance: str) -> str:
    """What a repeated call must equal: prompt, description, mode and instance, not the seed."""

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]

    parts = {"prompt": digest(list(blocks)), "description": digest(label), "mode": mode, "instance": instance}
    return json.dumps(parts, sort_keys=True)


def refuse_conflict(accepted: Accepted, call: str) -> None:
    """Raise KeyConflict where the first call under this key was another one."""
    first, now = json.loads(accepted.call), json.loads(call)
    differs = sorted(name for name in now if first.get(name) != now[name])
    if differs:
        raise KeyConflict(task_id=accepted.task_id, differs=differs)


def check_page(task_id: str, timeout_ms: float | None, offset: int, limit_bytes: int | None) -> None:
    """Refuse what no read can honour, before any look-up. Raises OptionRefused."""
    checked_text("task_id", task_id, NAME_MAX_BYTES)
    if timeout_ms is not None and (isinstance(timeout_ms, bool) or not (0 < timeout_ms < float("inf"))):
        raise OptionRefused("timeout_ms", "a positive number of milliseconds")
    if not is_count(offset):
        raise OptionRefused("offset", "a whole number of bytes from 0")
    if limit_bytes is not None and not (is_count(limit_bytes) and limit_bytes > 0):
        raise OptionRefused("limit_bytes", "a whole number of bytes from 1")


def is_count(value: Any) -> bool:
    """A whole number that the server can count with."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MOST


class Run:
    """A started child, for plain code."""

    def __init__(self, client: Client, run: AsyncRun) -> None:
        self._client = client
        self._run = run
        self.id = run.id
        self.repeated = run.repeated
        self.depth = run.depth

    def result(self) -> Output:
        """Wait for the end, however long. Raises StoreUnavailable where the server stays away."""
        return self._client.call(self._run.result())

    def dispose(self) -> None:
        """Kill what still runs and wait until it has ended. Twice is once."""
        self._client.call(self._run.dispose())


class Client:
    """The same verbs for plain code: an AsyncClient on an event loop in a thread of its own."""

    def __init__(
        self, settings: Settings | None = None, *, registry: Registry | None = None, owner: str | None = None
    ) -> None:
        """Connect like `AsyncClient.connect`. Raises StoreUnavailable where no server is known."""
        found = located(settings or load())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dsh-client", daemon=True)
        self._thread.start()
        self._calls: set[asyncio.Task[Any]] = set()
        self._client = self.call(_connected(found, registry, owner))
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
        parent: Session | None = None,
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
            )
        )
        return Run(self, run)

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

    def task(self, task_id: str) -> Task:
        """The record. Raises TaskNotFound."""
        return self.call(self._client.task(task_id))

    def list_tasks(self, *, tree: bool = True, all_owners: bool = False) -> list[Task]:
        """Tasks of this session and below; see AsyncClient.list_tasks."""
        return self.call(self._client.list_tasks(tree=tree, all_owners=all_owners))

    def session(self, task_id: str) -> Session:
        """The child's whole log so far. Raises TaskNotFound, SeedRefused."""
        return self.call(self._client.session(task_id))

    def follow(self, task_id: str, *, start: int = 0) -> Iterator[Event]:
        """The child's own rows as they come, until it has ended. Raises TaskNotFound."""
        rows = self._client.follow(task_id, start=start)
        while True:
            try:
                yield self.call(_next(rows))
            except StopAsyncIteration:
                return

    def kill(self, task_id: str, *, reason: str | None = None) -> KillReceipt:
        """Kill a task and all below it; see AsyncClient.kill."""
        return self.call(self._client.kill(task_id, reason=reason))

    def dispose(self, task_id: str) -> None:
        """Kill what still runs and wait until it has ended."""
        self.call(self._client.dispose(task_id))

    def notices(self, *, acknowledge: bool = False) -> tuple[Notice, ...]:
        """Endings not yet acknowledged; see AsyncClient.notices."""
        return self.call(self._client.notices(acknowledge=acknowledge))

    def close(self) -> None:
        """Close the connections. Children live on."""
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


async def _connected(settings: Settings, registry: Registry | None, owner: str | None) -> AsyncClient:
    return AsyncClient.connect(settings, registry=registry, owner=owner)


async def _next(rows: AsyncIterator[Event]) -> Event:
    return await anext(rows)
