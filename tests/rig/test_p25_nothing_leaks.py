"""P25. Nothing leaks, Redis may bounce, keys do not pile up.

Origin: flower#231, #1217, OpenHands SDK#2629, celery#8030, celery#6089, #7801, sentry#41597.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from dsh_tasks.client import Client
from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.queue import make_app
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.task import Status
from tests.celery_events import events_of
from tests.census import Census, census_of
from tests.cli_tools import Cli
from tests.conftest import server_binary
from tests.factories import a_log
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import ROOT, Rig, Worker, config_with_tools, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

LOGIN = "operator:correct-horse"
PASSWORD = "canary-password"
CANARIES = (
    "canary-prompt",
    "canary-seed",
    "canary-persona",
    "canary-argument",
    "canary-output",
    "test-key",
    PASSWORD,
)
OWNERS = 10
SLOTS = 64
LARGE_BYTES = 100 * 1024
BYTES_A_MEMBER = 400
"""An index may grow by this with each task."""


@dataclass
class Bouncing:
    """A server with a password and an append-only file, killed and started again on one port."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = embedded.server_command(self.port, self.folder, binary=server_binary())
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--requirepass", PASSWORD], stdout=log, stderr=log)

        def answers() -> bool:
            with redis.Redis.from_url(self.url) as probe, suppress(redis.RedisError):
                return bool(probe.ping())
            return False

        wait_until(answers, "the server answers")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture
def bouncing(tmp_path: Path) -> Iterator[Bouncing]:
    (tmp_path / "server").mkdir()
    server = Bouncing(tmp_path / "server", embedded.free_port())
    server.start()
    yield server
    server.kill()


@dataclass
class Flower:
    """Flower as it is shipped, and all that it has said."""

    port: int
    heard: list[str]

    def get(self, path: str, *, login: str | None = LOGIN) -> int:
        """The status of a page, 0 while nobody answers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        if login is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                self.heard.append(answer.read().decode("utf-8", "replace"))
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@contextmanager
def flower_of(settings: Settings, folder: Path) -> Iterator[Flower]:
    port = embedded.free_port()
    with (folder / "flower.log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dsh_tasks", "flower", "--port", str(port)],
            env=environment(settings, FLOWER_BASIC_AUTH=LOGIN),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    flower = Flower(port, [])
    try:
        wait_until(lambda: flower.get("/api/tasks") == 200, "Flower answers who has the login", within_s=60)
        yield flower
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answer(request: Request) -> Reply:
    if request.prompt.endswith("hello"):
        return Reply("canary-output, briefly")
    if not request.results:
        return Reply(tools=[("add", {"a": 1, "b": "canary-argument"})], seconds=0.5)
    return Reply("canary-output of the model")


@pytest.mark.parametrize(
    ("children", "seed_bytes"), [(60, 500_000), pytest.param(1_000, 20_000_000, marks=pytest.mark.long)]
)
def test_children_survive_three_bounces_and_show_none_of_their_content(
    children: int,
    seed_bytes: int,
    bouncing: Bouncing,
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    settings = make_settings(
        redis_url=bouncing.url,
        lease_ms=5_000,
        live_per_owner=1_000,
        chunk_expiry_ms=5_000,
        republish_ms=8_000,
        config=config_with_tools(tmp_path, "tests.held_tools:add"),
    )
    client = make_client(settings)
    bodies: list[str] = []
    with (
        ModelServer(answer) as model,
        census_of(settings) as census,
        flower_of(settings, tmp_path) as flower,
        events_of(settings) as events,
    ):
        worker = make_rig(settings).worker(concurrency=8, **model.environment)
        warm_up(client, census)
        # Flower asks the workers as it starts: an answer's binding stands only as long as somebody waits for it.
        wait_until(
            lambda: not any(key.endswith("reply.celery.pidbox") for key in census.all()), "all is still"
        )
        before = census.lasting()
        for path in ("/api/tasks", "/tasks", "/workers", "/api/workers"):
            assert flower.get(path, login=None) == 401, path

        ids = start_all(client, children, seed_bytes)
        bodies += queued_bodies(census, settings)
        bounce(bouncing, settings, bodies)
        if children > SLOTS:
            # The queue is in order, and what waits for long is published again: a new one waits behind all that.
            wait_until(lambda: all_ended(client, children), "the backlog is done", within_s=300, every_s=0.5)
            wait_until(lambda: census.queued_messages() == 0, "and its repeated messages", within_s=60)
        came_back_s = time.monotonic()
        late = client.start("spawn", prompt="canary-prompt hello", owner="owner-0")
        wait_until(lambda: client.task(late.id).is_terminal, "a new one starts and ends", within_s=10)
        assert time.monotonic() - came_back_s <= 10
        wait_until(lambda: all_ended(client, children + 1), "every child ended", within_s=60 + children / 5)
        check_endings(client, [*ids, late.id], worker)

        look_around(flower, settings)
        check_keys(census, children)
        forget_all(client)
        only_these_are_left(census, before)

        assert bodies, "messages were seen as they waited"
        assert max(map(len, bodies)) < 2_048
        assert len([event for event in events if event["type"].startswith("task-")]) > children
        shown = {
            "messages and errors": "\n".join(bodies),
            "events": json.dumps(events),
            "Flower": "\n".join(flower.heard),
            "log at INFO": worker.lines,
            "Flower's log": (tmp_path / "flower.log").read_text(),
            "Flower's files": "".join(str(path) for path in tmp_path.glob("*.db")),
        }
    for place, text in shown.items():
        for canary in CANARIES:
            assert canary not in text, f"{canary} in {place}"


def warm_up(client: Client, census: Census) -> None:
    """One child, ended, read and forgotten: what stands from then on stands always."""
    client.start("spawn", prompt="canary-prompt hello", owner="owner-0").result()
    forget_all(client)
    wait_until(lambda: not [key for key in census.all() if ":task:" in key], "it is forgotten")


def start_all(client: Client, children: int, seed_bytes: int) -> list[str]:
    """Small children of many sessions, and one with a large seed."""
    small = a_log(turns=1, facts=[("word", "canary-seed")])
    size = seed_bytes // 20
    large = a_log(
        turns=20, facts=[("word", f"canary-seed {n} " + os.urandom(size // 2).hex()) for n in range(20)]
    )
    given: dict[str, Any] = {"prompt": "canary-prompt", "persona": "canary-persona"}
    ids = [
        client.start("fork", parent=small, owner=f"owner-{n % OWNERS}", label=f"child {n}", **given).id
        for n in range(children - 1)
    ]
    return [*ids, client.start("fork", parent=large, owner="owner-0", label="large", **given).id]


def queued_bodies(census: Census, settings: Settings) -> list[str]:
    waiting = census.raw.lrange(f"{settings.prefix}celery:{settings.queue}", 0, -1)
    whole = [json.loads(message) for message in waiting]
    # As it lies there, and its body and arguments without their base64.
    return [message.decode() for message in waiting] + [
        base64.b64decode(one["body"]).decode() for one in whole
    ]


def bounce(bouncing: Bouncing, settings: Settings, said: list[str]) -> None:
    """Three times, as fast as it starts; what a client says meanwhile goes to `said`."""
    with Client(settings.model_copy(update={"call_timeout_ms": 300}), owner="owner-0") as client:
        for _ in range(3):
            bouncing.kill()
            with pytest.raises(StoreUnavailable) as refused:
                client.list_tasks()
            said.append(f"{refused.value} {refused.value!r} {refused.value.facts}")
            bouncing.start()


def said_without_server(settings: Settings) -> str:
    """What the command line says where nobody answers at a URL with the password."""
    gone = settings.model_copy(
        update={"redis_url": f"redis://:{PASSWORD}@127.0.0.1:{embedded.free_port()}/0"}
    )
    listed = Cli(environment(gone))("list", "--owner", "owner-0")
    assert listed.returncode == 5
    return listed.stdout + listed.stderr


def all_ended(client: Client, count: int) -> bool:
    tasks = client.list_tasks(all_owners=True)
    return len(tasks) == count and all(task.is_terminal for task in tasks)


def check_endings(client: Client, ids: list[str], worker: Worker) -> None:
    assert worker.process.poll() is None, f"the same worker all along: {worker.lines[-3000:]}"
    tasks = {task.id: task for task in client.list_tasks(all_owners=True)}
    assert set(tasks) == set(ids)
    assert {task.status for task in tasks.values()} == {Status.COMPLETED}


def look_around(flower: Flower, settings: Settings) -> None:
    """All pages and calls that show tasks or workers, and what workers tell who inspects them."""
    wait_until(
        lambda: flower.get("/api/workers?refresh=1") == 200, "Flower is back with its workers", within_s=30
    )
    for path in ("/tasks", "/workers", "/broker", "/api/queues/length", "/metrics", "/api/tasks?limit=2000"):
        assert flower.get(path) == 200, path
    for task_id in list(json.loads(flower.heard[-1]))[:20]:
        assert flower.get(f"/task/{task_id}") == 200
    app = make_app(settings)
    inspect = app.control.inspect(timeout=2)
    told = [
        inspect.stats(),
        inspect.conf(with_defaults=True),
        inspect.active(),
        inspect.reserved(),
        inspect.report(),
    ]
    assert told[0], "a worker answered"
    flower.heard.append(json.dumps(told, default=str))
    app.close()


def check_keys(census: Census, children: int) -> None:
    """Nothing is large but seeds, logs and results; an index grows by a line for each task."""
    prefix = census.keys.prefix
    large = {key: size for key in census.all() if (size := census.bytes_of(key)) > LARGE_BYTES}
    assert (
        sum(census.bytes_of(key) for key in census.all() if key.startswith(f"{prefix}chunk:")) > LARGE_BYTES
    )
    for key, size in large.items():
        if key.removeprefix(prefix).startswith(("seed:", "chunk:", "log:", "output:")):
            continue
        assert size < BYTES_A_MEMBER * children, f"{key} has {size} bytes"


def only_these_are_left(census: Census, before: set[str]) -> None:
    """What was there before: keys that stay. Others expire by themselves, as the worker's own signs of life."""
    # What a consumer had in hand as the server died is kombu's to bring again, after its visibility
    # timeout; it finds its task over then, and goes.
    in_hand = {f"{census.keys.prefix}celery:{name}" for name in ("unacked", "unacked_index")}
    with suppress(AssertionError):
        wait_until(lambda: census.lasting() ^ before <= in_hand, "the same keys as before", within_s=20)
    left = (census.lasting() ^ before) - in_hand
    assert left == set(), {key: census.raw.type(key) for key in left}


def forget_all(client: Client) -> None:
    for n in range(OWNERS):
        client.for_owner(f"owner-{n}").notices(acknowledge=True)
    told = client.prune(older_than_ms=0)
    assert set(told) <= {"forgotten"}, told
