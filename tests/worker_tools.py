"""Tools that run in the worker's own process (they are asynchronous): what notes, and what brings it down."""

from __future__ import annotations

import asyncio
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from tests.held_tools import tell


async def note(path: str, line: str) -> str:
    """Append a line to a ledger, durably and whole."""
    with Path(path).open("a") as ledger:
        ledger.write(f"{line}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    return f"noted {line}"


async def kill_worker(path: str) -> None:
    """Note the time, then SIGKILL the process that runs this tool."""
    await note(path, str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


async def no_memory(path: str) -> None:
    await note(path, str(time.time()))
    raise MemoryError


async def leaves(path: str) -> None:
    await note(path, str(time.time()))
    sys.exit(3)


async def recurses(path: str) -> None:
    await note(path, str(time.time()))

    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    deeper(0)


async def spins(told: str) -> None:
    """Hold the worker's event loop for ever."""
    tell(told, os.getpid())
    while True:
        pass


async def hang(told: str) -> str:
    """Never ends; may be run again."""
    await note(told, str(time.time()))
    await asyncio.Event().wait()
    return "never"


hang.idempotent = True  # type: ignore[attr-defined]


async def hold(told: str, release: str) -> str:
    """Tell that it runs, and end when it is let."""
    tell(told, os.getpid())
    while not Path(release).exists():
        await asyncio.sleep(0.02)
    return "released"


async def slow_note(path: str, line: str) -> str:
    """Append a line to a ledger, then take a moment: there is an instant in which its outcome is not known."""
    answer = await note(path, line)
    await asyncio.sleep(0.05)
    return answer
