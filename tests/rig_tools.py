"""The rig: real worker processes over a real server, started and signalled by the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dsh_tasks.client import Client
from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.settings import Settings
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
            env[f"DSH_TASKS_{name.upper()}"] = str(value)
    env["DSH_TASKS_REDIS_URL"] = settings.redis_url or ""
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    return env | more


@dataclass
class Worker:
    """One worker process in a process group of its own."""

    process: subprocess.Popen[bytes]
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


@dataclass
class Place:
    """A client, the model that its children ask, and the settings of both."""

    client: Client
    model: ModelServer
    settings: Settings


@dataclass
class Rig:
    """Starts workers; ends what is left of them."""

    settings: Settings
    folder: Path
    workers: list[Worker] = field(default_factory=list)

    def worker(self, *, concurrency: int = 8, **env: str) -> Worker:
        """Start a worker and wait until it consumes."""
        number = len(self.workers)
        log = self.folder / f"worker-{number}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "workers",
                    "--concurrency",
                    str(concurrency),
                    "--loglevel",
                    "INFO",
                    "--name",
                    f"w{number}",
                ],
                env=environment(self.settings, **env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        worker = Worker(process, log)
        self.workers.append(worker)

        def ready() -> bool:
            assert process.poll() is None, f"the worker ended: {worker.lines[-2000:]}"
            return " ready." in worker.lines

        wait_until(ready, "the worker is ready", within_s=60)
        return worker

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
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.signal(signal.SIGCONT)
                worker.kill()
