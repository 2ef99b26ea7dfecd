"""Parents that crash after each Redis command in turn: python -m tests.crashing_parent FOLDER SESSION ..

Run n is a fork that speaks for the n-th session and ends at once when the reply to its n-th command is
there; then another fork of that session, which does not crash, tells what is left. A line for each run, up to the
first that did not crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis.asyncio as aredis
from redis.asyncio.client import PubSub

from dsh_tasks.client import AsyncClient
from dsh_tasks.errors import SpeakerTaken
from dsh_tasks.parent_loop import ParentLoop, SessionLog

CRASHED = 9


def crash_after(number: int) -> None:
    """End this process when the reply to its so manieth command has come."""
    left = number

    def counted(execute: Callable[..., Any]) -> Callable[..., Any]:
        async def execute_command(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal left
            reply = await execute(self, *args, **options)
            left -= 1
            if left == 0:
                os._exit(CRASHED)
            return reply

        return execute_command

    for kind in (aredis.Redis, PubSub):
        kind.execute_command = counted(kind.execute_command)  # type: ignore[method-assign]


async def says(_loop: ParentLoop) -> str:
    return "noted"


async def speak(path: Path, session: str) -> None:
    """Wake for what has ended, then a user's turn."""
    log = SessionLog.open(path, session_id=session)
    async with AsyncClient.connect() as client:
        loop = ParentLoop(client, log)
        while True:
            try:
                await loop.__aenter__()
                break
            except SpeakerTaken:
                await asyncio.sleep(0.05)
        await loop.wait_for_wake(says, timeout_s=0.05)
        await loop.turn("go", says)
        await loop.__aexit__(None, None, None)


def forked(work: Callable[[], None]) -> int:
    """The exit code of a fork that does this."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(folder: Path, sessions: list[str]) -> None:
    for number, session in enumerate(sessions, 1):
        path = folder / f"{session}.jsonl"

        def crashing(number: int = number, path: Path = path, session: str = session) -> None:
            crash_after(number)
            asyncio.run(speak(path, session))

        code = forked(crashing)
        again = forked(lambda path=path, session=session: asyncio.run(speak(path, session)))
        print(json.dumps({"command": number, "code": code, "again": again}), flush=True)
        if code != CRASHED:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
