"""Tool: what a model can call, its result in two forms, and what a call knows of its caller.

A tool never raises to a model: a refusal of ours becomes an errored result in plain words. What the
tools need of a client is a Protocol here, so that a worker can hand in a client that waits otherwise.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from dsh_tasks.dollars import Dollars
from dsh_tasks.errors import DshTasksError, OptionRefused, StoreUnavailable
from dsh_tasks.provider import Registry
from dsh_tasks.session import Session
from dsh_tasks.settings import Settings
from dsh_tasks.submission import AgentOptions, MaxDepth, ToolFilter
from dsh_tasks.task import Status, Task

T = TypeVar("T")


class Output(Protocol):
    """What a read or a wait saw; `client.Output` has this shape."""

    @property
    def task(self) -> Task: ...
    @property
    def text(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def next_offset(self) -> int | None: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def waited_ms(self) -> int: ...
    @property
    def wait_capped(self) -> bool: ...
    @property
    def structured(self) -> Any: ...
    @property
    def has_structured(self) -> bool: ...
    @property
    def structured_json(self) -> str: ...
    @property
    def fenced(self) -> bool: ...


class KillReceipt(Protocol):
    """What a kill took; `store.KillReceipt` has this shape."""

    @property
    def task_id(self) -> str: ...
    @property
    def accepted(self) -> bool: ...
    @property
    def status(self) -> Status: ...
    @property
    def took(self) -> tuple[tuple[str, Status], ...]: ...


class Promotion(Protocol):
    """What came of a promotion; `store.Promotion` has this shape."""

    @property
    def accepted(self) -> bool: ...
    @property
    def status(self) -> Status: ...


class Run(Protocol):
    """A started child; `client.AsyncRun` has this shape."""

    @property
    def id(self) -> str: ...
    async def result(self, *, promote_after_ms: int | None = None) -> Output: ...
    async def promote(self) -> Promotion: ...
    async def dispose(self) -> bool: ...


class TaskClient(Protocol):
    """What the tools need of a client; `client.AsyncClient` has this shape."""

    @property
    def owner(self) -> str | None: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def settings(self) -> Settings: ...

    def for_owner(self, owner: str) -> TaskClient: ...

    async def start(
        self,
        provider: str,
        *,
        prompt: str,
        parent: Session | None = None,
        label: str = "",
        agent_options: AgentOptions | None = None,
        tool_filter: ToolFilter | None = None,
        persona: str | None = None,
        output_schema: dict[str, Any] | None = None,
        max_depth: MaxDepth = 3,
        key: str | None = None,
        mode: Literal["foreground", "background"] = "background",
        instance: str | None = None,
        deadline_ms: int | None = None,
        fenced_output: bool = False,
        working_folder: str | None = None,
        cost_budget: Dollars | None = None,
    ) -> Run: ...

    async def output(
        self,
        task_id: str,
        *,
        wait: bool = False,
        timeout_ms: int | None = None,
        offset: int = 0,
        limit_bytes: int | None = None,
    ) -> Output: ...

    async def list_tasks(self) -> Sequence[Task]: ...

    async def kill(self, task_id: str, *, reason: str | None = None) -> KillReceipt: ...


@dataclass(frozen=True, slots=True)
class Call:
    """What one call knows of its caller. Everything is optional for a loop that keeps no log."""

    session: Session | None = None
    """The caller's log as it is now; a fork takes its completed turns."""
    assistant_seq: int | None = None
    """`seq` of the assistant message that holds the call."""
    call_id: str | None = None
    """Id of the call in that message."""
    key: str | None = None
    """Key of the caller's own, where call ids may repeat; it goes before the other two."""
    abort: asyncio.Event | None = None
    """Set by a loop that wants an errored result back; cancelling the coroutine raises instead."""

    @property
    def repeat_key(self) -> str | None:
        """What makes a repeated call the same call, within its owner; None: each call is a new one."""
        if self.key is not None:
            return self.key
        if self.assistant_seq is None or self.call_id is None:
            return None
        return f"call:{self.assistant_seq}:{self.call_id}"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to: the canonical JSON value, and the text that the model reads."""

    value: Any
    text: str
    is_error: bool = False
    seen: tuple[str, ...] = ()
    """Tasks whose ending this tells: a caller that keeps it acknowledges their notices."""


class Aborted(Exception):
    """The caller's abort came before the end: a state of the caller, not a fault."""


class Tool(ABC):
    """One tool of one caller. `name`, `description` and `parameters` are what the model is shown."""

    def __init__(self, client: TaskClient) -> None:
        self._client = client

    @property
    @abstractmethod
    def name(self) -> str:
        """Name that the model sees."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Description that the model sees."""

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments; a fresh value, its keys always in the same order."""

    @property
    def is_available(self) -> bool:
        """Whether a loop may show the tool now."""
        return True

    @property
    def exclusive(self) -> bool:
        """A loop that runs calls beside each other must run this one alone."""
        return False

    @property
    def idempotent(self) -> bool:
        """A call that is asked again under its key gives the same answer and changes nothing more."""
        return True

    async def call(self, arguments: Mapping[str, Any], call: Call | None = None) -> ToolResult:
        """Run one call. `arguments` are decoded JSON, unchecked. Raises only CancelledError and bugs."""
        try:
            return await self._run(arguments, call if call is not None else Call())
        except DshTasksError as error:
            return refused(error)

    @abstractmethod
    async def _run(self, arguments: Mapping[str, Any], call: Call) -> ToolResult: ...

    def schema(self) -> dict[str, Any]:
        """Name, description and parameters in one value."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def schema_bytes(self) -> bytes:
        """The schema as bytes that are equal in every process, for a model's prefix cache."""
        return json.dumps(self.schema(), ensure_ascii=False, separators=(",", ":")).encode()


def caller_of(client: TaskClient, call: Call) -> TaskClient:
    """The client as the calling session. A model never acts as the operator.

    Raises OptionRefused where neither the client nor the call names a session.
    """
    if client.owner is not None:
        return client
    if call.session is None:
        raise OptionRefused("owner", "bind the client to a session, or give the caller's log with the call")
    return client.for_owner(call.session.header.id)


def errored(message: str, **facts: Any) -> ToolResult:
    """An errored result: `Error: <message>`, and the facts as its value."""
    return ToolResult({"kind": "error", "message": message, **facts}, f"Error: {message}", is_error=True)


def refused(error: DshTasksError) -> ToolResult:
    """A typed error of ours as an errored result."""
    result = errored(error.message, code=error.code, facts=error.facts)
    if isinstance(error, StoreUnavailable):
        return ToolResult(result.value, f"{result.text}\n{status_line('unavailable')}", is_error=True)
    return result


def status_line(status: str, detail: str = "") -> str:
    """`[status: <status>]` or `[status: <status>, <detail>]`, always one line."""
    words = " ".join(detail.split())
    return f"[status: {status}, {words}]" if words else f"[status: {status}]"


async def until_aborted(work: Coroutine[Any, Any, T], abort: asyncio.Event | None) -> T:
    """The result of `work`; raises Aborted if the abort comes first, after `work` was cancelled.

    An end that lands in the same moment as the abort is the one that counts.
    """
    if abort is None:
        return await work
    if abort.is_set():
        work.close()
        raise Aborted
    task = asyncio.ensure_future(work)
    flag = asyncio.ensure_future(abort.wait())
    try:
        await asyncio.wait((task, flag), return_when=asyncio.FIRST_COMPLETED)
    finally:
        flag.cancel()
        task.cancel()
        await asyncio.gather(task, flag, return_exceptions=True)
    if task.cancelled():
        raise Aborted
    return task.result()
