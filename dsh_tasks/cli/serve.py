"""`server`, `worker`, `flower`: one part in the foreground each, for a service manager or a Procfile."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dsh_tasks.cli import processes
from dsh_tasks.cli.border import AsJson, emit, progress
from dsh_tasks.config import load_config
from dsh_tasks.errors import OptionRefused
from dsh_tasks.queue import make_app
from dsh_tasks.settings import load
from dsh_tasks.store import masked
from dsh_tasks.store.embedded import server_command
from dsh_tasks.store.locate import located, state_file

CONCURRENCY_HELP = "Children that a worker process runs at once; DSH_TASKS_CONCURRENCY, 100."
LOGIN = "FLOWER_BASIC_AUTH"
COLUMNS = "name,uuid,args,state,received,runtime,worker,result"
"""Flower's own list leaves out the arguments, where a message shows label, provider, depth and owner."""

Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Loopback port to listen on.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", min=1, help=CONCURRENCY_HELP)]
LogLevel = Annotated[str, typer.Option("--loglevel", help="DEBUG, INFO, WARNING or ERROR.")]


def server(
    port: Port,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Data folder; default: by the port, in the state folder.")
    ] = None,
    binary: Annotated[
        Path | None, typer.Option("--binary", exists=True, dir_okay=False, help="Another Redis or Valkey.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the embedded server alone.

    Valkey in the foreground: on loopback, with an append-only file, without eviction.
    """
    if not processes.port_is_free(port):
        raise OptionRefused("--port", f"another process listens on 127.0.0.1:{port}")
    home = folder or state_file().parent / f"server-{port}"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if as_json:
        emit({"redis_url": f"redis://127.0.0.1:{port}/0", "dir": str(home.resolve()), "pid": os.getpid()})
    else:
        progress(f"server on redis://127.0.0.1:{port}/0, data in {home}")
    command = server_command(port, home.resolve(), binary=str(binary.resolve()) if binary else None)
    processes.become(command, env=os.environ)


def worker(
    concurrency: Concurrency = None,
    loglevel: LogLevel = "WARNING",
    name: Annotated[str | None, typer.Option("--name", help="Name, unique in the installation.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run one worker process alone.

    In the foreground; SIGTERM hands its children back.
    """
    level = checked_level(loglevel)
    settings = located(load())
    # Here, so that what is wrong with the settings file is told in this command's form.
    load_config(settings=settings)
    assert settings.redis_url is not None
    slots = concurrency if concurrency is not None else settings.concurrency
    if as_json:
        emit({"redis_url": masked(settings.redis_url), "concurrency": slots, "pid": os.getpid()})
    else:
        progress(f"worker with {slots} slots for {masked(settings.redis_url)}")
    command = processes.worker_command(concurrency=slots, loglevel=level, name=name)
    processes.become(command, env=processes.environment())


def checked_level(level: str) -> str:
    """The name of a log level, or a usage error."""
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter(f"--loglevel {level!r} is none of DEBUG, INFO, WARNING, ERROR")
    return level.upper()


def flower(
    port: Port,
    address: Annotated[str, typer.Option("--address", help="Address to listen on.")] = "127.0.0.1",
    as_json: AsJson = False,
) -> int:
    """Run Flower, the queue in a browser.

    Behind the login FLOWER_BASIC_AUTH (user:password), which must be set.
    """
    check_login(os.environ.get(LOGIN, ""))
    settings = located(load())
    assert settings.effective_broker_url is not None
    if as_json:
        emit({"url": f"http://{address}:{port}", "broker": masked(settings.effective_broker_url)})
    else:
        progress(f"Flower on http://{address}:{port}")
    # Flower and its web server log at INFO through the root logger, which nobody else has set up.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    options = [f"--address={address}", f"--port={port}", "--logging=warning", f"--tasks_columns={COLUMNS}"]
    make_app(settings).start(["flower", *options])
    return 0


def check_login(login: str) -> None:
    """Refuse a login that Flower would take for none, or that protects nothing."""
    if not login:
        raise typer.BadParameter(f"without a login Flower is open to everybody: set {LOGIN}=user:password")
    for pair in login.split(","):
        user, colon, password = pair.partition(":")
        if not (user and colon and password):
            raise typer.BadParameter(f"{LOGIN} must read user:password")
