"""A worker whose engine `poison` raises what the prompt names: python -m tests.poison_worker, options of workers."""

from __future__ import annotations

import sys

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
        if what == "RecursionError":
            return await self.run(run)
        raise MemoryError


def main() -> int:
    build_engines = app.build_engines

    def with_poison(*given: object) -> dict[str, Engine]:
        return {**build_engines(*given), "poison": PoisonEngine()}  # type: ignore[arg-type]

    app.build_engines = with_poison  # type: ignore[assignment]
    return entry.main()


if __name__ == "__main__":
    sys.exit(main())
