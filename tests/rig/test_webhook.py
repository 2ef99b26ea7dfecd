"""Endings reach an endpoint: real workers, a real receiver that fails, hangs, redirects and says 410."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.task import Status
from tests.cli_tools import Cli
from tests.prompts import failing, waiting
from tests.receiver import SECRET, Receiver
from tests.rig_tools import Rig, Worker, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

PRIVATE = "the quick brown prompt"
QUICK = {"webhook_first_pause_ms": 100, "webhook_timeout_ms": 1_000}


@pytest.fixture
def make_hooked(
    make_settings: Callable[..., Settings], make_rig: Callable[[Settings], Rig]
) -> Callable[..., Rig]:
    """A rig whose workers send to a URL. Its clients know of none."""

    def make(url: str, **knobs: object) -> Rig:
        return make_rig(make_settings(**(QUICK | {"webhook_url": url, "webhook_secret": SECRET} | knobs)))

    return make


@pytest.fixture
def hooked_client(make_client: Callable[..., Client], owner: str) -> Callable[[Rig], Client]:
    def make(rig: Rig) -> Client:
        unset = {"webhook_url": None, "webhook_secret": None}
        return make_client(rig.settings.model_copy(update=unset), owner=owner)

    return make


def outbox(client: Client) -> dict[str, object]:
    from dataclasses import asdict

    from dsh_tasks.store import Outbox

    async def state() -> dict[str, object]:
        return asdict(await Outbox(client._client.store.link, client.settings).state())

    return client.call(state())


def ended(client: Client, run_id: str) -> None:
    """Looked at without holding the notice back."""
    wait_until(lambda: client.task(run_id).is_terminal, "ended")


def test_each_ending_that_puts_a_notice_is_sent_signed_and_once(
    make_hooked: Callable[..., Rig], hooked_client: Callable[[Rig], Client], owner: str
) -> None:
    with Receiver() as receiver:
        rig = make_hooked(receiver.url)
        client = hooked_client(rig)
        worker = rig.worker()
        good = client.start("spawn", prompt=f"!say {PRIVATE}", label="the good one")
        bad = client.start("spawn", prompt=failing(PRIVATE))
        long = client.start("spawn", prompt=waiting(60))
        wait_until(lambda: client.task(long.id).status is Status.RUNNING, "running")
        client.for_owner(owner).kill(long.id)
        ended(client, good.id)
        ended(client, bad.id)
        got = receiver.await_count(2)
        wait_until(lambda: outbox(client)["delivered"] == 2, "both are delivered")
        # The owner's own kill holds its notice back, and so the event.
        assert {one.event["subject"] for one in got} == {good.id, bad.id}
        for one in got:
            assert one.path == "/endings?of=tests"
            assert one.is_signed_by(SECRET)
            assert one.headers["content-type"].startswith("application/cloudevents+json")
            assert one.id == one.event["id"] == f"notice-{one.event['subject']}"
            assert (one.event["specversion"], one.event["type"]) == ("1.0", "dev.dsh-tasks.task.ended")
            assert one.event["data"]["owner"] == owner
            assert len(one.body) < 2_048
            assert PRIVATE.encode() not in one.body
        by_id = {one.event["subject"]: one.event["data"] for one in got}
        assert (by_id[good.id]["status"], by_id[good.id]["label"]) == ("completed", "the good one")
        assert (by_id[bad.id]["status"], by_id[bad.id]["cause"]) == ("failed", "error")
        assert len(client.notices()) == 2
        assert worker.stop() == 0
        for private in (SECRET.removeprefix("whsec_"), "of=tests", PRIVATE):
            assert private not in worker.lines


def test_the_tools_of_a_child_do_not_inherit_url_and_secret(
    make_hooked: Callable[..., Rig], hooked_client: Callable[[Rig], Client], tmp_path: Path
) -> None:
    (tmp_path / "envtool.py").write_text(
        "import os\ndef names() -> str:\n"
        "    return 'one' if any('WEBHOOK_' + x in n for n in os.environ for x in ('URL', 'SECRET')) else 'none of them'\n"
    )
    config = tmp_path / "dsh.toml"
    config.write_text('[agent]\ntools = ["envtool:names"]\n')
    with Receiver() as receiver:
        rig = make_hooked(receiver.url, config=str(config))
        client = hooked_client(rig)
        rig.worker(PYTHONPATH=f"{environment(rig.settings)['PYTHONPATH']}:{tmp_path}")
        done = client.start("spawn", prompt="!call names").result()
        assert "none of them" in done.text


def test_a_receiver_that_fails_gets_it_again_with_the_same_id_and_body(
    make_hooked: Callable[..., Rig], hooked_client: Callable[[Rig], Client]
) -> None:
    answers = [500, (302, {"location": "/elsewhere"}), 503, 200]
    with Receiver(lambda n, _got: answers[n]) as receiver:
        rig = make_hooked(receiver.url)
        client = hooked_client(rig)
        rig.worker()
        run = client.start("spawn", prompt="hello")
        got = receiver.await_count(4, within_s=60)
        wait_until(lambda: outbox(client)["delivered"] == 1, "delivered")
        assert {one.id for one in got} == {f"notice-{run.id}"}
        assert len({one.body for one in got}) == 1
        assert {one.path for one in got} == {"/endings?of=tests"}, "a redirect was followed"
        assert all(one.is_signed_by(SECRET) for one in got)
        state = outbox(client)
        assert (state["failed"], state["waiting"], state["dropped"]) == (3, 0, 0)
        assert len(receiver.got) == 4


def test_a_receiver_that_hangs_or_drips_holds_a_try_only_until_its_deadline(
    make_hooked: Callable[..., Rig], hooked_client: Callable[[Rig], Client]
) -> None:
    """The second one answers a byte each 0.2 s: no single read of it takes long."""
    closing = threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Receiver(lambda n, _g: None if n == 0 else 200) as hangs,
    ):
        tries: list[int] = []

        def drip() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                tries.append(1)
                try:
                    for byte in b"HTTP/1.1 200 OK\r\nx-slow: " + b"x" * 1_000:
                        if closing.wait(0.2):
                            return
                        line.sendall(bytes([byte]))
                except OSError:
                    line.close()

        threading.Thread(target=drip, daemon=True).start()
        dripping = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        for url in (hangs.url, dripping):
            rig = make_hooked(url)
            client = hooked_client(rig)
            rig.worker()
            client.start("spawn", prompt="hello")
            wait_until(lambda: outbox(client)["failed"] == 1, "the try was given up")
            assert outbox(client)["failed_why"] == "no answer in time"
        hangs.await_count(2)
        wait_until(lambda: len(tries) >= 2, "the dripping one is tried again")
        closing.set()


def test_a_worker_that_dies_between_the_post_and_the_removal_leaves_it_to_another_with_the_same_id(
    make_hooked: Callable[..., Rig], hooked_client: Callable[[Rig], Client]
) -> None:
    victims: list[Worker] = []

    def dies_with_it(number: int, _got: object) -> int:
        if number == 0:
            # Received, and the sender is gone before it can hear so.
            victims[0].kill()
        return 200

    with Receiver(dies_with_it) as receiver:
        rig = make_hooked(receiver.url)
        client = hooked_client(rig)
        victims.append(rig.worker())
        run = client.start("spawn", prompt="hello")
        receiver.await_count(1)
        assert (outbox(client)["delivered"], outbox(client)["waiting"]) == (0, 1)
        rig.worker()
        got = receiver.await_count(2)
        assert [one.id for one in got] == [f"notice-{run.id}"] * 2
        wait_until(lambda: outbox(client)["delivered"] == 1, "removed")
        assert outbox(client)["waiting"] == 0


def test_after_410_nothing_is_sent_and_doctor_says_so_until_the_endpoint_is_another(
    make_hooked: Callable[..., Rig],
    hooked_client: Callable[[Rig], Client],
    make_rig: Callable[[Settings], Rig],
) -> None:
    with Receiver(lambda _n, got: 410 if got.path != "/again" else 200) as receiver:
        rig = make_hooked(receiver.url)
        client = hooked_client(rig)
        worker = rig.worker()
        first = client.start("spawn", prompt="hello")
        wait_until(lambda: outbox(client)["gone_ms"], "it heard the 410")
        second = client.start("spawn", prompt="hello")
        ended(client, second.id)
        wait_until(lambda: "answered 410" in worker.lines, "the worker says so")
        assert receiver.ids() == [f"notice-{first.id}"]
        cli = Cli(environment(rig.settings))
        (finding,) = [one for one in cli.json("doctor")["findings"] if one["check"] == "webhook"]
        assert finding["grade"] == "warning" and "410" in finding["seen"]
        assert SECRET not in str(finding) and "of=tests" not in str(finding)
        again = f"http://127.0.0.1:{receiver.port}/again"
        make_rig(rig.settings.model_copy(update={"webhook_url": again})).worker()
        receiver.await_count(2)
        assert receiver.ids()[1] == f"notice-{first.id}"
        # Its ending fell into the time in which nothing was wanted.
        assert f"notice-{second.id}" not in receiver.ids()


def test_what_the_owner_acknowledges_while_the_receiver_is_down_is_not_sent_any_more(
    make_hooked: Callable[..., Rig], hooked_client: Callable[[Rig], Client]
) -> None:
    up = threading.Event()
    with Receiver(lambda _n, _got: 200 if up.is_set() else 500) as receiver:
        rig = make_hooked(receiver.url, webhook_first_pause_ms=500)
        client = hooked_client(rig)
        rig.worker()
        run = client.start("spawn", prompt="hello")
        receiver.await_count(1)
        assert [one.task_id for one in client.notices(acknowledge=True)] == [run.id]
        wait_until(lambda: outbox(client)["known"] == 1, "taken out of the outbox")
        up.set()
        other = client.start("spawn", prompt="hello")
        wait_until(lambda: outbox(client)["delivered"] == 1, "the other one is delivered")
        assert receiver.ids()[-1] == f"notice-{other.id}"


def test_endings_of_two_workers_come_once_each_across_a_frozen_and_a_killed_server(
    make_hooked: Callable[..., Rig], hooked_client: Callable[[Rig], Client], tmp_path: Path
) -> None:
    server = embedded.start(folder=tmp_path / "server")
    try:
        with Receiver() as receiver:
            rig = make_hooked(
                receiver.url,
                redis_url=server.url,
                lease_ms=8_000,
                webhook_timeout_ms=10_000,
                call_timeout_ms=1_000,
            )
            client = hooked_client(rig)
            rig.worker()
            rig.worker()
            runs = [client.start("spawn", prompt=waiting(2)) for _ in range(6)]
            wait_until(lambda: all(client.task(run.id).status is Status.RUNNING for run in runs), "all run")
            server.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: "heartbeat failed" in rig.workers[0].lines, "a worker missed it")
            server.process.send_signal(signal.SIGCONT)
            for run in runs[:1]:
                ended(client, run.id)
            server.process.kill()
            server.process.wait()
            server = embedded.start(port=server.port, folder=server.folder)
            wait_until(
                lambda: set(receiver.ids()) == {f"notice-{run.id}" for run in runs}, "all came", within_s=60
            )
            wait_until(lambda: outbox(client)["waiting"] == 0, "the outbox is empty", within_s=60)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()
