"""Tool pool: synchronous tools in helper processes that can be killed, a bounded number of them at once.

A call that is cancelled ends when nothing that its tool started is left. What a helper runs is in
tool_process; the line to it, and what its answers may do, are here.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workers.engines.agent import tool_process
from workers.engines.agent.tool_process import ANSWER_LIMIT_BYTES, LENGTH
from workers.engines.base import ToolAnswer

CALLS = 32
"""Synchronous tools that run at once in one process; others wait."""
KEPT = 8
"""Helpers that are kept for the next call."""
GONE_WITHIN_S = 0.8
"""How long a helper clears away what its tool left, before it is killed itself."""
GONE_POLL_S = 0.005


class LineBroken(Exception):
    """The helper ended, or says what no helper of ours says."""


class ToolPool:
    """Helper processes of one engine. They end with it, and with this process however that ends."""

    def __init__(
        self, *, calls: int = CALLS, kept: int = KEPT, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment` is all that helpers see of this process' own; None is the whole of it."""
        self._environment = environment
        self._turns = asyncio.Semaphore(calls)
        self._kept = kept
        self._idle: list[Helper] = []
        self._all: set[Helper] = set()
        weakref.finalize(self, end_now, self._all)

    async def call(
        self,
        path: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        key: str,
        keep: bool = True,
        within_s: float | None = None,
    ) -> ToolAnswer:
        """Call the function at `module:name` in a helper. What goes wrong there is an errored answer.

        `key` is the call's `call_key`. Once cancelled, it ends when helper and tool are gone; the same
        after `within_s` in the helper, as TimeoutError, and before the answer where it is not to `keep` it.
        """
        try:
            given = pickle.dumps((tuple(args), dict(kwargs)))
        except Exception as error:  # noqa: BLE001 - a foreign type's own code
            kind = type(error).__name__
            return ToolAnswer(f"Error: the arguments do not reach the tool ({kind})", is_error=True)
        async with self._turns:
            try:
                helper = self._helper(path)
            except OSError as error:
                return ToolAnswer(f"Error: no process for the tool: {error.strerror}", is_error=True)
            async with asyncio.timeout(within_s):
                return await self._called(helper, path, key, given, keep=keep)

    async def _called(self, helper: Helper, path: str, key: str, given: bytes, *, keep: bool) -> ToolAnswer:
        is_kept = False
        try:
            answer, is_usable = await helper.call(path, key, given)
            is_kept = is_usable and keep
        except LineBroken:
            await whole(helper.end())
            return ToolAnswer(f"Error: the tool ended its process: {helper.ending}", is_error=True)
        finally:
            if is_kept and len(self._idle) < self._kept:
                self._idle.append(helper)
            else:
                await whole(helper.end())
                self._all.discard(helper)
        return answer

    def _helper(self, path: str) -> Helper:
        """An idle helper, best one that has imported the tool; else a new one."""
        for helper in [one for one in self._idle if not one.is_ready]:
            self._idle.remove(helper)
            self._all.discard(helper)
            helper.end_now()
        if self._idle:
            known = [one for one in self._idle if path in one.paths]
            helper = (known or self._idle)[-1]
            self._idle.remove(helper)
            return helper
        helper = Helper(self._environment)
        self._all.add(helper)
        return helper


class Helper:
    """One helper process and the line to it. Serves one call at a time.

    Raises OSError where no process can be started.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        self.paths: set[str] = set()
        """Tools that it has imported."""
        self._tool_pid = 0
        try:
            # A file, not a module: nothing of ours is imported before the fork.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and file
                [sys.executable, "-P", str(Path(tool_process.__file__))],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            self._line.close()
            raise
        finally:
            theirs.close()

    @property
    def is_ready(self) -> bool:
        """Whether it lives and has said nothing that was not asked."""
        try:
            self._line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit status {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"

    async def call(self, path: str, key: str, given: bytes) -> tuple[ToolAnswer, bool]:
        """The answer, and whether the helper may serve again. Raises LineBroken."""
        try:
            if not self._tool_pid:
                await self._send(pickle.dumps(list(sys.path)))
                self._tool_pid = int(json.loads(await self._received())["pid"])
            self.paths.add(path)
            await self._send(pickle.dumps((path, key, given)))
            answer = json.loads(await self._received())
            return ToolAnswer(str(answer["text"]), answer["is_error"] is True), "is_spent" not in answer
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise LineBroken from None

    async def _send(self, body: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._line, LENGTH.pack(len(body)) + body)

    async def _received(self) -> bytes:
        count = LENGTH.unpack(await self._exactly(LENGTH.size))[0]
        if count > ANSWER_LIMIT_BYTES:
            raise LineBroken
        return await self._exactly(count)

    async def _exactly(self, count: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), bytearray()
        while len(parts) < count:
            part = await loop.sock_recv(self._line, min(count - len(parts), 1 << 20))
            if not part:
                raise LineBroken
            parts += part
        return bytes(parts)

    async def end(self) -> None:
        """Hang up, and return when helper and tool are gone with all that they started."""
        loop = asyncio.get_running_loop()
        self._hang_up(loop)
        until_s = loop.time() + GONE_WITHIN_S
        while self._process.poll() is None:
            if loop.time() > until_s:
                self._kill()
            await asyncio.sleep(GONE_POLL_S)
        while self._kill_orphans() and loop.time() < until_s:  # noqa: ASYNC110 - no event tells of a foreign group
            await asyncio.sleep(GONE_POLL_S)

    def end_now(self) -> None:
        """The same without a loop; it blocks."""
        self._hang_up(None)
        try:
            self._process.wait(GONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._kill_orphans()

    def _hang_up(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._line.fileno() < 0:
            return
        if loop is not None:
            loop.remove_reader(self._line)
            loop.remove_writer(self._line)
        self._line.close()

    def _kill(self) -> None:
        """For a guard that hangs, or was stopped."""
        self._process.kill()
        self._kill_orphans()

    def _kill_orphans(self) -> bool:
        """Kill what a guard guarded that was killed itself; whether there was something."""
        if not self._tool_pid or self._process.returncode not in (None, -signal.SIGKILL):
            return False
        try:
            os.killpg(self._tool_pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def end_now(helpers: set[Helper]) -> None:
    """End all of them at once: each hangs up before the first is waited for."""
    for helper in helpers:
        helper._hang_up(None)  # noqa: SLF001 - of this module
    for helper in helpers:
        helper.end_now()
    helpers.clear()


async def whole(ending: Awaitable[None]) -> None:
    """Await it to its end, however often this task is cancelled meanwhile; then the cancellation goes on."""
    task = asyncio.ensure_future(ending)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            is_cancelled = True
    task.result()
    if is_cancelled:
        raise asyncio.CancelledError
