"""Faults that a breaker found once; each stays mended."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import pytest

from dsh_tasks.client import AsyncClient, Client
from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys, embedded
from dsh_tasks.task import Cause, Status
from tests.prompts import delegating, waiting
from tests.rig_tools import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


def test_nested_waits_go_on_with_every_slot_and_every_inline_place_taken(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    """Eight chains of depth three on eight slots and one inline place (rule 10)."""
    settings = make_settings(inline_children=1, live_per_owner=50, lease_ms=10_000)
    make_rig(settings).worker(concurrency=8)
    client = make_client(settings, owner="root")
    chain = delegating(f"!wait 0.5\n{delegating(waiting(0.5))}")
    runs = [client.start("spawn", prompt=chain, label=str(n)) for n in range(8)]
    for run in runs:
        assert client.output(run.id, wait=True, timeout_ms=40_000).task.status is Status.COMPLETED
    assert len(client.list_tasks()) == 24


def test_a_child_that_never_ends_a_step_fails_after_its_losses(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    """P2: the rows that mend an interrupted turn are no progress."""
    settings = make_settings(lease_ms=2_000, grace_ms=300, first_pause_ms=100, losses=2)
    rig = make_rig(settings)
    client = make_client(settings, owner="s")
    run = client.start("spawn", prompt=waiting(120))
    for attempt in (1, 2):
        worker = rig.worker()
        wait_until(
            lambda attempt=attempt: (t := client.task(run.id)).attempt == attempt and t.activity == "model",
            f"attempt {attempt} streams",
        )
        worker.kill()
    rig.worker()
    wait_until(lambda: client.task(run.id).is_terminal, "given up")
    task = client.task(run.id)
    assert (task.status, task.cause, task.attempt) == (Status.FAILED, Cause.WORKER_LOST, 2)
    assert len(client.notices()) == 1


def test_a_start_returns_while_the_broker_is_frozen_and_the_child_runs_afterwards(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    broker = embedded.start()
    try:
        settings = make_settings(broker_url=broker.url, call_timeout_ms=1_000, republish_ms=500)
        make_rig(settings).worker()
        client = make_client(settings, owner="s")
        client.start("spawn", prompt="warm up").result()
        broker.process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        run = client.start("spawn", prompt="hello")
        took_s = time.monotonic() - started
        assert client.task(run.id).status is Status.QUEUED
        broker.process.send_signal(signal.SIGCONT)
        assert took_s < 4
        wait_until(lambda: client.task(run.id).is_terminal, "published by a reaper", within_s=40)
        assert client.task(run.id).status is Status.COMPLETED
    finally:
        broker.process.send_signal(signal.SIGCONT)
        broker.stop()


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_cancelled_foreground_call_leaves_nothing_running(rig: Rig, cancels: int) -> None:
    """At many instants of the start, and cancelled again while it cleans up."""
    rig.worker(concurrency=32)

    async def foreground(client: AsyncClient, n: int) -> None:
        run = await client.start("spawn", prompt=waiting(60), label=str(n), mode="foreground")
        try:
            await run.result()
        finally:
            from dsh_tasks.cancellation import to_the_end

            await to_the_end(run.dispose())

    async def main() -> None:
        settings = rig.settings.model_copy(update={"live_per_owner": 1_000})
        async with AsyncClient.connect(settings, owner="caller") as client:
            for n in range(60):
                call = asyncio.create_task(foreground(client, n))
                await asyncio.sleep(n / 60 * 0.05)
                for _ in range(cancels):
                    call.cancel()
                    await asyncio.sleep(0.002)
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(asyncio.shield(call), 20)
            tasks = await client.list_tasks()
            assert [task.id for task in tasks if not task.is_terminal] == []
            assert await client.store.link.command("SCARD", Keys(settings.prefix).live("caller")) == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_attempt_waits_for_the_grandchild_that_the_last_one_began(
    rig: Rig, client: Client, how: signal.Signals
) -> None:
    first = rig.worker()
    run = client.start("spawn", prompt=delegating(waiting(5)))
    wait_until(lambda: len(client.list_tasks()) == 2, "the grandchild is there")
    wait_until(lambda: client.list_tasks()[1].status is Status.RUNNING, "it runs")
    rig.worker()
    first.signal(how)
    first.process.wait(30)
    assert client.output(run.id, wait=True, timeout_ms=50_000).task.status is Status.COMPLETED
    tasks = client.list_tasks()
    assert [task.depth for task in tasks] == [1, 2], "one grandchild, not two"
    assert {task.status for task in tasks} == {Status.COMPLETED}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_worker_with_its_children_ends_on_each_signal_within_seconds(
    rig: Rig, client: Client, number: signal.Signals
) -> None:
    worker = rig.worker()
    run = client.start("spawn", prompt=waiting(30))
    wait_until(lambda: client.task(run.id).activity == "model", "it streams")
    worker.process.send_signal(number)
    worker.process.wait(10)
    wait_until(lambda: client.task(run.id).status is Status.QUEUED, "handed back", within_s=2)
    assert client.task(run.id).losses == 0


def test_a_worker_ends_though_its_server_is_frozen(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    server = embedded.start()
    settings = make_settings(redis_url=server.url, call_timeout_ms=1_000)
    rig = make_rig(settings)
    worker = rig.worker()
    client = make_client(settings, owner="s")
    run = client.start("spawn", prompt=waiting(60))
    wait_until(lambda: client.task(run.id).activity == "model", "it streams")
    server.process.send_signal(signal.SIGSTOP)
    try:
        worker.process.send_signal(signal.SIGTERM)
        worker.process.wait(40)
    finally:
        server.process.send_signal(signal.SIGCONT)
        rig.close()
        server.stop()
