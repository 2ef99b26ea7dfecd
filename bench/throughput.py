"""Throughput and latency of children beside plain Celery tasks: same server, same worker process, alternating runs.

    python -m bench.throughput [--children 2000] [--rounds 5]

Prints medians as ratios. The worker has 16 threads; the plain task does nothing and keeps its result
in Redis, which is how a Celery user learns that it ended. Our child is a record, a seed-less log, a
notice and a settlement by the engine `noop`, or by the `agent` engine with the offline model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery

from dsh_tasks.client import AsyncClient
from dsh_tasks.queue import make_app
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded

PLAIN = "bench.plain"
IN_FLIGHT = 64


def plain_app(settings: Settings) -> Celery:
    """The same application, with a result backend for the plain task."""
    app = make_app(settings)
    app.conf.result_backend = settings.redis_url
    app.conf.result_expires = 300
    return app


def settings_from_env() -> Settings:
    return Settings()


def serve() -> None:
    """The worker process: a Host whose application also knows the plain task."""
    import logging

    from dsh_tasks.config import load_config
    from workers.app import Host, serve as serve_host

    logging.basicConfig(level="WARNING")
    settings = settings_from_env()
    host = Host(settings, load_config(None, settings=settings))
    host.app.conf.result_backend = settings.redis_url

    @host.app.task(name=PLAIN, ignore_result=False)
    def plain() -> None:
        return None

    sys.exit(
        serve_host(
            host,
            [
                "--pool",
                "threads",
                "--concurrency",
                os.environ["BENCH_THREADS"],
                "--events",
                "--without-gossip",
                "--without-mingle",
                "--hostname",
                "bench@%h",
            ],
        )
    )


def plain_round(app: Celery, count: int) -> float:
    """Seconds for `count` plain tasks, sent and waited for."""
    started = time.perf_counter()
    results = [app.send_task(PLAIN, ignore_result=False) for _ in range(count)]
    for result in results:
        result.get(timeout=120)
    return time.perf_counter() - started


async def our_round(client: AsyncClient, count: int, engine: str) -> float:
    """Seconds for `count` children, started and waited for."""
    gate = asyncio.Semaphore(IN_FLIGHT)
    owner = f"bench-{secrets.token_hex(4)}"

    async def start() -> object:
        async with gate:
            return await client.start(
                "spawn", prompt="say something", owner=owner, engine=engine, max_depth=3
            )

    started = time.perf_counter()
    runs = await asyncio.gather(*(start() for _ in range(count)))
    while len(await client.inbox(owner).take(most=count)) < count:
        await asyncio.sleep(0.01)
    took = time.perf_counter() - started
    assert len(runs) == count
    return took


def plain_latencies(app: Celery, count: int) -> list[float]:
    found = []
    for _ in range(count):
        started = time.perf_counter()
        app.send_task(PLAIN, ignore_result=False).get(timeout=30)
        found.append((time.perf_counter() - started) * 1000)
    return found


async def our_latencies(client: AsyncClient, count: int, engine: str) -> list[float]:
    found = []
    owner = f"bench-{secrets.token_hex(4)}"
    for _ in range(count):
        started = time.perf_counter()
        run = await client.start("spawn", prompt="say something", owner=owner, engine=engine)
        await run.result()
        found.append((time.perf_counter() - started) * 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--latencies", type=int, default=200)
    given = parser.parse_args()
    server = embedded.start()
    settings = Settings(redis_url=server.url, live_per_owner=100_000, model="offline")
    env = os.environ | {
        "DSH_TASKS_REDIS_URL": server.url,
        "DSH_TASKS_LIVE_PER_OWNER": "100000",
        "DSH_TASKS_MODEL": "offline",
        "BENCH_THREADS": str(given.threads),
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
    }
    worker = subprocess.Popen([sys.executable, "-c", "from bench.throughput import serve; serve()"], env=env)
    try:
        report = asyncio.run(measure(settings, given))
        print(json.dumps(report, indent=2))
    finally:
        worker.terminate()
        worker.wait()
        server.stop()


async def measure(settings: Settings, given: argparse.Namespace) -> dict[str, object]:
    app = plain_app(settings)
    rates: dict[str, list[float]] = {"plain": [], "noop": [], "agent": []}
    latencies: dict[str, list[float]] = {"plain": [], "noop": [], "agent": []}
    async with AsyncClient.connect(settings) as client:
        await asyncio.to_thread(plain_round, app, 50)
        for engine in ("noop", "agent"):
            await our_round(client, 50, engine)
        for _ in range(given.rounds):
            rates["plain"].append(given.children / await asyncio.to_thread(plain_round, app, given.children))
            for engine in ("noop", "agent"):
                rates[engine].append(given.children / await our_round(client, given.children, engine))
            latencies["plain"] += await asyncio.to_thread(plain_latencies, app, given.latencies)
            for engine in ("noop", "agent"):
                latencies[engine] += await our_latencies(client, given.latencies, engine)
    rate = {name: statistics.median(values) for name, values in rates.items()}
    p50 = {name: statistics.median(values) for name, values in latencies.items()}
    return {
        "children": given.children,
        "rounds": given.rounds,
        "threads": given.threads,
        "per_second": {name: round(value, 1) for name, value in rate.items()},
        "p50_ms": {name: round(value, 2) for name, value in p50.items()},
        "throughput_ratio": {name: round(rate[name] / rate["plain"], 2) for name in ("noop", "agent")},
        "latency_ratio": {name: round(p50[name] / p50["plain"], 2) for name in ("noop", "agent")},
    }


if __name__ == "__main__":
    main()
