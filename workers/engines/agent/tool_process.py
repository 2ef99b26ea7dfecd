"""Tool process: what runs in a helper process. Started as a file by tool_pool, with its line as stdin.

A helper is a pair. The *guard* is what was started: it holds no foreign code, sees the worker hang up (its
end, a SIGKILL too) and the tool process end, and leaves only when nothing that the tool started is left. The
*tool process* is its fork, in a process group of its own: it imports tools and calls them, one at a time.

Frames on the line are four bytes of length and a body: pickled calls come in (types of checked arguments
stay), JSON answers go out (a worker never unpickles what a tool may have written). Only the standard library
is loaded here: a helper is as heavy as its tools.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

LENGTH = struct.Struct("!I")
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
"""An answer above it is refused: the worker holds answers whole."""
TERM_GRACE_S = 0.3
"""From SIGTERM to SIGKILL."""
REAP_PAUSE_MS = 10
LEAVES_WITHIN_S = 0.5
"""From the end of a foreign command's input to SIGTERM."""
NOT_FOUND = 127
LINE_LOST = 70
"""Exit status of a tool process whose line does not work any more."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> NoReturn:
    """Fork the tool process and guard it; with arguments, a foreign command in its place, see below.

    The command has the guard's standard input and output; who wrote to the input hangs up by closing it.
    """
    command = sys.argv[1:]
    line = None if command else socket.socket(fileno=os.dup(0))
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    # Before anything of a tool is loaded: the guard's memory stays that of a bare interpreter.
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(wake)
        os.close(wakes)
        if line is None:
            _become(command, guard)
        _work(line, guard)
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if line is None:
        # Its end is the command's to tell.
        os.close(1)
        _leave_as(Guard(child, 0, wake, leaves_within_s=LEAVES_WITHIN_S).watch(), None)
    _leave_as(Guard(child, line, wake).watch(), line)


def _become(command: list[str], guard: int) -> NoReturn:
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(LINE_LOST)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the operator's own
    except OSError:
        os._exit(NOT_FOUND)


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the process group alone is guarded."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes  # noqa: PLC0415 - not everywhere

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def _leave_as(status: int, line: socket.socket | None) -> NoReturn:
    """End as the tool process ended, so that the worker can name it."""
    with contextlib.suppress(OSError):
        # Whoever else holds the line: the worker sees its end.
        if line is not None:
            line.shutdown(socket.SHUT_RDWR)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    _leave_no_core()
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _leave_no_core() -> None:
    """The tool process has left its own where one is wanted."""
    try:
        import resource  # noqa: PLC0415 - not everywhere

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        return


class Guard:
    """Waits for the worker to hang up or the tool process to end, then clears away what is left."""

    def __init__(
        self, child: int, line: socket.socket | int, wake: int, *, leaves_within_s: float = 0.0
    ) -> None:
        self._leaves_within_s = leaves_within_s
        """How long the child may take to leave by itself."""
        self._child = child
        self._line = line
        self._wake = wake
        self._status: int | None = None
        """How the tool process ended."""
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)

    def watch(self) -> int:
        """The tool process' wait status, once nothing of it is left."""
        # No event but the hang-up, which needs no asking: calls are for the tool process to read.
        self._poll.register(self._line, 0)
        while self._status is None and not self._hung_up(None):
            self._reap()
        self._poll.unregister(self._line)
        if self._status is None:
            self._tell_to_end()
        while self._is_anything_left():
            self._hung_up(REAP_PAUSE_MS)
        return self._status or 0

    def _hung_up(self, timeout_ms: int | None) -> bool:
        """Wait for something to happen; whether it was the worker's end."""
        has_hung_up = False
        for ready, _ in self._poll.poll(timeout_ms):
            if ready == self._wake:
                os.read(self._wake, 512)
            else:
                has_hung_up = True
        return has_hung_up

    def _tell_to_end(self) -> None:
        self._wait(self._leaves_within_s)
        self._kill_group(signal.SIGTERM)
        self._wait(TERM_GRACE_S)

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while self._status is None and time.monotonic() < until_s:
            self._hung_up(REAP_PAUSE_MS)
            self._reap()

    def _is_anything_left(self) -> bool:
        """Kill all that is left and take in what ended. What left the group is found as our own child:

        orphans of all below come to us, level by level as their parents are killed.
        """
        has_group = self._kill_group(signal.SIGKILL)
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        return self._reap() or (has_group and self._kill_group(signal.SIGKILL))

    def _kill_group(self, number: int) -> bool:
        """Whether the group has anyone left to signal."""
        try:
            os.killpg(self._child, number)
        except PermissionError:
            return True
        except OSError:
            # The tool process has no group yet in its first moment, then it is found as our child.
            return False
        return True

    def _reap(self) -> bool:
        """Take in who has ended; whether we have children left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._status = status


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as names:  # noqa: PTH123 - no pathlib here
            return [int(name) for name in names.read().split()]
    except OSError:
        return []


# -- the tool process -------------------------------------------------------------------------------


def _work(line: socket.socket, guard: int) -> NoReturn:
    """Serve calls until the worker hangs up. Never returns into the guard's code."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(LINE_LOST)
    # Standard output is nowhere already: what a tool prints is no answer, and may be content.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    server = Server(line)
    try:
        server.serve()
    except (SystemExit, BrokenPipeError, ConnectionResetError):
        # The worker has hung up, before a call or in it.
        pass
    except OSError:
        # A tool closed what is not its own.
        os._exit(LINE_LOST)
    # What the tools want done at the end of their process is done, within the grace of the guard.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class Server:
    """Reads calls, runs them in the main thread, answers."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._functions: dict[str, Callable[..., Any]] = {}

    def serve(self) -> None:
        """One call after the other; returns when the worker has hung up."""
        import pickle  # noqa: PLC0415 - after the fork: none of it is the guard's

        self._send({"pid": os.getpid()})
        hello = self._received()
        if hello is None:
            return
        sys.path[:] = pickle.loads(hello)  # noqa: S301 - written by our own worker
        me = os.getpid()
        while (frame := self._received()) is not None:
            # A tool may have set another one.
            signal.signal(signal.SIGTERM, self._on_term)
            path, key, given = pickle.loads(frame)  # noqa: S301 - see above
            answer = self._answer(path, key, given)
            if os.getpid() != me:
                # A tool forked and both came back: the answer is the parent's.
                os._exit(0)
            self._send(answer)

    def _on_term(self, *_: object) -> None:
        """End by an exception, so that a tool cleans up; but only where the worker has hung up.

        A supervisor may send SIGTERM to all processes of a service: the worker decides then.
        """
        poll = select.poll()
        poll.register(self._line, 0)
        if poll.poll(0):
            raise SystemExit(128 + signal.SIGTERM)

    def _answer(self, path: str, key: str, given: bytes) -> dict[str, Any]:
        from workers.engines.agent.fault import words_of  # noqa: PLC0415 - found by the worker's own path

        try:
            text = self._called(path, key, given)
        except MemoryError as error:
            return {"text": words_of(error), "is_error": True, "is_spent": True}
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is an answer
            return {"text": words_of(error), "is_error": True}
        return {"text": text, "is_error": False}

    def _called(self, path: str, key: str, given: bytes) -> str:
        import inspect  # noqa: PLC0415
        import pickle  # noqa: PLC0415

        from workers.engines.agent.call_key import call_key  # noqa: PLC0415

        function = self._function(path)
        args, kwargs = pickle.loads(given)  # noqa: S301 - see above
        call_key.set(key)
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            import asyncio  # noqa: PLC0415

            async def awaited() -> Any:
                return await value

            value = asyncio.run(awaited())
        return text_of(value)

    def _function(self, path: str) -> Callable[..., Any]:
        if path not in self._functions:
            import importlib  # noqa: PLC0415

            module, _, name = path.partition(":")
            self._functions[path] = getattr(importlib.import_module(module), name)
        return self._functions[path]

    # -- the line -----------------------------------------------------------------------------------

    def _received(self) -> bytes | None:
        head = self._exactly(LENGTH.size)
        return None if head is None else self._exactly(LENGTH.unpack(head)[0])

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = self._line.recv(min(count - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _send(self, answer: dict[str, Any]) -> None:
        import json  # noqa: PLC0415

        body = json.dumps(answer).encode("ascii")
        if len(body) > ANSWER_LIMIT_BYTES:
            size = ANSWER_LIMIT_BYTES // 2**20
            answer = {
                "text": f"Error: the result is larger than {size} MiB",
                "is_error": True,
                "is_spent": True,
            }
            body = json.dumps(answer).encode("ascii")
        self._line.sendall(LENGTH.pack(len(body)) + body)


def text_of(value: Any) -> str:
    """What a tool returned, as the model reads it: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    from pydantic_core import to_json  # noqa: PLC0415 - loaded where a tool returns no text

    return to_json(value, fallback=str).decode()


if __name__ == "__main__":
    main()
