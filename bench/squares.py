"""Logs of many rows of one kind: four times the rows must take about four times as long, not sixteen.

    python -m bench.squares

CPU time of this thread, best of three, as the ratio of 6,000 rows to 1,500. The unit tests count steps of
Python; what C code does within one (a list searched, a slice moved) only time shows. Exit code 1 over 9.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from dsh_tasks import format as log_format
from dsh_tasks import seed, surface
from tests.unit.test_bad_logs import KINDS_OF_ROWS, with_each

FEW, MANY = 1_500, 6_000
MOST = 9.0


def cpu_s(work: Callable[[], object]) -> float:
    """The least time of three tries, of this thread alone."""
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best


def main() -> int:
    """Print a table; 1 where a ratio is over the bound."""
    print("| rows | parse | cut | window of 2 | messages |")
    print("| --- | --- | --- | --- | --- |")
    worst = 0.0
    for rows in KINDS_OF_ROWS:
        small, large = with_each(rows)(FEW), with_each(rows)(MANY)
        few, many = log_format.write(small), log_format.write(large)
        pairs = (
            (lambda: log_format.parse(few), lambda: log_format.parse(many)),
            (lambda: seed.cut(small), lambda: seed.cut(large)),
            (lambda: seed.window(small, 2), lambda: seed.window(large, 2)),
            (lambda: surface.messages(small.events), lambda: surface.messages(large.events)),
        )
        ratios = [cpu_s(other) / max(cpu_s(one), 1e-6) for one, other in pairs]
        worst = max(worst, *ratios)
        print(f"| {rows.__name__.strip('_')} | {' | '.join(f'{ratio:.1f}' for ratio in ratios)} |")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
