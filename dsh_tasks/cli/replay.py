"""`replay`: a child run again from its log by the workers' package, in a process of its own."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dsh_tasks import format as log_format
from dsh_tasks.cli.border import AsJson, awaited
from dsh_tasks.cli.connection import OwnerOption, connected
from dsh_tasks.cli.processes import environment, python
from dsh_tasks.errors import OptionRefused
from dsh_tasks.session import Session


def replay(
    task_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of the task.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", exists=True, dir_okay=False, help="An exported log instead.")
    ] = None,
    owner: OwnerOption = None,
    as_json: AsJson = False,
) -> int:
    """Run a child again from its log, and show the first difference.

    Model and tools answer with what the log holds; nothing is asked of any network and nothing is written.
    Compared are all rows without ids, times and usage, and each request with what the rows before it imply.
    Ends with 0 for no difference, 1 for one, 6 for a log that cannot be replayed: no model was asked in it,
    or another engine than `agent` wrote it.
    """
    if (task_id is None) == (file is None):
        raise typer.BadParameter("give either a task's ID or --file")
    if file is not None:
        return _run(file, as_json=as_json)
    assert task_id is not None
    session = awaited(_session(task_id, owner))
    # Private to this user: a log is content.
    with tempfile.TemporaryDirectory(prefix="dsh-replay-") as folder:
        path = Path(folder) / "child.session.v4.jsonl"
        log_format.write_file(session, path, compressed=False)
        return _run(path, as_json=as_json)


async def _session(task_id: str, owner: str | None) -> Session:
    async with connected(owner) as client:
        engine = (await client.task(task_id)).engine
        if engine != "agent":
            raise OptionRefused(
                "ID", f"{task_id!r} was run by the engine {engine!r}; only 'agent' is replayed"
            )
        return await client.session(task_id)


def _run(path: Path, *, as_json: bool) -> int:
    command = python("-m", "workers.replay", str(path.resolve()), *(["--json"] if as_json else []))
    return subprocess.run(command, env=environment(), check=False).returncode  # noqa: S603 - no shell, ours
