"""Seeds in the store: manifests and chunks by digest, uploaded only where missing."""

from __future__ import annotations

from dsh_tasks.errors import SeedRefused
from dsh_tasks.seed import Seed, chunk_digests
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys


async def upload(link: Link, keys: Keys, seed: Seed, missing: set[str], *, expiry_ms: int) -> int:
    """Put what the server lacks; it expires until a record refers to it. Returns the bytes sent.

    `''` in `missing` is the manifest.
    """
    sent = 0
    batch: list[tuple[str, bytes]] = []
    if "" in missing:
        batch.append((keys.seed(seed.digest), seed.manifest))
    batch += [(keys.chunk(chunk.digest), chunk.data) for chunk in seed.chunks if chunk.digest in missing]
    for key, data in batch:
        sent += len(data)
        await link.script("upload", [key], [data, expiry_ms])
    return sent


async def fetch(link: Link, keys: Keys, digest: str) -> tuple[bytes, dict[str, bytes]]:
    """The manifest and the chunks (compressed) of a seed. Raises SeedRefused where one is gone."""
    manifest = await link.command("HGET", keys.seed(digest), "d")
    if manifest is None:
        msg = f"the seed {digest[:12]} is gone from the store"
        raise SeedRefused(msg)
    wanted = list(dict.fromkeys(chunk_digests(manifest)))
    chunks: dict[str, bytes] = {}
    for at in range(0, len(wanted), 200):
        part = wanted[at : at + 200]
        async with link.client.pipeline(transaction=False) as pipe:
            for name in part:
                pipe.hget(keys.chunk(name), "d")
            found = await link.within(pipe.execute())
        for name, data in zip(part, found, strict=True):
            if data is None:
                msg = f"chunk {name[:12]} of the seed {digest[:12]} is gone from the store"
                raise SeedRefused(msg)
            chunks[name] = data
    return manifest, chunks
