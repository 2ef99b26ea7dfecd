"""How fast a large log becomes a seed, beside merely parsing it, and what memory that takes.

    python -m bench.seed_speed [--mb 100] [--turns 1700] [--rounds 5] [--log FILE]

Each measurement is a process of its own, in alternating rounds: `json.loads` of each line; the same by
the fastest parser that we depend on; and reading, cutting and chunking as a fork, as windows of about
half the turns (one that is verbatim, one that is folded) and as a window of two. Memory is the peak of
the process less that of one that only imported the package, beside the bytes that the kept turns have
in the log. Prints medians and a line of JSON; exit code 1 where an aim is missed: half of `json.loads`'
speed (fastest round to fastest round, since what else a machine does only adds), and memory under three
times the kept turns where these are 5 MB or more.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from bench.big_log import write_log

SPEED_AIM = 0.5
MEMORY_AIM = 3.0
MEMORY_AIM_FROM_MB = 5
"""Two turns are less than what a process allocates for its tables and buffers."""


def seed_of(path: Path, turns: int | None) -> Any:
    """The seed of the log at `path`: a window of the last `turns`, or all as a fork."""
    from dsh_tasks.session_file import SessionFile

    log = SessionFile(path, keep=turns)
    log.refresh()
    return log.seed() if turns is None else log.seed(turns=turns)


def fastest_parser() -> tuple[str, Callable[[bytes], Any]]:
    """The fastest JSON parser that is a dependency of ours, by name."""
    if any(re.match(r"orjson\b", one) for one in requires("dsh-tasks") or ()):
        import orjson

        return "orjson", orjson.loads
    from pydantic_core import from_json

    return "pydantic_core", from_json


# -- one measurement, in a process of its own -------------------------------------------------------


def peak_bytes() -> int:
    """Highest resident memory so far.

    Not ru_maxrss: a process that was started by vfork begins with its parent's.
    """
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def parse_lines(path: Path, parse: Callable[[bytes], Any]) -> None:
    with path.open("rb") as file:
        for line in file:
            parse(line)


def one(path: Path, what: str, turns: int | None) -> dict[str, Any]:
    """What `what` took here: nothing, json, fast, or seed."""
    import dsh_tasks.client  # so that its import is in no measurement

    found: dict[str, Any] = {}
    fast = fastest_parser()[1]
    wall, cpu = time.perf_counter(), time.process_time()
    if what == "json":
        parse_lines(path, json.loads)
    elif what == "fast":
        parse_lines(path, fast)
    elif what == "seed":
        seed = seed_of(path, turns)
        found = {"form": seed.form, "turns": seed.turns, "raw": seed.raw_bytes, "stored": seed.stored_bytes}
    return found | {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "peak": peak_bytes(),
    }


# -- all of them ------------------------------------------------------------------------------------


def measured(path: Path, what: str, turns: int | None = None) -> dict[str, Any]:
    """`one` in a fresh process."""
    command = [sys.executable, "-m", "bench.seed_speed", "--log", str(path), "--one", what]
    if turns is not None:
        command += ["--keep", str(turns)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).resolve().parent.parent
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def kept_bytes(path: Path) -> list[int]:
    """Bytes of the last n completed turns in the log, at place n."""
    ends = [0]
    at = 0
    with path.open("rb") as file:
        at += len(file.readline())
        ends[0] = at
        for line in file:
            at += len(line)
            if line.startswith(b'{"type":"turn/end"'):
                ends.append(at)
    return [ends[-1] - end for end in reversed(ends)]


def medians(found: list[dict[str, Any]]) -> dict[str, Any]:
    middle = {key: statistics.median(one[key] for one in found) for key in ("wall", "cpu", "peak")}
    return found[0] | middle | {"best": min(one["wall"] for one in found)}


def measure(path: Path, compacted_in: list[int], rounds: int) -> dict[str, Any]:
    kept = kept_bytes(path)
    turns = len(kept) - 1
    half = turns - min(compacted_in, key=lambda turn: abs(turn - turns // 2), default=turns // 2)
    ways: dict[str, tuple[str, int | None]] = {
        "json.loads": ("json", None),
        fastest_parser()[0]: ("fast", None),
        "fork": ("seed", None),
        "half, verbatim": ("seed", half),
        "half, folded": ("seed", half + 5),
        "2 turns": ("seed", 2),
    }
    idle = statistics.median(measured(path, "nothing")["peak"] for _ in range(3))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            runs[name].append(measured(path, *way))
    size = path.stat().st_size
    mere, fast = (medians(runs[name]) for name in list(ways)[:2])
    report: dict[str, Any] = {}
    for name, (what, asked) in ways.items():
        found = medians(runs[name])
        row: dict[str, Any] = {
            "mb_per_s": size / found["wall"] / 1e6,
            "to_json": mere["wall"] / found["wall"],
            "best_to_json": mere["best"] / found["best"],
            "to_fast": fast["wall"] / found["wall"],
            "cpu_to_json": mere["cpu"] / found["cpu"],
            "wall_s": found["wall"],
            "cpu_s": found["cpu"],
            "memory_mb": (found["peak"] - idle) / 1e6,
        }
        if what == "seed":
            bytes_kept = kept[min(turns, asked or turns)]
            row |= {
                "form": found["form"],
                "turns": found["turns"],
                "kept_mb": bytes_kept / 1e6,
                "raw_mb": found["raw"] / 1e6,
                "stored_mb": found["stored"] / 1e6,
                "memory_to_kept": (found["peak"] - idle) / bytes_kept,
            }
        report[name] = {
            key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()
        }
    return {"log_mb": size / 1e6, "turns": turns, "rounds": rounds, "idle_mb": idle / 1e6, "runs": report}


def missed(report: dict[str, Any]) -> list[str]:
    """The aims that this run missed, a line each."""
    lines = []
    for name, row in report["runs"].items():
        if "form" not in row:
            continue
        if row["best_to_json"] < SPEED_AIM:
            lines.append(f"{name}: {row['best_to_json']} of json.loads' speed, the aim is {SPEED_AIM}")
        if row["memory_to_kept"] >= MEMORY_AIM and row["kept_mb"] >= MEMORY_AIM_FROM_MB:
            lines.append(
                f"{name}: {row['memory_to_kept']} times the kept turns in memory, the aim is {MEMORY_AIM}"
            )
    return lines


def print_table(report: dict[str, Any]) -> None:
    columns = (
        "mb_per_s",
        "to_json",
        "best_to_json",
        "to_fast",
        "cpu_to_json",
        "wall_s",
        "cpu_s",
        "memory_mb",
        "memory_to_kept",
    )
    columns += ("kept_mb", "raw_mb", "stored_mb", "form")
    print("| " + " | ".join(("", *columns)) + " |")
    print("| --- " * (len(columns) + 1) + "|")
    for name, row in report["runs"].items():
        print("| " + " | ".join((name, *(str(row.get(column, "")) for column in columns))) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--turns", type=int, default=1_700)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--log", type=Path, help="a log that exists, instead of one made for this run")
    parser.add_argument("--one", choices=("nothing", "json", "fast", "seed"), help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.log, given.one, given.keep)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path, compacted_in = given.log, []
        if path is None:
            path = Path(folder) / "big.session.v4.jsonl"
            compacted_in = write_log(path, size=int(given.mb * 1e6), turns=given.turns)["compacted_in"]
        report = measure(path, compacted_in, given.rounds)
    report["missed"] = missed(report)
    print_table(report)
    print(json.dumps(report))
    sys.exit(1 if report["missed"] else 0)


if __name__ == "__main__":
    main()
