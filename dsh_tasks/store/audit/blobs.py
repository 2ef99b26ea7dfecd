"""Blobs: whether seeds, pages and chunks are what their digests say, and all that they list is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import zstandard

from dsh_tasks.errors import SeedRefused
from dsh_tasks.log_lines import MAX_LOG_BYTES
from dsh_tasks.seed.chunks import digest_of, unpack
from dsh_tasks.seed.manifest import Part, listed_parts
from dsh_tasks.store.audit.looking import PAGE, Look, text, whole
from dsh_tasks.store.audit.report import Fault

ON_THE_LOOP_BYTES = 1 << 16
"""A larger chunk is unpacked beside the event loop."""
PAGE_MARK = b"{"
"""A page is a JSON object; a chunk is a zstd frame, which begins otherwise."""


async def blob_faults(look: Look, kind: str, key: str, name: str) -> list[Fault]:
    """What is wrong with one seed, page or chunk and with what it lists."""
    (values,) = await look.at_once([("HMGET", key, "refs", "d")])
    refs, data = values or (None, None)
    if refs is None and data is None:
        # It expired since the page of keys was read.
        return []
    faults: list[Fault] = []
    held = whole(refs)
    if held is None:
        shown = "gone" if refs is None else repr(text(refs)[:20])
        faults.append(Fault(key, f"refs is {shown}", "how often it is referred to"))
    if data is None:
        return [*faults, Fault(key, "d is gone", "the bytes of its digest")]
    why = await _damage(kind, data, name)
    if why:
        return [*faults, Fault(key, f"d is {why}", "the bytes of its digest")]
    if held:
        faults += await _lost_parts(look, key, parts_of(kind, data))
    return faults


def is_list(kind: str, data: bytes) -> bool:
    """Whether these bytes list others: a manifest or a page."""
    return kind == "seed" or data.startswith(PAGE_MARK)


def parts_of(kind: str, data: bytes) -> Sequence[Part]:
    """What a blob lists; nothing where it is a chunk, or damaged."""
    if not is_list(kind, data):
        return ()
    try:
        return listed_parts(data)
    except SeedRefused:
        return ()


async def _damage(kind: str, data: bytes, name: str) -> str:
    """What is wrong with stored bytes; '' for nothing."""
    if is_list(kind, data):
        return "" if digest_of(data) == name else "not what its digest says"
    try:
        size = zstandard.frame_content_size(data)
        if size > MAX_LOG_BYTES:
            return "larger than any log"
        if size > ON_THE_LOOP_BYTES:
            await asyncio.to_thread(unpack, data, name, size)
        else:
            unpack(data, name, size)
    except (SeedRefused, zstandard.ZstdError):
        return "damaged, or not what its digest says"
    return ""


async def _lost_parts(look: Look, key: str, parts: Sequence[Part]) -> list[Fault]:
    faults: list[Fault] = []
    for start in range(0, len(parts), PAGE):
        some = parts[start : start + PAGE]
        commands = [("HGET", key, "refs"), *(("EXISTS", look.keys.chunk(part.digest)) for part in some)]
        refs, *there = await look.at_once(commands)
        if whole(refs):
            faults += [
                Fault(look.keys.chunk(part.digest), "is gone", f"what {key} lists")
                for part, is_there in zip(some, there, strict=True)
                if not is_there
            ]
    return faults
