"""A client that remembers what it was asked and answers what the test scripted. No server, no clock."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from dsh_tasks.errors import OptionRefused, Promoted, TaskNotFound
from dsh_tasks.provider import Registry
from dsh_tasks.settings import Settings
from dsh_tasks.task import Cause, Status, Task, Usage, cut_text

RUN_ID = "subagent-" + "0" * 32
OTHER_ID = "subagent-" + "1" * 32


def a_task(**changes: Any) -> Task:
    """A completed task of owner `s`, 5 s old; `changes` say what matters."""
    task = Task(
        id=RUN_ID,
        owner="s",
        root="s",
        parent=None,
        depth=1,
        label="count files",
        provider="spawn",
        engine="agent",
        status=Status.COMPLETED,
        attempt=1,
        cause=None,
        detail="",
        created_ms=0,
        started_ms=1_000,
        ended_ms=None,
        lease_until_ms=None,
        last_activity_ms=0,
        losses=0,
        worker=None,
        activity="",
        seed_turns=0,
        seed_events=0,
        seed_bytes=0,
        output_bytes=0,
        partial=False,
        has_output=False,
        usage=Usage(),
        now_ms=5_000,
    )
    return replace(task, **changes)


@dataclass(frozen=True)
class FakeOutput:
    task: Task
    text: str = ""
    offset: int = 0
    total_bytes: int = 0
    next_offset: int | None = None
    timed_out: bool = False
    waited_ms: int = 0
    wait_capped: bool = False
    structured: Any = None
    has_structured: bool = False
    fenced: bool = False

    @property
    def structured_json(self) -> str:
        return json.dumps(self.structured, ensure_ascii=False) if self.has_structured else ""


@dataclass(frozen=True)
class FakeReceipt:
    task_id: str
    accepted: bool
    status: Status
    took: tuple[tuple[str, Status], ...] = ()


def an_output(
    text: str = "",
    *,
    structured: Any = None,
    has_structured: bool = False,
    fenced: bool = False,
    **task: Any,
) -> FakeOutput:
    """The whole output of a task; a text of a task that did not complete is partial."""
    total = len(text.encode())
    status = task.get("status", Status.COMPLETED)
    made = a_task(
        output_bytes=total,
        has_output=bool(text),
        partial=bool(text) and status in (Status.FAILED, Status.KILLED),
        **task,
    )
    return FakeOutput(
        made, text, total_bytes=total, structured=structured, has_structured=has_structured, fenced=fenced
    )


def failed(cause: Cause, detail: str = "", text: str = "") -> FakeOutput:
    return an_output(text, status=Status.FAILED, cause=cause, detail=detail)


def killed(cause: Cause, detail: str = "", text: str = "") -> FakeOutput:
    return an_output(text, status=Status.KILLED, cause=cause, detail=detail)


@dataclass
class FakeRun:
    id: str
    ends: asyncio.Event | None = None
    """Set by the test where the run is to go on until then."""
    output: FakeOutput | Exception = field(default_factory=lambda: an_output("42"))
    disposal: Exception | None = None
    disposed: int = 0
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    disposing: asyncio.Event = field(default_factory=asyncio.Event)
    may_dispose: asyncio.Event | None = None

    promotes: bool = True
    promote_after_ms: int | None = None

    async def result(self, *, promote_after_ms: int | None = None) -> FakeOutput:
        self.promote_after_ms = promote_after_ms
        self.waiting.set()
        if self.ends is not None:
            await self.ends.wait()
        if isinstance(self.output, Exception):
            raise self.output
        return self.output

    async def promote(self) -> Any:
        if self.promotes:
            self.output = Promoted(self.id)
            if self.ends is not None:
                self.ends.set()
        return SimpleNamespace(accepted=self.promotes, status=Status.RUNNING)

    async def dispose(self) -> bool:
        self.disposing.set()
        if self.may_dispose is not None:
            await self.may_dispose.wait()
        self.disposed += 1
        if self.disposal is not None:
            raise self.disposal
        return not isinstance(self.output, Promoted)


class FakeClient:
    """Scripted: set `run`, `outputs`, `tasks`, `receipt`, or `raises` before a call."""

    def __init__(
        self,
        *,
        owner: str | None = "s",
        registry: Registry | None = None,
        settings: Settings | None = None,
        run: FakeRun | None = None,
        outputs: dict[str, FakeOutput] | None = None,
        tasks: list[Task] | None = None,
        receipt: FakeReceipt | None = None,
        raises: Exception | None = None,
        asked: list[tuple[str, dict[str, Any]]] | None = None,
    ) -> None:
        self.owner = owner
        self.registry = registry if registry is not None else Registry()
        self.settings = settings or Settings(redis_url=None)
        self.run = run or FakeRun(RUN_ID)
        self.outputs = outputs or {}
        self.tasks = tasks or []
        self.receipt = receipt
        self.raises = raises
        self.asked = asked if asked is not None else []

    def for_owner(self, owner: str) -> FakeClient:
        return FakeClient(
            owner=owner,
            registry=self.registry,
            settings=self.settings,
            run=self.run,
            outputs=self.outputs,
            tasks=self.tasks,
            receipt=self.receipt,
            raises=self.raises,
            asked=self.asked,
        )

    def _note(self, verb: str, **given: Any) -> None:
        self.asked.append((verb, {"owner": self.owner, **given}))
        if self.raises is not None:
            raise self.raises

    async def start(self, provider: str, **given: Any) -> FakeRun:
        self._note("start", provider=provider, **given)
        self.registry.get(provider)
        return self.run

    async def output(
        self,
        task_id: str,
        *,
        wait: bool = False,
        timeout_ms: int | None = None,
        offset: int = 0,
        limit_bytes: int | None = None,
    ) -> FakeOutput:
        """Pages the scripted whole as the real client does."""
        self._note("output", task_id=task_id, wait=wait, timeout_ms=timeout_ms, offset=offset)
        whole = self.outputs.get(task_id)
        if whole is None:
            raise TaskNotFound(task_id)
        limit = limit_bytes if limit_bytes is not None else self.settings.output_read_bytes
        text = cut_text(whole.text.encode()[offset:].decode("utf-8", "ignore"), limit)
        end = offset + len(text.encode())
        return replace(
            whole,
            text=text,
            offset=offset,
            next_offset=end if end < whole.total_bytes else None,
            timed_out=wait and not whole.task.is_terminal,
            waited_ms=timeout_ms or 0,
            wait_capped=wait and (timeout_ms or 0) > self.settings.wait_cap_ms,
        )

    async def list_tasks(self) -> list[Task]:
        self._note("list")
        if self.owner is None:
            raise OptionRefused("owner", "name a session, or ask for all owners")
        return self.tasks

    async def kill(self, task_id: str, *, reason: str | None = None) -> FakeReceipt:
        self._note("kill", task_id=task_id, reason=reason)
        if self.receipt is None:
            raise TaskNotFound(task_id)
        return self.receipt
