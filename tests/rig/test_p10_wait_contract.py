"""P10. The wait contract (codex#24951, pi-subagents#1315, t3code#7427, gptme#3261)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dsh_tasks.client import Client
from dsh_tasks.errors import OptionRefused, StoreUnavailable, TaskNotFound
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.task import Status
from tests.conftest import server_binary
from tests.prompts import failing, waiting
from tests.proxy import Proxy
from tests.rig_tools import ROOT, Rig, by_tool, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

WAIT_ONE = """
import json, sys, time
from dsh_tasks.client import Client
with Client(owner=sys.argv[1]) as client:
    print("waiting", flush=True)
    output = client.output(sys.argv[2], wait=True, timeout_ms=30000)
    late_ms = time.time() * 1000 - output.task.ended_ms
    print(json.dumps([output.task.status.value, output.timed_out, late_ms <= 2000]), flush=True)
"""


@pytest.fixture
def own_server() -> Iterator[embedded.Server]:
    server = embedded.start(binary=server_binary())
    yield server
    server.stop()


def timed(call: Callable[[], object]) -> tuple[object, float]:
    started = time.monotonic()
    value = call()
    return value, time.monotonic() - started


def test_a_read_of_a_running_child_never_blocks(rig: Rig, client: Client) -> None:
    rig.worker()
    run = client.start("spawn", prompt=waiting(30))
    wait_until(lambda: client.task(run.id).status is Status.RUNNING, "running")
    output, took_s = timed(lambda: client.output(run.id))
    assert took_s < 0.5
    assert (output.task.status, output.text, output.timed_out) == (Status.RUNNING, "", False)


def test_a_timed_out_wait_says_so_and_leaves_the_child_alive(rig: Rig, client: Client) -> None:
    rig.worker()
    run = client.start("spawn", prompt=waiting(30))
    wait_until(lambda: client.task(run.id).status is Status.RUNNING, "running")
    output, took_s = timed(lambda: client.output(run.id, wait=True, timeout_ms=1_000))
    assert 0.9 <= took_s <= 1.5
    assert (output.timed_out, output.task.status) == (True, Status.RUNNING)
    told = by_tool(client, "task_output", task_id=run.id, wait=True, timeout_ms=200).text
    assert "it goes on" in told
    assert told.splitlines()[-1] == "[status: running]"
    assert client.task(run.id).status is Status.RUNNING


def test_a_completion_is_seen_within_a_second(rig: Rig, client: Client) -> None:
    rig.worker()
    run = client.start("spawn", prompt=waiting(2))
    output = client.output(run.id, wait=True, timeout_ms=10_000)
    seen_ms = client.task(run.id).now_ms
    assert output.task.status is Status.COMPLETED
    assert output.task.ended_ms is not None
    assert seen_ms - output.task.ended_ms <= 1_000
    assert output.waited_ms < 4_000


def test_three_waiting_processes_hear_of_a_kill_from_a_fourth(rig: Rig, client: Client, owner: str) -> None:
    rig.worker()
    run = client.start("spawn", prompt=waiting(60))
    wait_until(lambda: client.task(run.id).status is Status.RUNNING, "running")
    waiters = [
        subprocess.Popen(
            [sys.executable, "-c", WAIT_ONE, owner, run.id],
            env=environment(rig.settings),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for waiter in waiters:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "waiting\n"
    client.kill(run.id)
    answers = [json.loads(waiter.communicate(timeout=10)[0]) for waiter in waiters]
    assert answers == [["killed", False, True]] * 3


def test_a_wait_survives_the_loss_of_its_push_connection(
    rig: Rig, make_client: Callable[..., Client], settings: Settings, owner: str
) -> None:
    rig.worker()
    with Proxy(settings.redis_url or "") as proxy:
        through = make_client(settings.model_copy(update={"redis_url": proxy.url}), owner=owner)
        # The queue is reached directly: the broker is not what this case cuts.
        run = through.start("spawn", prompt=waiting(3))
        answers: list[object] = []
        waiter = threading.Thread(
            target=lambda: answers.append(through.output(run.id, wait=True, timeout_ms=10_000))
        )
        waiter.start()
        wait_until(lambda: through.task(run.id).status is Status.RUNNING, "running")
        proxy.cut()
        waiter.join(timeout=10)
        (output,) = answers
        assert output.task.status is Status.COMPLETED  # type: ignore[attr-defined]
        assert output.waited_ms < 6_000  # type: ignore[attr-defined]


def test_a_wait_on_a_frozen_server_ends_in_time_and_says_that_it_is_unavailable(
    own_server: embedded.Server,
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    """Frozen for as long as two waits take: one by the client, one by the tool."""
    server = own_server
    try:
        settings = make_settings(redis_url=server.url, call_timeout_ms=1_000)
        make_rig(settings).worker()
        client = make_client(settings, owner="s")
        run = client.start("spawn", prompt=waiting(1))
        wait_until(lambda: client.task(run.id).status is Status.RUNNING, "running")
        server.process.send_signal(signal.SIGSTOP)
        refused, took_s = timed(
            lambda: pytest.raises(StoreUnavailable, client.output, run.id, wait=True, timeout_ms=3_000)
        )
        assert took_s <= 5
        told, took_s = timed(
            lambda: by_tool(client, "task_output", task_id=run.id, wait=True, timeout_ms=3_000)
        )
        assert took_s <= 5
        assert told.is_error  # type: ignore[attr-defined]
        assert told.text.splitlines()[-1] == "[status: unavailable]"  # type: ignore[attr-defined]
        for words in (str(refused.value), told.text):  # type: ignore[attr-defined]
            assert "redis://" not in words
            assert str(server.port) not in words
            assert "Traceback" not in words
        server.process.send_signal(signal.SIGCONT)
        assert client.output(run.id, wait=True).task.status is Status.COMPLETED, "it lived on"
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_wait_above_the_cap_is_cut_to_it_and_says_so(
    make_settings: Callable[..., Settings], make_client: Callable[..., Client], owner: str
) -> None:
    client = make_client(make_settings(wait_cap_ms=500), owner=owner)
    run = client.start("spawn", prompt="nobody runs this")
    output, took_s = timed(lambda: client.output(run.id, wait=True, timeout_ms=3_600_000))
    assert took_s < 1.5
    assert (output.wait_capped, output.timed_out, output.task.status) == (True, True, Status.QUEUED)


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan"), True])
def test_a_wait_that_is_no_positive_number_is_refused(client: Client, bad: float) -> None:
    with pytest.raises(OptionRefused, match="timeout_ms"):
        client.output("subagent-x", wait=True, timeout_ms=bad)  # type: ignore[arg-type]


def test_an_empty_id_is_refused_before_any_look_up(client: Client) -> None:
    with pytest.raises(OptionRefused, match="task_id"):
        client.output(" ")


def test_a_wait_on_an_unknown_id_is_not_found_and_not_queued(client: Client) -> None:
    unknown = "subagent-" + "0" * 32
    _, took_s = timed(lambda: pytest.raises(TaskNotFound, client.output, unknown, wait=True))
    assert took_s < 1
    assert client.list_tasks() == []


def test_each_terminal_status_returns_at_once(rig: Rig, client: Client) -> None:
    rig.worker()
    completed = client.start("spawn", prompt="hello")
    failed = client.start("spawn", prompt=failing("broken"))
    killed = client.start("spawn", prompt=waiting(60))
    wait_until(lambda: client.task(killed.id).status is Status.RUNNING, "running")
    client.kill(killed.id)
    for run in (completed, failed, killed):
        run.result()
    for run, status in ((completed, "completed"), (failed, "failed"), (killed, "killed")):
        output, took_s = timed(lambda run=run: client.output(run.id, wait=True, timeout_ms=10_000))
        assert took_s < 0.5
        assert output.task.status == status


def test_no_celery_result_is_waited_for_anywhere() -> None:
    """The record is the result."""
    for folder in ("dsh_tasks", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "AsyncResult" not in path.read_text("utf-8"), path
