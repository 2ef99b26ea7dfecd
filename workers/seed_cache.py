"""SeedCache: decoded seeds by digest, shared between the children of one process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from dsh_tasks.seed import decode
from dsh_tasks.session import Event
from dsh_tasks.store import Store
from dsh_tasks.store.seeds import fetch


class SeedCache:
    """Bounded in bytes of the seeds' raw form; the values are shared and never changed."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[str, tuple[tuple[Event, ...], int]] = OrderedDict()
        self._bytes = 0
        self._loading: dict[str, asyncio.Task[tuple[Event, ...]]] = {}

    async def get(self, store: Store, digest: str, size: int) -> tuple[Event, ...]:
        """The events of a seed of `size` raw bytes; fetched and decoded once, however many ask at once.

        Raises SeedRefused where it is gone or does not match its digest, StoreUnavailable.
        """
        if digest in self._held:
            self._held.move_to_end(digest)
            return self._held[digest][0]
        if digest not in self._loading:
            self._loading[digest] = asyncio.create_task(self._load(store, digest, size))
        # Shielded: one child that is killed must not take the seed from the others that wait for it.
        return await asyncio.shield(self._loading[digest])

    async def _load(self, store: Store, digest: str, size: int) -> tuple[Event, ...]:
        try:
            manifest, chunks = await fetch(store.link, store.keys, digest)
            # Off the loop: a large seed takes seconds.
            events = await asyncio.to_thread(decode, manifest, chunks.__getitem__)
        finally:
            self._loading.pop(digest, None)
        if size <= self._limit:
            self._hold(digest, events, size)
        return events

    def _hold(self, digest: str, events: tuple[Event, ...], size: int) -> None:
        self._held[digest] = (events, size)
        self._bytes += size
        while self._bytes > self._limit:
            _, (_, gone) = self._held.popitem(last=False)
            self._bytes -= gone
