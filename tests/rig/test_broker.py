"""The broker is expendable: the record is the truth, and a queue that forgets costs time, never a child.

Broker and store are two servers here, so that one can be lost without the other.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from dsh_tasks.client import Client
from dsh_tasks.queue import RUN_CHILD, Message, make_app, publish
from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys, embedded
from dsh_tasks.task import Status
from tests.conftest import server_binary
from tests.prompts import waiting
from tests.rig_tools import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


@pytest.fixture
def broker() -> Iterator[embedded.Server]:
    running = embedded.start(binary=server_binary())
    yield running
    running.stop()


@pytest.fixture
def settings(make_settings: Callable[..., Settings], broker: embedded.Server) -> Settings:
    return make_settings(broker_url=broker.url, republish_ms=1_000, sweep_ms=500)


def started_once(client: Client, task_id: str) -> None:
    task = client.task(task_id)
    assert (task.status, task.attempt, task.usage.model_calls) == (Status.COMPLETED, 1, 1)


def test_a_wiped_queue_loses_no_child(rig: Rig, client: Client, broker: embedded.Server) -> None:
    ids = [client.start("spawn", prompt=f"!say {n}").id for n in range(5)]
    redis.Redis.from_url(broker.url).flushall()
    rig.worker()
    for task_id in ids:
        assert client.output(task_id, wait=True).task.status is Status.COMPLETED
        started_once(client, task_id)


def test_a_broker_that_dies_with_all_it_held_is_replaced_under_running_children(
    rig: Rig, client: Client, broker: embedded.Server, tmp_path: Path
) -> None:
    """The worker reconnects or ends to be restarted; what runs goes on, what waits starts, each once."""
    worker = rig.worker(concurrency=2)
    runs = [client.start("spawn", prompt=waiting(4)) for _ in range(2)]
    for run in runs:
        wait_until(lambda run=run: client.task(run.id).status is Status.RUNNING, "it runs")
    waits = client.start("spawn", prompt="!say later")
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()
    while_away = client.start("spawn", prompt="!say accepted without a queue")
    again = embedded.start(port=broker.port, folder=tmp_path / "empty", binary=server_binary())
    try:
        for run in [*runs, waits, while_away]:
            if worker.process.poll() is not None:
                worker = rig.worker(concurrency=2)
            assert client.output(run.id, wait=True).task.status is Status.COMPLETED
            started_once(client, run.id)
        assert client.start("spawn", prompt="!say new").result().task.status is Status.COMPLETED
    finally:
        again.stop()


def test_a_message_without_a_record_is_dropped_and_counted(rig: Rig, client: Client) -> None:
    rig.worker()
    unknown = "subagent-" + "0" * 32
    app = make_app(rig.settings, publishes=True)
    app.send_task(RUN_CHILD, args=(unknown,), task_id=unknown, ignore_result=True)
    wait_until(lambda: client.stats().get("messages_without_record") == 1, "it was dropped")
    assert client.start("spawn", prompt="!say still here").result().task.status is Status.COMPLETED


def test_a_message_that_comes_twice_starts_one_attempt_and_is_counted(rig: Rig, client: Client) -> None:
    rig.worker()
    run = client.start("spawn", prompt=waiting(1))
    app = make_app(rig.settings, publishes=True)
    wait_until(lambda: client.task(run.id).status is Status.RUNNING, "it runs")
    app.send_task(RUN_CHILD, args=(run.id,), task_id=run.id, ignore_result=True)
    wait_until(lambda: client.stats().get("messages_too_many") == 1, "the second found it taken")
    run.result()
    started_once(client, run.id)


def test_lost_hints_lose_no_child(rig: Rig, client: Client) -> None:
    """Each sorted set is deleted under work in every state: the sweep puts them back."""
    worker = rig.worker(concurrency=1)
    runs = client.start("spawn", prompt=waiting(30))
    wait_until(lambda: client.task(runs.id).status is Status.RUNNING, "it runs")
    waits = client.start("spawn", prompt="!say later")
    keys = Keys(rig.settings.prefix)
    store = redis.Redis.from_url(rig.settings.redis_url or "")
    store.delete(keys.due, keys.leases, keys.live(client.owner or ""))
    worker.kill()
    redis.Redis.from_url(rig.settings.effective_broker_url or "").flushall()
    rig.worker()
    assert client.output(waits.id, wait=True).task.status is Status.COMPLETED
    wait_until(lambda: client.task(runs.id).attempt == 2, "the lost one was taken over")
    client.kill(runs.id)
    assert client.output(runs.id, wait=True).task.status is Status.KILLED


def test_a_connection_that_breaks_with_a_message_in_hand_closes_without_a_crash(
    settings: Settings, broker: embedded.Server
) -> None:
    """P25: it ended the worker, with kombu's AttributeError in the place of a lost connection."""
    app = make_app(settings)
    publish(app, Message("subagent-1", 0, "x", "spawn", 1, "s"))
    connection = app.connection_for_read()
    channel = connection.default_channel
    wait_until(lambda: channel.basic_get(settings.queue, no_ack=False), "the message is in hand")
    broker.process.kill()
    broker.process.wait()
    # What an earlier failure to close has left behind.
    channel.connection.client, channel._pool = None, None
    connection.release()


def test_an_answer_of_remote_control_that_comes_too_late_does_not_stay(
    settings: Settings, broker: embedded.Server
) -> None:
    """P25: Flower had asked, and was gone when the worker answered."""
    asks, answers = make_app(settings), make_app(settings)
    mailbox = asks.control.mailbox
    with asks.connection_for_write() as connection:
        mailbox.reply_queue(connection.default_channel).declare()
    exchange = mailbox.reply_exchange.name
    with answers.connection_for_write() as connection:
        answers.control.mailbox(connection)._publish_reply(
            {"w1": "late"}, exchange, mailbox.oid, "ticket", channel=connection.default_channel
        )
    server = redis.Redis.from_url(broker.url)
    (key,) = server.keys(f"*{mailbox.oid}.{exchange}")
    assert 0 < server.pttl(key) <= 60_000
