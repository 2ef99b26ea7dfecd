"""Proxy: stands between a client and the server, and can drop the reply to one command."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Forwards bytes both ways. A dropped reply closes the connection after the server has answered."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._needle: bytes | None = None
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.dropped = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def drop_reply_to(self, needle: bytes) -> None:
        """The next command that holds `needle` reaches the server; its reply does not come back."""
        with self._lock:
            self._needle = needle

    def cut(self) -> None:
        """Close every connection now."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._target)
            self._sockets += [client, upstream]
            drop = threading.Event()
            threading.Thread(target=self._requests, args=(client, upstream, drop), daemon=True).start()
            threading.Thread(target=self._replies, args=(client, upstream, drop), daemon=True).start()

    def _requests(self, client: socket.socket, upstream: socket.socket, drop: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while part := client.recv(65536):
                with self._lock:
                    if self._needle is not None and self._needle in part:
                        self._needle = None
                        drop.set()
                upstream.sendall(part)
        self._close(client, upstream)

    def _replies(self, client: socket.socket, upstream: socket.socket, drop: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while part := upstream.recv(65536):
                if drop.is_set():
                    self.dropped += 1
                    break
                client.sendall(part)
        self._close(client, upstream)

    def _close(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()
