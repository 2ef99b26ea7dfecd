"""Shell: one command in a session of its own, its output bounded while it is read. Runs in a helper process.

The helper serves one command only: when its worker hangs up or has the answer, the guard clears away all
that the command started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time

from workers.engines.agent.fault import ToolFault
from workers.engines.agent.workspace.rooted import faults_of, parts_of

CHUNK_BYTES = 1 << 16
TERM_GRACE_S = 0.25
"""From SIGTERM to SIGKILL; below the guard's own."""
MARK_BYTES = 200


def shell(root: str, command: str, timeout_ms: int, limit_bytes: int) -> str:
    """Output and errors of a command as they came, then its exit status.

    Raises ToolFault with the output so far where it takes longer than `timeout_ms`.
    """
    if "\0" in command:
        raise ToolFault("a command holds no NUL")
    parts_of(root, ".")
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    with faults_of(root):
        process = subprocess.Popen(  # noqa: S602 - a shell is what it is
            command,
            shell=True,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "PWD": os.path.realpath(root)},
        )
    output = Output(limit_bytes - MARK_BYTES)
    try:
        is_in_time = _follow(process, wake, output, time.monotonic() + timeout_ms / 1000)
    finally:
        # Also for what the worker does not want any more: SIGTERM comes as SystemExit.
        _end(process)
    if not is_in_time:
        raise ToolFault(f"timed out after {timeout_ms} ms; the command was ended\n{output.text}")
    return f"{output.text}[{_ending(process.returncode)}]"


def _follow(process: subprocess.Popen[bytes], wake: int, output: Output, until_s: float) -> bool:
    """Read until the command has ended; whether it did so in time.

    Not until the end of its output: what it left in the background may hold that open.
    """
    assert process.stdout is not None
    fd = process.stdout.fileno()
    os.set_blocking(fd, False)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(fd, select.POLLIN)
    while process.poll() is None:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            output.drain(fd)
            return False
        for ready, _ in poll.poll(left_s * 1000 + 1):
            if ready == wake:
                os.read(wake, 512)
            elif not output.take(fd):
                poll.unregister(fd)
    output.drain(fd)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to what is left of the command, and SIGKILL after the grace."""
    group = process.pid
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGTERM)
    until_s = time.monotonic() + TERM_GRACE_S
    while time.monotonic() < until_s:
        process.poll()
        try:
            os.killpg(group, 0)
        except OSError:
            return
        time.sleep(0.005)
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


class Output:
    """Beginning and end of what comes, within a bound; the middle is counted."""

    def __init__(self, limit_bytes: int) -> None:
        self._most = max(2, limit_bytes) // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def take(self, fd: int) -> bool:
        """Read once; whether more may come."""
        try:
            chunk = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._total += len(chunk)
        room = self._most - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:] if room > 0 else chunk
        del self._tail[: -self._most]
        return bool(chunk)

    def drain(self, fd: int) -> None:
        """Read what is there already, at most what a pipe holds."""
        for _ in range(16):
            before = self._total
            if not self.take(fd) or self._total == before:
                return

    @property
    def text(self) -> str:
        """What is kept, with a newline at its end where there is something."""
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        left_out = self._total - len(self._head) - len(self._tail)
        if left_out:
            head = self._head.decode("utf-8", "ignore")
            tail = self._tail.decode("utf-8", "ignore")
            head += f"\n[{left_out} of {self._total} bytes of output left out]\n"
        elif tail:
            head, tail = (self._head + self._tail).decode("utf-8", "replace"), ""
        text = head + tail
        return text + "\n" if text and not text.endswith("\n") else text
