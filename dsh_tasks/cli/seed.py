"""`seed`: what a child of this log would start with; no server is needed."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dsh_tasks.cli.border import DONE, AsJson, emit, say
from dsh_tasks.cli.log import write_log
from dsh_tasks.cli.start import with_window
from dsh_tasks.config import load_config
from dsh_tasks.seed import BYTES_PER_TOKEN, Seed, child_header, child_session, inherited
from dsh_tasks.session import ParentLog, Session
from dsh_tasks.session_file import SessionFile
from dsh_tasks.settings import load


def seed(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Session log (v4 or v0, plain or zstd).")],
    provider: Annotated[str, typer.Option("--provider", help="How the child starts: spawn, fork, ...")],
    turns: Annotated[
        int | None, typer.Option("--turns", min=0, help="Completed turns that a fork-lite keeps.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the child's log (v4) here.")] = None,
    as_json: AsJson = False,
) -> int:
    """Show what a child would inherit.

    Needs no server. With -o the child's log is written, as the harness opens it.
    """
    registry = load_config(settings=load()).registry
    with_window(registry, provider, turns)
    source = registry.get(provider)
    parent = SessionFile(file, keep=source.window)
    parent.refresh()
    made = source.seed_of(parent)
    child = child_of(parent, made)
    if out is not None:
        write_log(out, child)
    if as_json:
        emit({"provider": provider, **seed_value(made), "session": child.header.id, "out": out and str(out)})
        return DONE
    say(f"{provider}: {inherited(made)}; {made.stored_bytes} bytes as stored")
    if out is not None:
        say(f"written: {out}, session {child.header.id}")
    return DONE


def child_of(parent: ParentLog, made: Seed) -> Session:
    """The log of a child that has not begun."""
    header = child_header(
        parent_session=parent.header.id,
        child_id=f"subagent-{secrets.token_hex(16)}",
        cwd=parent.header.cwd,
        created_at_ms=time.time_ns() // 1_000_000,
        depth=parent.header.delegation_depth + 1,
        seeded=made.form != "empty",
    )
    return child_session(header, made)


def seed_value(made: Seed) -> dict[str, Any]:
    """A seed as JSON, without its events."""
    return {
        "turns": made.turns,
        "events": made.event_count,
        "raw_bytes": made.raw_bytes,
        "stored_bytes": made.stored_bytes,
        "form": made.form,
        "digest": made.digest,
        "estimated_tokens": made.raw_bytes // BYTES_PER_TOKEN,
    }
