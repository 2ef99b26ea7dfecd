"""The command line as a user runs it: a process of its own, its exit code, its two streams."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dsh_tasks.cli import app, border
from dsh_tasks.settings import Settings
from tests.fork_server import ForkServer
from tests.rig_tools import ROOT, environment
from tests.waiting import wait_until

COMMAND = (sys.executable, "-m", "dsh_tasks")


def bare_environment(state: Path, **more: str) -> dict[str, str]:
    """No server, no model, no settings of this shell; a state folder of its own."""
    env = environment(Settings(redis_url="unused"))
    env.pop("DSH_TASKS_REDIS_URL")
    return env | {"DSH_TASKS_STATE_DIR": str(state)} | more


@dataclass(frozen=True)
class Cli:
    """Runs commands under one environment; by an interpreter of their own where there is no fork server."""

    env: dict[str, str]
    fork_server: ForkServer | None = None

    def __call__(
        self, *arguments: str, stdin: str = "", within_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        if self.fork_server is not None:
            return self.fork_server.completed(
                "dsh_tasks", arguments, env=self.env, stdin=stdin, cwd=ROOT, within_s=within_s
            )
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=within_s,
            cwd=ROOT,
        )

    def json(self, *arguments: str, code: int = 0, stdin: str = "") -> Any:
        """The one document on stdout of a command that ends with `code`."""
        done = self(*arguments, "--json", stdin=stdin)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    @contextmanager
    def running(self, *arguments: str, folder: Path, **more: str) -> Iterator[Started]:
        """A command that runs on, in a session of its own; what is left of it is killed at the end."""
        started = Started.start(arguments, self.env | more, folder)
        try:
            yield started
        finally:
            started.kill()


@dataclass(frozen=True)
class InsideCli(Cli):
    """The same in this process, for what needs no process: many times faster."""

    monkeypatch: pytest.MonkeyPatch = field(kw_only=True)
    capsys: pytest.CaptureFixture[str] = field(kw_only=True)

    def __call__(
        self, *arguments: str, stdin: str = "", within_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        with self.monkeypatch.context() as patched:
            for name in set(os.environ) - set(self.env):
                patched.delenv(name)
            for name, value in self.env.items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", io.StringIO(stdin))
            self.capsys.readouterr()
            code = border.run(app, arguments)
        out, err = self.capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)


@dataclass
class Started:
    """A running command and what it has printed so far."""

    process: subprocess.Popen[str]
    errors: Path
    lines: list[str] = field(default_factory=list)
    _reader: threading.Thread = field(default_factory=threading.Thread)

    @classmethod
    def start(cls, arguments: tuple[str, ...], env: dict[str, str], folder: Path) -> Started:
        errors = folder / f"{arguments[0]}.err"
        with errors.open("wb") as out:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                start_new_session=True,
                cwd=ROOT,
            )
        started = cls(process, errors)
        started._reader = threading.Thread(target=started._read, daemon=True)
        started._reader.start()
        return started

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def said(self) -> str:
        """All of stderr so far."""
        return self.errors.read_text("utf-8", "replace")

    def await_words(self, words: str, *, within_s: float = 60) -> None:
        """Wait until stdout or stderr holds the words; fails at once where the command has ended."""

        def there() -> bool:
            has_ended = self._has_ended()
            found = words in "\n".join(self.lines) or words in self.said
            assert found or not has_ended, f"it ended: {self.lines} {self.said[-2000:]}"
            return found

        wait_until(there, f"{words!r} was said", within_s=within_s)

    def _has_ended(self) -> bool:
        """What it printed before its end has been read where this is true."""
        if self.process.poll() is None:
            return False
        self._reader.join(5)
        return True

    def document(self, *, within_s: float = 60) -> Any:
        """The one JSON document on stdout, once all of its lines have come."""

        def whole() -> tuple[Any] | None:
            has_ended = self._has_ended()
            with suppress(ValueError):
                return (json.loads("\n".join(self.lines)),)
            assert not has_ended, f"it ended: {self.lines} {self.said[-2000:]}"
            return None

        found = wait_until(whole, "stdout holds a whole document", within_s=within_s)
        assert found is not None
        return found[0]

    def wait(self, within_s: float = 30) -> int:
        """The exit code; all of stdout has been read then."""
        code = self.process.wait(within_s)
        self._reader.join(within_s)
        return code

    def end(self, number: int = signal.SIGTERM, *, within_s: float = 30) -> int:
        """Signal the command itself, as a service manager does, and wait."""
        self.process.send_signal(number)
        return self.wait(within_s)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid: int) -> set[int]:
    """Every living process below `pid`, by the parent that each names."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                below.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    level = [pid]
    while level:
        level = [child for one in level for child in below.get(one, []) if child not in found]
        found.update(level)
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie does not."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.add(pid)
    return found


def command_of(pid: int) -> str:
    """The command line of a process, '' where it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""
