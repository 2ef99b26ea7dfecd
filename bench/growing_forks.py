"""A thousand forks of one parent that grows by a turn each time: what is kept and what is sent.

    python -m bench.growing_forks [--forks 1000] [--mb 10] [--ways session file]

Each way runs on an emptied server: `session` forks a Session in memory that has one turn more each time,
`file` a session file that is followed. The same number of children without a parent, with the same
prompts, is the control: what the server holds and receives beyond it is the cost of the seeds, all keys,
manifests and commands included. Beside it stand the parent's own size and what it would cost to send
each seed whole. Prints tables and a line of JSON; exit code 1 where an aim is missed: kept and sent
each under twice the compressed parent, and no more CPU for the last hundred forks than for the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import redis
import zstandard

from bench.big_log import write_log
from dsh_tasks.client import AsyncClient
from dsh_tasks.format import read
from dsh_tasks.session import Session
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded

OWNER = "growing-forks"
AIM = 2.0
CPU_AIM = 2.0
"""Last hundred to first; a hundred forks take too little time for a closer bound."""
LEVEL = 3

Start = Callable[[AsyncClient, int], Awaitable[None]]


def prompt(fork: int) -> str:
    return f"look at turn {fork:06} again"


# -- the parent ---------------------------------------------------------------------------------------


def parts_of(path: Path) -> tuple[bytes, list[bytes]]:
    """The header line of a log, and the rows of each turn with those before it."""
    turns: list[bytes] = []
    rows: list[bytes] = []
    with path.open("rb") as file:
        header = file.readline()
        for row in file:
            rows.append(row)
            if row.startswith(b'{"type":"turn/end"'):
                turns.append(b"".join(rows))
                rows = []
    return header, turns


def packed_size(data: bytes) -> int:
    return len(zstandard.ZstdCompressor(level=LEVEL).compress(data))


def whole_cost(turns: list[bytes]) -> dict[str, float]:
    """Sum over all forks of the seed's size, plain and compressed by itself."""
    raw = packed = 0
    seed = bytearray()
    for turn in turns:
        seed += turn
        raw += len(seed)
        packed += packed_size(bytes(seed))
    return {"raw_mb": raw / 1e6, "packed_mb": packed / 1e6}


# -- the ways -----------------------------------------------------------------------------------------


async def without_parent(client: AsyncClient, fork: int) -> None:
    await client.start("spawn", prompt=prompt(fork))


def growing_sessions(path: Path) -> Iterator[Session]:
    """The log with one turn more each time; open turns are not in it."""
    session = read(path)
    for turn in session.completed_turns():
        assert turn.end_seq is not None
        yield Session(session.header, session.events[: turn.end_seq + 1])


def from_sessions(path: Path) -> Start:
    sessions = growing_sessions(path)

    async def start(client: AsyncClient, fork: int) -> None:
        await client.start("fork", parent=next(sessions), prompt=prompt(fork))

    return start


def from_file(header: bytes, turns: list[bytes], grown: Path) -> Start:
    """Each call lets the file grow by a turn before it forks, as a parent's process does."""
    from dsh_tasks.session_file import SessionFile

    grown.write_bytes(header)
    parent = SessionFile(grown)

    async def start(client: AsyncClient, fork: int) -> None:
        with grown.open("ab") as file:
            file.write(turns[fork])
        await client.start("fork", parent=parent, prompt=prompt(fork))

    return start


# -- what is measured ---------------------------------------------------------------------------------


def kept_by_kind(server: redis.Redis, prefix: str) -> dict[str, dict[str, int]]:
    """Keys and bytes by the first word of the key, as the server counts its own memory."""
    kept: dict[str, Counter[str]] = {}
    for key in server.scan_iter(count=1000):
        name = key.decode()
        kind = name.removeprefix(prefix).split(":")[0] if name.startswith(prefix) else "queue"
        kept.setdefault(kind, Counter()).update(keys=1, bytes=server.memory_usage(key, samples=0) or 0)
    return {kind: dict(counts) for kind, counts in sorted(kept.items())}


def server_counts(server: redis.Redis) -> dict[str, float]:
    info = server.info()
    return {
        "received": info["total_net_input_bytes"],
        "used": info["used_memory"],
        "cpu": info["used_cpu_user"] + info["used_cpu_sys"],
    }


async def forks(settings: Settings, start: Start, count: int) -> dict[str, Any]:
    """`count` starts on an emptied server."""
    assert settings.redis_url is not None
    server = redis.Redis.from_url(settings.redis_url)
    server.flushall()
    async with AsyncClient.connect(settings, owner=OWNER) as client:
        # Connections and scripts are there before anything is counted.
        await client.start("spawn", prompt="warm up")
        server.flushall()
        before = server_counts(server)
        mine: list[float] = []
        its: list[float] = [before["cpu"]]
        wall = time.perf_counter()
        for fork in range(count):
            began = time.process_time()
            await start(client, fork)
            mine.append(time.process_time() - began)
            if (fork + 1) % 100 == 0:
                its.append(server_counts(server)["cpu"])
        wall = time.perf_counter() - wall
        after = server_counts(server)
        assert server.scard(f"{settings.prefix}live:{OWNER}") == count, "not every fork was accepted"
    kept = kept_by_kind(server, settings.prefix)
    server.close()
    part = min(100, count)
    return {
        "kept": kept,
        "kept_bytes": sum(kind["bytes"] for kind in kept.values()),
        "used_bytes": after["used"] - before["used"],
        "received_bytes": after["received"] - before["received"],
        "wall_s": wall,
        "cpu_ms_first": sum(mine[:part]) / part * 1000,
        "cpu_ms_last": sum(mine[-part:]) / part * 1000,
        "server_ms_first": (its[1] - its[0]) * 10 if len(its) > 1 else 0.0,
        "server_ms_last": (its[-1] - its[-2]) * 10 if len(its) > 1 else 0.0,
    }


def beyond(found: dict[str, Any], control: dict[str, Any], parent: dict[str, float]) -> dict[str, float]:
    """What the seeds alone cost: MB, and as multiples of the compressed parent."""
    packed = parent["packed_mb"]
    kept, used, sent = (
        (found[key] - control[key]) / 1e6 for key in ("kept_bytes", "used_bytes", "received_bytes")
    )
    return {
        "kept_mb": kept,
        "used_mb": used,
        "sent_mb": sent,
        "kept_to_packed": kept / packed,
        "used_to_packed": used / packed,
        "sent_to_packed": sent / packed,
        "cpu_last_to_first": found["cpu_ms_last"] / found["cpu_ms_first"],
        "server_last_to_first": found["server_ms_last"] / max(found["server_ms_first"], 0.01),
    }


async def measure(settings: Settings, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = folder / "parent.session.v4.jsonl"
    write_log(path, size=int(given.mb * 1e6), turns=given.forks)
    header, turns = parts_of(path)
    raw = path.read_bytes()
    parent = {"turns": len(turns), "raw_mb": len(raw) / 1e6, "packed_mb": packed_size(raw) / 1e6}
    parent["packed_by_turn_mb"] = sum(packed_size(turn) for turn in turns) / 1e6
    control = await forks(settings, without_parent, given.forks)
    report: dict[str, Any] = {"parent": parent, "whole": whole_cost(turns), "control": control, "ways": {}}
    for way in given.ways:
        start = from_sessions(path) if way == "session" else from_file(header, turns, folder / "grown.jsonl")
        found = await forks(settings, start, given.forks)
        report["ways"][way] = found | {"seeds": beyond(found, control, parent)}
    return report


def missed(report: dict[str, Any]) -> list[str]:
    """The aims that this run missed, a line each."""
    lines = []
    for way, found in report["ways"].items():
        seeds = found["seeds"]
        lines += [
            f"{way}: {what} {seeds[key]:.2f} times the compressed parent, the aim is {AIM}"
            for what, key in (("kept", "kept_to_packed"), ("sent", "sent_to_packed"))
            if seeds[key] >= AIM
        ]
        if seeds["cpu_last_to_first"] >= CPU_AIM:
            lines.append(
                f"{way}: the last forks take {seeds['cpu_last_to_first']:.1f} times the CPU of the first"
            )
    return lines


def print_tables(report: dict[str, Any]) -> None:
    packed = report["parent"]["packed_mb"]
    rows = [
        ("parent, zstd level 3", packed),
        ("parent, zstd level 3, each turn by itself", report["parent"]["packed_by_turn_mb"]),
        ("parent, plain", report["parent"]["raw_mb"]),
        ("each seed sent whole, compressed", report["whole"]["packed_mb"]),
        ("each seed sent whole, plain", report["whole"]["raw_mb"]),
    ]
    for way, found in report["ways"].items():
        seeds = found["seeds"]
        rows += [(f"{way}: kept for seeds, by key", seeds["kept_mb"])]
        rows += [(f"{way}: kept for seeds, by used_memory", seeds["used_mb"])]
        rows += [(f"{way}: sent for seeds", seeds["sent_mb"])]
    print("| | MB | to the compressed parent |\n| --- | --- | --- |")
    for name, size in rows:
        print(f"| {name} | {size:.2f} | {size / packed:.2f} |")
    runs = {"control": report["control"], **report["ways"]}
    kinds = sorted({kind for found in runs.values() for kind in found["kept"]})
    print("\n| keys, KB in the server | " + " | ".join(f"{way}, keys | KB" for way in runs) + " |")
    print("| --- " * (1 + 2 * len(runs)) + "|")
    for kind in kinds:
        cells = [found["kept"].get(kind, {"keys": 0, "bytes": 0}) for found in runs.values()]
        print(
            f"| {kind} | "
            + " | ".join(f"{cell['keys']} | {cell['bytes'] / 1e3:.0f}" for cell in cells)
            + " |"
        )
    print("\n| CPU ms a fork | client, first 100 | last 100 | server, first 100 | last 100 |")
    print("| --- | --- | --- | --- | --- |")
    for way, found in runs.items():
        cells = [found[f"{who}_ms_{when}"] for who in ("cpu", "server") for when in ("first", "last")]
        print(f"| {way} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--forks", type=int, default=1_000)
    parser.add_argument("--mb", type=float, default=10)
    parser.add_argument("--ways", nargs="+", choices=("session", "file"), default=["session", "file"])
    given = parser.parse_args()
    server = embedded.start()
    settings = Settings(redis_url=server.url, live_per_owner=100_000)
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = asyncio.run(measure(settings, given, Path(folder)))
    finally:
        server.stop()
    report["missed"] = missed(report)
    print_tables(report)
    print(json.dumps(report))
    sys.exit(1 if report["missed"] else 0)


if __name__ == "__main__":
    main()
