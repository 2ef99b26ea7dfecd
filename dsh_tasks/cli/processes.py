"""Processes: the commands of server, worker and Flower, and how each is started, tethered and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import dsh_tasks

STOP_WITHIN_S = 30.0
"""A worker hands its children back within about a second; what a tool blocks may take longer."""
LOOK_EVERY_S = 0.05


def python(*arguments: str) -> list[str]:
    """A command of this interpreter that does not take modules from the current folder.

    A folder named `workers` there, which is a common name, would be started in the place of ours.
    """
    return [sys.executable, "-P", *arguments]


def environment(**more: str) -> dict[str, str]:
    """The environment of a process of ours: it finds the packages that this one runs from."""
    env = {**os.environ, **more}
    home = Path(dsh_tasks.__file__).resolve().parent.parent
    # An installed package is found anyway, and its folder must not come before the standard library.
    if home.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), env.get("PYTHONPATH"))))
    return env


def worker_command(*, concurrency: int | None, loglevel: str, name: str | None) -> list[str]:
    """The command of one worker process."""
    options = ["--loglevel", loglevel]
    if concurrency is not None:
        options += ["--concurrency", str(concurrency)]
    if name is not None:
        options += ["--name", name]
    return python("-m", "workers", *options)


def tether() -> list[str]:
    """The beginning of a command that is told to end when this process is gone (see tether.py)."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py")), str(os.getpid())]


def start(
    command: Sequence[str], *, env: Mapping[str, str], output: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a tethered process in a session of its own, so that Ctrl-C reaches only us.

    Call it from the main thread: the kernel's tether is to the thread that starts it. Its output goes
    to stderr, or to the end of the file `output`.
    """
    with contextlib.ExitStack() as files:
        out = files.enter_context(output.open("ab")) if output is not None else sys.stderr.fileno()
        return subprocess.Popen(  # noqa: S603 - no shell: the command is ours
            [*tether(), *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def terminate(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM; the process ends in its own time."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and to all that it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def stop(
    processes: Iterable[subprocess.Popen[bytes]],
    *,
    within_s: float = STOP_WITHIN_S,
    hurry: Callable[[], bool] = lambda: False,
) -> None:
    """SIGTERM to all at once; SIGKILL to the groups of those that stay, at once when `hurry` says so."""
    asked = tuple(processes)
    for process in asked:
        terminate(process)
    until = time.monotonic() + within_s
    while any(process.poll() is None for process in asked) and time.monotonic() < until and not hurry():
        time.sleep(LOOK_EVERY_S)
    for process in asked:
        kill_group(process)


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def become(command: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
    """Let the command take this process' place: its signals and exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), dict(env))  # noqa: S606 - no shell: the command is ours
