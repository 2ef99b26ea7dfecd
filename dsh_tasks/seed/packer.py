"""Packer: hashes and compresses turns in a thread beside the one that reads them.

Both let other threads run meanwhile, and take a quarter of the time of a large log.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from dsh_tasks.seed.maker import SeedMaker
from dsh_tasks.seed.segment import Segment

_AHEAD = 32
"""Turns that may wait: reading never runs far ahead of packing."""


class Packer:
    """While it is open, turns that `maker` completes are packed beside it; at its end all are."""

    def __init__(self, maker: SeedMaker) -> None:
        self._maker = maker
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dsh-tasks-pack")
        self._waiting: deque[Future[object]] = deque()

    def __enter__(self) -> Self:
        self._maker.pack = self._submit
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maker.pack = Segment.packed
        self._pool.shutdown(wait=True)
        while self._waiting:
            self._waiting.popleft().result()

    def _submit(self, segment: Segment) -> None:
        self._waiting.append(self._pool.submit(segment.packed))
        if len(self._waiting) > _AHEAD:
            self._waiting.popleft().result()
