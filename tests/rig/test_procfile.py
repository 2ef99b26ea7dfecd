"""honcho runs the Procfile: server, worker and Flower on free ports; a child completes; all of it ends."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh_tasks.store import embedded
from tests.cli_tools import Cli, alive, bare_environment, descendants
from tests.rig_tools import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

LOGIN = "operator:correct-horse"


def variables(env_file: Path) -> dict[str, str]:
    """What an env file sets: its lines that are no comments."""
    lines = [line for line in env_file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The example's variables on free ports, and the command of this checkout on the PATH."""
    command = tmp_path / "bin" / "dsh-tasks"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dsh_tasks "$@"\n')
    command.chmod(0o755)
    port = embedded.free_port()
    given = variables(ROOT / ".env.example") | {
        "FLOWER_BASIC_AUTH": LOGIN,
        "REDIS_PORT": str(port),
        "FLOWER_PORT": str(embedded.free_port()),
        "DSH_TASKS_REDIS_URL": f"redis://127.0.0.1:{port}/0",
        "REDIS_DIR": str(tmp_path / "server"),
        "WORKER_CONCURRENCY": "4",
    }
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    return bare_environment(tmp_path / "state") | given | {"PATH": path, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def honcho(env: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "empty.env").touch()
    with (tmp_path / "honcho.log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "honcho", "-f", str(ROOT / "Procfile"), "-d", str(ROOT)]
            + ["-e", str(tmp_path / "empty.env"), "start"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    yield process
    for pid in [process.pid, *descendants(process.pid)] if process.poll() is None else []:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def status_of(url: str, login: str | None) -> int:
    """The HTTP status of a page; 0 while nobody listens."""
    request = urllib.request.Request(url)
    if login is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_honcho_runs_the_procfile_to_a_completed_child_and_ends_all_of_it(
    honcho: subprocess.Popen[bytes], env: dict[str, str], tmp_path: Path
) -> None:
    cli = Cli(env)

    def fit() -> bool:
        assert honcho.poll() is None, (tmp_path / "honcho.log").read_text()
        return cli("doctor").returncode == 0

    wait_until(fit, "doctor finds the server and a worker", within_s=60)
    done = cli("start", "--provider", "spawn", "--owner", "o", "--foreground", "hello")
    assert done.returncode == 0, done.stderr
    tasks = f"http://127.0.0.1:{env['FLOWER_PORT']}/api/tasks"
    wait_until(lambda: status_of(tasks, LOGIN) == 200, "Flower answers who has the login", within_s=30)
    assert status_of(tasks, None) == 401
    below = descendants(honcho.pid)
    assert len(below) >= 3
    honcho.send_signal(signal.SIGTERM)
    honcho.wait(30)
    wait_until(lambda: not alive(below), "server, worker and Flower have ended")


def test_the_example_environment_sets_what_the_procfile_reads(env: dict[str, str]) -> None:
    procfile = (ROOT / "Procfile").read_text()
    for name in ("REDIS_PORT", "REDIS_DIR", "WORKER_CONCURRENCY", "FLOWER_PORT"):
        assert "${" + name in procfile
        assert name in variables(ROOT / ".env.example")
