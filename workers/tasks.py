"""Tasks: the Celery functions. A message holds ids only; the slot is held until the child ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery

from dsh_tasks.queue import RUN_CHILD

if TYPE_CHECKING:
    from collections.abc import Callable


def register(app: Celery, run: Callable[[str], str]) -> None:
    """Give `app` its one task function; `run` blocks until the child has ended or is not ours."""

    # What it returns is a few words for Flower, never output.
    @app.task(name=RUN_CHILD, ignore_result=True, acks_late=False)  # type: ignore[untyped-decorator]
    def run_child(task_id: str) -> str:
        return run(task_id)
