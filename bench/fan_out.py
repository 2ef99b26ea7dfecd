"""Fan-out: many background children of the `agent` engine over a local HTTP model that takes a second.

    python -m bench.fan_out [--children 200] [--workers 2] [--seconds 1] [--offline]

With `--offline` the children wait in streams of the offline model, in the worker itself: what the worker
costs without an HTTP client.

Checks as it measures: all completed, logs written, exactly one notice each, each run once as the
scripted model counted. Prints the wall time from the first start to the last settlement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsh_tasks.client import AsyncClient
from dsh_tasks.errors import LimitReached
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.task import Status
from tests.model_server import ModelServer, Reply
from tests.rig_tools import Rig

OWNER = "fan-out"


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(settings: Settings, children: int, directive: str) -> dict[str, object]:
    async with AsyncClient.connect(settings, owner=OWNER) as client:
        started = time.perf_counter()
        await asyncio.gather(
            *(
                client.start("spawn", prompt=f"child {n} of many{directive}", label=f"child {n}")
                for n in range(children)
            )
        )
        submitted = time.perf_counter()
        inbox = client.inbox()
        while len(notices := await inbox.take()) < children:
            await asyncio.sleep(0.02)
        took = time.perf_counter() - started
        tasks = await client.list_tasks()
        assert Counter(task.status for task in tasks) == {Status.COMPLETED: children}
        assert Counter(task.attempt for task in tasks) == {1: children}
        assert Counter(notice.task_id for notice in notices) == Counter(task.id for task in tasks)
        for task in tasks:
            turns = (await client.session(task.id)).turns()
            assert [turn.reason for turn in turns] == ["completed"]
        created = min(task.created_ms for task in tasks)
        return {
            "children": children,
            "submitted_s": round(submitted - started, 2),
            "all_noticed_s": round(took, 2),
            "first_accepted_to_last_settled_s": (max(task.ended_ms or 0 for task in tasks) - created) / 1000,
            "by_worker": dict(Counter(task.worker for task in tasks)),
        }


async def eleventh_is_refused(settings: Settings) -> bool:
    async with AsyncClient.connect(settings, owner="eleven") as client:
        for n in range(10):
            await client.start("spawn", prompt=f"one of ten {n}")
        try:
            await client.start("spawn", prompt="the eleventh")
        except LimitReached:
            return True
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--offline", action="store_true")
    given = parser.parse_args()
    server = embedded.start()
    default = Settings(redis_url=server.url)
    settings = Settings(redis_url=server.url, live_per_owner=max(given.children, 200))
    with (
        tempfile.TemporaryDirectory() as folder,
        ModelServer(lambda _: Reply("done", seconds=given.seconds)) as model,
    ):
        rig = Rig(settings, Path(folder))
        try:
            for _ in range(given.workers):
                rig.worker(concurrency=given.concurrency, **({} if given.offline else model.environment))
            before_s = [cpu_s(worker.pid) for worker in rig.workers]
            idle = [resident_mb(worker.pid) for worker in rig.workers]
            directive = f"\n!wait {given.seconds:g}" if given.offline else ""
            report = asyncio.run(measure(settings, given.children, directive))
            calls = Counter(request.prompt for request in model.requests)
            assert given.offline or set(calls.values()) == {1}, "a child was run twice"
            used_s = sum(cpu_s(worker.pid) for worker in rig.workers) - sum(before_s)
            report["cpu_ms_a_child"] = round(used_s * 1000 / given.children, 2)
            report["model_calls"] = sum(calls.values())
            report["peak_at_the_model"] = model.peak
            report["faults_at_the_model"] = model.faults
            report["resident_mb"] = {
                "idle": [round(v) for v in idle],
                "after": [round(resident_mb(worker.pid)) for worker in rig.workers],
            }
            report["eleventh_refused_at_the_default"] = asyncio.run(eleventh_is_refused(default))
            print(json.dumps(report, indent=2))
        finally:
            rig.close()
            server.stop()


if __name__ == "__main__":
    main()
