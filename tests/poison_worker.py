"""A worker that something is wrong with: python -m tests.poison_worker, options of workers.

Its engine `poison` raises what the prompt names; where CRASH_AFTER names a script, the process ends at once
when the reply to it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Any

import redis.asyncio as aredis

from dsh_tasks.store.scripts import load
from dsh_tasks.task import Outcome
from workers import __main__ as entry
from workers import app
from workers.engines.base import Engine, Run


class PoisonEngine:
    """Raises in the worker's own process, outside of every tool."""

    async def run(self, run: Run) -> Outcome:
        """See Engine."""
        what = str(run.child.prompt[0]["text"])
        if what == "SystemExit":
            sys.exit(3)
        while what == "stubborn":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000)
        if what == "RecursionError":
            return await self.run(run)
        raise MemoryError


def crash_after(script: str) -> None:
    """SIGKILL for this process when the script has answered."""
    execute, sha = aredis.Redis.execute_command, load(script).sha

    async def execute_command(self: Any, *args: Any, **options: Any) -> Any:
        reply = await execute(self, *args, **options)
        if args[:2] == ("EVALSHA", sha):
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    aredis.Redis.execute_command = execute_command  # type: ignore[method-assign]


def main() -> int:
    if script := os.environ.get("CRASH_AFTER"):
        crash_after(script)
    build_engines = app.build_engines

    def with_poison(*given: object) -> dict[str, Engine]:
        return {**build_engines(*given), "poison": PoisonEngine()}  # type: ignore[arg-type]

    app.build_engines = with_poison  # type: ignore[assignment]
    return entry.main()


if __name__ == "__main__":
    sys.exit(main())
