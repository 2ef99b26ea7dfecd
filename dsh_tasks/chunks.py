"""Chunks: the rows of one turn as bytes that do not depend on where in a log they stand.

A chunk is one JSON line per row, as v4 writes it but without `seq`: keys in the order type, time,
data, sourceEventSeqs, surfaceOp, ignorable; `data` in the order in which it was logged; text in UTF-8;
each line ended by a newline. Every number that names a row counts from the chunk's first row, so what
lies in earlier chunks is negative; every turn number counts from the chunk's own turn. Its digest is
the sha256 of these bytes; stored they are zstd.

A manifest is one JSON object: `{"version":1,"form","turns","events","bytes","head","chunks":[[digest,
rows, bytes], ..]}`, keys in this order, without spaces. The seed's digest is the sha256 of the
manifest. `head` is null, or the seq of a row that stands in no chunk: an empty system message.
Pure: no clock, no I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

from dsh_tasks.errors import SeedRefused
from dsh_tasks.format import decode_line, encode_line
from dsh_tasks.rows import is_count, moved
from dsh_tasks.session import Event

EMPTY_HEAD: dict[str, Any] = {
    "role": "system",
    "content": [],
    "source": {"kind": "system-prompt"},
    "id": "seed-head",
}
"""What stands first where the parent's own system message is not kept.

The harness writes its system message into the child's log, and refuses to open a log again in which
that is not the first message or in the place of one (seen with runtime 0.2.1rc2)."""

VERSION = 1
MAX_CHUNK_BYTES = 1 << 30
_LEVEL = 3
_FIELDS = 3
"""Digest, rows, bytes."""
_DIGEST_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """One turn of a seed, with the rows between it and the turn before."""

    digest: str
    """sha256, in hex, of the canonical bytes."""
    rows: int
    raw_bytes: int
    """Length of the canonical bytes."""
    data: bytes
    """The canonical bytes as zstd."""


def encode(rows: Sequence[Event], turn: int) -> Chunk:
    """The chunk of one turn. Raises SeedRefused, which names the row, where a value has no JSON."""
    start = rows[0].seq
    raw = b"".join(_encoded(row, start, turn) for row in rows)
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(raw)
    return Chunk(hashlib.sha256(raw).hexdigest(), len(rows), len(raw), packed)


def _encoded(event: Event, start: int, turn: int) -> bytes:
    try:
        row = moved(event, 0, lambda seq: seq - start, lambda number: number - turn).row()
        del row["seq"]
        return encode_line(row) + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise SeedRefused(
            f"the row has no JSON ({type(error).__name__})", seq=event.seq, event_type=event.type
        ) from None


def decode(manifest: bytes, chunk_of: Callable[[str], bytes]) -> tuple[Event, ...]:
    """The rows of a seed, numbered from 0; `chunk_of` gives a chunk's stored bytes by its digest.

    Raises SeedRefused where manifest or chunk are not what they were written as.
    """
    head, listed = _opened(manifest)
    events: list[Event] = []
    start = 0
    for number, (digest, rows, size) in enumerate(listed, start=1):
        raw = _unpacked(chunk_of(digest), digest, size)
        lines = raw.split(b"\n")[:-1]
        if len(lines) != rows:
            raise SeedRefused(f"chunk {digest[:12]} does not hold {rows} rows")
        for place, line in enumerate(lines):
            if start + place == head:
                events.append(_head(events))
            events.append(_decoded(line, start, place, number, head))
        start += rows
    return tuple(events)


def _decoded(line: bytes, start: int, place: int, turn: int, head: int | None) -> Event:
    # The digest fits, so these are the bytes that `encode` wrote.
    row: dict[str, Any] = decode_line(line)
    relative = Event.from_row({"seq": 0, **row})

    def absolute(ref: int) -> int:
        seq = ref + start
        return seq if head is None or seq < head else seq + 1

    return moved(relative, absolute(place), absolute, lambda number: number + turn)


def _head(events: Sequence[Event]) -> Event:
    """A system message that is shown to nobody, right after the row that opens the first step."""
    if not events or events[-1].type != "step/start":
        raise SeedRefused("the manifest's head does not follow the start of a step")
    step = events[-1]
    return Event(
        "system/message",
        len(events),
        step.time,
        {"turn": step.data["turn"], "step": step.data["step"], "message": EMPTY_HEAD},
        surface_op="append",
    )


def _unpacked(data: bytes, digest: str, size: int) -> bytes:
    try:
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=size + 1)
    except zstandard.ZstdError:
        raise SeedRefused(f"chunk {digest[:12]} is damaged") from None
    if len(raw) != size or hashlib.sha256(raw).hexdigest() != digest:
        raise SeedRefused(f"chunk {digest[:12]} is not what its digest says")
    return raw


def write_manifest(form: str, chunks: Sequence[Chunk], *, head: int | None = None) -> bytes:
    """The manifest of these chunks, in order; `head` as above."""
    return json.dumps(
        {
            "version": VERSION,
            "form": form,
            "turns": len(chunks),
            "events": sum(chunk.rows for chunk in chunks) + (head is not None),
            "bytes": sum(chunk.raw_bytes for chunk in chunks),
            "head": head,
            "chunks": [[chunk.digest, chunk.rows, chunk.raw_bytes] for chunk in chunks],
        },
        separators=(",", ":"),
    ).encode()


def chunk_digests(manifest: bytes) -> list[str]:
    """The chunks that a manifest lists, in order; one may come twice. Raises SeedRefused."""
    return [digest for digest, _rows, _size in _opened(manifest)[1]]


def _opened(manifest: bytes) -> tuple[int | None, list[tuple[str, int, int]]]:
    try:
        value = decode_line(manifest)
    except ValueError:
        raise SeedRefused("the manifest is not JSON") from None
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise SeedRefused("the manifest has another version")
    listed = value.get("chunks")
    if not isinstance(listed, list) or not all(_is_entry(entry) for entry in listed):
        raise SeedRefused("the manifest does not list chunks")
    head = value.get("head")
    if head is not None and not is_count(head):
        raise SeedRefused("the manifest's head is not a row")
    return head, [(entry[0], entry[1], entry[2]) for entry in listed]


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == _FIELDS
        and isinstance(entry[0], str)
        and len(entry[0]) == _DIGEST_LENGTH
        and is_count(entry[1])
        and is_count(entry[2])
        and entry[2] < MAX_CHUNK_BYTES
    )
