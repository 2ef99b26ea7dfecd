"""The command line: each command parses, calls one verb and prints; `main` is its entry point."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

import typer

from dsh_tasks.cli import (
    audit,
    border,
    demo,
    doctor,
    live,
    log,
    replay,
    seed,
    serve,
    start,
    tasks,
    up,
    usage,
    version,
)

app = typer.Typer(
    name="dsh-tasks",
    help="Durable background subagents: start, watch, read and kill children; run server and workers.",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
COMMANDS: dict[str, Callable[..., object]] = {
    "demo": demo.demo,
    "up": up.up,
    "start": start.start,
    "output": tasks.output,
    "wait": tasks.wait,
    "list": tasks.list_tasks,
    "show": live.show,
    "kill": tasks.kill,
    "promote": tasks.promote,
    "notices": tasks.notices,
    "usage": usage.usage,
    "prune": tasks.prune,
    "doctor": doctor.doctor,
    "audit": audit.audit,
    "log": log.log,
    "replay": replay.replay,
    "seed": seed.seed,
    "server": serve.server,
    "worker": serve.worker,
    "flower": serve.flower,
    "version": version.version,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> None:
    """Run the command line of this process."""
    if not os.environ.get(border.DEBUG):
        # Libraries warn about lost connections in words of their own; ours are told once, as a line.
        logging.getLogger().addHandler(logging.NullHandler())
    sys.exit(border.run(app, sys.argv[1:] or ["--help"]))
