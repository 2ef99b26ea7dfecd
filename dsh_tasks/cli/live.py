"""`show`: where one child is now; and the lines that `list --live` puts below what is at work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dsh_tasks.cli.border import DONE, AsJson, awaited, emit, say
from dsh_tasks.cli.connection import OwnerOption, TaskArgument, connected
from dsh_tasks.cli.render import activity_words, counted, label_of, plain_row, status_words, task_value
from dsh_tasks.client import AsyncClient
from dsh_tasks.errors import TaskNotFound
from dsh_tasks.progress import Progress
from dsh_tasks.task import Task
from dsh_tasks.tools.base import status_line
from dsh_tasks.tools.tasks import age_of
from dsh_tasks.tools.wording import detail_of

LIVE_MOST = 200
"""Children at work whose place `list --live` reads; of more it shows the first."""
AT_ONCE = 8
TEXT_SHOWN = 100
"""Characters of the last text that stand on a line, from its end."""


def show(task_id: TaskArgument, owner: OwnerOption = None, as_json: AsJson = False) -> int:
    """Show where a child is now.

    Its step, the tools at work and since when, its last text, and what it has used. Nothing of it waits
    for the child or is noticed by it.
    """

    async def seen() -> Progress:
        async with connected(owner) as client:
            return await client.progress(task_id)

    progress = awaited(seen())
    if as_json:
        emit(progress_value(progress))
    else:
        for line in progress_lines(progress):
            say(line)
    return DONE


def progress_value(progress: Progress) -> dict[str, Any]:
    """Where a child is, as JSON."""
    return {**asdict(progress), "task": task_value(progress.task)}


def progress_lines(progress: Progress) -> list[str]:
    """Where a child is, a fact a line; its last text comes last, as it is."""
    task = progress.task
    lines = [
        f"{task.id} [{task.provider}] {status_words(task)} — {label_of(task)}",
        f"attempt {task.attempt}, depth {task.depth}, age {age_of(task.age_ms)}, worker {task.worker or '-'}",
        f"{place_of(progress)}; last activity {activity_words(task)}",
        f"{counted(task.log_rows, 'row')}, {counted(answers_of(task), 'model answer')}, {streamed_of(task)}",
    ]
    lines += [
        f"at work: {call.name} ({call.call_id}) for {age_of(task.now_ms - call.since_ms)}"
        for call in progress.calls
    ]
    if progress.said_ms is None:
        lines.append("no text yet")
    else:
        cut = len(progress.text.encode("utf-8", "replace"))
        end = f", its last {cut} of {progress.text_bytes} bytes" if cut < progress.text_bytes else ""
        lines += [
            f"last text, {age_of(task.now_ms - progress.said_ms)} ago{end}:",
            *(f"  {line}" for line in progress.text.splitlines()),
        ]
    return [*lines, status_line(task.status.value, detail_of(task))]


def answers_of(task: Task) -> int:
    """Model answers so far; once it has ended, the model calls of its usage."""
    return max(task.answers, task.usage.model_calls)


def streamed_of(task: Task) -> str:
    """How much the model has said."""
    return f"{counted(task.streamed, 'character')} streamed in this attempt"


def place_of(progress: Progress) -> str:
    """`turn 1, step 3`, or that it has not begun."""
    if not progress.turn:
        return "no turn yet"
    return f"turn {progress.turn}" + (f", step {progress.step}" if progress.step else "")


def live_line(progress: Progress) -> str:
    """Where a child is, on one line."""
    task = progress.task
    parts = [place_of(progress)]
    parts += [f"{call.name} for {age_of(task.now_ms - call.since_ms)}" for call in progress.calls]
    if not progress.calls and task.activity and task.activity_since_ms is not None:
        parts.append(f"{task.activity} for {age_of(task.now_ms - task.activity_since_ms)}")
    parts.append(counted(answers_of(task), "answer"))
    words = " ".join(progress.text.split())
    if words:
        parts.append(f"“{words}”" if len(words) <= TEXT_SHOWN else f"“…{words[1 - TEXT_SHOWN :]}”")
    return "; ".join(parts)


async def read_live(client: AsyncClient, tasks: Sequence[Task]) -> dict[str, Progress]:
    """Where each of the first 200 that have not ended is; what was pruned meanwhile is left out."""
    found: dict[str, Progress] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(task_id: str) -> None:
        async with gate:
            try:
                found[task_id] = await client.progress(task_id)
            except TaskNotFound:
                return

    ids = [task.id for task in tasks if not task.is_terminal][:LIVE_MOST]
    await asyncio.gather(*(one(task_id) for task_id in ids))
    return found


def print_live(rows: Sequence[tuple[int, Task]], live: Mapping[str, Progress]) -> None:
    """Each task on its line, and below those at work where they are."""
    for level, task in rows:
        say(plain_row(level, task))
        if task.id in live:
            say(f"{'  ' * level}    {live_line(live[task.id])}")
