"""SeedCache: decoded chunks, shared between the children of one process.

Children of a log that grows start with seeds that differ in their last turns: what they share is
fetched and decoded once, and held once in memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from dsh_tasks.seed import Part, decoded_chunk, read_manifest, unpack
from dsh_tasks.session import Event
from dsh_tasks.store import Store
from dsh_tasks.store.seeds import fetch_blobs, fetch_chunk_list, fetch_manifest

Placed = tuple[str, int, int, int | None]
"""A chunk where it stands in a seed: digest, place of its first row, turn, place of the seed's head."""


class SeedCache:
    """Bounded in bytes of the chunks' raw form; the values are shared and never changed."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[Placed, tuple[list[Event], int]] = OrderedDict()
        self._bytes = 0
        self._loading: dict[str, asyncio.Task[tuple[Event, ...]]] = {}
        self._one_by_one = asyncio.Lock()

    async def get(self, store: Store, digest: str) -> tuple[Event, ...]:
        """The events of a seed; what is not held is fetched and decoded once, however many ask at once.

        Raises SeedRefused where it is gone or does not match its digest, StoreUnavailable.
        """
        if digest not in self._loading:
            self._loading[digest] = asyncio.create_task(self._load(store, digest))
        # Shielded: one child that is killed must not take the seed from the others that wait for it.
        return await asyncio.shield(self._loading[digest])

    async def _load(self, store: Store, digest: str) -> tuple[Event, ...]:
        try:
            manifest = await fetch_manifest(store.link, store.keys, digest)
            placed = list(_placed(await fetch_chunk_list(store.link, store.keys, manifest), manifest))
            # Side by side, two seeds of one log would each decode what they share.
            async with self._one_by_one:
                return await self._assembled(store, placed)
        finally:
            self._loading.pop(digest, None)

    async def _assembled(self, store: Store, placed: list[tuple[Placed, Part]]) -> tuple[Event, ...]:
        rows: dict[Placed, list[Event]] = {}
        lacking: list[tuple[Placed, Part]] = []
        for key, part in placed:
            if key in self._held:
                self._held.move_to_end(key)
                rows[key] = self._held[key][0]
            else:
                lacking.append((key, part))
        blobs = await fetch_blobs(store.link, store.keys, (part.digest for _, part in lacking))
        # Off the loop: a large seed takes seconds.
        fresh = await asyncio.to_thread(_decoded, lacking, blobs)
        for (key, part), events in zip(lacking, fresh, strict=True):
            rows[key] = events
            self._hold(key, events, part.raw_bytes)
        return tuple(event for key, _ in placed for event in rows[key])

    def _hold(self, key: Placed, events: list[Event], size: int) -> None:
        self._held[key] = (events, size)
        self._bytes += size
        while self._bytes > self._limit:
            _, (_, gone) = self._held.popitem(last=False)
            self._bytes -= gone


def _placed(parts: list[Part], manifest: bytes) -> Iterator[tuple[Placed, Part]]:
    head, start = read_manifest(manifest).head, 0
    for turn, part in enumerate(parts, start=1):
        yield (part.digest, start, turn, head), part
        start += part.rows


def _decoded(placed: list[tuple[Placed, Part]], blobs: dict[str, bytes]) -> list[list[Event]]:
    return [
        decoded_chunk(unpack(blobs[part.digest], part.digest, part.raw_bytes), start, turn, head)
        for (_, start, turn, head), part in placed
    ]
