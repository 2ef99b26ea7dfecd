"""Collecting: Python's collector of cycles, set for a process that holds thousands of children.

By default it looks at all young objects after each 700 new ones, and at everything whenever what is young has
grown by a quarter: with a thousand children in memory it looks at the same live objects again and again.
"""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 20)
"""New objects before the youngest are looked at, and how often before the next older ones are."""


def settle_down() -> None:
    """Call once all is imported and built: what is there stays, and is looked at no more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
