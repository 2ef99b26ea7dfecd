"""HTTP post: one request with a deadline for all of it. No redirect is followed, no body is read."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """What the other side said; `status` 0 where it said nothing that counts."""

    status: int
    why: str = ""
    """In a few words, without the address."""
    retry_after_s: int = 0
    """How long it wants to be left alone, where it said so in seconds."""


class Post:
    """One POST, run in a thread; `abort` from another thread ends it."""

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = dict(headers)
        self._body = body
        self._aborted = False

    def run(self) -> Answer:
        """Send it and read the answer's head. Raises nothing that a network or its other side can cause."""
        try:
            self._connection.connect()
            if self._aborted:
                return Answer(0, "no answer in time")
            self._connection.request("POST", self._target, self._body, self._headers)
            response = self._connection.getresponse()
            wish_s = _seconds(response.headers["retry-after"] or "")
            return Answer(response.status, f"HTTP {response.status}", wish_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: a host name that is none.
            return Answer(0, _words(error))
        finally:
            self._connection.close()

    def abort(self) -> None:
        """Let the thread end: what has not been sent is not sent any more."""
        self._aborted = True
        line = self._connection.sock
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float, threads: Executor
) -> Answer:
    """Send `body` to `url`; the answer is there within `timeout_s`, also where a receiver drips its own."""
    one = Post(url, headers, body, timeout_s=timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().run_in_executor(threads, one.run)
    except TimeoutError:
        return Answer(0, "no answer in time")
    finally:
        one.abort()


def _seconds(given: str) -> int:
    """Whole seconds; 0 for a date, or for what is neither."""
    return int(given) if re.fullmatch("[0-9]{1,9}", given) else 0


def _words(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case ssl.SSLError():
            return "TLS refused"
        case socket.gaierror():
            return "no such host"
        case http.client.HTTPException():
            return "the answer is no HTTP"
        case _:
            return "no connection"
