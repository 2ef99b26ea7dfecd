"""Streams: an HTTP transport for a thousand answers at once.

The usual pool looks at all of its connections whenever a request begins or ends, and at a thousand streams
that costs more than the streams. Here a connection belongs to its request until it is idle, and nothing is
searched. HTTP/1.1 as h11 reads it, over asyncio's own sockets.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.request import getproxies

import h11
import httpx2

KEPT_IDLE_S = 5.0
"""An idle connection is closed after this: providers close theirs soon after."""
KEPT_IDLE = 100
"""Idle connections of one origin that are kept."""
AHEAD_BYTES = 256 * 1024
"""Unread bytes of an answer from which on its sender has to wait."""

T = TypeVar("T")
Origin = tuple[str, str, int]
"""Scheme, host, port."""


def has_proxy() -> bool:
    """The environment names a proxy, which this transport does not ask."""
    return bool(getproxies().keys() - {"no"})


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self._http = h11.Connection(h11.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_over = False
        """The other side sends no more."""
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- asyncio's side ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See Protocol."""
        self._received += data
        if len(self._received) > AHEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """See Protocol. What is half closed is closed: no request is under way that long."""
        self._is_over = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See Protocol."""
        self._is_over, self._error = True, exc
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the request's side -----------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """The other side has said nothing since its last answer, not even that it goes."""
        if self._is_over or self._received or self._transport is None or self._transport.is_closing():
            return False
        # What has come since the loop looked counts too.
        look = select.poll()
        look.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not look.poll(0)

    def send(self, request: httpx2.Request, content: bytes) -> None:
        """Send a whole request. What the other side does not take yet waits here, in memory as before."""
        assert self._transport is not None
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        events: list[h11.Event] = [head, h11.Data(data=content), h11.EndOfMessage()]
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))

    async def head(self, timeout_s: float | None) -> h11.Response:
        """Status and headers of the answer."""
        while not isinstance(event := await self._event(timeout_s), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                msg = "the server hung up before it answered"
                raise httpx2.RemoteProtocolError(msg)
        return event

    async def body(self, timeout_s: float | None) -> AsyncIterator[bytes]:
        """The pieces of the answer as they come."""
        while isinstance(event := await self._event(timeout_s), h11.Data):
            yield bytes(event.data)

    async def _event(self, timeout_s: float | None) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await within(self._read(), timeout_s))
        return event

    async def _read(self) -> bytes:
        """What has come, once something has; empty at the end. Raises what broke the connection."""
        while not self._received:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = bytes(self._received)
        self._received.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        return data

    def takes_another(self) -> bool:
        """Request and answer are whole, and it is ready for the next one now."""
        whole = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not whole or self._http.trailing_data[0] or self._is_over or self._received:
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


async def within(call: Awaitable[T], timeout_s: float | None) -> T:
    """`call`, which may take so long."""
    async with asyncio.timeout(timeout_s):
        return await call


@contextmanager
def told(late: type[httpx2.TimeoutException], broken: type[httpx2.NetworkError]) -> Iterator[None]:
    """A failure in httpx's words."""
    try:
        yield
    except TimeoutError as error:
        raise late("no answer in time") from error
    except OSError as error:
        raise broken(str(error)) from error
    except h11.LocalProtocolError as error:
        raise httpx2.LocalProtocolError(str(error)) from error
    except h11.RemoteProtocolError as error:
        raise httpx2.RemoteProtocolError(str(error)) from error


class Body(httpx2.AsyncByteStream):
    """The body of one answer; once it is closed its connection is free, or closed where it was not read."""

    def __init__(
        self, transport: StreamTransport, origin: Origin, held: Connection, timeout_s: float | None
    ) -> None:
        self._transport = transport
        self._origin = origin
        self._held: Connection | None = held
        self._pieces = held.body(timeout_s)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with told(httpx2.ReadTimeout, httpx2.ReadError):
            async for piece in self._pieces:
                yield piece

    async def aclose(self) -> None:
        """See AsyncByteStream."""
        held, self._held = self._held, None
        if held is not None:
            self._transport.free(self._origin, held)


class StreamTransport(httpx2.AsyncBaseTransport):
    """As many connections as there are requests under way. Belongs to one event loop."""

    def __init__(self, *, kept_idle_s: float = KEPT_IDLE_S) -> None:
        self._kept_idle_s = kept_idle_s
        self._idle: dict[Origin, deque[Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._ssl = httpx2.create_ssl_context()
        self._ssl.set_alpn_protocols(["http/1.1"])

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See AsyncBaseTransport."""
        url, timeouts = request.url, request.extensions.get("timeout", {})
        origin = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        content = await request.aread()
        held = self._idle_one(origin)
        if held is None:
            with told(httpx2.ConnectTimeout, httpx2.ConnectError):
                held = await within(self._connect(origin), timeouts.get("connect"))
        try:
            with told(httpx2.ReadTimeout, httpx2.ReadError):
                held.send(request, content)
                head = await held.head(timeouts.get("read"))
        except BaseException:
            held.close()
            raise
        return httpx2.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=Body(self, origin, held, timeouts.get("read")),
            extensions={"http_version": b"HTTP/" + head.http_version, "reason_phrase": head.reason},
        )

    async def _connect(self, origin: Origin) -> Connection:
        scheme, host, port = origin
        _, held = await asyncio.get_running_loop().create_connection(
            Connection, host, port, ssl=self._ssl if scheme == "https" else None, happy_eyeballs_delay=0.25
        )
        return held

    def _idle_one(self, origin: Origin) -> Connection | None:
        """The idle connection that was used last."""
        idle = self._idle.get(origin)
        while idle:
            held = idle.pop()
            if held.is_quiet:
                return held
            held.close()
        return None

    def free(self, origin: Origin, held: Connection) -> None:
        """Keep a connection for the next request, or close one that can take none."""
        if not held.takes_another():
            held.close()
            return
        loop = asyncio.get_running_loop()
        held.idle_since_s = loop.time()
        idle = self._idle.setdefault(origin, deque())
        idle.append(held)
        if len(idle) > KEPT_IDLE:
            idle.popleft().close()
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._kept_idle_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been idle for long enough."""
        self._sweeping = None
        until_s = loop.time() - self._kept_idle_s
        for origin, idle in tuple(self._idle.items()):
            while idle and idle[0].idle_since_s <= until_s:
                idle.popleft().close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweeping = loop.call_later(self._kept_idle_s, self._sweep, loop)

    async def aclose(self) -> None:
        """Close all that is idle."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
