"""A worker waits for its server, and refuses one that would lose records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from dsh_tasks.client import Client
from dsh_tasks.errors import ConfigRefused, StoreUnavailable
from dsh_tasks.queue import make_app
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.store.fitness import fail
from dsh_tasks.task import Status
from tests.rig_tools import Rig, environment
from tests.waiting import wait_until
from workers.start_checks import check_queue, check_server, judge

pytestmark = pytest.mark.rig


@pytest.fixture
def own_server() -> Iterator[embedded.Server]:
    running = embedded.start()
    yield running
    running.stop()


def test_a_worker_refuses_a_server_that_evicts(
    own_server: embedded.Server, make_settings: Callable[..., Settings]
) -> None:
    import redis

    settings = make_settings(redis_url=own_server.url)
    with redis.Redis.from_url(own_server.url) as raw:
        raw.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(ConfigRefused, match="noeviction"):
        check_server(settings)
    ended = subprocess.run(
        [sys.executable, "-m", "workers"],
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 6
    assert (
        ended.stderr.strip()
        .splitlines()[-1]
        .startswith("dsh-tasks worker: configuration of 'server maxmemory")
    )


def test_a_queue_that_would_send_a_message_again_during_a_long_run_is_refused(
    make_settings: Callable[..., Settings],
) -> None:
    """P25."""
    app = make_app(make_settings())
    check_queue(app)
    for shorter in ({"visibility_timeout": 3_600}, {}):
        app.conf.broker_transport_options = shorter
        with pytest.raises(ConfigRefused, match="visibility_timeout.*below the longest run"):
            check_queue(app)


def test_a_server_without_an_append_only_file_is_told_and_allowed(caplog: pytest.LogCaptureFixture) -> None:
    judge([fail("appendonly", "no: a restart may forget", "CONFIG SET appendonly yes")])
    assert "CONFIG SET appendonly yes" in caplog.text


def test_a_server_that_stays_silent_is_named_without_its_password(
    make_settings: Callable[..., Settings],
) -> None:
    port = embedded.free_port()
    settings = make_settings(redis_url=f"redis://ops:secret@127.0.0.1:{port}/0")
    with pytest.raises(StoreUnavailable) as refused:
        check_server(settings, wait_s=0.5)
    assert "secret" not in str(refused.value)
    assert str(port) in str(refused.value)


def test_a_worker_that_starts_before_its_server_waits_for_it(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    port = embedded.free_port()
    settings = make_settings(redis_url=f"redis://127.0.0.1:{port}/0")
    rig = make_rig(settings)
    import threading

    starting = threading.Thread(target=rig.worker)
    starting.start()
    wait_until(lambda: rig.workers and "waiting for the server" in rig.workers[0].lines, "the worker waits")
    server = embedded.start(port=port)
    try:
        starting.join(60)
        done = make_client(settings, owner="s").start("spawn", prompt="hello").result()
        assert done.task.status is Status.COMPLETED
    finally:
        rig.close()
        server.stop()
