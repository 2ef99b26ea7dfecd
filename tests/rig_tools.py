"""The rig: real worker processes over a real server, started and signalled by the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from dsh_tasks.client import Client
from dsh_tasks.config import load_config
from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.settings import Settings
from dsh_tasks.tools import Call, ToolResult, mount
from tests.fork_server import Forked, ForkServer
from tests.model_server import ModelServer
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent


def environment(settings: Settings, **more: str) -> dict[str, str]:
    """The environment of a process of this installation: every setting that differs from its default."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("DSH_TASKS_", "DEEPSEEK_", "OPENAI_", "ANTHROPIC_"))
    }
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if value is not None:
            open_value = value.get_secret_value() if isinstance(value, SecretStr) else value
            env[f"DSH_TASKS_{name.upper()}"] = str(open_value)
    env["DSH_TASKS_REDIS_URL"] = settings.redis_url or ""
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    return env | more


@dataclass
class Worker:
    """One worker process in a process group of its own."""

    process: Forked | subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        """Signal the whole group."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, within_s: float = 20) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within_s)

    @property
    def lines(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, f"the worker ended: {self.lines[-2000:]}"
            return " ready." in self.lines

        wait_until(ready, "the worker is ready", within_s=60)


def interpreter(
    module: str, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, streams: tuple[int, int, int]
) -> subprocess.Popen[bytes]:
    """`ForkServer.run` by an interpreter of its own."""
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


class Kept:
    """A thread that starts the next worker when the last one has ended."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        self.workers = [start()]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, args=(start,), daemon=True)
        self._thread.start()

    def _keep(self, start: Callable[[], Worker]) -> None:
        while not self._ends.wait(0.05):
            if self.workers[-1].process.poll() is not None:
                self.workers.append(start())

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def at_once(program: str, owner: str, settings: Settings, *, processes: int) -> list[Any]:
    """Run `program` in so many processes that begin together (they read a line first); what each printed as JSON."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, owner],
            env=environment(settings),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=60)[0]) for process in started]


@dataclass
class Place:
    """A client, the model that its children ask, and the settings of both."""

    client: Client
    model: ModelServer
    settings: Settings


@dataclass
class Rig:
    """Starts workers; ends what is left of them. Without a fork server each is an interpreter of its own."""

    settings: Settings
    folder: Path
    fork_server: ForkServer | None = None
    workers: list[Worker] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)

    def worker(self, *, concurrency: int = 8, module: str = "workers", **env: str) -> Worker:
        """Start a worker and wait until it consumes. `module` is what Python runs in its place."""
        worker = self.start_worker(concurrency=concurrency, module=module, **env)
        worker.await_ready()
        return worker

    def start_worker(self, *, concurrency: int = 8, module: str = "workers", **env: str) -> Worker:
        """The same without the wait."""
        number = len(self.workers)
        log = self.folder / f"worker-{number}.log"
        arguments = ["--concurrency", str(concurrency), "--loglevel", "INFO", "--name", f"w{number}"]
        env = environment(self.settings, **env)
        with log.open("wb") as out, open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno(), out.fileno(), out.fileno())
            run = self.fork_server.run if self.fork_server else interpreter
            process = run(module, arguments, env=env, cwd=Path.cwd(), streams=streams)
        worker = Worker(process, log)
        self.workers.append(worker)
        return worker

    def keep(self, *, concurrency: int = 8, module: str = "workers", **env: str) -> Kept:
        """A worker that is started again whenever it ends, as a supervisor does; waits for the first."""
        kept = Kept(lambda: self.start_worker(concurrency=concurrency, module=module, **env))
        self.kept.append(kept)
        kept.workers[0].await_ready()
        return kept

    def audit(self) -> None:
        """Fails where anything on the server does not fit; nothing where the test has ended the server."""
        with Client(self.settings) as client:
            try:
                report = client.audit()
            except StoreUnavailable:
                return
        assert report.is_clean, "\n".join(fault.line for fault in report.faults)
        assert not report.unsettled, report.unsettled

    def close(self) -> None:
        for kept in self.kept:
            kept.end()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.signal(signal.SIGCONT)
                worker.kill()


def config_with_tools(folder: Path, *paths: str, **agent: int | bool | str) -> str:
    """A settings file whose agent has these Python tools and options; its path."""
    path = folder / "tools.toml"
    options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in agent.items())
    path.write_text(f"[agent]\ntools = {json.dumps(list(paths))}\n{options}")
    return str(path)


def by_tool(client: Client, tool: str, **arguments: Any) -> ToolResult:
    """What a model gets from a tool that the client's own session calls."""
    (ours,) = [
        one for one in mount(client._client, load_config(settings=client.settings)) if one.name == tool
    ]
    return client.call(ours.call(arguments, Call(session=None, assistant_seq=0, call_id="c")))
