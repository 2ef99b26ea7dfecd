"""Seeds in the store: manifests, pages and chunks by digest, uploaded only where missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsh_tasks.errors import SeedRefused
from dsh_tasks.seed import Part, Seed, page_parts, seed_parts
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys

_AT_ONCE = 200
"""Blobs asked for in one exchange."""
_BATCH_BYTES = 1 << 19
"""Blobs of so many bytes go up in one call; a larger one by itself."""
SMALL_BYTES = 1 << 16
"""So much is sent before the server was asked whether it accepts the child."""


class Held:
    """Digests that this process has seen held by the server: hints that spare a question.

    Where one is wrong, because the last record that named it was forgotten, the server says what it lacks.
    """

    def __init__(self) -> None:
        self._digests: set[str] = set()

    def add(self, seed: Seed) -> None:
        """A record that names this seed was accepted."""
        if len(self._digests) > _HELD_MOST:
            self._digests.clear()
        self._digests.add(seed.digest)
        self._digests.update(seed.blobs)

    def lack(self, digests: Iterable[str]) -> None:
        """The server has not got these."""
        self._digests.difference_update(digests)

    def new_of(self, seed: Seed) -> set[str]:
        """Pages and chunks of a seed of which nothing is known."""
        return seed.blobs.keys() - self._digests

    def has(self, seed: Seed) -> bool:
        """Whether the whole seed was seen held."""
        return seed.digest in self._digests


_HELD_MOST = 200_000


async def upload_small(link: Link, keys: Keys, seed: Seed, held: Held, *, expiry_ms: int) -> None:
    """Send what is new of a seed before its child is submitted, where that is little: it spares a refusal."""
    new = held.new_of(seed)
    if not held.has(seed) and sum(len(seed.blobs[digest]) for digest in new) <= SMALL_BYTES:
        await upload(link, keys, seed, {""}, held, expiry_ms=expiry_ms)


async def upload(
    link: Link, keys: Keys, seed: Seed, missing: set[str], held: Held, *, expiry_ms: int
) -> None:
    """Put what the server lacks; it expires until a record refers to it.

    `missing` is what the server named: digests, and `''` for the manifest. What lies below is asked for,
    never sent on suspicion.
    """
    held.lack(missing)
    absent = {digest for digest in missing if digest}
    below = {page.part.digest: [part.digest for part in page.parts] for page in seed.pages}
    level = _below(absent, below)
    if "" in missing:
        level |= {part.digest for part in seed_parts(seed.manifest)} & held.new_of(seed)
    while level:
        found = await _absent(link, keys, level - absent)
        absent |= found
        level = _below(found, below)
    blobs = [(keys.chunk(digest), seed.blobs[digest]) for digest in sorted(absent) if digest in seed.blobs]
    if "" in missing:
        blobs.append((keys.seed(seed.digest), seed.manifest))
    for batch in _batches(blobs):
        await link.script("upload", [key for key, _ in batch], [expiry_ms, *(data for _, data in batch)])


def _batches(blobs: list[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for blob in blobs:
        if batch and size + len(blob[1]) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(blob)
        size += len(blob[1])
    if batch:
        yield batch


def _below(digests: Iterable[str], lists: dict[str, list[str]]) -> set[str]:
    return {below for digest in digests for below in lists.get(digest, ())}


async def _absent(link: Link, keys: Keys, digests: set[str]) -> set[str]:
    names = sorted(digests)
    absent: set[str] = set()
    for at in range(0, len(names), _AT_ONCE):
        part = names[at : at + _AT_ONCE]
        async with link.client.pipeline(transaction=False) as pipe:
            for name in part:
                pipe.exists(keys.chunk(name))
            found = await link.within(pipe.execute())
        absent |= {name for name, is_there in zip(part, found, strict=True) if not is_there}
    return absent


async def fetch_manifest(link: Link, keys: Keys, digest: str) -> bytes:
    """The manifest of a seed. Raises SeedRefused where it is gone."""
    manifest: bytes | None = await link.command("HGET", keys.seed(digest), "d")
    if manifest is None:
        msg = f"the seed {digest[:12]} is gone from the store"
        raise SeedRefused(msg)
    return manifest


async def fetch(link: Link, keys: Keys, digest: str) -> tuple[bytes, dict[str, bytes]]:
    """The manifest of a seed, its pages and its chunks as stored. Raises SeedRefused where one is gone."""
    manifest = await fetch_manifest(link, keys, digest)
    parts, blobs = await _opened(link, keys, manifest)
    blobs |= await fetch_blobs(link, keys, (part.digest for part in parts))
    return manifest, blobs


async def fetch_chunk_list(link: Link, keys: Keys, manifest: bytes) -> list[Part]:
    """The chunks of a seed, in order; its pages are fetched on the way. Raises SeedRefused."""
    return (await _opened(link, keys, manifest))[0]


async def _opened(link: Link, keys: Keys, manifest: bytes) -> tuple[list[Part], dict[str, bytes]]:
    """The chunks of a seed in order, and its pages as stored."""
    parts = list(seed_parts(manifest))
    pages: dict[str, bytes] = {}
    while any(part.is_page for part in parts):
        pages |= await fetch_blobs(link, keys, (part.digest for part in parts if part.is_page))
        parts = [
            below
            for part in parts
            for below in (page_parts(part, pages[part.digest]) if part.is_page else (part,))
        ]
    return parts, pages


async def fetch_blobs(link: Link, keys: Keys, digests: Iterable[str]) -> dict[str, bytes]:
    """Pages or chunks (compressed) as stored. Raises SeedRefused where one is gone."""
    wanted = list(dict.fromkeys(digests))
    blobs: dict[str, bytes] = {}
    for at in range(0, len(wanted), _AT_ONCE):
        part = wanted[at : at + _AT_ONCE]
        async with link.client.pipeline(transaction=False) as pipe:
            for name in part:
                pipe.hget(keys.chunk(name), "d")
            found = await link.within(pipe.execute())
        for name, data in zip(part, found, strict=True):
            if data is None:
                msg = f"chunk {name[:12]} of a seed is gone from the store"
                raise SeedRefused(msg)
            blobs[name] = data
    return blobs
