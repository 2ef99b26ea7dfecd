"""A receiver of webhooks: a real HTTP server that answers as the test says, and keeps what it was sent."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.waiting import wait_until

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@dataclass(frozen=True)
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def is_signed_by(self, secret: str) -> bool:
        """As the specification tells receivers, without a line of ours."""
        key = base64.b64decode(secret.split("_", 1)[1])
        content = self.id.encode() + b"." + self.headers["webhook-timestamp"].encode() + b"." + self.body
        wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return f"v1,{wanted}" in self.headers["webhook-signature"].split(" ")


Behaviour = Callable[[int, Got], "int | tuple[int, dict[str, str]] | None"]
"""What the n-th request (from 0) gets: a status, with headers or without; None is never answered."""


class Receiver:
    """Listens on a free loopback port."""

    def __init__(self, behaviour: Behaviour = lambda _n, _got: 204) -> None:
        self.behaviour = behaviour
        self.got: list[Got] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got = Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                with receiver._lock:
                    number = len(receiver.got)
                    receiver.got.append(got)
                answer = receiver.behaviour(number, got)
                if answer is None:
                    receiver._closing.wait(60)
                    return
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/endings?of=tests"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def ids(self) -> list[str]:
        """Ids of all requests, in the order in which they came."""
        return [one.id for one in tuple(self.got)]

    def await_count(self, count: int, *, within_s: float = 30) -> list[Got]:
        wait_until(lambda: len(self.got) >= count, f"{count} requests came", within_s=within_s)
        return list(self.got)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
