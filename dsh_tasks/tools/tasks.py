"""The task tools: task_output reads or waits, task_list lists, task_kill stops. One caller's tasks only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dsh_tasks.errors import TaskNotFound
from dsh_tasks.task import Task, cut_text
from dsh_tasks.tools.arguments import flag_in, milliseconds_in, offset_in, only, optional_text_in, text_in
from dsh_tasks.tools.base import (
    Aborted,
    Call,
    KillReceipt,
    Output,
    TaskClient,
    Tool,
    ToolResult,
    caller_of,
    refused,
    status_line,
    until_aborted,
)
from dsh_tasks.tools.fence import fenced
from dsh_tasks.tools.page import STATUS_SHARE, Page, as_it_is, fit, fit_lines
from dsh_tasks.tools.wording import detail_of

KIND = "subagent"
"""The kind of every task here, as a list shows it."""

FENCED_LEAST = 1_024
"""Bytes of an answer with a fence, whatever the setting: a smaller one could hold the fence alone."""


class TaskOutputTool(Tool):
    """`task_output(task_id, wait?, timeout_ms?, offset?)`: the status, and the final text page by page."""

    @property
    def name(self) -> str:
        """`task_output`."""
        return "task_output"

    @property
    def description(self) -> str:
        """What it does."""
        return (
            "Read a background task: its final output, and its status in the last line. Answers at once, "
            "also while the task is still at work, unless wait is true."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments; default and cap of a wait are the installation's."""
        settings = self._client.settings
        return _object(
            {
                "task_id": {"type": "string", "description": "Id of the task."},
                "wait": {
                    "type": "boolean",
                    "description": "true: wait until the task has ended or the time is over.",
                },
                "timeout_ms": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "description": (
                        f"How long to wait, in milliseconds; {settings.wait_default_ms} where left out, "
                        f"{settings.wait_cap_ms} at most. The task goes on when the time is over."
                    ),
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "Byte of the output to start from, as a cut answer names it.",
                },
            },
            required=["task_id"],
        )

    async def _run(self, arguments: Mapping[str, Any], call: Call) -> ToolResult:
        only(arguments, ("task_id", "wait", "timeout_ms", "offset"))
        task_id = text_in(arguments, "task_id")
        wait = flag_in(arguments, "wait")
        timeout_ms = milliseconds_in(arguments, "timeout_ms")
        offset = offset_in(arguments, "offset")
        client = caller_of(self._client, call)
        notes = ["[timeout_ms has no effect without wait]"] if timeout_ms is not None and not wait else []
        limit = client.settings.output_read_bytes
        reading = client.output(task_id, wait=wait, timeout_ms=timeout_ms, offset=offset, limit_bytes=limit)
        try:
            output = await until_aborted(reading, call.abort if wait else None)
        except Aborted:
            # An aborted wait aborts only itself; the status is still told.
            output = await client.output(task_id, offset=offset, limit_bytes=limit)
            notes.append("[the wait was aborted; the task goes on]")
        except TaskNotFound as error:
            result = refused(error)
            return ToolResult(result.value, f"{result.text}\n{status_line('not found')}", is_error=True)
        return _read(output, offset, notes, client)


def _read(output: Output, asked_offset: int, notes: Sequence[str], client: TaskClient) -> ToolResult:
    task, limit = output.task, client.settings.output_read_bytes
    if output.fenced:
        limit = max(limit, FENCED_LEAST)
    text, offset, total = _body(output, asked_offset)
    status = status_line(task.status.value, cut_text(detail_of(task), limit // STATUS_SHARE))
    told = [*notes, *_notes(output, client.settings.wait_cap_ms)]
    if not text:
        told.insert(0, _nothing(task, asked_offset, total))
    elif task.partial:
        told.insert(0, "[partial output, the task did not complete]")
    framed = partial(fenced, task_id=task.id) if output.fenced else as_it_is
    page = fit(text, offset=offset, total=total, notes=told, status=status, limit_bytes=limit, framed=framed)
    seen = (task.id,) if task.is_terminal else ()
    return ToolResult(_value(output, page, offset, total), page.answer, seen=seen)


def _body(output: Output, asked_offset: int) -> tuple[str, int, int]:
    """Text, offset and whole size of what is shown: the structured value as JSON where there is one."""
    if not output.has_structured:
        return output.text, output.offset, output.total_bytes
    raw = output.structured_json.encode("utf-8", "replace")
    start = min(asked_offset, len(raw))
    return raw[start:].decode("utf-8", "ignore"), start, len(raw)


def _nothing(task: Task, offset: int, total: int) -> str:
    if not task.is_terminal:
        return "No output yet."
    if offset > 0 and total > 0:
        return f"No output from offset {offset} on; there are {total} bytes."
    return "No output."


def _notes(output: Output, cap_ms: int) -> list[str]:
    notes = []
    if output.wait_capped:
        notes.append(f"[the wait was cut to the cap of {cap_ms} ms]")
    if output.timed_out:
        notes.append(f"[the wait ended after {output.waited_ms} ms, before the task did; it goes on]")
    return notes


def _value(output: Output, page: Page, offset: int, total: int) -> dict[str, Any]:
    task = output.task
    value = {
        **_task_value(task),
        "detail": task.detail,
        "output": page.shown,
        "partial": task.partial,
        "offset": offset,
        "totalBytes": total,
        "nextOffset": page.next_offset,
        "timedOut": output.timed_out,
        "waitedMs": output.waited_ms,
        "waitCapped": output.wait_capped,
    }
    return {**value, "structured": output.structured} if output.has_structured else value


class TaskListTool(Tool):
    """`task_list()`: the caller's tasks and those below, each after the one that started it."""

    @property
    def name(self) -> str:
        """`task_list`."""
        return "task_list"

    @property
    def description(self) -> str:
        """What it does."""
        return "List your background tasks and what they started: id, kind, status, label, age."

    @property
    def parameters(self) -> dict[str, Any]:
        """No arguments."""
        return _object({}, required=[])

    async def _run(self, arguments: Mapping[str, Any], call: Call) -> ToolResult:
        only(arguments, ())
        client = caller_of(self._client, call)
        tasks = await client.list_tasks()
        value = {"tasks": [_task_value(task) for task in tasks]}
        if not tasks:
            return ToolResult(value, "No tasks.")
        top = min(task.depth for task in tasks)
        lines = [line_of(task, indent=task.depth - top) for task in tasks]
        text = fit_lines(lines, _ended(tasks), what="tasks", limit_bytes=client.settings.output_read_bytes)
        return ToolResult(value, text)


def line_of(task: Task, *, indent: int) -> str:
    """`<id> [<kind>] <status> — <label> (<age>)`, two spaces deeper for each level."""
    label = " ".join(task.label.split()) or "(no label)"
    return f"{'  ' * indent}{task.id} [{KIND}] {state_of(task)} — {label} ({age_of(task.age_ms)})"


def state_of(task: Task) -> str:
    """The status, and whether a running child may not be at work: `running (stalled 5m 0s)`."""
    if task.lease_lost:
        return f"{task.status.value} (lease lost)"
    if task.stalled_ms:
        return f"{task.status.value} (stalled {age_of(task.stalled_ms)})"
    return task.status.value


def age_of(age_ms: int) -> str:
    """A span in its two largest units: `8s`, `3m 5s`, `2h 10m`, `4d 1h`."""
    seconds = max(age_ms, 0) // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if not minutes:
        return f"{seconds}s"
    if not hours:
        return f"{minutes}m {seconds % 60}s"
    if not days:
        return f"{hours}h {minutes % 60}m"
    return f"{days}d {hours % 24}h"


def _ended(tasks: Sequence[Task]) -> list[bool]:
    """For each task of a pre-order list: it and everything below it has ended."""
    ended = [task.is_terminal for task in tasks]
    for place, task in enumerate(tasks):
        for below in range(place + 1, len(tasks)):
            if tasks[below].depth <= task.depth or not ended[place]:
                break
            ended[place] = tasks[below].is_terminal
    return ended


class TaskKillTool(Tool):
    """`task_kill(task_id, reason?)`: stops a task and everything below it; answers at once."""

    @property
    def name(self) -> str:
        """`task_kill`."""
        return "task_kill"

    @property
    def description(self) -> str:
        """What it does."""
        return (
            "Stop a background task and everything that it started. Answers at once and lists what it took; "
            "a task that has already finished stays as it is."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments."""
        return _object(
            {
                "task_id": {"type": "string", "description": "Id of the task."},
                "reason": {"type": "string", "description": "Why, in a few words; kept with the task."},
            },
            required=["task_id"],
        )

    async def _run(self, arguments: Mapping[str, Any], call: Call) -> ToolResult:
        only(arguments, ("task_id", "reason"))
        task_id = text_in(arguments, "task_id")
        reason = optional_text_in(arguments, "reason")
        client = caller_of(self._client, call)
        receipt = await client.kill(task_id, reason=reason)
        took = [{"taskId": taken, "was": status.value} for taken, status in receipt.took]
        value = {
            "taskId": receipt.task_id,
            "accepted": receipt.accepted,
            "status": receipt.status.value,
            "took": took,
        }
        text = _killed(receipt, client.settings.output_read_bytes)
        return ToolResult(value, text, seen=(receipt.task_id,))


def _killed(receipt: KillReceipt, limit_bytes: int) -> str:
    if not receipt.accepted and receipt.status.is_terminal:
        return f"{receipt.task_id} has already finished, status {receipt.status.value}; nothing was changed"
    if not receipt.accepted:
        return f"cancellation of {receipt.task_id} was already requested, status {receipt.status.value}"
    lines = [f"{taken} (was {status.value})" for taken, status in receipt.took]
    head = f"cancellation requested: {receipt.task_id}"
    if not lines:
        return head
    head = f"{head}\ntook {len(lines)}:"
    listed = fit_lines(
        lines, [False] * len(lines), what="tasks", limit_bytes=limit_bytes - len(head.encode()) - 1
    )
    return f"{head}\n{listed}"


def _task_value(task: Task) -> dict[str, Any]:
    return {
        "taskId": task.id,
        "kind": KIND,
        "provider": task.provider,
        "label": task.label,
        "parent": task.parent,
        "depth": task.depth,
        "status": task.status.value,
        "cause": task.cause.value if task.cause is not None else None,
        "leaseLost": task.lease_lost,
        "stalledMs": task.stalled_ms,
        "attempt": task.attempt,
        "ageMs": task.age_ms,
    }


def _object(properties: dict[str, Any], *, required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
