"""The compose file, as docker-compose itself reads it (`config` needs no container engine)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gates import skip_unless_ci

pytestmark = pytest.mark.rig

ROOT = Path(__file__).resolve().parents[2]
LOGIN = "operator:correct-horse"


@pytest.fixture(scope="module")
def tool() -> str:
    """Path of docker-compose. In CI its absence is an error, elsewhere a skip that names it."""
    path = shutil.which("docker-compose")
    if path is None:
        skip_unless_ci("docker-compose is not installed (Debian: apt-get install docker-compose)")
    return path


def config(tool: str, env_file: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `docker-compose config` says under a bare environment plus `environment`."""
    bare = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = [tool, "--project-directory", str(ROOT), "-f", str(ROOT / "docker-compose.yml")]
    command += ["--env-file", str(env_file), "config", *options]
    return subprocess.run(command, env=bare | environment, capture_output=True, text=True, timeout=60)


def as_json(tool: str, yaml_text: str) -> dict[str, Any]:
    """Version 1 prints YAML only; the interpreter that runs it has a YAML reader by necessity."""
    interpreter = Path(tool).read_text().splitlines()[0].removeprefix("#!").split()
    program = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"
    done = subprocess.run(
        [*interpreter, "-c", program], input=yaml_text, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def services(tool: str) -> dict[str, Any]:
    """The services as resolved with the packaged example environment and a login."""
    env_file = ROOT / ".env.example"
    done = config(tool, env_file, "--format", "json", FLOWER_BASIC_AUTH=LOGIN)
    if done.stdout.startswith("{"):
        return json.loads(done.stdout)["services"]
    # Version 1 does not know --format: it prints its usage and exits with 0.
    done = config(tool, env_file, FLOWER_BASIC_AUTH=LOGIN)
    assert done.returncode == 0, done.stderr
    return as_json(tool, done.stdout)["services"]


def published_hosts(service: dict[str, Any]) -> list[str]:
    """The host address of each published port; empty text means all of them."""
    ports = service.get("ports", [])
    return [port.get("host_ip", "") if isinstance(port, dict) else host_of(port) for port in ports]


def host_of(port: str) -> str:
    """`127.0.0.1:5555:5555/tcp` -> `127.0.0.1`; `5555:5555` -> empty."""
    return port.rsplit(":", 2)[0] if port.count(":") > 1 else ""


@pytest.mark.parametrize(
    ("port", "host"), [("127.0.0.1:1:2/tcp", "127.0.0.1"), ("1:2", ""), ("0.0.0.0:1:2", "0.0.0.0")]
)
def test_the_host_of_a_published_port_is_read_right(port: str, host: str) -> None:
    assert host_of(port) == host


def test_compose_starts_server_worker_and_flower(services: dict[str, Any]) -> None:
    assert sorted(services) == ["flower", "server", "worker"]


def test_every_published_port_is_bound_to_loopback(services: dict[str, Any]) -> None:
    hosts = {name: published_hosts(service) for name, service in services.items()}
    assert hosts == {"flower": ["127.0.0.1"], "server": ["127.0.0.1"], "worker": []}


def test_the_server_keeps_an_append_only_file_on_a_volume_and_never_evicts(services: dict[str, Any]) -> None:
    server = services["server"]
    command = " ".join(server["command"])
    assert server["image"].startswith("valkey/valkey:")
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "--dir /data" in command
    assert "/data" in json.dumps(server["volumes"])
    assert server["healthcheck"]["test"]


def test_flower_has_the_login_that_was_given(services: dict[str, Any]) -> None:
    assert services["flower"]["environment"]["FLOWER_BASIC_AUTH"] == LOGIN


def test_the_login_is_not_on_a_command_line(services: dict[str, Any]) -> None:
    assert all(LOGIN not in json.dumps(service.get("command")) for service in services.values())


@pytest.mark.parametrize("login", [{}, {"FLOWER_BASIC_AUTH": ""}], ids=["unset", "empty"])
def test_without_a_login_for_flower_nothing_starts(tool: str, login: dict[str, str]) -> None:
    done = config(tool, ROOT / ".env.example", **login)
    assert done.returncode != 0
    assert "set user:password for Flower" in done.stderr


def test_workers_and_flower_are_told_where_the_server_is(services: dict[str, Any]) -> None:
    urls = {services[name]["environment"]["DSH_TASKS_REDIS_URL"] for name in ("worker", "flower")}
    assert urls == {"redis://server:6379/0"}


def test_model_keys_reach_the_workers_and_nobody_else(tool: str) -> None:
    keys = ("DEEPSEEK_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    given = {key: f"value-of-{key}" for key in keys}
    done = config(tool, ROOT / ".env.example", FLOWER_BASIC_AUTH=LOGIN, **given)
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(value) for value in given.values()] == [1, 1, 1]


def test_workers_can_be_scaled_and_get_time_to_hand_back(services: dict[str, Any]) -> None:
    worker = services["worker"]
    assert "container_name" not in worker
    assert worker["command"][:2] == ["dsh-tasks", "worker"]
    assert worker["stop_grace_period"] == "30s"


def test_the_image_runs_as_a_user_without_rights() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")
