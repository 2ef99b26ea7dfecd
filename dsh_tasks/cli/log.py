"""`log`: a child's own session log, as readable rows, as they come, or as a file that the harness opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from dsh_tasks import format as log_format
from dsh_tasks.cli.border import DONE, AsJson, awaited, emit, exit_code_of, progress, say
from dsh_tasks.cli.connection import OwnerOption, TaskArgument, connected
from dsh_tasks.errors import OptionRefused
from dsh_tasks.session import Event, Session
from dsh_tasks.task import Task

SHOWN = 160
"""Characters of a row's text that a line shows."""
END_OF_SEED = "session/end-seed"


def log(
    task_id: TaskArgument,
    owner: OwnerOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show rows as they are written, until the task has ended.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the session log (v4) here instead.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show a child's own session log.

    What it inherited is counted, not shown. With --json all rows, the inherited
    ones too; with --follow and --json one row a line. --follow goes on through new
    attempts and a restart of the server, and ends with 0 completed, 1 failed, 8 killed.
    """
    if follow and out is not None:
        raise typer.BadParameter("--follow and --out exclude each other")
    if follow:
        return _follow(task_id, owner, as_json=as_json)

    async def whole() -> Session:
        async with connected(owner) as client:
            return await client.session(task_id)

    session = awaited(whole())
    if out is not None:
        write_log(out, session)
        progress(f"written: {out}, {len(session.events)} rows")
    if as_json:
        emit({"header": session.header.row(), "rows": [event.row() for event in session.events]})
    elif out is None:
        _show(session)
    return DONE


def write_log(path: Path, session: Session) -> None:
    """Write a session as a v4 log file, compressed where the name ends in `.zstd`."""
    try:
        log_format.write_file(session, path, compressed=path.suffix == ".zstd")
    except OSError as error:
        raise OptionRefused("--out", f"{str(path)!r} cannot be written: {error.strerror}") from None


def _show(session: Session) -> None:
    inherited = inherited_count(session)
    if inherited:
        say(f"[{inherited} inherited rows, not shown]")
    for event in session.events[inherited:]:
        say(row_line(event))


def inherited_count(session: Session) -> int:
    """How many rows stand up to and with the end-of-seed marker."""
    places = [place for place, event in enumerate(session.events) if event.type == END_OF_SEED]
    return places[-1] + 1 if places else 0


def _follow(task_id: str, owner: str | None, *, as_json: bool) -> int:
    async def following() -> Task:
        async with connected(owner) as client:
            async for event in client.follow(task_id):
                line = json.dumps(event.row(), ensure_ascii=False) if as_json else row_line(event)
                print(line, flush=True)
            return await client.task(task_id)

    return exit_code_of(awaited(following()))


def row_line(event: Event) -> str:
    """A row on one line: place, time, type, and the start of its text."""
    at = datetime.fromtimestamp(event.time / 1000, tz=UTC).strftime("%H:%M:%S")
    words = " ".join(" ".join(_words(event)).split())
    shown = words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"
    return f"{event.seq:>5} {at} {event.type}{': ' if shown else ''}{shown}"


def _words(event: Event) -> Iterator[str]:
    """The parts of a row that a person wants to see."""
    data = event.data
    if event.type == "tool/call":
        yield f"{data.get('name')} {data.get('arguments')}"
    if event.type == "dsh-tasks/attempt":
        yield f"attempt {data.get('attempt')} begins"
    if event.type == "turn/end":
        yield str(data.get("reason", {}).get("kind", ""))
    message = data.get("message", data)
    content = message.get("content") if isinstance(message, Mapping) else None
    for block in content if isinstance(content, list) else ():
        yield _block(block)


def _block(block: Mapping[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    if block.get("type") == "tool-call":
        return f"[calls {block.get('name')} {block.get('arguments')}]"
    return f"[{block.get('type')}]"
