"""`start`: one child, in the background, or in the foreground under this command's Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dsh_tasks.cli.border import DONE, AsJson, awaited, emit, exit_code_of, progress, say
from dsh_tasks.cli.connection import connected
from dsh_tasks.cli.tasks import output_value, show
from dsh_tasks.client import AsyncClient, AsyncRun, Output
from dsh_tasks.errors import DshTasksError, OptionRefused, SchemaRefused
from dsh_tasks.provider import Kind, Registry, of_kind
from dsh_tasks.session_file import SessionFile
from dsh_tasks.submission import MaxDepth

LOOK_EVERY_S = 0.5


def start(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The child's first message; - is stdin.")],
    provider: Annotated[str, typer.Option("--provider", help="How the child starts: spawn, fork, ...")],
    session: Annotated[
        Path | None, typer.Option("--session", help="The parent's session log (v4 or v0, plain or zstd).")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", help="Session that owns the task; default: the log's own.")
    ] = None,
    label: Annotated[str, typer.Option("--label", help="A few words for lists and notices.")] = "",
    foreground: Annotated[
        bool, typer.Option("--foreground", "--wait", help="Wait, print the output; Ctrl-C kills the child.")
    ] = False,
    turns: Annotated[
        int | None, typer.Option("--turns", min=0, help="Completed turns that a fork-lite keeps.")
    ] = None,
    persona: Annotated[str | None, typer.Option("--persona", help="Persona of the child.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model of the child.")] = None,
    model_provider: Annotated[
        str | None, typer.Option("--model-provider", help="Provider of the model.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens of one model answer.")
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option("--effort", help="How much the model reasons: minimal, low, medium, high, xhigh, max."),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Tool that the child may use; more by repeating.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", help="Tool that it may not use; more by repeating.")
    ] = None,
    output_schema: Annotated[
        Path | None, typer.Option("--output-schema", help="File with the JSON schema of the result.")
    ] = None,
    max_depth: Annotated[
        str, typer.Option("--max-depth", help="Deepest level of delegation, or provider-managed.")
    ] = "3",
    key: Annotated[
        str | None, typer.Option("--key", help="Asked again with this key, the same task is answered.")
    ] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Engine that runs the child.")] = None,
    deadline: Annotated[
        float | None, typer.Option("--deadline", min=0.001, help="Longest life in seconds, waiting included.")
    ] = None,
    cost_budget: Annotated[
        str | None, typer.Option("--cost-budget", help="US dollars that its model calls may cost: 0.50")
    ] = None,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Folder on the workers where the child works.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Start a child and print its id.

    With --foreground it waits, prints the output and ends with the exit code of the task's status.
    """
    parent = SessionFile(session) if session is not None else None
    if parent is not None:
        # Before any server is asked: a file that cannot be read is the caller's own.
        parent.refresh()
    asked: dict[str, Any] = {
        "prompt": sys.stdin.read() if prompt == "-" else prompt,
        "parent": parent,
        "owner": owner,
        "label": label,
        "agent_options": _given(provider=model_provider, model=model, maxTokens=max_tokens, effort=effort),
        "tool_filter": _given(allow=allow, deny=deny),
        "persona": persona,
        "output_schema": read_schema(output_schema) if output_schema is not None else None,
        "max_depth": read_depth(max_depth),
        "key": key,
        "engine": engine,
        "working_folder": folder,
        "cost_budget": cost_budget,
        "deadline_ms": None if deadline is None else life_ms_of(deadline),
        "mode": "foreground" if foreground else "background",
    }
    if foreground:
        return _in_foreground(provider, turns, asked, as_json=as_json)
    return _in_background(provider, turns, asked, as_json=as_json)


def _given(**options: Any) -> dict[str, Any] | None:
    """What was given of these options; None where nothing was, so that nothing is overridden."""
    return {name: value for name, value in options.items() if value is not None and value != []} or None


def read_schema(path: Path) -> dict[str, Any]:
    """The JSON schema in a file."""
    try:
        schema = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OptionRefused("--output-schema", f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SchemaRefused(f"{str(path)!r} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise SchemaRefused("it must be a JSON object")
    return schema


def life_ms_of(seconds: float) -> int:
    """A life in ms, 1 at least. Raises OptionRefused for one without an end."""
    if not math.isfinite(seconds):
        raise OptionRefused("--deadline", "a number of seconds")
    return max(1, int(seconds * 1000))


def read_depth(given: str) -> MaxDepth:
    """A number from 0, or `provider-managed`."""
    if given == "provider-managed":
        return "provider-managed"
    if not given.isdecimal():
        raise typer.BadParameter("--max-depth is a whole number from 0, or provider-managed")
    return int(given)


def with_window(registry: Registry, name: str, turns: int | None) -> None:
    """Give the fork-lite of this name a window of `turns`, for this command only."""
    if turns is None:
        return
    if registry.get(name).kind is not Kind.FORK_LITE:
        raise OptionRefused("--turns", f"provider {name!r} has no window; only a fork-lite has one")
    registry.withdraw(name)
    registry.register(of_kind(Kind.FORK_LITE, name, turns))


@contextlib.asynccontextmanager
async def _started(
    provider: str, turns: int | None, asked: dict[str, Any]
) -> AsyncIterator[tuple[AsyncClient, AsyncRun]]:
    session: SessionFile | None = asked["parent"]
    owner = asked["owner"] or (session.header.id if session is not None else None)
    async with connected(owner) as client:
        with_window(client.registry, provider, turns)
        yield client, await client.start(provider, **asked)


def _in_background(provider: str, turns: int | None, asked: dict[str, Any], *, as_json: bool) -> int:
    async def begin() -> tuple[str, bool, int]:
        async with _started(provider, turns, asked) as (_, run):
            return run.id, run.repeated, run.depth

    task_id, repeated, depth = awaited(begin())
    if as_json:
        emit({"task_id": task_id, "repeated": repeated, "depth": depth})
        return DONE
    if repeated:
        progress("this key has started the task before; nothing was started now")
    say(task_id)
    return DONE


def _in_foreground(provider: str, turns: int | None, asked: dict[str, Any], *, as_json: bool) -> int:
    async def begin_and_wait() -> Output:
        async with _started(provider, turns, asked) as (client, run):
            try:
                return await _watched(client, run, quiet=as_json)
            finally:
                # Also under Ctrl-C and SIGTERM: this command owns the child and leaves none behind.
                await _disposed(run)

    seen = awaited(begin_and_wait())
    if not as_json:
        return show(seen, as_json=False)
    emit({"task_id": seen.task.id, **output_value(seen)})
    return exit_code_of(seen.task)


async def _watched(client: AsyncClient, run: AsyncRun, *, quiet: bool) -> Output:
    """The result; meanwhile, on stderr, the id and each change of status, or a moving line in a terminal."""
    result = asyncio.ensure_future(run.result())
    console = Console(stderr=True, highlight=False)
    moving = console.is_terminal and not quiet
    if not quiet:
        progress(f"{run.id}; Ctrl-C kills it")
    shown = ""
    try:
        with console.status("queued") if moving else contextlib.nullcontext() as line:
            while not (await asyncio.wait({result}, timeout=LOOK_EVERY_S))[0]:
                words = await _words(client, run.id)
                if line is not None:
                    line.update(words)
                elif not quiet and words != shown:
                    progress(words)
                shown = words
        return await result
    finally:
        result.cancel()


async def _words(client: AsyncClient, task_id: str) -> str:
    try:
        task = await client.task(task_id)
    except DshTasksError as error:
        return error.message
    return f"{task.status.value}, {task.activity}" if task.activity else task.status.value


async def _disposed(run: AsyncRun) -> None:
    """Dispose of the run to the end, even while this coroutine is being cancelled."""
    disposing = asyncio.ensure_future(run.dispose())
    try:
        await asyncio.shield(disposing)
    except asyncio.CancelledError:
        await disposing
        raise
