"""Runner: one attempt, from claim to settlement; it stops when told and hands back when the worker leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from dsh_tasks.errors import DshTasksError, StoreUnavailable
from dsh_tasks.session import Event
from dsh_tasks.store import (
    Claimed,
    Fence,
    FencedOff,
    LossesSpent,
    NotClaimed,
    Permits,
    Record,
    Requeued,
    Settled,
    Store,
)
from dsh_tasks.submission import Policy
from dsh_tasks.task import Cause, Outcome, Status
from workers.attempt import ANSWER, Attempt, decode_row, encode_row
from workers.clock import elapsed_s
from workers.engines.base import Child, ChildTool, Engine, Fenced, StopReason
from workers.engines.transcript import own_text
from workers.routes import Routes
from workers.seed_cache import SeedCache

log = logging.getLogger(__name__)

INLINE = "inline in "
"""Start of the worker name of a child that a waiting parent runs."""
CLAIM_PAUSES_S = (0.2, 0.5, 1.0)
SETTLE_FOR_S = 300.0
"""How long an ending is offered to a server that does not answer, before the lease decides."""
SETTLE_PAUSE_S = 1.0


class Ran(StrEnum):
    """What came of one message."""

    ENDED = "ended"
    """The attempt ran and settled its task."""
    HANDED_BACK = "handed back"
    """The worker leaves; another takes it."""
    STALLED = "stalled"
    """The attempt made no progress; the next one goes on after a pause."""
    FENCED = "lease lost"
    """The attempt lost its lease in mid run; another one counts."""
    NOT_CLAIMED = "not claimed"
    """Another attempt has it, it has ended, pauses, or there is no record."""


ToolsFor = Callable[[Attempt], Sequence[ChildTool]]
Dispose = Callable[[Attempt], Awaitable[None]]


async def _nothing_to_dispose(_attempt: Attempt) -> None:
    """No tools were handed in, so nothing was started."""


class Runner:
    """Runs attempts on this process' event loop."""

    def __init__(
        self,
        store: Store,
        engines: Mapping[str, Engine],
        *,
        worker: str,
        model: str | None = None,
    ) -> None:
        self.store = store
        self.worker = worker
        self.active: dict[str, Attempt] = {}
        self.leaving = False
        self.given_back: list[str] = []
        """Queued tasks whose message this leaving worker has eaten; the app publishes them at its end."""
        self.counts = dict.fromkeys(Ran, 0)
        self._engines = engines
        self._model = model
        self._tools_for: ToolsFor = lambda _attempt: ()
        self._dispose: Dispose = _nothing_to_dispose
        self._routes = Routes(
            Permits(store.link, store.settings),
            lease_ms=store.settings.lease_ms,
            wait_ms=store.settings.route_wait_ms,
        )
        self._seeds = SeedCache(store.settings.seed_cache_bytes)
        self._inline: dict[asyncio.Task[str], str] = {}
        self.waiting = 0
        """Attempts that wait for a descendant now."""
        self._seeds_in_use = SeedsInUse()
        self._claiming = asyncio.Lock()
        self._claiming_inline = asyncio.Lock()
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, task_id: str, *, inline_in: str = "", needed: bool = True) -> str:
        """Claim a task, run its engine, settle it; says in a few words what came of it.

        Never raises for what a child or a server does. `inline_in` is the child that waits for this one;
        not `needed` is one of several that it waits for, while another of them runs here.
        """
        came, words = await self._run(task_id, inline_in, needed=needed)
        self.counts[came] += 1
        return f"{came.value}: {words}" if words else came.value

    async def _run(self, task_id: str, inline_in: str, *, needed: bool) -> tuple[Ran, str]:
        if inline_in and needed:
            # What a waiting parent needs goes on: the parent would hold its own bytes for ever otherwise.
            return await self._claim_and_run(task_id, inline_in, contextlib.AsyncExitStack())
        async with contextlib.AsyncExitStack() as one_by_one:
            if inline_in:
                # Not behind a slot that waits for room: its parent asks again, then perhaps in need.
                await one_by_one.enter_async_context(self._claiming_inline)
                if not self._room.is_set():
                    return Ran.NOT_CLAIMED, "no room here now"
                return await self._claim_and_run(task_id, inline_in, one_by_one)
            # Many that came at once would all find the room that there is for one.
            await one_by_one.enter_async_context(self._claiming)
            await self._room.wait()
            return await self._claim_and_run(task_id, inline_in, one_by_one)

    async def _claim_and_run(
        self, task_id: str, inline_in: str, one_by_one: contextlib.AsyncExitStack
    ) -> tuple[Ran, str]:
        """`one_by_one` is left once the claim is decided and counted."""
        if self.leaving:
            self.given_back.append(task_id)
            return Ran.NOT_CLAIMED, "this worker leaves"
        asked_s, token = elapsed_s(), secrets.token_hex(16)
        worker = f"{INLINE}{inline_in}" if inline_in else self.worker
        claimed = await self._claim(task_id, token, worker)
        if isinstance(claimed, NotClaimed):
            if claimed.worker.startswith(INLINE):
                return Ran.NOT_CLAIMED, f"ran {claimed.worker}"
            return Ran.NOT_CLAIMED, " ".join(part for part in (claimed.why, claimed.status) if part)
        attempt = Attempt(
            store=self.store,
            child=first_view(claimed.record, claimed.attempt, self._model),
            root=claimed.record.task.root,
            fence=Fence(claimed.attempt, token),
            lease_until_s=asked_s + self.store.settings.lease_ms / 1000,
            routes=self._routes,
        )
        self.active[task_id] = attempt
        self._seeds_in_use.add(claimed.record)
        self._find_room()
        self._idle.clear()
        await one_by_one.aclose()
        log.info("task %s attempt %d claimed", task_id, claimed.attempt)
        try:
            return await self._execute(attempt, claimed)
        finally:
            self.active.pop(task_id, None)
            self._seeds_in_use.remove(claimed.record)
            self._find_room()
            if not self.active:
                self._idle.set()

    def _find_room(self) -> None:
        """A slot that has a message waits before its claim while the seeds under work are too large."""
        if self.leaving or self._seeds_in_use.size < self.store.settings.worker_bytes:
            self._room.set()
        else:
            self._room.clear()

    async def _claim(self, task_id: str, token: str, worker: str) -> Claimed | NotClaimed:
        for pause_s in (*CLAIM_PAUSES_S, None):
            try:
                return await self.store.claim(task_id, token, worker)
            except StoreUnavailable:
                if pause_s is None:
                    break
                await asyncio.sleep(pause_s)
        # The message was a hint: the record is due again.
        return NotClaimed("unavailable")

    async def _execute(self, attempt: Attempt, claimed: Claimed) -> tuple[Ran, str]:
        attempt.task = asyncio.create_task(self._work(attempt, claimed))
        if self.leaving:
            attempt.stop(StopReason.HAND_BACK)
        attempt.left = asyncio.get_running_loop().create_future()
        ends: set[asyncio.Future[Any]] = {attempt.task, attempt.left}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if attempt.task.done() and attempt.task.cancelled() and attempt.stop_reason is StopReason.HAND_BACK:
            return await self._hand_back(attempt)
        outcome = outcome_of(attempt)
        if outcome is None or attempt.stop_reason is StopReason.FENCED:
            log.warning("task %s attempt %d lost its lease", attempt.child.task_id, attempt.fence.attempt)
            return Ran.FENCED, ""
        if attempt.stop_reason is StopReason.STALLED and outcome.status is not Status.COMPLETED:
            came = await self._stalled(attempt)
            if isinstance(came, Ran):
                return came, ""
            outcome = replace(outcome, status=Status.FAILED, cause=Cause.STALLED, detail=came)
        await self._before_settling(attempt)
        return await self._settle(attempt, outcome)

    async def _before_settling(self, attempt: Attempt) -> None:
        if attempt.stop_reason is not StopReason.STALLED and (
            attempt.fence.attempt == 1 or attempt.stop_reason is not None
        ):
            # A first attempt disposed of its own calls, and a kill has taken all below.
            return
        try:
            await self._dispose(attempt)
        except DshTasksError as error:
            log.warning("task %s: %s", attempt.child.task_id, error)

    async def _work(self, attempt: Attempt, claimed: Claimed) -> Outcome | None:
        """The engine's outcome; None where the attempt was fenced."""
        try:
            engine = self._engines.get(claimed.record.task.engine)
            if engine is None:
                detail = f"this worker has no engine {claimed.record.task.engine!r}"
                return Outcome(Status.FAILED, Cause.ERROR, detail)
            await self._load(attempt, claimed.record)
            attempt.tools = self._tools_for(attempt)
            return await engine.run(attempt)
        except asyncio.CancelledError:
            raise
        except (Fenced, StoreUnavailable):
            # A server that is away fails no child: the lease decides.
            return None
        except DshTasksError as error:
            return Outcome(Status.FAILED, Cause.ERROR, error.message)
        except BaseException as error:  # noqa: BLE001 - a tool's sys.exit must not end the worker
            # The text of a foreign exception may hold content: its kind alone is safe to keep.
            log.warning("task %s ended by %s", attempt.child.task_id, type(error).__name__)
            return Outcome(Status.FAILED, Cause.ERROR, f"the engine raised {type(error).__name__}")

    async def _load(self, attempt: Attempt, record: Record) -> None:
        """Fetch seed and earlier rows, once per attempt."""
        seed: tuple[Event, ...] = ()
        if record.seed_digest:
            seed = await attempt.insisting(lambda: self._seeds.get(self.store, record.seed_digest))
        rows: tuple[Event, ...] = ()
        if record.log_next:
            stored = await attempt.insisting(lambda: self.store.own_rows(record.task.id))
            rows = tuple(decode_row(row) for row in stored)
        attempt.rows = list(rows)
        attempt.pulse.answers = sum(row.type == ANSWER for row in rows)
        header = replace(attempt.child.header, is_seeded=bool(seed))
        attempt.child = replace(attempt.child, seed=seed, log=rows, header=header)

    async def _hand_back(self, attempt: Attempt) -> tuple[Ran, str]:
        try:
            queued = await self.store.hand_back(attempt.child.task_id, attempt.fence)
        except StoreUnavailable:
            return Ran.FENCED, "the server did not answer; the lease decides"
        if queued:
            self.given_back.append(attempt.child.task_id)
        return Ran.HANDED_BACK, ""

    async def _stalled(self, attempt: Attempt) -> Ran | str:
        """Give the task back as a loss; the words of its end where no attempt may follow, or a kill came."""
        task_id = attempt.child.task_id
        log.warning("task %s attempt %d stalled: %s", task_id, attempt.fence.attempt, attempt.stall)
        until_s = elapsed_s() + SETTLE_FOR_S
        while True:
            try:
                answer = await self.store.stall(task_id, attempt.fence)
                break
            except StoreUnavailable:
                if elapsed_s() > until_s:
                    return Ran.FENCED
                await asyncio.sleep(SETTLE_PAUSE_S)
        match answer:
            case Requeued():
                return Ran.STALLED
            case LossesSpent(lost):
                times = "one attempt was" if lost == 1 else f"{lost} attempts were"
                return f"{attempt.stall}; {times} lost or stalled"
            case FencedOff(status) if status == Status.STOPPING:
                return attempt.stall
        return Ran.FENCED

    async def _settle(self, attempt: Attempt, outcome: Outcome) -> tuple[Ran, str]:
        rows = [encode_row(row) for row in outcome.rows]
        until_s = elapsed_s() + SETTLE_FOR_S
        while True:
            try:
                answer: Settled | FencedOff = await self.store.settle(
                    attempt.child.task_id, attempt.root, attempt.fence, outcome, len(attempt.rows), rows
                )
                break
            except StoreUnavailable:
                if elapsed_s() > until_s:
                    return Ran.FENCED, "the server did not answer; the lease decides"
                await asyncio.sleep(SETTLE_PAUSE_S)
        if isinstance(answer, FencedOff):
            log.warning("task %s: settlement refused, it is %s", attempt.child.task_id, answer.status)
            return Ran.FENCED, answer.status
        log.info("task %s attempt %d %s", attempt.child.task_id, attempt.fence.attempt, answer.status)
        return Ran.ENDED, answer.status.value

    @contextlib.contextmanager
    def waits(self, attempt: Attempt) -> Iterator[None]:
        """While this attempt waits for a descendant."""
        attempt.waits += 1
        self.waiting += attempt.waits == 1
        try:
            yield
        finally:
            attempt.waits -= 1
            self.waiting -= attempt.waits == 0

    def use_tools(self, tools_for: ToolsFor, dispose: Dispose) -> None:
        """Where each attempt's tools come from, and what ends what they left; the app hands it in."""
        self._tools_for = tools_for
        self._dispose = dispose

    # -- from outside the attempts --------------------------------------------------------------

    def stop(self, task_id: str) -> None:
        """A kill was accepted for this task; nothing where it does not run here."""
        attempt = self.active.get(task_id)
        if attempt is not None:
            attempt.stop(StopReason.KILL)

    def leave(self) -> None:
        """The worker ends: hand every attempt back, with or without a slot."""
        self.leaving = True
        self._find_room()
        for attempt in tuple(self.active.values()):
            attempt.stop(StopReason.HAND_BACK)

    async def idle(self) -> None:
        """Return when no attempt runs any more."""
        await self._idle.wait()

    def start_inline(self, task_id: str, *, waiting: str, needed: bool = True) -> asyncio.Task[str] | None:
        """Run a queued descendant on this loop without a slot; None where the bound is reached.

        Who only waits does not count: each waiting parent makes room for the child that it waits for, so
        nested waits always go on, however many there are.
        """
        settings = self.store.settings
        # Many that start in one step are not active yet.
        arriving = sum(1 for one in self._inline.values() if one not in self.active)
        busy = len(self.active) + arriving - self.waiting
        if self.leaving or busy >= settings.concurrency + settings.inline_children:
            return None
        task = asyncio.create_task(self.run(task_id, inline_in=waiting, needed=needed))
        self._inline[task] = task_id
        task.add_done_callback(self._inline.pop)
        return task


class SeedsInUse:
    """Raw bytes of the seeds of running attempts; children of one seed share it."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self.size = 0

    def add(self, record: Record) -> None:
        """An attempt begins."""
        self._users[record.seed_digest] += 1
        if self._users[record.seed_digest] == 1:
            self.size += record.task.seed_bytes

    def remove(self, record: Record) -> None:
        """It has ended."""
        self._users[record.seed_digest] -= 1
        if not self._users[record.seed_digest]:
            del self._users[record.seed_digest]
            self.size -= record.task.seed_bytes


def first_view(record: Record, attempt: int, model: str | None) -> Child:
    """The child as the record tells it, before its seed and earlier rows are there."""
    task = record.task
    return Child(
        task_id=task.id,
        session_id=task.id,
        attempt=attempt,
        depth=task.depth,
        label=task.label,
        provider=task.provider,
        prompt=record.prompt,
        header=record.child_header(seeded=False),
        seed=(),
        log=(),
        policy=Policy.from_json(record.policy),
        model=model,
    )


def outcome_of(attempt: Attempt) -> Outcome | None:
    """What the engine made, or what is recorded in its place."""
    assert attempt.task is not None
    if not attempt.task.done():
        log.error("task %s attempt %d does not end, is left", attempt.child.task_id, attempt.fence.attempt)
        return unmade_outcome(attempt)
    return unmade_outcome(attempt) if attempt.task.cancelled() else attempt.task.result()


def unmade_outcome(attempt: Attempt) -> Outcome | None:
    """What is recorded for an engine that was cancelled and made no outcome itself."""
    if attempt.stop_reason is StopReason.KILL:
        return Outcome(Status.KILLED, Cause.OWNER)
    if attempt.stop_reason is StopReason.STALLED:
        said = own_text(row.row() for row in attempt.rows)
        return Outcome(Status.FAILED, Cause.STALLED, output=said)
    if attempt.stop_reason is None:
        return Outcome(Status.FAILED, Cause.ERROR, "the engine cancelled itself")
    return None
