"""References: whether each seed, page and chunk counts what refers to it.

Who refers to a blob is known only by going through all that may. Names that are counted at once are
bounded: where there are more, all is gone through once for each share of them. What does not add up
is counted again by itself, until its own count stood still meanwhile and the difference is the same.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from dsh_tasks.store.audit.blobs import parts_of
from dsh_tasks.store.audit.looking import Look, text, whole
from dsh_tasks.store.audit.report import Fault

NAMES_AT_ONCE = 100_000
SUSPECTS_AT_ONCE = 1_000
SEEN_MOST = 200_000
TRIES = 4
PAGE_BYTES = 4_096
"""No page of a manifest is longer, for it lists four parts; what is longer is a chunk, and is not fetched."""

Blob = tuple[str, str]
"""Kind and digest."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Something refers to a blob so many times."""

    by: str
    to: Blob
    times: int


async def reference_faults(look: Look, blobs: int) -> tuple[list[Fault], list[str]]:
    """What does not add up, and the keys that could not be judged. `blobs`: about how many there are."""
    shares = max(1, -(-blobs // NAMES_AT_ONCE))
    faults: list[Fault] = []
    unsettled: list[str] = []
    for share in range(shares):
        suspects = await _suspects(look, share, shares)
        for start in range(0, len(suspects), SUSPECTS_AT_ONCE):
            found, restless = await _judged(look, suspects[start : start + SUSPECTS_AT_ONCE])
            faults += found
            unsettled += restless
    return faults, unsettled


def share_of(blob: Blob, shares: int) -> int:
    """Which share of the names a blob is in."""
    return zlib.crc32(blob[1].encode()) % shares


async def _suspects(look: Look, share: int, shares: int) -> list[Blob]:
    counts: Counter[Blob] = Counter()
    async for reference in references(look):
        if share_of(reference.to, shares) == share:
            counts[reference.to] += reference.times
    suspects: dict[Blob, None] = {}
    for kind in ("seed", "chunk"):
        prefix = f"{look.keys.prefix}{kind}:"
        async for page in look.keys_of(kind):
            names = [text(key).removeprefix(prefix) for key in page]
            names = [name for name in names if share_of((kind, name), shares) == share]
            for name, refs in (await _refs(look, [(kind, name) for name in names])).items():
                if refs is not None and refs != counts.get(name, 0):
                    suspects[name] = None
    return list(suspects)


async def _judged(look: Look, suspects: list[Blob]) -> tuple[list[Fault], list[str]]:
    """Count the references of a few blobs alone, again and again, until it is clear."""
    faults: list[Fault] = []
    open_ = dict.fromkeys(suspects, 0)
    for attempt in range(TRIES):
        before = await _refs(look, list(open_))
        counts = await _counted(look, open_)
        after = await _refs(look, list(open_))
        for blob in tuple(open_):
            refs = after[blob]
            if refs is None or refs == before[blob] == counts[blob]:
                del open_[blob]
            elif refs == before[blob]:
                difference = refs - counts[blob]
                if attempt and difference == open_[blob]:
                    del open_[blob]
                    faults.append(_fault(look, blob, refs, counts[blob]))
                else:
                    open_[blob] = difference
        if not open_:
            break
    return faults, [_key(look, blob) for blob in open_]


def _fault(look: Look, blob: Blob, refs: int, counted: int) -> Fault:
    what = "records name it" if blob[0] == "seed" else "places in held seeds and pages list it"
    return Fault(_key(look, blob), f"refs is {refs}", f"{counted}: so many {what}")


def _key(look: Look, blob: Blob) -> str:
    return look.keys.seed(blob[1]) if blob[0] == "seed" else look.keys.chunk(blob[1])


async def _counted(look: Look, wanted: Mapping[Blob, int]) -> Counter[Blob]:
    """References to the wanted blobs; a key that a scan shows twice counts once."""
    counts: Counter[Blob] = Counter()
    seen: set[tuple[str, Blob]] = set()
    async for reference in references(look):
        if reference.to in wanted and (reference.by, reference.to) not in seen:
            counts[reference.to] += reference.times
            if len(seen) < SEEN_MOST:
                seen.add((reference.by, reference.to))
    return counts


async def _refs(look: Look, blobs: list[Blob]) -> dict[Blob, int | None]:
    values = await look.at_once([("HGET", _key(look, blob), "refs") for blob in blobs], of_one_moment=False)
    return {blob: whole(value) for blob, value in zip(blobs, values, strict=True)}


async def references(look: Look) -> AsyncIterator[Reference]:
    """All references there are: records to their seeds, held seeds and pages to what they list."""
    async for page in look.keys_of("task"):
        found = await look.at_once([("HGET", key, "seed") for key in page], of_one_moment=False)
        for key, digest in zip(page, found, strict=True):
            if digest:
                yield Reference(text(key), ("seed", text(digest)), 1)
    for kind in ("seed", "chunk"):
        async for page in look.keys_of(kind):
            for reference in await _listed(look, kind, page):
                yield reference


async def _listed(look: Look, kind: str, page: list[bytes]) -> list[Reference]:
    """What the held ones of a page of keys list."""
    sizes = await look.at_once([("HMGET", key, "refs") for key in page], of_one_moment=False)
    held = [key for key, values in zip(page, sizes, strict=True) if values and whole(values[0])]
    if kind == "chunk":
        lengths = await look.at_once([("HSTRLEN", key, "d") for key in held], of_one_moment=False)
        held = [key for key, length in zip(held, lengths, strict=True) if (length or 0) <= PAGE_BYTES]
    found: list[Reference] = []
    for key, data in zip(
        held, await look.at_once([("HGET", key, "d") for key in held], of_one_moment=False), strict=True
    ):
        if isinstance(data, bytes):
            listed = Counter(part.digest for part in parts_of(kind, data))
            found += [Reference(text(key), ("chunk", digest), times) for digest, times in listed.items()]
    return found
