"""Clocks that a test moves: fakeredis' own, and one for the scripts of a real server.

fakeredis reads `time.time`; it is given another `time`, so that the scripts run as they are, expiries included.

A real server's clock cannot be moved. There the loader of the tests replaces one line of the shared part of
the scripts: `redis.call('TIME')` becomes a key that the test sets. Keys that expire keep the server's own time;
a jump shortens what is left of them (`RealWorld.jump`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from unittest import mock

from dsh_tasks.store.scripts import Script, load

CLOCK_KEY = "model:clock"
TIME_LINE = "local t = redis.call('TIME')"
CLOCK_LINE = f"local t = {{redis.call('GET', '{CLOCK_KEY}') / 1000, 0}}"

FAKE_MODULES = (
    "fakeredis._helpers",
    "fakeredis._socket._base",
    "fakeredis.commands_mixins.server_mixin",
    "fakeredis.model._stream",
)


class FakeClock:
    """Stands in for the module `time` in fakeredis."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._jumps = 0

    def begin(self, now_ms: int) -> None:
        self.now_ms, self._jumps = now_ms, 0

    def jump(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self._jumps += 1

    def time(self) -> float:
        """Some µs more with each jump, as on a real server: what expires just now is gone."""
        return self.now_ms / 1000 + self._jumps / 500_000


@contextmanager
def moved_by_hand(now_ms: int) -> Iterator[FakeClock]:
    """fakeredis reads this clock until the block ends."""
    clock = FakeClock(now_ms)
    with ExitStack() as stack:
        for name in FAKE_MODULES:
            stack.enter_context(mock.patch(f"{name}.time", clock))
        yield clock


@cache
def load_clocked(name: str) -> Script:
    """The script with the clock of the tests."""
    text = load(name).text
    assert text.count(TIME_LINE) == 1, "the scripts read the time in one place"
    text = text.replace(TIME_LINE, CLOCK_LINE)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
