"""A Run without worker and server: keeps the rows that an engine writes, and can kill it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dsh_tasks import format as log_format
from dsh_tasks import lifecycle
from dsh_tasks.session import Event, Header, Session
from dsh_tasks.submission import Policy
from dsh_tasks.notice import Notice
from dsh_tasks.task import Outcome, Status
from workers.engines.base import Child, ChildTool, Engine, Fenced, StopReason, ToolAnswer

PARENT = "parent-1"
CHILD = "subagent-" + "0" * 32


def a_child(
    prompt: str | Sequence[Mapping[str, Any]] = "hello",
    *,
    seed: Iterable[Event] = (),
    log: Iterable[Event] = (),
    attempt: int = 1,
    model: str | None = "offline",
    **policy: Any,
) -> Child:
    """A child as a runner hands it in."""
    seed = tuple(seed)
    blocks = ({"type": "text", "text": prompt},) if isinstance(prompt, str) else tuple(prompt)
    return Child(
        task_id=CHILD,
        session_id=CHILD,
        attempt=attempt,
        depth=1,
        label="a label",
        provider="fork" if seed else "spawn",
        prompt=blocks,
        header=Header(4, CHILD, 1_000, "/srv/project", PARENT, bool(seed), "subagent", None, 1),
        seed=seed,
        log=tuple(log),
        policy=Policy(**policy),
        model=model,
    )


@dataclass
class FakePermit:
    """What a call told about its route."""

    route: str
    told: list[Any] = field(default_factory=list)
    is_held: bool = True

    async def accepted(self) -> None:
        self.told.append("accepted")

    async def cools(self, pause_ms: int) -> None:
        self.told.append(pause_ms)


@dataclass
class FakeHousehold:
    """Children that end when they are waited for, each with a notice."""

    alive: list[str] = field(default_factory=list)
    pending: list[Notice] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    ends: asyncio.Event | None = None
    """Where there is one, a wait lasts until it is set."""

    has_any = True

    async def notices(self) -> Sequence[Notice]:
        return tuple(self.pending)

    async def acknowledge(self, task_ids: Sequence[str]) -> None:
        self.told += task_ids
        self.pending = [notice for notice in self.pending if notice.task_id not in task_ids]

    async def living(self) -> Sequence[str]:
        return tuple(self.alive)

    async def ended(self, task_ids: Sequence[str]) -> None:
        if self.ends is not None:
            await self.ends.wait()
        for one in task_ids:
            self.end(one)

    def end(self, task_id: str) -> None:
        self.alive.remove(task_id)
        self.pending.append(Notice(f"n-{task_id}", task_id, "count", Status.COMPLETED, None, 1))

    async def kill(self, task_ids: Sequence[str]) -> None:
        self.killed += task_ids
        self.alive = [one for one in self.alive if one not in task_ids]


@dataclass
class FakeRun:
    """Every append goes through JSON and is checked to be contiguous."""

    child: Child
    tools: Sequence[ChildTool] = ()
    stop_reason: StopReason | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    appends: list[list[str]] = field(default_factory=list)
    activities: list[str] = field(default_factory=list)
    permits: list[FakePermit] = field(default_factory=list)
    characters: int = 0
    lease_is_past: bool = False
    refuses: bool = False
    on_append: Callable[[list[str]], None] = lambda kinds: None
    on_activity: Callable[[str], None] = lambda words: None
    task: asyncio.Task[Outcome] | None = None

    def now_ms(self) -> int:
        return 1_700_000_000_000

    async def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        await asyncio.sleep(0)
        if self.refuses:
            raise Fenced
        self._keep(rows)
        kinds = [row["type"] for row in rows]
        self.appends.append(kinds)
        self.on_append(kinds)
        for _ in range(5):
            # The reply is on its way: what is written is stored, and its writer does not know yet.
            await asyncio.sleep(0)

    def _keep(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            assert row["seq"] == len(self.child.seed) + len(self.child.log) + len(self.rows)
            self.rows.append(json.loads(json.dumps(row)))

    def activity(self, words: str) -> None:
        self.activities.append(words)
        self.on_activity(words)

    def streamed(self, size: int) -> None:
        self.characters += size

    household: FakeHousehold | None = None
    has_budget = False
    has_cost_budget = False
    output_reserve = 0

    async def reserve(self, tokens: int, cost_nanousd: int) -> None:
        """A run without a budget."""

    async def correct(self, tokens: int, cost_nanousd: int) -> None:
        """Likewise."""

    @asynccontextmanager
    async def permit(self, route: str) -> AsyncIterator[FakePermit]:
        permit = FakePermit(route)
        self.permits.append(permit)
        try:
            yield permit
        finally:
            permit.is_held = False

    def check_lease(self) -> None:
        if self.lease_is_past:
            raise Fenced

    def stop(self, reason: StopReason) -> None:
        """What a runner does."""
        self.stop_reason = reason
        assert self.task is not None
        self.task.cancel()

    @property
    def session(self) -> Session:
        """The child's log, as the strict reader takes it."""
        own = [Event.from_row(row) for row in self.rows]
        return Session(self.child.header, (*self.child.seed, *self.child.log, *own))

    @property
    def own(self) -> list[Event]:
        return [*self.child.log, *map(Event.from_row, self.rows)]

    def kinds(self) -> list[str]:
        return [row["type"] for row in self.rows]

    def row(self, kind: str, place: int = -1) -> dict[str, Any]:
        return [row for row in self.rows if row["type"] == kind][place]["data"]


def run_child(
    engine: Engine, child: Child, tools: Sequence[ChildTool] = (), **given: Any
) -> tuple[Outcome, FakeRun]:
    """Run a child to its end; its whole log is checked as the harness would."""
    run = FakeRun(child, tools, **given)
    return asyncio.run(play(engine, run)), run


async def play(engine: Engine, run: FakeRun) -> Outcome:
    """Run to the end, settle, and check the log."""
    run.task = asyncio.ensure_future(engine.run(run))
    outcome = await run.task
    run._keep(outcome.rows)
    check_log(run.session)
    return outcome


def check_log(session: Session) -> None:
    """The strict reader takes the log, and the harness' rules of what follows what hold."""
    assert log_format.parse(log_format.write(session)) == session
    lifecycle.check(session.events, strict=True)


def a_tool(
    name: str = "echo",
    call: Callable[[Mapping[str, Any]], Any] = lambda arguments: arguments.get("text", ""),
    **given: Any,
) -> ChildTool:
    """A tool of the place; `call` may be a coroutine function and may return a ToolAnswer."""

    async def called(arguments: Mapping[str, Any], _call_id: str) -> ToolAnswer:
        value = call(arguments)
        if isinstance(value, Coroutine):
            value = await value
        return value if isinstance(value, ToolAnswer) else ToolAnswer(str(value))

    return ChildTool(name, f"The tool {name}.", {"type": "object", "properties": {}}, called, **given)


def without_settlement(run: FakeRun, outcome: Outcome) -> tuple[Event, ...]:
    """The rows that stand after a crash just before the settlement."""
    return tuple(run.own[: len(run.own) - len(outcome.rows)])


def next_attempt(child: Child, log: Iterable[Event]) -> Child:
    return replace(child, log=tuple(log), attempt=child.attempt + 1)
