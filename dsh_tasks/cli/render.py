"""Render: tasks as rows of a tree, and as JSON; the same words in a table, in plain lines, in the demo."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsh_tasks.notice import Notice
from dsh_tasks.store import KillReceipt
from dsh_tasks.task import Status, Task, Usage
from dsh_tasks.tools.tasks import age_of, state_of

COLOURS = {
    Status.QUEUED: "yellow",
    Status.RUNNING: "cyan",
    Status.STOPPING: "magenta",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.KILLED: "magenta",
}
FULL_ID_FROM_COLUMNS = 140
"""Narrower terminals show the first eight digits of an id, in tables that are only looked at."""
SHORT_ID = len("subagent-") + 8


def is_terminal() -> bool:
    """Whether a person looks at stdout, so that colours and redrawing are welcome."""
    return sys.stdout.isatty()


def levels(tasks: Sequence[Task]) -> Iterator[tuple[int, Task]]:
    """Each task of a pre-order list with its level in the shown tree, from 0."""
    level_of: dict[str, int] = {}
    for task in tasks:
        above = level_of.get(task.parent or "", -1)
        level_of[task.id] = above + 1
        yield above + 1, task


def status_words(task: Task) -> str:
    """The status, and what a person must know beside it."""
    words = state_of(task)
    return f"{words}, {task.cause.value}" if task.cause is not None else words


def activity_words(task: Task) -> str:
    """What the child did last and how long ago: `tool:read, 3s ago`."""
    ago = f"{age_of(task.now_ms - task.last_activity_ms)} ago"
    return f"{task.activity}, {ago}" if task.activity and not task.is_terminal else ago


def usage_words(usage: Usage) -> str:
    """What was used and paid, for a person: `1,200 tokens, $0.0042`; nothing where no model was asked."""
    if not usage.model_calls:
        return ""
    return f"{usage.total_tokens:,} tokens, {cost_words(usage)}"


def cost_words(usage: Usage) -> str:
    """The cost in words; what is not known is said."""
    cost = usage.cost_usd
    if cost is None:
        return "cost unknown"
    least = "at least " if usage.unpriced_calls else ""
    return f"{least}${cost:.4f}" if cost == 0 or cost >= Decimal("0.0001") else f"{least}under $0.0001"


def usage_value(usage: Usage) -> dict[str, Any]:
    """What was used, as JSON: the cost in US dollars, null where nothing of it is known."""
    cost = usage.cost_usd
    return {
        **asdict(usage),
        "cost_usd": None if cost is None else float(cost),
        "unpriced_calls": usage.unpriced_calls,
    }


def label_of(task: Task) -> str:
    """The label on one line."""
    return " ".join(task.label.split()) or "(no label)"


def plain_row(level: int, task: Task) -> str:
    """A task as one line without control characters."""
    return (
        f"{'  ' * level}{task.id} [{task.provider}] {status_words(task)} — {label_of(task)} "
        f"(depth {task.depth}, {age_of(task.age_ms)}, last activity {activity_words(task)}"
        f"{', ' if task.usage.model_calls else ''}{usage_words(task.usage)})"
    )


def table(tasks: Sequence[Task], *, shorten: bool, flat: bool = False) -> Table:
    """The tree as a table; `shorten` shows the start of each id."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("id", no_wrap=True, overflow="fold")
    made.add_column("label", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("provider", "depth", "status", "age", "used", "last activity"):
        made.add_column(name, no_wrap=True)
    for level, task in levels(tasks):
        shown = f"{task.id[:SHORT_ID]}…" if shorten else task.id
        branch = f"{'   ' * (level - 1)}└─ " if level and not flat else ""
        made.add_row(
            Text(branch + shown),
            Text(label_of(task)),
            Text(task.provider),
            str(task.depth),
            Text(status_words(task), style=COLOURS[task.status]),
            age_of(task.age_ms),
            usage_words(task.usage),
            Text(activity_words(task), style="dim"),
        )
    return made


def print_tasks(tasks: Sequence[Task], *, flat: bool) -> None:
    """On stdout: a table where a person looks and it fits with whole ids, else plain lines."""
    console = Console(highlight=False)
    if is_terminal() and console.width >= FULL_ID_FROM_COLUMNS:
        console.print(table(tasks, shorten=False, flat=flat))
        return
    for level, task in levels(tasks):
        print(plain_row(0 if flat else level, task))


def task_value(task: Task) -> dict[str, Any]:
    """A record as JSON: all fields, and what follows from them."""
    fields = asdict(task)
    fields.pop("now_ms")
    return {
        **fields,
        "usage": usage_value(task.usage),
        "age_ms": task.age_ms,
        "lease_lost": task.lease_lost,
        "stalled_ms": task.stalled_ms,
        "is_terminal": task.is_terminal,
    }


def notice_value(notice: Notice) -> dict[str, Any]:
    """A notice as JSON, its sentence included."""
    return {**asdict(notice), "text": notice.text}


def receipt_value(receipt: KillReceipt) -> dict[str, Any]:
    """What a kill took, as JSON."""
    return {
        "task_id": receipt.task_id,
        "accepted": receipt.accepted,
        "status": receipt.status.value,
        "took": [{"task_id": one, "was": status.value} for one, status in receipt.took],
    }


def counted(count: int, noun: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
