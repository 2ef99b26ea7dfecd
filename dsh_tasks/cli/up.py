"""`up`: server and workers under one supervisor, found by other commands through a state file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from celery import Celery

from dsh_tasks.cli import processes
from dsh_tasks.cli.border import DONE, AsJson, emit, progress, say
from dsh_tasks.cli.checks import model_finding
from dsh_tasks.cli.render import counted
from dsh_tasks.cli.serve import Concurrency, LogLevel, check_login, checked_level
from dsh_tasks.cli.supervisor import Kept, Process
from dsh_tasks.config import load_config
from dsh_tasks.errors import InputRefused
from dsh_tasks.queue import make_app
from dsh_tasks.settings import Settings, load
from dsh_tasks.store import embedded, masked
from dsh_tasks.store.locate import Running, forget, recall, remember, state_file

LOOK_EVERY_S = 0.2
PING_S = 0.5


class UpRunning(InputRefused):
    """Another `up` has this state folder or this data folder."""

    code = "up_running"

    def __init__(self, folder: str, *, pid: int | None) -> None:
        by = f" (pid {pid})" if pid is not None else ""
        super().__init__(
            f"another dsh-tasks up{by} runs with {folder!r}; use it, end it, or set DSH_TASKS_STATE_DIR",
            folder=folder,
            pid=pid,
        )


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the kernel lets it go, however the process ends."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            running = recall()
            raise UpRunning(str(folder), pid=running.pid if running else None) from None
        yield


class Up:
    """What `up` keeps: the server, where none is named by the settings; workers; Flower, where asked for."""

    def __init__(self, settings: Settings, *, folder: Path, concurrency: int | None, loglevel: str) -> None:
        self.settings = settings
        self.folder = folder
        self.concurrency = concurrency
        self.loglevel = loglevel
        self.server: embedded.Server | None = None
        self.kept: list[Kept] = []
        self.ending = threading.Event()
        self.hurry = False

    # -- start ----------------------------------------------------------------------------------

    def start_server(self) -> str:
        """Start the embedded server and return its URL; later starts take its port and its data again."""

        def start() -> Process:
            port = self.server.port if self.server is not None else None
            self.server = embedded.start(port=port, folder=self.folder, under=processes.tether())
            return self.server.process

        self._keep("server", start)
        assert self.server is not None
        self.settings = self.settings.model_copy(update={"redis_url": self.server.url})
        return self.server.url

    def start_worker(self, number: int) -> None:
        """Start one worker."""
        name = f"up-{os.getpid()}-{number}"
        command = processes.worker_command(concurrency=self.concurrency, loglevel=self.loglevel, name=name)
        self._keep_ours(f"worker {number}", command, f"worker-{number}.log")

    def start_flower(self, port: int) -> None:
        """Start Flower."""
        command = processes.python("-m", "dsh_tasks", "flower", "--port", str(port))
        self._keep_ours("flower", command, "flower.log")

    def _keep_ours(self, name: str, command: list[str], log: str) -> None:
        assert self.settings.redis_url is not None
        env = processes.environment(DSH_TASKS_REDIS_URL=self.settings.redis_url)
        self._keep(name, lambda: processes.start(command, env=env, output=self.folder / log), log=log)

    def _keep(self, name: str, start: Callable[[], Process], *, log: str = "server.log") -> None:
        kept = Kept(name, start, progress, log=str(self.folder / log))
        kept.begin(time.monotonic())
        self.kept.append(kept)

    # -- run ------------------------------------------------------------------------------------

    def asked_to_end(self, _number: int, _frame: FrameType | None) -> None:
        """A signal; the second one gives the workers no more time."""
        self.hurry = self.ending.is_set()
        self.ending.set()

    def supervise(self, until: Callable[[], bool]) -> None:
        """Keep everything alive until a signal comes, or until `until`."""
        while not self.ending.wait(LOOK_EVERY_S) and not until():
            for kept in self.kept:
                kept.look(time.monotonic())

    def stop(self) -> None:
        """Workers first, so that they can hand their children back; then the server."""
        progress("ending: workers hand back what they run")
        running = [kept.process for kept in self.kept if kept.name != "server"]
        ours = [process for process in running if isinstance(process, subprocess.Popen)]
        processes.stop(ours, hurry=lambda: self.hurry)
        if self.server is not None:
            self.server.stop()
        progress("ended")

    def state(self) -> dict[str, Any]:
        """What runs, as JSON."""
        assert self.settings.redis_url is not None
        pids = {kept.name: kept.process.pid for kept in self.kept if kept.process is not None}
        return {
            "redis_url": masked(self.settings.redis_url),
            "pid": os.getpid(),
            "processes": pids,
            "dir": str(self.folder),
        }


def end_by(handler: Callable[[int, FrameType | None], None]) -> None:
    """Let SIGTERM, Ctrl-C and a closed terminal end this process in its own order."""
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    # nohup has it ignored, and means it.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)


def answering(app: Celery) -> int:
    """How many workers of the installation answer just now."""
    try:
        return len(app.control.ping(timeout=PING_S))
    except Exception:  # noqa: BLE001 - kombu raises whatever its transport does; none answers then
        return 0


def up(
    concurrency: Concurrency = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Worker processes.")] = 1,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of data and logs; default: in the state folder.")
    ] = None,
    flower: Annotated[
        int | None, typer.Option("--flower", min=1, max=65535, help="Run Flower on this port too.")
    ] = None,
    loglevel: LogLevel = "WARNING",
    as_json: AsJson = False,
) -> int:
    """Run server and workers until Ctrl-C.

    They listen on free loopback ports; the other commands find them by themselves.
    With DSH_TASKS_REDIS_URL set it starts no server: only workers for that one.
    """
    level = checked_level(loglevel)
    if flower is not None:
        check_login(os.environ.get("FLOWER_BASIC_AUTH", ""))
    settings = load()
    # Here, so that a settings file that does not hold is told once, not by each worker again and again.
    load_config(settings=settings)
    home = (folder or state_file().parent / "server").resolve()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    up = Up(settings, folder=home, concurrency=concurrency, loglevel=level)
    with contextlib.ExitStack() as held:
        if settings.redis_url is None:
            held.enter_context(only_one(state_file().parent))
            held.enter_context(only_one(home))
        end_by(up.asked_to_end)
        held.callback(up.stop)
        if settings.redis_url is None:
            url = up.start_server()
            held.callback(forget, os.getpid())
            remember(Running(url, os.getpid(), settings.prefix, settings.queue))
        for number in range(1, workers + 1):
            up.start_worker(number)
        if flower is not None:
            up.start_flower(flower)
        _run(up, workers, as_json=as_json)
    return DONE


def _run(up: Up, workers: int, *, as_json: bool) -> None:
    app = make_app(up.settings)
    up.supervise(lambda: answering(app) >= workers)
    app.close()
    if up.ending.is_set():
        return
    state = up.state()
    if as_json:
        emit(state)
    else:
        say(f"model: {model_finding(load(), os.environ).seen}")
        say(f"ready: {state['redis_url']}, {counted(workers, 'worker')}, logs in {up.folder}; Ctrl-C ends it")
    sys.stdout.flush()
    up.supervise(lambda: False)
