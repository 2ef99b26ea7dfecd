"""Connections to the server: bounded pools, a deadline for each call, errors without credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from dsh_tasks.cancellation import heeding_cancel
from dsh_tasks.errors import ConfigRefused, StoreUnavailable
from dsh_tasks.store.scripts import Arg, Script, load, load_plain

T = TypeVar("T")

POOL_SIZE = 24
REPLICATED = ("submit", "settle", "kill", "ack")
"""What a caller takes as done once it is answered."""


def masked(url: str) -> str:
    """`url` without user and password."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.port:
        host = f"{host}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def connect(url: str, *, timeout_ms: int, pool_size: int = POOL_SIZE, listens: bool = False) -> aredis.Redis:
    """An asynchronous client with a bounded, waiting pool; every script may be sent again.

    One that `listens` waits for the server's words without a timeout (redis-py's is 5 s).
    """
    check_url(url)
    pool = aredis.BlockingConnectionPool.from_url(
        url,
        max_connections=pool_size,
        timeout=timeout_ms / 1000,
        socket_timeout=None if listens else timeout_ms / 1000,
        socket_connect_timeout=timeout_ms / 1000,
        retry=AsyncRetry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), 3),
        retry_on_error=[redis.ConnectionError, redis.TimeoutError],
        health_check_interval=0,
    )
    return aredis.Redis(connection_pool=pool)


def check_url(url: str) -> None:
    """Raises ConfigRefused, without the URL's text, where it is none of a Redis server."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("redis", "rediss", "unix") and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits:
        raise ConfigRefused("DSH_TASKS_REDIS_URL", "it is no redis://, rediss:// or unix:// URL")


def connect_sync(url: str, *, timeout_ms: int) -> redis.Redis:
    """A client for threads of their own: heartbeats, reaper."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_ms / 1000,
        socket_connect_timeout=timeout_ms / 1000,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), 1),
    )


def why(error: BaseException) -> str:
    """The kind of a connection error, without the address that redis-py puts into its text."""
    if isinstance(error, (TimeoutError, redis.TimeoutError)):
        return "no answer in time"
    if isinstance(error, redis.AuthenticationError):
        return "the server refused the credentials"
    if isinstance(error, redis.ConnectionError):
        return "no connection"
    if isinstance(error, ResponseError):
        return f"the server refused the call: {str(error).split(':', 1)[0][:120]}"
    return type(error).__name__


class Link:
    """Runs commands and scripts, each within the deadline, and turns failures into StoreUnavailable."""

    def __init__(
        self, client: aredis.Redis, *, timeout_ms: int, plain_scripts: bool = False, replicas: int = 0
    ) -> None:
        """`replicas` must hold what the scripts of REPLICATED write before it is answered."""
        self.client = client
        self._timeout_ms = timeout_ms
        self._timeout = timeout_ms / 1000
        self._replicas = replicas
        self._load = load_plain if plain_scripts else load

    async def within(self, call: Awaitable[T]) -> T:
        """`call` under the deadline. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(self._timeout):
                return await heeding_cancel(call)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(why(error)) from None

    async def command(self, *args: Arg) -> Any:
        """One plain command."""
        return await self.within(self.client.execute_command(*args))  # type: ignore[no-untyped-call]

    async def script(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """One script; loaded where the server does not know it."""
        script = self._load(name)
        if self._replicas and name in REPLICATED:
            return await self.within(self._evaluate_replicated(script, keys, args))
        return await self.within(self._evaluate(script, keys, args))

    async def _evaluate(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        call = script.call(keys, args)
        try:
            return await self.client.execute_command(*call)  # type: ignore[no-untyped-call]
        except NoScriptError:
            await self.client.script_load(script.text)
            return await self.client.execute_command(*call)  # type: ignore[no-untyped-call]

    async def _evaluate_replicated(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """WAIT speaks of its own connection's writes: both go down one pipeline."""
        await self.client.script_load(script.text)
        async with self.client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*script.call(keys, args))
            pipe.execute_command("WAIT", self._replicas, self._timeout_ms // 2)
            answer, held = await pipe.execute()
        if held < self._replicas:
            msg = f"{held} of {self._replicas} replicas hold it; ask again with the same key"
            raise StoreUnavailable(msg)
        return answer

    async def close(self) -> None:
        """Close the pool."""
        await self.client.aclose()
        await self.client.connection_pool.disconnect()
