"""Faults for a chaos run: supervised workers, a server that can be killed, and what is done to both."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import redis

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from tests.rig_tools import environment

RESTART_PAUSE_S = 0.3
SEEN_EVERY_S = 0.1


@dataclass
class Fleet:
    """Workers that are started again when they end."""

    settings: Settings
    folder: Path
    count: int
    env: dict[str, str] = field(default_factory=dict)
    concurrency: int = 32
    processes: list[subprocess.Popen[bytes] | None] = field(default_factory=list)
    starts: int = 0
    _closing: threading.Event = field(default_factory=threading.Event)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> Fleet:
        self.processes = [self._start() for _ in range(self.count)]
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        for process in self.processes:
            if process is not None and process.poll() is None:
                _signal(process, signal.SIGCONT)
                _signal(process, signal.SIGKILL)
                process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with (self.folder / f"worker-{self.starts}.log").open("wb") as out:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "workers",
                    "--concurrency",
                    str(self.concurrency),
                    "--loglevel",
                    "INFO",
                ]
                + ["--name", f"w{self.starts}"],
                env=environment(self.settings, **self.env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _supervise(self) -> None:
        while not self._closing.wait(SEEN_EVERY_S):
            for place, process in enumerate(self.processes):
                if process is not None and process.poll() is not None:
                    time.sleep(RESTART_PAUSE_S)
                    with self._lock:
                        self.processes[place] = self._start()

    def one(self, chance: random.Random) -> subprocess.Popen[bytes] | None:
        """A worker that lives."""
        with self._lock:
            living = [process for process in self.processes if process is not None and process.poll() is None]
        return chance.choice(living) if living else None

    def is_ready(self) -> bool:
        """Whether as many workers as there are have come to consume."""
        logs = self.folder.glob("worker-*.log")
        return sum(" ready." in log.read_text("utf-8", "replace") for log in logs) >= self.count


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@dataclass
class Chaos:
    """Each `every_s` one fault at random, from a thread of its own, until it is told to end."""

    server: embedded.Server
    binary: str | None
    fleet: Fleet
    every_s: float
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    trouble: list[str] = field(default_factory=list)
    """What went wrong with the chaos itself."""
    _ending: threading.Event = field(default_factory=threading.Event)
    _stopped: list[threading.Timer] = field(default_factory=list)

    def __enter__(self) -> Chaos:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """No more faults; what stood still goes on."""
        self._ending.set()
        self._thread.join()
        for timer in self._stopped:
            timer.join()

    def _run(self) -> None:
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.kill_worker, 3),
            (self.freeze_worker, 3),
            (self.restart_server, 2),
            (self.cut_connections, 3),
        ]
        fault = [kind for kind, weight in kinds for _ in range(weight)]
        while not self._ending.wait(self.every_s):
            chosen = self.chance.choice(fault)
            try:
                chosen()
                self.done[chosen.__name__] += 1
            except Exception as error:
                self.trouble.append(f"{chosen.__name__}: {type(error).__name__}: {error}")

    def kill_worker(self) -> None:
        """SIGKILL of a worker with all its processes."""
        process = self.fleet.one(self.chance)
        if process is not None:
            _signal(process, signal.SIGKILL)

    def freeze_worker(self) -> None:
        """SIGSTOP, and SIGCONT after some seconds: shorter and longer than a lease."""
        process = self.fleet.one(self.chance)
        if process is None:
            return
        _signal(process, signal.SIGSTOP)
        timer = threading.Timer(self.chance.uniform(0.5, 7.0), _signal, (process, signal.SIGCONT))
        timer.start()
        self._stopped.append(timer)

    def restart_server(self) -> None:
        """SIGKILL of the server, and a start on the same port and folder."""
        old = self.server
        old.process.send_signal(signal.SIGKILL)
        old.process.wait()
        time.sleep(self.chance.uniform(0, 0.5))
        for left in reversed(range(5)):
            try:
                self.server.process = embedded.start(
                    port=old.port, folder=old.folder, binary=self.binary
                ).process
                break
            except StoreUnavailable:
                # A client that connects again and again can for a moment hold the very port.
                if not left:
                    raise
        keep_every_write(self.server)

    def cut_connections(self) -> None:
        """CLIENT KILL of every connection, or of those that listen."""
        with contextlib.closing(redis.Redis(port=self.server.port)) as client:
            kinds = self.chance.choice([("normal", "pubsub"), ("pubsub",)])
            for kind in kinds:
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def keep_every_write(server: embedded.Server) -> None:
    """The append-only file is the ledger: it must not be rewritten."""
    with contextlib.closing(redis.Redis(port=server.port)) as client:
        client.config_set("auto-aof-rewrite-percentage", 0)
