"""Packer: compresses turns in a thread beside the one that reads them.

Compression lets other threads run, but a thread that wants to run again waits milliseconds for a busy one:
so many turns are compressed in one call.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from dsh_tasks.seed.maker import SeedMaker
from dsh_tasks.seed.segment import Segment, pack_all

_BATCH_BYTES = 4 << 20


class Packer:
    """While it is open, turns that `maker` completes are packed beside it; at its end all are."""

    def __init__(self, maker: SeedMaker) -> None:
        self._maker = maker
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dsh-tasks-pack")
        self._batch: list[Segment] = []
        self._size = 0
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Self:
        self._maker.pack = self._take
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maker.pack = Segment.packed
        try:
            if error is None:
                self._send()
                self._await()
        finally:
            self._pool.shutdown(wait=True)

    def _take(self, segment: Segment) -> None:
        self._batch.append(segment)
        self._size += len(segment.raw or b"")
        if self._size >= _BATCH_BYTES:
            self._send()

    def _send(self) -> None:
        # One batch waits at most: reading never runs far ahead.
        self._await()
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            self._under_way = self._pool.submit(pack_all, batch, threads=1)

    def _await(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
