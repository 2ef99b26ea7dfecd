"""A callback hears of every ending at least once, and of none that it has acknowledged."""

from __future__ import annotations

import asyncio
import secrets
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dsh_tasks.client import AsyncClient, Client
from dsh_tasks.client import endings as module
from dsh_tasks.errors import OptionRefused, SpeakerTaken, StoreUnavailable
from dsh_tasks.notice import Notice
from dsh_tasks.settings import Settings
from dsh_tasks.store import Inbox, Store, embedded
from tests.store.test_records import a_task
from tests.waiting import wait_until

OWNER = "s-1"


async def ended(store: Store, count: int = 1) -> list[str]:
    """Tasks that were accepted and killed by the operator."""
    ids = []
    for _ in range(count):
        new = a_task(OWNER)
        await store.submit(new)
        await store.kill(new.id, caller="", token=secrets.token_hex(8), detail="")
        ids.append(new.id)
    return ids


def with_client(settings: Settings, scenario: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner=OWNER) as client:
            await scenario(client)

    asyncio.run(main())


async def until(condition: Callable[[], Any], what: str) -> None:
    """As wait_until, on the loop."""
    await asyncio.to_thread(wait_until, condition, what)


class Hears:
    """A callback that keeps what it heard; `raises` says which batches it refuses."""

    def __init__(self, raises: Callable[[Sequence[str]], bool] = lambda _ids: False) -> None:
        self.batches: list[list[str]] = []
        self.refused: list[list[str]] = []
        self._raises = raises

    async def __call__(self, notices: Sequence[Notice]) -> None:
        ids = [notice.task_id for notice in notices]
        if self._raises(ids):
            self.refused.append(ids)
            raise ValueError("not that")
        self.batches.append(ids)

    @property
    def ids(self) -> list[str]:
        return [one for batch in self.batches for one in batch]


def test_what_has_ended_before_comes_as_one_batch_and_what_ends_later_at_once(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        hears = Hears()
        before = await ended(client.store, 3)
        async with await client.on_endings(hears) as subscription:
            await until(lambda: hears.batches == [before], "one batch")
            later = await ended(client.store)
            await until(lambda: hears.batches == [before, later], "what came later")
            assert subscription.is_running
        assert not subscription.is_running
        assert await client.notices() == ()
        missed = await ended(client.store)
        assert [notice.task_id for notice in await client.notices()] == missed
        assert hears.ids == before + later
        # The owner lease is free again.
        await Inbox(client.store.link, client.settings, OWNER).speak("another")

    with_client(settings, scenario)


def test_what_the_callback_refuses_comes_again_alone_and_holds_up_nothing_else(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.05)

    async def scenario(client: AsyncClient) -> None:
        good, bad, other = await ended(client.store, 3)
        heals = asyncio.Event()
        hears = Hears(lambda ids: bad in ids and not heals.is_set())
        async with await client.on_endings(hears):
            await until(lambda: sorted(hears.ids) == sorted([good, other]), "the others")
            assert hears.refused[0] == [good, bad, other]
            await until(lambda: len(hears.refused) >= 3, "it comes again")
            assert all(batch == [bad] for batch in hears.refused[1:])
            later = await ended(client.store)
            await until(lambda: later[0] in hears.ids, "what came later")
            await until(lambda: client_pending(client) == [bad], "never acknowledged")
            heals.set()
            await until(lambda: bad in hears.ids, "it is heard at last")
        assert await client.notices() == ()
        assert "ValueError" in caplog.text and "not that" not in caplog.text

    def client_pending(client: AsyncClient) -> list[str]:
        loop_free = Client(client.settings, owner=OWNER)
        try:
            return [notice.task_id for notice in loop_free.notices()]
        finally:
            loop_free.close()

    with_client(settings, scenario)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, StopIteration])
def test_no_kind_of_exception_ends_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.05)

    async def scenario(client: AsyncClient) -> None:
        raised: list[int] = []
        heard: list[Notice] = []

        def callback(notices: Sequence[Notice]) -> None:
            if not raised:
                raised.append(1)
                raise error
            heard.extend(notices)

        (task_id,) = await ended(client.store)
        async with await client.on_endings(callback):
            await until(lambda: heard, "heard after all")
        assert [notice.task_id for notice in heard] == [task_id]

    with_client(settings, scenario)


def test_a_second_process_may_not_speak_and_a_session_is_needed(settings: Settings, make_client: Any) -> None:
    async def scenario(client: AsyncClient) -> None:
        async with await client.on_endings(Hears()):
            async with AsyncClient.connect(settings, owner=OWNER) as other:
                with pytest.raises(SpeakerTaken):
                    await other.on_endings(Hears())
        async with await client.on_endings(Hears()):
            pass

    with_client(settings, scenario)
    with pytest.raises(OptionRefused, match="owner"):
        make_client(settings).on_endings(print)


def test_a_callback_may_take_longer_than_the_owner_lease(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(speaker_lease_ms=300)

    async def scenario(client: AsyncClient) -> None:
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def callback(_notices: Sequence[Notice]) -> None:
            began.set()
            await goes_on.wait()

        await ended(client.store)
        speaker = client.store.keys.speaker(OWNER)
        async with await client.on_endings(callback):
            await began.wait()
            token = await client.store.link.command("GET", speaker)
            for _ in range(20):
                assert await client.store.link.command("GET", speaker) == token
                await asyncio.sleep(0.05)
            goes_on.set()
        assert await client.notices() == ()

    with_client(settings, scenario)


def test_a_stop_waits_for_the_callback_and_acknowledges_what_it_heard(settings: Settings) -> None:
    async def scenario(client: AsyncClient) -> None:
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def callback(_notices: Sequence[Notice]) -> None:
            began.set()
            await goes_on.wait()

        await ended(client.store)
        subscription = await client.on_endings(callback)
        await began.wait()
        stopping = asyncio.create_task(subscription.stop())
        missed = await ended(client.store)
        goes_on.set()
        await stopping
        await subscription.stop()
        assert [notice.task_id for notice in await client.notices()] == missed

    with_client(settings, scenario)


def test_a_callback_that_never_returns_is_left_unacknowledged(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_WITHIN_S", 0.1)

    async def scenario(client: AsyncClient) -> None:
        began = asyncio.Event()

        async def callback(_notices: Sequence[Notice]) -> None:
            began.set()
            await asyncio.Event().wait()

        ids = await ended(client.store)
        async with await client.on_endings(callback):
            await began.wait()
        assert [notice.task_id for notice in await client.notices()] == ids

    with_client(settings, scenario)


def test_a_plain_function_runs_in_a_thread_may_use_the_client_and_may_stop_it(
    settings: Settings, make_client: Any
) -> None:
    client = make_client(settings, owner=OWNER)
    seen: list[Any] = []
    done = threading.Event()
    subscription: list[Any] = []

    def callback(notices: Sequence[Notice]) -> None:
        done.wait(10)
        seen.extend(client.output(notice.task_id).task.status for notice in notices)
        subscription[0].stop()

    subscription.append(client.on_endings(callback))
    ids = client.call(ended(client._client.store, 2))
    done.set()
    wait_until(lambda: seen, "heard")
    subscription[0].stop()
    assert len(seen) in (1, 2)
    assert len(client.notices()) == 2 - len(seen)
    assert len(ids) == 2
    assert not subscription[0].is_running


def test_closing_a_client_ends_its_callbacks(settings: Settings) -> None:
    client = Client(settings, owner=OWNER)
    heard: list[Notice] = []
    client.for_owner(OWNER).on_endings(heard.extend)
    client.call(ended(client._client.store))
    wait_until(lambda: heard, "heard")
    client.close()
    other = Client(settings, owner=OWNER)
    other.on_endings(heard.extend)
    other.close()


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_it_outlives_a_server_that_is_away(
    make_settings: Callable[..., Settings], tmp_path: Path, how: str
) -> None:
    server = embedded.start(folder=tmp_path / "server")
    settings = make_settings(redis_url=server.url, call_timeout_ms=500, speaker_lease_ms=1_000)

    async def scenario(client: AsyncClient) -> None:
        nonlocal server
        hears = Hears()
        async with await client.on_endings(hears) as subscription:
            before = await ended(client.store)
            await until(lambda: hears.ids == before, "heard before")
            if how == "killed":
                server.process.kill()
                server.process.wait()
                server = await asyncio.to_thread(embedded.start, port=server.port, folder=server.folder)
            else:
                server.process.send_signal(signal.SIGSTOP)
                with pytest.raises(StoreUnavailable):
                    await client.notices()
                server.process.send_signal(signal.SIGCONT)
            later = await ended(client.store, 2)
            await until(lambda: set(later) <= set(hears.ids), "heard after")
            assert subscription.is_running
        assert hears.ids.count(before[0]) == 1

    try:
        with_client(settings, scenario)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()


def test_a_lost_acknowledgement_is_made_good_without_a_second_call(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledge, failed = Inbox.acknowledge, []

    async def fails_once(self: Inbox, ids: Sequence[str], **given: Any) -> int:
        if ids and not failed:
            failed.append(ids)
            raise StoreUnavailable("no answer in time")
        return await acknowledge(self, ids, **given)

    monkeypatch.setattr(Inbox, "acknowledge", fails_once)

    async def scenario(client: AsyncClient) -> None:
        hears = Hears()
        ids = await ended(client.store, 2)
        async with await client.on_endings(hears):
            await until(lambda: failed, "the acknowledgement was lost")
            more = await ended(client.store)
            await until(lambda: more[0] in hears.ids, "it goes on")
        assert sorted(hears.ids) == sorted([*ids, *more])
        assert await client.notices() == ()

    with_client(settings, scenario)


def test_a_process_that_dies_after_its_callback_leaves_the_ending_to_the_next(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    import subprocess
    import sys

    from tests.rig_tools import ROOT, environment

    settings = make_settings(speaker_lease_ms=300)
    script = (
        "import os, sys, time\nfrom dsh_tasks.client import Client\n"
        "def hears(notices):\n    print(notices[0].task_id, flush=True)\n    os._exit(9)\n"
        f"with Client(owner={OWNER!r}) as client:\n    client.on_endings(hears)\n    time.sleep(60)\n"
    )

    async def scenario(client: AsyncClient) -> None:
        ids = await ended(client.store)
        died = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script],
            env=environment(settings),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (died.returncode, died.stdout.split()) == (9, ids), died.stderr
        hears = Hears()
        lease = client.store.keys.speaker(OWNER)
        while await client.store.link.command("EXISTS", lease):
            await asyncio.sleep(0.05)
        async with await client.on_endings(hears):
            await until(lambda: hears.ids == ids, "heard by the next")

    with_client(settings, scenario)
