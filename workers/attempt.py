"""Attempt: one claimed execution of a task while it runs; what an engine sees as its Run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, TypeVar

from dsh_tasks.dollars import NANO_PER_MICRO, words_of
from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.session import Event, Session
from dsh_tasks.store import BudgetSpent, Fence, FencedOff, Store
from dsh_tasks.task import Outcome, Status
from workers.clock import elapsed_s
from workers.engines.base import BudgetExceeded, Child, ChildTool, Fenced, Household, Permit, StopReason
from workers.engines.transcript import ATTEMPT_BORDER
from workers.pulse import Pulse
from workers.routes import Routes

PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Before a silent server is asked again; the last for ever."""
SILENT_FOR_S = 300.0
"""How long a silent server is asked again before the lease decides; a settlement waits as long."""
LEASE_LOOK_S = 0.05
T = TypeVar("T")

RANK = {
    None: 0,
    StopReason.HAND_BACK: 1,
    StopReason.STALLED: 2,
    StopReason.KILL: 3,
    StopReason.FENCED: 4,
}
LEFT_AFTER_S = 10.0
"""An engine that has not ended so long after it stalled, or was fenced, is left behind."""
ACTIVITY_LENGTH = 80
ANSWER = "assistant/message"


@dataclass(slots=True)
class Attempt:
    """Mutable on purpose: it is the one place where a running attempt's state lives."""

    store: Store
    child: Child
    root: str
    fence: Fence
    lease_until_s: float
    """By the local clock (workers.clock)."""
    routes: Routes | None = None
    """Those of this process; None only where no model is asked."""
    rows: list[Event] = field(default_factory=list)
    """The child's own rows so far, those of earlier attempts included."""
    tools: Sequence[ChildTool] = ()
    household: Household | None = None
    stop_reason: StopReason | None = None
    doing: str = "starting"
    pulse: Pulse = field(default_factory=Pulse)
    model_calls: int = 0
    """Calls that reserved tokens."""
    waits: int = 0
    """Waits for descendants under way: while there is one, this attempt does nothing itself."""
    stall: str = ""
    """What was silent and for how long, in words."""
    task: asyncio.Task[Outcome | None] | None = None
    left: asyncio.Future[None] | None = None
    """Done when the engine ignores its end: whoever waits for it goes on without it."""

    def now_ms(self) -> int:
        """Epoch ms of this host."""
        return time.time_ns() // 1_000_000

    async def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows durably. Through an outage it waits, and for the heartbeat that follows it.

        Raises Fenced, and CancelledError where a kill was accepted meanwhile.
        """
        if not rows:
            return
        if self.stop_reason is StopReason.FENCED:
            raise Fenced
        encoded = [encode_row(row) for row in rows]
        types = [row["type"] for row in rows]
        # The rows that close what a lost attempt left open are no progress: losses stay counted.
        ended_steps = 0 if ATTEMPT_BORDER in types else types.count("step/end")
        answer = await self._append(encoded, ended_steps)
        if isinstance(answer, FencedOff):
            self._refused(answer)
        self.rows += [Event.from_row(dict(row)) for row in rows]
        self.pulse.answers += types.count(ANSWER)
        self.pulse.moves()
        await self._leased_again()

    async def _leased_again(self) -> None:
        """What follows a write is a model or tool call: past the lease it waits for an accepted heartbeat."""
        until_s = elapsed_s() + SILENT_FOR_S
        while elapsed_s() > self.lease_until_s and self.stop_reason is not StopReason.FENCED:
            if elapsed_s() > until_s:
                raise Fenced
            await asyncio.sleep(LEASE_LOOK_S)

    def _refused(self, answer: FencedOff) -> None:
        if answer.status == Status.STOPPING and self.stop_reason is not StopReason.FENCED:
            # A kill was accepted and its word is on the way: the engine ends as if it had come.
            self.stop_reason = StopReason.KILL
            raise asyncio.CancelledError
        self.stop_reason = StopReason.FENCED
        raise Fenced

    async def _append(self, encoded: Sequence[bytes], ended_steps: int) -> int | FencedOff:
        return await self.insisting(
            lambda: self.store.append(
                self.child.task_id,
                self.fence,
                len(self.rows),
                encoded,
                ended_steps=ended_steps,
                activity=self.doing,
            )
        )

    async def insisting(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask a silent server again, beyond the lease too: a script repeats its answer or says who has it.

        No reaper takes the task before heartbeats could come again. Raises Fenced where the server stays
        away: the record says who goes on, and an outage fails no child.
        """
        pauses_s, until_s = chain(PAUSES_S, repeat(PAUSES_S[-1])), elapsed_s() + SILENT_FOR_S
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if self.stop_reason is StopReason.FENCED or elapsed_s() > until_s:
                    raise Fenced from None
                await asyncio.sleep(next(pauses_s))

    @property
    def has_budget(self) -> bool:
        """See Run."""
        return self.store.settings.tree_token_budget > 0 or self.has_cost_budget

    @property
    def has_cost_budget(self) -> bool:
        """See Run."""
        return self.store.settings.tree_cost_budget > 0 or self._cost_budget > 0

    @property
    def _cost_budget(self) -> int:
        return self.child.policy.cost_budget_microusd or 0

    @property
    def output_reserve(self) -> int:
        """See Run."""
        return self.store.settings.reserved_output_tokens

    async def reserve(self, tokens: int, cost_nanousd: int) -> None:
        """Reserve tokens of the tree for the next model call; see Run."""
        if not self.has_budget:
            return
        self.model_calls += 1
        answer = await self.insisting(
            lambda: self.store.reserve(
                self.child.task_id,
                self.root,
                self.fence,
                call=self.model_calls,
                tokens=tokens,
                cost_nanousd=cost_nanousd,
                cost_budget_microusd=self._cost_budget,
            )
        )
        if isinstance(answer, BudgetSpent):
            raise BudgetExceeded(self._spent(answer, tokens))
        if isinstance(answer, FencedOff):
            self._refused(answer)

    def _spent(self, answer: BudgetSpent, asked: int) -> str:
        settings, spent = self.store.settings, answer.committed
        if answer.limit == "tree_token_budget":
            return (
                f"{spent} of {settings.tree_token_budget} tokens are spent or reserved, "
                f"{asked} more were asked for"
            )
        own = answer.limit == "cost_budget"
        cap = self._cost_budget if own else settings.tree_cost_budget_microusd
        of = f"{words_of(spent)} of {words_of(cap * NANO_PER_MICRO)} US dollars are spent"
        return f"{answer.limit}: {of}{'' if own else ' in the tree'}; no further model call was made"

    async def correct(self, tokens: int, cost_nanousd: int) -> None:
        """Put what the call took in place of what was reserved; see Run."""
        if not self.has_budget:
            return
        answer = await self.insisting(
            lambda: self.store.correct(
                self.child.task_id,
                self.root,
                self.fence,
                call=self.model_calls,
                used=tokens,
                cost_nanousd=cost_nanousd,
            )
        )
        if isinstance(answer, FencedOff):
            self._refused(answer)

    @asynccontextmanager
    async def permit(self, route: str) -> AsyncIterator[Permit]:
        """See Run."""
        assert self.routes is not None
        async with self.routes.permit(route, self.insisting) as permit:
            yield permit

    def activity(self, words: str) -> None:
        """What the child does now; lists show it from the next heartbeat or row on."""
        self.doing = words[:ACTIVITY_LENGTH]
        self.pulse.begins()

    def streamed(self, size: int) -> None:
        """An answer has grown; see Run."""
        self.pulse.streams(size)

    def check_lease(self) -> None:
        """Raises Fenced past the lease by the local clock: a paused process must not go on."""
        if self.stop_reason is StopReason.FENCED or elapsed_s() > self.lease_until_s:
            raise Fenced

    def stop(self, reason: StopReason) -> None:
        """Cancel the engine; a weaker reason after a stronger one changes nothing."""
        if RANK[reason] <= RANK[self.stop_reason]:
            return
        self.stop_reason = reason
        if self.task is not None:
            self.task.cancel()
            if reason in (StopReason.STALLED, StopReason.FENCED):
                self.task.get_loop().call_later(LEFT_AFTER_S, self._leave)

    def stalled(self, words: str) -> None:
        """Nothing moves: stop, and say what it was."""
        self.stall = self.stall or words
        self.stop(StopReason.STALLED)

    def _leave(self) -> None:
        if self.left is not None and not self.left.done():
            self.left.set_result(None)

    @property
    def session(self) -> Session:
        """The child's session as of now: what its own children are seeded from."""
        return Session(self.child.header, (*self.child.seed, *self.rows))


def encode_row(row: Mapping[str, Any]) -> bytes:
    """A row as the log holds it: JSON in UTF-8; lone surrogates of a model become question marks."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def decode_row(row: bytes) -> Event:
    """What `encode_row` wrote."""
    return Event.from_row(json.loads(row))
