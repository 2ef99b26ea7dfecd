"""Latency: from a kill to the model that sees its client hang up; from a settlement to the waiter that wakes.

    python -m bench.latency [--samples 200] [--at-once 10]

A kill is timed from the call of `kill` to the end of the child's HTTP stream as the model's side sees it. A
waiter is a `task_output` with `wait` in a process of its own; it is timed from the settlement, by the server's
clock in the record, to the return of the call there. One worker, few children at once, ending by and by.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsh_tasks.client import AsyncClient
from dsh_tasks.settings import Settings, load
from dsh_tasks.store import embedded
from dsh_tasks.task import Status
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import ROOT, Rig, environment

AIM_HANG_UP_MS = 100.0
AIM_WAKE_MS = 50.0
BEGINS_BEFORE_MS = 100.0
"""A wait counts that began so long before the end: by then it has subscribed."""
OWNER = "latency"


def answer(request: Request) -> Reply:
    """A child that is to be killed streams until then; others end by and by."""
    return (
        Reply("on and on", blocks=True)
        if "kill" in request.prompt
        else Reply("done", seconds=random.uniform(0.5, 2.5))
    )


def summary(samples_ms: Sequence[float], aim_ms: float) -> dict[str, object]:
    """Median, 99th percentile and worst, in ms."""
    ordered = sorted(samples_ms)
    return {
        "samples": len(ordered),
        "median_ms": round(statistics.median(ordered), 1),
        "p99_ms": round(ordered[max(0, -(-len(ordered) * 99 // 100) - 1)], 1),
        "worst_ms": round(ordered[-1], 1),
        "aim_ms": aim_ms,
    }


async def until(condition: object, within_s: float = 30.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.002)


async def hang_ups(client: AsyncClient, model: ModelServer, samples: int, at_once: int) -> list[float]:
    """Kill streaming children one after the other."""
    took_ms: list[float] = []
    for start in range(0, samples, at_once):
        names = [f"kill {start + n}" for n in range(min(at_once, samples - start))]
        runs = [await client.start("spawn", prompt=name) for name in names]

        def requests(names: list[str] = names) -> dict[str, Request]:
            return {request.prompt: request for request in model.requests if request.prompt in names}

        await until(lambda: len(requests()) == len(names))
        for name, run in zip(names, runs, strict=True):
            request = requests()[name]
            asked_s = time.monotonic()
            await client.kill(run.id)
            await until(lambda: request.hung_up_s is not None)
            assert request.hung_up_s is not None
            took_ms.append((request.hung_up_s - asked_s) * 1000)
        for run in runs:
            assert (await run.result()).task.status is Status.KILLED
    return took_ms


async def wakes(client: AsyncClient, settings: Settings, samples: int, at_once: int) -> list[float]:
    """Let another process wait for children that end by themselves."""
    waiter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.latency", "--waiter"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(settings),
        cwd=ROOT,
    )
    assert waiter.stdin is not None and waiter.stdout is not None
    first = await client.start("spawn", prompt="end before")
    waiter.stdin.write(f"{first.id}\n".encode())
    assert await waiter.stdout.readline() == b"ready\n"
    took_ms: list[float] = []
    while len(took_ms) < samples:
        runs = [await client.start("spawn", prompt=f"end {len(took_ms)} {n}") for n in range(at_once)]
        for run in runs:
            waiter.stdin.write(f"{run.id}\n".encode())
        for _ in runs:
            woken = json.loads(await waiter.stdout.readline())
            ended_ms = (await client.task(woken["id"])).ended_ms
            assert ended_ms is not None
            # One that ended while the other process was still being told of it was not waited for.
            if woken["began_ms"] < ended_ms - BEGINS_BEFORE_MS:
                took_ms.append(woken["at_ms"] - ended_ms)
    waiter.stdin.close()
    await waiter.wait()
    return took_ms[:samples]


async def wait_for_all() -> None:
    """The other process: waits for each id on stdin, and says when it woke."""
    async with AsyncClient.connect(load(), owner=OWNER) as client:

        async def wait_for(task_id: str) -> None:
            began_ms = time.time() * 1000
            await client.output(task_id, wait=True)
            woken = {"id": task_id, "began_ms": began_ms, "at_ms": time.time() * 1000}
            print(json.dumps(woken), flush=True)

        await client.output(sys.stdin.readline().strip(), wait=True)
        print("ready", flush=True)
        waiting = set()
        while line := await asyncio.to_thread(sys.stdin.readline):
            waiting.add(asyncio.create_task(wait_for(line.strip())))
        await asyncio.gather(*waiting)


async def measure(settings: Settings, model: ModelServer, samples: int, at_once: int) -> dict[str, object]:
    async with AsyncClient.connect(settings, owner=OWNER) as client:
        warm = await client.start("spawn", prompt="end first")
        await warm.result()
        return {
            "kill_to_hang_up": summary(await hang_ups(client, model, samples, at_once), AIM_HANG_UP_MS),
            "settlement_to_wake": summary(await wakes(client, settings, samples, at_once), AIM_WAKE_MS),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--waiter", action="store_true", help="the process that waits; started by the bench")
    given = parser.parse_args()
    if given.waiter:
        asyncio.run(wait_for_all())
        return
    server = embedded.start()
    settings = Settings(redis_url=server.url, live_per_owner=2 * given.at_once)
    with tempfile.TemporaryDirectory() as folder, ModelServer(answer) as model:
        rig = Rig(settings, Path(folder))
        try:
            rig.worker(concurrency=2 * given.at_once, **model.environment)
            report = asyncio.run(measure(settings, model, given.samples, given.at_once))
            print(json.dumps(report, indent=2))
        finally:
            rig.close()
            server.stop()


if __name__ == "__main__":
    main()
