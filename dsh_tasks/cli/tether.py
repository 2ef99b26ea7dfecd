"""Tether: starts a program that is told to end when the process that started it is gone.

    python -I -S tether.py PID PROGRAM ARGUMENT..

PID is the process that must stay alive. Run as a file of its own, so that it costs some ten milliseconds and
imports nothing of ours. On Linux the kernel sends the SIGTERM (PR_SET_PDEATHSIG, which survives exec: the
program takes this process' place). Elsewhere this process stays, looks twice a second, and passes signals on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
LOOK_EVERY_S = 0.5


def become(parent: int, command: list[str]) -> None:
    """Take the program's place, with the kernel watching."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # It may have died before the call: then no signal comes any more.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell: the command is ours


def watch(parent: int, command: list[str]) -> int:
    """Run the program and watch for it."""
    child = subprocess.Popen(command)  # noqa: S603 - no shell: the command is ours
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    while child.poll() is None:
        if os.getppid() != parent:
            child.terminate()
            return child.wait()
        time.sleep(LOOK_EVERY_S)
    return child.returncode


def main() -> None:
    """Parse and start."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        become(parent, command)
    sys.exit(watch(parent, command))


if __name__ == "__main__":
    main()
