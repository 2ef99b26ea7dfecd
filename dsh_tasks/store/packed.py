"""Packed: a large row as it lies on the server: zstd where that is smaller. A small one is its own JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import zstandard

from dsh_tasks.errors import SessionRefused

PACKED_FROM_BYTES = 16 * 1024
"""A row of less is read and written too often for what its packing would save."""
OFF_LOOP_FROM_BYTES = 256 * 1024
"""From here on packing takes longer than other children should wait."""
ROW_MOST_BYTES = 1024 * 1024 * 1024
MAGIC = b"\x28\xb5\x2f\xfd"
"""Start of every zstd frame; no JSON starts so."""


async def packed(rows: Sequence[bytes]) -> list[bytes]:
    """The rows as they are stored."""
    if sum(map(len, rows)) < OFF_LOOP_FROM_BYTES:
        return [_packed(row) for row in rows]
    return await asyncio.to_thread(lambda: [_packed(row) for row in rows])


async def unpacked(rows: Sequence[bytes]) -> list[bytes]:
    """What was stored. Raises SessionRefused for a row that is damaged."""
    if sum(map(len, rows)) < OFF_LOOP_FROM_BYTES:
        return [unpacked_row(row) for row in rows]
    return await asyncio.to_thread(lambda: [unpacked_row(row) for row in rows])


def _packed(row: bytes) -> bytes:
    if len(row) < PACKED_FROM_BYTES:
        return row
    # One for each call: a compressor serves one thread at a time.
    small = zstandard.ZstdCompressor().compress(row)
    return small if len(small) < len(row) else row


def unpacked_row(row: bytes) -> bytes:
    """One row as it was given. Raises SessionRefused where it is damaged."""
    if not row.startswith(MAGIC):
        return row
    try:
        size = zstandard.frame_content_size(row)
        if 0 <= size <= ROW_MOST_BYTES:
            return zstandard.ZstdDecompressor().decompress(row)
    except zstandard.ZstdError:
        pass
    what = "a packed row is damaged"
    raise SessionRefused(what)
