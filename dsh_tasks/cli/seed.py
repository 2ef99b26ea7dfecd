"""`seed`: what a child of this log would start with; no server is needed."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dsh_tasks import format as log_format
from dsh_tasks.cli.border import DONE, AsJson, emit, say
from dsh_tasks.cli.log import write_log
from dsh_tasks.cli.render import counted, size_of
from dsh_tasks.cli.start import with_window
from dsh_tasks.config import load_config
from dsh_tasks.seed import Seed, child_header, child_session
from dsh_tasks.session import Session
from dsh_tasks.settings import load
from dsh_tasks.surface import messages

BYTES_OF_A_TOKEN = 4
"""A rule of thumb for English text; a model's own count differs."""


def seed(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Session log (v4 or v0, plain or zstd).")],
    provider: Annotated[str, typer.Option("--provider", help="How the child starts: spawn, fork, ...")],
    turns: Annotated[
        int | None, typer.Option("--turns", min=0, help="Completed turns that a fork-lite keeps.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the child's log (v4) here.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show what a child would inherit.

    Needs no server. With -o the child's log is written, as the harness opens it.
    """
    registry = load_config(settings=load()).registry
    with_window(registry, provider, turns)
    parent = log_format.read(file)
    made = registry.get(provider).seed_of(parent)
    child = child_of(parent, made)
    if out is not None:
        write_log(out, child)
    if as_json:
        emit({"provider": provider, **seed_value(made), "session": child.header.id, "out": out and str(out)})
        return DONE
    say(
        f"{provider}: {counted(made.turns, 'turn')}, {counted(len(made.events), 'event')}, "
        f"{size_of(made.raw_bytes)} ({size_of(made.stored_bytes)} as stored), form {made.form}"
    )
    say(f"about {tokens_of(made)} tokens (estimated: what a model sees, {BYTES_OF_A_TOKEN} bytes a token)")
    if out is not None:
        say(f"written: {out}, session {child.header.id}")
    return DONE


def child_of(parent: Session, made: Seed) -> Session:
    """The log of a child that has not begun."""
    header = child_header(
        parent_session=parent.header.id,
        child_id=f"subagent-{secrets.token_hex(16)}",
        cwd=parent.header.cwd,
        created_at_ms=time.time_ns() // 1_000_000,
        depth=parent.header.delegation_depth + 1,
        seeded=bool(made.events),
    )
    return child_session(header, made.events, ())


def tokens_of(made: Seed) -> int:
    """An estimate: the bytes of what a model would see, divided."""
    shown = [message.get("content") for message in messages(made.events)]
    return len(json.dumps(shown, ensure_ascii=False).encode()) // BYTES_OF_A_TOKEN if shown else 0


def seed_value(made: Seed) -> dict[str, Any]:
    """A seed as JSON, without its events."""
    return {
        "turns": made.turns,
        "events": len(made.events),
        "raw_bytes": made.raw_bytes,
        "stored_bytes": made.stored_bytes,
        "form": made.form,
        "digest": made.digest,
        "estimated_tokens": tokens_of(made),
    }
