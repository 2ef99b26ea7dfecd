"""Worlds: a server with a clock that the test moves, and three ways to ask it: plainly, twice, through a proxy."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import tempfile
from collections.abc import Awaitable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import fakeredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys, Link, connect, embedded
from dsh_tasks.store.scripts import NAMES
from tests.conftest import server_binary
from tests.model.calls import GRID_MS, Calls, settings_of
from tests.model.clocks import CLOCK_KEY, load_clocked, moved_by_hand
from tests.model.values import Answer, Times
from tests.proxy import Proxy

T = TypeVar("T")

START_MS = 1_796_000_000_000
CALL_MS = 30_000
_PREFIXES = itertools.count()

SCRIPT_OF = {
    "take_due": "due",
    "fall_silent": "speak",
    "submit_many": "submit",
    "kill_step": "kill",
    "reserve": "budget",
    "correct": "budget",
    "lose_hints": "hints",
}
"""Operations that are called otherwise than their script."""


class World:
    """What both servers have in common. One prefix for each example."""

    calls: Calls
    twice: Calls
    """Where a lost reply makes the client library ask again."""
    prefix: str
    settings: Settings
    keys: Keys

    def __init__(self, times: Times) -> None:
        self.times = times
        self._runner = asyncio.Runner()

    def run(self, call: Awaitable[T]) -> T:
        async def main() -> T:
            return await call

        return self._runner.run(main())

    def begin(self) -> None:
        """An empty installation."""
        self.prefix = f"m{next(_PREFIXES)}:"
        self.settings = settings_of(self.times, self.prefix)
        self.keys = Keys(self.prefix)

    def ask(self, name: str, **given: Any) -> Answer:
        """One call, one answer."""
        return self.run(self.calls.ask(name, **given))

    def ask_with_a_lost_reply(self, name: str, **given: Any) -> Answer:
        """The server acts, its answer is lost, the call is sent again: the second answer."""
        raise NotImplementedError

    @property
    def now_ms(self) -> int:
        """The server's clock."""
        raise NotImplementedError

    def jump(self, by_ms: int) -> None:
        """Move it."""
        raise NotImplementedError

    def close(self) -> None:
        self._runner.close()


class FakeWorld(World):
    """fakeredis with its clock; the scripts as they are, but for the `#!lua` line that it does not know."""

    def __init__(self, times: Times) -> None:
        super().__init__(times)
        self._stack = ExitStack()
        self._clock = self._stack.enter_context(moved_by_hand(START_MS))

    def begin(self) -> None:
        super().begin()
        self._clock.begin(START_MS)
        client = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
        self.calls = Calls(Link(client, timeout_ms=CALL_MS, plain_scripts=True), self.settings)

    def ask_with_a_lost_reply(self, name: str, **given: Any) -> Answer:
        self.ask(name, **given)
        return self.ask(name, **given)

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms

    def jump(self, by_ms: int) -> None:
        self._clock.jump(by_ms)
        # What has expired is gone, also where the clock is set back afterwards.
        self.run(self.calls.link.command("KEYS", "*"))

    def close(self) -> None:
        self._stack.close()
        super().close()


class RealWorld(World):
    """The embedded server, asked directly or through a proxy that loses replies."""

    def __init__(self, times: Times) -> None:
        super().__init__(times)
        self._folder = tempfile.TemporaryDirectory(prefix="dsh-model-")
        self._server = embedded.start(folder=Path(self._folder.name), binary=server_binary())
        self._proxy = Proxy(self._server.url)
        self._direct = self._link(self._server.url)
        self._lossy = self._link(self._proxy.url)
        self._now_ms = START_MS
        # With `everysec` the last writes may wait for the disk; with `no` they are in the file before the reply.
        self.run(self._direct.command("CONFIG", "SET", "appendfsync", "no"))
        self.run(self._prepare())

    @staticmethod
    def _link(url: str) -> Link:
        client = connect(url, timeout_ms=CALL_MS, pool_size=1)
        # The library's own retries, without its pauses.
        client.connection_pool.connection_kwargs["retry"] = Retry(NoBackoff(), 3)
        link = Link(client, timeout_ms=CALL_MS)
        link._load = load_clocked
        return link

    async def _prepare(self) -> None:
        for name in NAMES:
            await self._direct.client.script_load(load_clocked(name).text)
        await self._direct.command("SET", CLOCK_KEY, self._now_ms)

    def begin(self) -> None:
        super().begin()
        self.calls = Calls(self._direct, self.settings)
        self.twice = Calls(self._lossy, self.settings)

    def ask_with_a_lost_reply(self, name: str, **given: Any) -> Answer:
        before = self._proxy.dropped
        self._proxy.drop_reply_to(load_clocked(SCRIPT_OF.get(name, name)).sha.encode())
        answer = self.run(self.twice.ask(name, **given))
        assert self._proxy.dropped == before + 1
        return answer

    @property
    def now_ms(self) -> int:
        return self._now_ms

    def jump(self, by_ms: int) -> None:
        self._now_ms += by_ms
        self.run(self._jump(by_ms))

    async def _jump(self, by_ms: int) -> None:
        command = self._direct.command
        await command("SET", CLOCK_KEY, self._now_ms)
        names = await command("KEYS", f"{self.prefix}*")
        lives = [(name, await command("PTTL", name)) for name in names]
        for name, left in lives:
            if left < 0:
                continue
            left = -(-left // GRID_MS) * GRID_MS - by_ms
            await (command("PEXPIRE", name, left) if left > 0 else command("DEL", name))

    # -- an older append-only file ----------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        (file,) = Path(self._folder.name).glob("appendonlydir/*.incr.aof")
        return file

    def written_bytes(self) -> int:
        """How far the append-only file has come."""
        return self._file.stat().st_size

    def put_back(self, to_bytes: int, then_ms: int) -> None:
        """The server dies and comes back with its append-only file of when it had `to_bytes` and the clock `then_ms`."""
        now_ms = self._now_ms
        os.kill(self._server.process.pid, signal.SIGKILL)
        self._server.process.wait()
        os.truncate(self._file, to_bytes)
        self._server = embedded.start(
            port=self._server.port, folder=Path(self._folder.name), binary=server_binary()
        )
        self.run(self._direct.command("CONFIG", "SET", "appendfsync", "no"))
        self._now_ms = then_ms
        self.run(self._prepare())
        self.jump(now_ms - then_ms)

    def close(self) -> None:
        self.run(self._direct.close())
        self.run(self._lossy.close())
        self._proxy.__exit__(None, None, None)
        self._server.stop()
        self._folder.cleanup()
        super().close()
