"""P9. Kill reaches work that does not cooperate (claude-code#85200, t3code#7769, celery#8417, opencode#47546)."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.cli_tools import alive
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import Rig, config_with_tools
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

HELD = [f"tests.held_tools:{name}" for name in ("shell", "spin", "stubborn")]
STREAMED = " ".join(f"token-{n}" for n in range(100))


def pids(told: Path) -> set[int]:
    return {int(word) for word in told.read_text().split()}


@dataclass
class Killed:
    """One kill as it was seen."""

    acknowledged_s: float
    acknowledged: Status
    ended_s: float
    left: set[int]
    """Processes of the tool that lived when the status was killed."""


def kill_at_random(client: Client, task_id: str, chance: random.Random, told: Path | None) -> Killed:
    """Kill within the next half second, and watch."""
    moment_s = time.monotonic() + chance.uniform(0, 0.5)
    wait_until(lambda: time.monotonic() > moment_s, "the moment that chance has chosen", every_s=0.001)
    at_s = time.monotonic()
    assert client.kill(task_id).accepted
    acknowledged = client.task(task_id).status
    acknowledged_s = time.monotonic() - at_s
    wait_until(lambda: client.task(task_id).is_terminal, "it ended", within_s=15, every_s=0.005)
    left = alive(pids(told)) if told is not None else set()
    return Killed(acknowledged_s, acknowledged, time.monotonic() - at_s, left)


def check(killed: Killed) -> None:
    assert killed.acknowledged_s <= 1
    assert killed.acknowledged in (Status.STOPPING, Status.KILLED)
    assert killed.ended_s <= 10
    assert killed.left == set()


def test_a_kill_ends_streams_sockets_shells_loops_and_the_deaf_on_one_worker(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    """(a) to (e); a child beside them goes on."""
    tools = ("shell", "spin", "stubborn")

    def answer(request: Request) -> Reply:
        if request.prompt == "stream":
            return Reply(STREAMED, seconds=99, chunks=100)
        if request.prompt == "silent":
            return Reply(is_silent=True)
        if request.prompt in tools:
            return Reply(tools=[(request.prompt, {"told": str(tmp_path / request.prompt)})])
        return Reply("went on", blocks=True)

    seed = random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    settings = make_settings(config=config_with_tools(tmp_path, *HELD))
    client = make_client(settings, owner="s")
    with ModelServer(answer) as model:
        make_rig(settings).worker(**model.environment)
        runs = {name: client.start("spawn", prompt=name) for name in ("stream", "silent", *tools, "beside")}
        for name in ("stream", "silent", "beside"):
            wait_until(lambda name=name: model.calls[name], f"{name} is with its model")
        for name in tools:
            wait_until((tmp_path / name).exists, f"the tool {name} runs")
        moments = {name: random.Random(chance.random()) for name in runs}
        seen: dict[str, Killed] = {}

        def kill(name: str) -> None:
            told = tmp_path / name if name in tools else None
            seen[name] = kill_at_random(client, runs[name].id, moments[name], told)

        killers = [threading.Thread(target=kill, args=(name,)) for name in runs if name != "beside"]
        for killer in killers:
            killer.start()
        for killer in killers:
            killer.join(30)
        assert len(seen) == len(killers), f"every kill came through (seed {seed})"
        for name, killed in seen.items():
            check(killed)
            task = client.task(runs[name].id)
            assert (task.status, task.detail) == (Status.KILLED, ""), (
                f"{name} was confirmed by its worker (seed {seed})"
            )
        for name in ("stream", "silent"):
            (request,) = [one for one in model.requests if one.prompt == name]
            wait_until(
                lambda request=request: request.has_hung_up, f"the provider of {name} saw the disconnect"
            )
        model.release("beside")
        beside = runs["beside"].result()
        assert (beside.task.status, beside.text, beside.task.attempt) == (Status.COMPLETED, "went on", 1)


def test_a_loop_that_holds_the_whole_worker_is_taken_by_a_hard_limit(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    """(d) in the worker's own loop: no cancellation reaches it. What ran beside it runs again, once."""
    told = tmp_path / "spins"

    def answer(request: Request) -> Reply:
        if request.prompt == "spins":
            return Reply(tools=[("spins", {"told": str(told)})])
        return Reply("ran again", blocks=True)

    settings = make_settings(config=config_with_tools(tmp_path, "tests.worker_tools:spins"))
    client = make_client(settings, owner="s")
    with ModelServer(answer) as model:
        kept = make_rig(settings).keep(**model.environment)
        beside = client.start("spawn", prompt="beside")
        wait_until(lambda: model.calls["beside"], "the child beside it is with its model")
        run = client.start("spawn", prompt="spins")
        wait_until(told.exists, "the loop spins")
        (pid,) = pids(told)
        killed = kill_at_random(client, run.id, random.Random(), None)
        check(killed)
        assert client.task(run.id).status is Status.KILLED
        wait_until(lambda: alive({pid}) == set(), "the process that spun is gone")
        model.release()
        done = beside.result()
        assert (done.task.status, done.task.attempt) == (Status.COMPLETED, 2)
        assert model.calls == {"spins": 1, "beside": 2}
        assert len(kept.workers) == 2


def test_a_kill_reaches_a_child_of_a_worker_that_is_shutting_down(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    """(f): at three moments of the shutdown, which a deaf tool draws out. What was beside it runs again, once."""

    def answer(request: Request) -> Reply:
        if request.prompt.startswith("stubborn"):
            return Reply(tools=[("stubborn", {"told": str(tmp_path / request.prompt)})])
        return Reply("ran again", blocks=True)

    settings = make_settings(config=config_with_tools(tmp_path, *HELD))
    rig, client = make_rig(settings), make_client(settings, owner="s")
    with ModelServer(answer) as model:
        workers = [rig.start_worker(concurrency=2, **model.environment) for _ in range(3)]
        for worker in workers:
            worker.await_ready()
        deaf = [client.start("spawn", prompt=f"stubborn-{n}") for n in range(3)]
        beside = [client.start("spawn", prompt=f"beside-{n}") for n in range(3)]
        for n in range(3):
            wait_until((tmp_path / f"stubborn-{n}").exists, "the deaf tool runs")
            wait_until(lambda n=n: model.calls[f"beside-{n}"], "the child beside it is with its model")
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        seen: dict[int, Killed] = {}

        def kill(n: int) -> None:
            seen[n] = kill_at_random(client, deaf[n].id, random.Random(), tmp_path / f"stubborn-{n}")

        killers = [threading.Thread(target=kill, args=(n,)) for n in range(3)]
        for killer in killers:
            killer.start()
        for worker in workers:
            worker.process.wait(30)
        rig.worker(**model.environment)
        model.release()
        for killer in killers:
            killer.join(30)
        for n in range(3):
            check(seen[n])
            assert client.task(deaf[n].id).status is Status.KILLED
            done = beside[n].result()
            assert (done.task.status, done.task.attempt, done.task.losses) == (Status.COMPLETED, 2, 0)
            assert model.calls[f"stubborn-{n}"] == 1, "it never ran again"
            assert model.calls[f"beside-{n}"] == 2
