"""Routes: the model calls of this worker process wait here for what all workers share.

A route that a provider told to pause rests for everybody; then one call goes ahead, and only when it was
accepted do the others follow, each after a moment of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.store import Granted, Permits, Waits
from workers.clock import elapsed_s
from workers.engines.base import RouteBusy

LOOK_S = 0.25
"""Pause between two looks for a place or for the end of a probe, which another worker may free."""
LONGEST_LOOK_S = 10.0
SPREAD_S = 1.0
"""Over so long the calls are spread that a cool-down held back."""
WORDS = {
    "cools": "the provider wants a pause",
    "probed": "the first call after a pause has no answer yet",
    "full": "as many calls as the bound allows go on",
}


class Insisting(Protocol):
    """Repeats a call while the server is away (Attempt.insisting)."""

    async def __call__(self, call: Callable[[], Awaitable[Granted | Waits]]) -> Granted | Waits: ...


@dataclass(slots=True)
class Line:
    """Calls of this process that wait for one route. The first asks the server, the others stand behind."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Something here may have made room."""
    cooled_until_s: float = 0.0
    """By elapsed_s: who is let in before then is spread."""


class HeldPermit:
    """See Permit. A server that is away only loses hints: leases end what it was not told."""

    def __init__(self, permits: Permits, line: Line, route: str) -> None:
        self._permits = permits
        self._line = line
        self.route = route
        self.token = secrets.token_hex(16)
        self.is_probe = False
        self.owes = False
        """The server may hold a place for it."""

    async def ask(self) -> Granted | Waits:
        """Ask the server; a reply that is lost may have been a permit."""
        self.owes = True
        return await self._permits.ask(self.route, self.token)

    async def accepted(self) -> None:
        """See Permit."""
        if not self.is_probe:
            return
        with contextlib.suppress(StoreUnavailable):
            await self._permits.accepted(self.route, self.token)
        self.is_probe = False
        self._line.freed.set()

    async def cools(self, pause_ms: int) -> None:
        """See Permit."""
        with contextlib.suppress(StoreUnavailable):
            pause_ms = await self._permits.cools(self.route, self.token, pause_ms)
            self.owes = False
        self._line.cooled_until_s = elapsed_s() + pause_ms / 1000 + SPREAD_S
        self._line.freed.set()

    async def give_back(self) -> None:
        """Make room."""
        with contextlib.suppress(StoreUnavailable):
            await self._permits.end(self.route, self.token)
        self._line.freed.set()


class Routes:
    """All permits of one process; belongs to one event loop."""

    def __init__(self, permits: Permits, *, lease_ms: int, wait_ms: int) -> None:
        self._permits = permits
        self._lease_s = lease_ms / 1000
        self._wait_ms = wait_ms
        self._lines: dict[str, Line] = {}
        self._held: dict[str, set[str]] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def permit(self, route: str, insisting: Insisting) -> AsyncIterator[HeldPermit]:
        """See Run.permit."""
        line = self._lines.setdefault(route, Line())
        held = HeldPermit(self._permits, line, route)
        try:
            granted = await self._granted(held, line, insisting)
            held.is_probe, held.owes = granted.is_probe, granted.is_leased
            if held.owes:
                self._keep(held)
            if not granted.is_probe and elapsed_s() < line.cooled_until_s:
                await asyncio.sleep(random.uniform(0, SPREAD_S))  # noqa: S311 - no secret
            yield held
        finally:
            await self._end(held)

    async def _granted(self, held: HeldPermit, line: Line, insisting: Insisting) -> Granted:
        if not line.turn.locked():
            answer = await insisting(held.ask)
            if isinstance(answer, Granted):
                return answer
        why = "others wait before it"
        try:
            async with asyncio.timeout(self._wait_ms / 1000) as bound, line.turn:
                while True:
                    line.freed.clear()
                    answer = await insisting(held.ask)
                    if isinstance(answer, Granted):
                        return answer
                    why = WORDS[answer.why]
                    await self._look_again(answer, line)
        except TimeoutError:
            if not bound.expired():
                raise
            raise RouteBusy(waited_ms=self._wait_ms, why=why) from None

    async def _look_again(self, answer: Waits, line: Line) -> None:
        """Wait before the server is asked again."""
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        pause_s = LOOK_S * jitter
        if answer.why == "cools":
            pause_s = min(answer.for_ms / 1000 + pause_s, LONGEST_LOOK_S)
        if answer.why != "full":
            line.cooled_until_s = elapsed_s() + pause_s + SPREAD_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await line.freed.wait()

    # -- what is held -----------------------------------------------------------------------------

    def _keep(self, held: HeldPermit) -> None:
        self._held.setdefault(held.route, set()).add(held.token)
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_all())

    async def _keep_all(self) -> None:
        while self._held:
            await asyncio.sleep(self._lease_s / 3)
            for route, tokens in tuple(self._held.items()):
                with contextlib.suppress(StoreUnavailable):
                    await self._permits.keep(route, tuple(tokens))

    async def _end(self, held: HeldPermit) -> None:
        tokens = self._held.get(held.route, set())
        tokens.discard(held.token)
        if not tokens:
            self._held.pop(held.route, None)
        if not self._held and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        if held.owes:
            # Also where its call is cancelled: a stopped child frees its place now, not with its lease.
            ending = asyncio.create_task(held.give_back())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            await asyncio.shield(ending)
