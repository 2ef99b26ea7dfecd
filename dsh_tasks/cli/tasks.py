"""`output`, `wait`, `list`, `kill`, `promote`, `notices`: one verb of the client each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from dsh_tasks.cli.border import (
    DONE,
    FAILED,
    KILLED,
    STILL_RUNNING,
    AsJson,
    awaited,
    emit,
    exit_code_of,
    progress,
    say,
)
from dsh_tasks.cli.connection import OwnerOption, TaskArgument, connected
from dsh_tasks.cli.live import print_live, progress_value, read_live
from dsh_tasks.cli.render import (
    counted,
    levels,
    notice_value,
    plain_row,
    print_tasks,
    receipt_value,
    task_value,
)
from dsh_tasks.client import Output, Waited
from dsh_tasks.notice import Notice
from dsh_tasks.progress import Progress
from dsh_tasks.store import KillReceipt, Promotion
from dsh_tasks.task import Task
from dsh_tasks.tools.base import status_line
from dsh_tasks.tools.wording import detail_of

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the end, or until the time is over.")]
TimeoutOption = Annotated[
    int | None,
    typer.Option("--timeout-ms", min=1, help="How long to wait; the default and the cap are settings."),
]
OffsetOption = Annotated[int, typer.Option("--offset", min=0, help="Byte of the output to start from.")]


def output(
    task_id: TaskArgument,
    owner: OwnerOption = None,
    wait: WaitOption = False,
    timeout_ms: TimeoutOption = None,
    offset: OffsetOption = 0,
    whole: Annotated[bool, typer.Option("--whole", help="All of the output instead of one page.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show a task's output and status.

    The status stands in the last line. Ends with 0 completed, 1 failed, 7 still
    running (also after a wait that timed out), 8 killed.
    A look with --owner holds the notice of the ending back for a while.
    """

    async def read() -> Output:
        async with connected(owner) as client:
            limit = client.settings.output_max_bytes if whole else None
            if wait and not as_json:
                progress(f"waiting for {task_id}; Ctrl-C ends the wait, the task goes on")
            return await client.output(
                task_id, wait=wait, timeout_ms=timeout_ms, offset=offset, limit_bytes=limit
            )

    return show(awaited(read()), as_json=as_json)


def show(seen: Output, *, as_json: bool) -> int:
    """Print what a read saw; returns the exit code of the task's status."""
    if as_json:
        emit(output_value(seen))
    else:
        for line in output_lines(seen):
            say(line)
    return exit_code_of(seen.task)


def output_lines(seen: Output) -> list[str]:
    """The text, then what is to be known about it, then the status."""
    task = seen.task
    text = seen.structured_json if seen.has_structured else seen.text
    lines = [text or _nothing(seen)]
    if text and task.partial:
        lines.append("[partial output, the task did not complete]")
    if seen.next_offset is not None:
        end = seen.next_offset
        lines.append(
            f"[output: bytes {seen.offset} to {end} of {seen.total_bytes}; continue with --offset {end}]"
        )
    if seen.wait_capped:
        lines.append("[the wait was cut to the cap of the settings]")
    if seen.timed_out:
        lines.append(f"[the wait ended after {seen.waited_ms} ms, before the task did; it goes on]")
    return [*lines, status_line(task.status.value, detail_of(task))]


def _nothing(seen: Output) -> str:
    if not seen.task.is_terminal:
        return "No output yet."
    if seen.total_bytes:
        return f"No output from offset {seen.offset} on; there are {seen.total_bytes} bytes."
    return "No output."


def output_value(seen: Output) -> dict[str, Any]:
    """What a read saw, as JSON."""
    value = {
        "task": task_value(seen.task),
        "output": seen.text,
        "offset": seen.offset,
        "total_bytes": seen.total_bytes,
        "next_offset": seen.next_offset,
        "timed_out": seen.timed_out,
        "waited_ms": seen.waited_ms,
        "wait_capped": seen.wait_capped,
    }
    return {**value, "structured": seen.structured} if seen.has_structured else value


def wait(
    task_ids: Annotated[list[str], typer.Argument(metavar="ID..", help="Ids of the tasks, at most 1,000.")],
    owner: OwnerOption = None,
    any_of: Annotated[bool, typer.Option("--any", help="Until one has ended, instead of all.")] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout", min=0.001, help="Seconds to wait; the default and the cap are settings, in ms."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Wait for the end of one or several tasks.

    Ends with 7 when the time was over before; else by those that ended: 1 if one failed, 8 if one was
    killed, 0 if all completed. A look with --owner holds the notices of the endings back for a while.
    """
    timeout_ms = None if timeout_s is None else max(1, round(timeout_s * 1000))

    async def waited() -> Waited:
        async with connected(owner) as client:
            if not as_json:
                progress(f"waiting for {counted(len(set(task_ids)), 'task')}; Ctrl-C ends the wait alone")
            return await client.wait(task_ids, until="any" if any_of else "all", timeout_ms=timeout_ms)

    seen = awaited(waited())
    if as_json:
        emit(waited_value(seen))
    else:
        for line in waited_lines(seen):
            say(line)
    return exit_code_of_all(seen)


def waited_lines(seen: Waited) -> list[str]:
    """A line for each task, then what is to be known about the wait."""
    lines = [plain_row(0, task) for task in (*seen.ended, *seen.live)]
    if seen.wait_capped:
        lines.append("[the wait was cut to the cap of the settings]")
    if seen.timed_out:
        lines.append(f"[the wait ended after {seen.waited_ms} ms; what has not ended goes on]")
    return lines


def waited_value(seen: Waited) -> dict[str, Any]:
    """What a wait saw, as JSON."""
    return {
        "ended": [task_value(task) for task in seen.ended],
        "live": [task_value(task) for task in seen.live],
        "timed_out": seen.timed_out,
        "waited_ms": seen.waited_ms,
        "wait_capped": seen.wait_capped,
    }


def exit_code_of_all(seen: Waited) -> int:
    """Still running where the time was over; else the worst of what ended: failed, killed, completed."""
    if seen.timed_out:
        return STILL_RUNNING
    codes = {exit_code_of(task) for task in seen.ended}
    return next((code for code in (FAILED, KILLED) if code in codes), DONE)


def list_tasks(
    owner: Annotated[str | None, typer.Option("--owner", help="Tasks of this session and below.")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Tasks of every session (the default).")] = False,
    flat: Annotated[bool, typer.Option("--flat", help="No tree; with --owner only its own tasks.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Below each that is at work: step, tool, last text.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """List tasks as a tree.

    Each with id, provider, status, label, depth, age, what it used and last activity.
    """
    if owner is not None and everyone:
        raise typer.BadParameter("--owner and --all exclude each other")

    async def found() -> tuple[list[Task], dict[str, Progress]]:
        async with connected(owner) as client:
            tasks = await client.list_tasks(tree=not flat, all_owners=owner is None)
            return tasks, await read_live(client, tasks) if live else {}

    tasks, places = awaited(found())
    if as_json:
        shown = {"live": {one: progress_value(place) for one, place in places.items()}} if live else {}
        emit({"tasks": [task_value(task) for task in tasks], **shown})
    elif tasks and live:
        print_live([(0 if flat else level, task) for level, task in levels(tasks)], places)
    elif tasks:
        print_tasks(tasks, flat=flat)
    else:
        progress("no tasks")
    return DONE


def kill(
    task_id: TaskArgument,
    owner: OwnerOption = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, kept with the task.")] = None,
    as_json: AsJson = False,
) -> int:
    """Kill a task and everything below it.

    Answers at once with what it took; what runs ends within ten seconds.
    """

    async def killed() -> KillReceipt:
        async with connected(owner) as client:
            return await client.kill(task_id, reason=reason)

    receipt = awaited(killed())
    if as_json:
        emit(receipt_value(receipt))
    else:
        for line in receipt_lines(receipt):
            say(line)
    return DONE


def promote(task_id: TaskArgument, owner: OwnerOption = None, as_json: AsJson = False) -> int:
    """Let a foreground call go; its child goes on.

    The call returns at once, wherever it waits, and the child becomes a background task: a notice tells its
    owner of the end.
    """

    async def promoted() -> Promotion:
        async with connected(owner) as client:
            return await client.promote(task_id)

    told = awaited(promoted())
    if as_json:
        emit({**asdict(told), "status": told.status.value})
    elif told.accepted:
        say(f"{told.task_id} goes on in the background")
    elif told.in_background:
        say(f"{told.task_id} was started in the background; nothing was changed")
    else:
        say(f"{told.task_id} ends where it is waited for, status {told.status.value}; nothing was changed")
    return DONE


def receipt_lines(receipt: KillReceipt) -> list[str]:
    """What a kill took, or why it took nothing."""
    if not receipt.accepted and receipt.status.is_terminal:
        return [f"{receipt.task_id} has already ended, status {receipt.status.value}; nothing was changed"]
    if not receipt.accepted:
        return [f"the kill of {receipt.task_id} was already requested, status {receipt.status.value}"]
    took = [f"  {one} (was {status.value})" for one, status in receipt.took]
    return [f"kill requested: {receipt.task_id}; took {counted(len(took), 'task')}", *took]


def notices(
    owner: Annotated[str, typer.Option("--owner", help="The session whose notices you want.")],
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge what is shown: it goes.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show endings not yet acknowledged."""

    async def pending() -> tuple[Notice, ...]:
        async with connected(owner) as client:
            return await client.notices(acknowledge=ack)

    found = awaited(pending())
    if as_json:
        emit({"notices": [notice_value(notice) for notice in found], "acknowledged": ack})
    elif found:
        for notice in found:
            say(notice.text)
    else:
        progress("no notices")
    return DONE


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Age of an ending: a number with s, m, h or d.")
    ] = "7d",
    as_json: AsJson = False,
) -> int:
    """Remove the records of tasks that ended long ago.

    Their logs, outputs and seeds go with them. A task stays while one below it does, and while nobody
    has acknowledged its ending (at most 30 days).
    """
    age_ms = read_age(older_than)

    async def run() -> dict[str, int]:
        async with connected(None) as client:
            return await client.prune(older_than_ms=age_ms)

    told = awaited(run())
    if as_json:
        emit(told)
        return DONE
    gone = told.pop("forgotten", 0)
    say(f"{gone} removed" + "".join(f", {count} kept ({why})" for why, count in sorted(told.items())))
    return DONE


_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def read_age(given: str) -> int:
    """An age like `7d` in ms."""
    number, unit = given[:-1], given[-1:]
    if unit not in _UNITS_MS or not number.isdecimal() or not number.isascii():
        raise typer.BadParameter("--older-than is a whole number with s, m, h or d, like 7d")
    return int(number) * _UNITS_MS[unit]
