"""Play: the demo's course. A parent delegates by its tools, watches, kills one, and is told what ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsh_tasks.cli.demo_cast import Part
from dsh_tasks.cli.demo_view import View
from dsh_tasks.client import AsyncClient
from dsh_tasks.config import Config
from dsh_tasks.errors import DshTasksError
from dsh_tasks.notice import NOTICE_KIND
from dsh_tasks.parent_loop import ParentLoop, SessionLog
from dsh_tasks.session import Session
from dsh_tasks.task import Task
from dsh_tasks.tools import Call, Tool, ToolResult, mount

LOOK_EVERY_S = 0.15
KILLED_WITHIN_S = 4.0
END_OF_SEED = "session/end-seed"
KILL_REASON = "the demo has seen enough"


@dataclass
class Delegated:
    """A part after its call."""

    part: Part
    result: ToolResult
    answer: str = ""
    """What the parent read in the end."""

    @property
    def task_id(self) -> str:
        """Id of its child; '' where none was started."""
        value: Mapping[str, Any] = self.result.value
        return str(value.get("taskId") or value.get("runId") or "")


@dataclass
class Played:
    """What the demo came to."""

    delegated: list[Delegated] = field(default_factory=list)
    receipts: list[ToolResult] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)


class Play:
    """One performance, for one parent session."""

    def __init__(
        self, client: AsyncClient, config: Config, parent: Session, view: View, *, offline: bool
    ) -> None:
        self._client = client.for_owner(parent.header.id)
        self._parent = parent
        self._view = view
        self._offline = offline
        self._tools: dict[str, Tool] = {tool.name: tool for tool in mount(self._client, config)}
        self.played = Played()

    async def run(self, parts: Sequence[Part], log: Path, *, until_s: float) -> Played:
        """Delegate, kill what is to be killed, wait for the rest, take the notices, read the outputs.

        What still runs at `until_s` (monotonic, which is the loop's clock) is killed too.
        """
        async with self._watched():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._delegate(parts)
                    await self._kill()
                    await self._ended()
            await self._kill_the_rest()
        await self._conclude(log)
        return self.played

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        with self._view.watching():
            watching = asyncio.create_task(self._watch())
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await self._look()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(DshTasksError):
                await self._look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        self.played.tasks = await self._client.list_tasks()
        self._view.tree(self.played.tasks)

    async def _delegate(self, parts: Sequence[Part]) -> None:
        for number, part in enumerate(parts, start=1):
            prompt = part.prompt(offline=self._offline)
            arguments: dict[str, Any] = {"description": part.label, "prompt": prompt}
            if part.in_background:
                arguments["run_in_background"] = True
            self._view.line(f"-> {part.tool}{_shown(arguments)}")
            call = Call(self._parent, len(self._parent.events) - 1, f"demo-{number}")
            result = await self._tools[part.tool].call(arguments, call)
            self._view.line(f"<- {_one_line(result.text)}")
            self.played.delegated.append(Delegated(part, result, "" if part.in_background else result.text))

    async def _kill(self) -> None:
        for one in self.played.delegated:
            if one.part.is_killed and one.task_id:
                await self._kill_task(one.task_id, KILL_REASON)

    async def _kill_task(self, task_id: str, reason: str) -> None:
        arguments = {"task_id": task_id, "reason": reason}
        self._view.line(f"-> task_kill{_shown(arguments)}")
        receipt = await self._tools["task_kill"].call(arguments)
        self._view.line(f"<- {_one_line(receipt.text)}")
        self.played.receipts.append(receipt)

    async def _ended(self) -> None:
        await self._look()
        while any(not task.is_terminal for task in self.played.tasks):
            await asyncio.sleep(LOOK_EVERY_S)
            await self._look()

    async def _kill_the_rest(self) -> None:
        await self._look()
        for task in self.played.tasks:
            if task.owner == self._client.owner and not task.is_terminal:
                await self._kill_task(task.id, "the demo's time is over")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILLED_WITHIN_S):
                await self._ended()

    async def _conclude(self, path: Path) -> None:
        """The parent's next turn, in its loop: notices into the log, acknowledged, then the outputs."""
        log = SessionLog.open(path, session_id=self._parent.header.id)
        async with ParentLoop(self._client, log) as loop:
            await loop.saw([one.task_id for one in self.played.delegated if one.answer or one.part.is_killed])
            await loop.turn("What came of the checks?", self._read_outputs)
        self.played.notices = [
            {"task_ids": event.data["source"]["taskIds"], "text": event.data["content"][0]["text"]}
            for event in log.events
            if event.type == "user/message" and event.data["source"]["kind"] == NOTICE_KIND
        ]

    async def _read_outputs(self, loop: ParentLoop) -> str:
        """The parent's step: reads what its background children came to."""
        seen = []
        for one in self.played.delegated:
            if one.part.in_background and one.task_id:
                one.answer = (await self._tools["task_output"].call({"task_id": one.task_id})).text
                seen.append(one.task_id)
        await loop.saw(seen)
        return f"I read what came of {len(seen)} background checks."


async def models_of(client: AsyncClient, tasks: Sequence[Task]) -> dict[str, str]:
    """The model that each child's own log names; '' where it never got to one."""
    return {task.id: await _model_of(client, task.id) for task in tasks}


async def _model_of(client: AsyncClient, task_id: str) -> str:
    for event in reversed((await client.session(task_id)).events):
        if event.type == END_OF_SEED:
            return ""
        if event.type == "assistant/message":
            return str(event.data["message"].get("source", {}).get("model", ""))
    return ""


def _shown(arguments: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _one_line(text: str) -> str:
    return " ".join(text.split())
