"""`seed`: what a child of this log would start with; no server is needed."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dsh_tasks import format as log_format
from dsh_tasks.cli.border import DONE, AsJson, emit, say
from dsh_tasks.cli.render import counted, size_of
from dsh_tasks.cli.start import with_window
from dsh_tasks.config import load_config
from dsh_tasks.errors import OptionRefused
from dsh_tasks.seed import Seed, child_header, child_session
from dsh_tasks.session import Session
from dsh_tasks.settings import load
from dsh_tasks.surface import fold

BYTES_OF_A_TOKEN = 4
"""A rule of thumb for English text; the model's own count differs."""


def seed(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Session log (v4 or v0, plain or zstd).")],
    provider: Annotated[str, typer.Option("--provider", help="How the child starts: spawn, fork, ...")],
    turns: Annotated[
        int | None, typer.Option("--turns", min=0, help="Completed turns that a fork-lite keeps.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the child's session log (v4) here.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show what a child of this log would inherit; needs no server."""
    registry = load_config(settings=load()).registry
    with_window(registry, provider, turns)
    parent = log_format.read(file)
    made = registry.get(provider).seed_of(parent)
    child = child_of(parent, made)
    if out is not None:
        written(out, child)
    value = seed_value(made, child, provider)
    if as_json:
        emit({**value, "out": str(out) if out is not None else None})
        return DONE
    say(
        f"{provider}: {counted(made.turns, 'turn')}, {counted(len(made.events), 'event')}, "
        f"{size_of(made.raw_bytes)} ({size_of(made.stored_bytes)} stored), form {made.form}"
    )
    say(f"about {value['estimated_tokens']} tokens (estimated: visible text, {BYTES_OF_A_TOKEN} bytes a token)")
    if out is not None:
        say(f"written: {out}, session {child.header.id}")
    return DONE
