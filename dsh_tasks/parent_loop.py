"""ParentLoop: the smallest loop that keeps DESIGN's promise about notices, for demo, tests and as a pattern.

Notices are taken at a step's border, written into the parent's log in the same write as their text, and
acknowledged after that. A restart acknowledges what the log already holds. An idle parent is woken
within the budget; a user's message refills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dsh_tasks import format as log_format
from dsh_tasks.client import AsyncClient
from dsh_tasks.notice import NOTICE_KIND, Notice, WakeBudget, notice_message
from dsh_tasks.session import Event, Header, Session

Agent = Callable[["ParentLoop"], Awaitable[str]]
"""One step: looks at `loop.session`, may call tools, returns the assistant's text."""


class SessionLog:
    """A parent's log in a v4 file: rows are appended, flushed and synced in one write."""

    def __init__(self, path: Path, session: Session) -> None:
        self.path = path
        self.header = session.header
        self.events: list[Event] = list(session.events)

    @classmethod
    def open(cls, path: Path, *, session_id: str, cwd: str | None = None) -> SessionLog:
        """Read the log at `path`, or begin one. Raises SessionRefused where it cannot be read."""
        if path.exists():
            log = cls(path, log_format.read(path))
            # What a torn last write left behind is not part of the log.
            path.write_bytes(log_format.write(log.session))
            return log
        header = Header(version=4, id=session_id, created_at=_now_ms(), cwd=cwd)
        log = cls(path, Session(header, ()))
        path.write_bytes(log_format.write(log.session))
        return log

    @property
    def session(self) -> Session:
        """The log as of now."""
        return Session(self.header, tuple(self.events))

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Number rows (`type`, `data` and what belongs to them) and write them durably, all or nothing."""
        numbered = [
            {"type": row["type"], "seq": len(self.events) + place, "time": _now_ms(), **row}
            for place, row in enumerate(rows)
        ]
        with self.path.open("ab") as out:
            out.write(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in numbered))
            out.flush()
            os.fsync(out.fileno())
        self.events += [Event.from_row(row) for row in numbered]


class ParentLoop:
    """Speaks for one session: turns, notices, wakes. Use it as `async with`."""

    def __init__(self, client: AsyncClient, log: SessionLog, *, system: str = "") -> None:
        """`system` is the parent's system text, written as the first message of a new log."""
        self.system = system
        self.client = client.for_owner(log.header.id)
        self.log = log
        self.budget = WakeBudget(self.client.settings.max_consecutive_wakes)
        self._token = secrets.token_hex(16)
        self._renewing: asyncio.Task[None] | None = None
        turns = log.session.turns()
        self._turn = len(turns)
        self._step = 0
        self._open = bool(turns) and turns[-1].end_seq is None

    @property
    def session(self) -> Session:
        """The parent's log as of now: what `subagent` forks from."""
        return self.log.session

    async def __aenter__(self) -> Self:
        """Become the session's speaker and acknowledge what the log already holds.

        Raises SpeakerTaken while another process speaks for the session.
        """
        inbox = self.client.inbox()
        await inbox.speak(self._token)
        self._renewing = asyncio.create_task(self._renew())
        if self._open:
            self._close_interrupted()
        await inbox.acknowledge(self._told(), token=self._token)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        with contextlib.suppress(Exception):
            await self.client.inbox().fall_silent(self._token)

    async def _renew(self) -> None:
        pause_s = self.client.settings.speaker_lease_ms / 3000
        while True:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(Exception):
                await self.client.inbox().speak(self._token)

    def _told(self) -> list[str]:
        """Task ids of the endings that the log holds."""
        told: list[str] = []
        for event in self.log.events:
            if event.type == "user/message" and event.data.get("source", {}).get("kind") == NOTICE_KIND:
                told += event.data["source"].get("taskIds", ())
        return told

    async def turn(self, text: str, agent: Agent) -> str:
        """One turn for a user's message; it does not close over a pending notice. Returns the last reply."""
        self.budget = self.budget.after_user_message()
        return await self._run_turn([user_row(text)], agent)

    async def wait_for_wake(self, agent: Agent, *, timeout_s: float) -> bool:
        """Idle: a notice opens a turn of its own while the budget lasts. False when none came, or none may.

        With a spent budget the notice stays in the inbox and is told at the next step.
        """
        deadline = time.monotonic() + timeout_s
        async with self.client.woken_by_notices() as woken:
            while self.budget.may_wake:
                woken.clear()
                if await self.client.inbox().take(token=self._token, most=1):
                    self.budget = self.budget.after_wake()
                    await self._run_turn([], agent)
                    return True
                left_s = min(1.0, deadline - time.monotonic())
                if left_s <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await woken.wait()
        return False

    async def _run_turn(self, opening: list[dict[str, Any]], agent: Agent) -> str:
        self._turn += 1
        self._step = 0
        self._open = True
        self.log.append([{"type": "turn/start", "data": {"turn": self._turn}}])
        reply = ""
        while True:
            self._step += 1
            self.log.append([{"type": "step/start", "data": self._frame}])
            if opening:
                self.log.append([*self._system(), *opening])
                opening = []
            await self.border()
            reply = await agent(self)
            self.log.append([assistant_row(reply, self._frame), {"type": "step/end", "data": self._frame}])
            if not await self.client.inbox().take(token=self._token, most=1):
                break
        self._close_turn("completed")
        return reply

    def _system(self) -> list[dict[str, Any]]:
        """A log's first message is the system's: the harness cannot add one behind others later."""
        if any(event.surface_op is not None for event in self.log.events):
            return []
        message = {
            "role": "system",
            "content": [{"type": "text", "text": self.system}] if self.system else [],
            "source": {"kind": "system-prompt"},
            "id": str(uuid.uuid4()),
        }
        return [
            {"type": "system/message", "data": {**self._frame, "message": message}, "surfaceOp": "append"}
        ]

    @property
    def _frame(self) -> dict[str, int]:
        return {"turn": self._turn, "step": self._step}

    def _close_turn(self, reason: str) -> None:
        self.log.append([{"type": "turn/end", "data": {"turn": self._turn, "reason": {"kind": reason}}}])
        self._open = False

    def _close_interrupted(self) -> None:
        """What a crash left open: its step first, else no reader takes the log again."""
        for event in reversed(self.log.events):
            if event.type in ("step/end", "turn/start"):
                break
            if event.type == "step/start":
                self.log.append([{"type": "step/end", "data": dict(event.data)}])
                break
        self._close_turn("interrupted")

    async def border(self) -> tuple[Notice, ...]:
        """Take what ended, write it into the log as one message, acknowledge it. Call it between steps."""
        inbox = self.client.inbox()
        told = set(self._told())
        taken = await inbox.take(token=self._token)
        fresh = [notice for notice in taken if notice.task_id not in told]
        if fresh:
            self.log.append([notice_row(fresh)])
        await inbox.acknowledge([notice.task_id for notice in taken], token=self._token)
        return tuple(fresh)

    async def saw(self, task_ids: Sequence[str]) -> None:
        """The log holds these results (a read, a wait, an own kill): no notice is to follow."""
        await self.client.inbox().acknowledge(list(task_ids), token=self._token)


def user_row(text: str) -> dict[str, Any]:
    """A user's message."""
    data = {
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "user"},
        "role": "user",
        "id": str(uuid.uuid4()),
    }
    return {"type": "user/message", "data": data, "surfaceOp": "append"}


def notice_row(notices: Sequence[Notice]) -> dict[str, Any]:
    """Many endings as one message; their ids stand beside the text."""
    data = notice_message(notices, str(uuid.uuid4()))
    return {"type": "user/message", "data": data, "surfaceOp": "append"}


def assistant_row(text: str, frame: Mapping[str, int]) -> dict[str, Any]:
    """The assistant's reply of one step."""
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "model", "provider": "parent", "model": "parent"},
        "id": str(uuid.uuid4()),
    }
    return {
        "type": "assistant/message",
        "data": {**frame, "message": message, "stream": []},
        "surfaceOp": "append",
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
