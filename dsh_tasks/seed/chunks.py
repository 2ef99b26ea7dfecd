"""Chunks: the rows of one turn as bytes that do not depend on where in a log they stand.

A chunk is one JSON line per row, as v4 writes it but without `seq`: keys in the order type, time,
data, sourceEventSeqs, surfaceOp, ignorable; `data` in the order in which it was logged; text in UTF-8;
each line ended by a newline. Every number that names a row counts from the chunk's first row, so what
lies in earlier chunks is negative; every turn number counts from the chunk's own turn. Its digest is
the sha256 of these bytes, in base64url; stored they are zstd, with a dictionary of what is in every
log, which makes a turn of some kilobytes a sixth smaller. Pure: no clock, no I/O.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import zstandard

from dsh_tasks.data import chunk_dictionary
from dsh_tasks.errors import SeedRefused
from dsh_tasks.format import decode_line, encode_line
from dsh_tasks.row_json import RowParser
from dsh_tasks.rows import Move, moved, moved_data, moved_frame
from dsh_tasks.session import Event, Replace

DIGEST_LENGTH = 43
_LEVEL = 3
_DICTIONARY = zstandard.ZstdCompressionDict(chunk_dictionary())
_DICTIONARY.precompute_compress(level=_LEVEL)


class _Own(threading.local):
    """One of each a thread: making one takes as long as a small turn, and none may be shared."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=_DICTIONARY)
        self.decompressor = zstandard.ZstdDecompressor(dict_data=_DICTIONARY)


_OWN = _Own()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One turn of a seed, with the rows between it and the turn before."""

    digest: str
    """Name of the canonical bytes: their sha256 in base64url, without padding."""
    rows: int
    raw_bytes: int
    """Length of the canonical bytes."""
    data: bytes
    """The canonical bytes as zstd."""


def digest_of(data: bytes) -> str:
    """The name of these bytes: sha256 in base64url, without padding, 43 characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest())[:DIGEST_LENGTH].decode()


def pack(raw: bytes, rows: int) -> Chunk:
    """The chunk of `rows` canonical lines."""
    return Chunk(digest_of(raw), rows, len(raw), _OWN.compressor.compress(raw))


def pack_many(parts: Sequence[tuple[bytes, int]], *, threads: int) -> list[Chunk]:
    """The chunks of (canonical lines, rows), compressed in one call that lets other threads run."""
    if "multi_compress_to_buffer" not in zstandard.backend_features:
        return [pack(raw, rows) for raw, rows in parts]
    packed = _OWN.compressor.multi_compress_to_buffer([raw for raw, _ in parts], threads=threads)
    return [
        Chunk(digest_of(raw), rows, len(raw), packed[place].tobytes())
        for place, (raw, rows) in enumerate(parts)
    ]


def unpack(data: bytes, digest: str, size: int) -> bytes:
    """The canonical bytes of a stored chunk. Raises SeedRefused where they are not what `digest` says."""
    try:
        # A size that the frame itself states is believed, and the bound then is not.
        if zstandard.frame_content_size(data) not in (size, -1):
            raise SeedRefused(f"chunk {digest[:12]} is not what its digest says")
        raw = _OWN.decompressor.decompress(data, max_output_size=size + 1)
    except zstandard.ZstdError:
        raise SeedRefused(f"chunk {digest[:12]} is damaged") from None
    if len(raw) != size or digest_of(raw) != digest:
        raise SeedRefused(f"chunk {digest[:12]} is not what its digest says")
    return raw


def content_of(chunk: Chunk) -> bytes:
    """The canonical bytes of a chunk that was made in this process: nobody can have changed them."""
    return _OWN.decompressor.decompress(chunk.data, max_output_size=chunk.raw_bytes)


def canonical(event: Event, ref: Move, turn: Move, *, is_exact: bool = False) -> bytes:
    """The line of one row, its numbers sent through `ref` and `turn`.

    `is_exact`: `row_json` or a chunk gave the row, so all in it is known to have a JSON. Raises SeedRefused,
    which names the row, where a value has none.
    """
    row: dict[str, Any] = {"type": event.type, "time": event.time, "data": moved_data(event, ref, turn)}
    if event.source_event_seqs is not None:
        row["sourceEventSeqs"], operation = moved_frame(event, ref)
        row["surfaceOp"] = operation.row() if isinstance(operation, Replace) else operation
    elif event.surface_op is not None:
        # Whatever replaces a row names it among its sources too, so this one appends.
        row["surfaceOp"] = event.surface_op
    if event.ignorable:
        row["ignorable"] = True
    try:
        return _written(row, is_exact=is_exact) + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise SeedRefused(
            f"the row has no JSON ({type(error).__name__})", seq=event.seq, event_type=event.type
        ) from None


def _written(row: dict[str, Any], *, is_exact: bool) -> bytes:
    # A checking encoder first: the fast one takes what only Python has, and infinities.
    line = b"" if is_exact else encode_line(row)
    try:
        return orjson.dumps(row)
    except TypeError:
        # It has no half surrogate pairs, which are escaped, and no whole numbers beyond 64 bits.
        return line or encode_line(row)


def chunk_of(rows: Sequence[Event], number: int) -> Chunk:
    """The chunk of turn `number` of a seed; its rows, read out of chunks, stand where they are to be read."""
    start = rows[0].seq
    lines = [
        canonical(row, lambda seq: seq - start, lambda turn: turn - number, is_exact=True) for row in rows
    ]
    return pack(b"".join(lines), len(rows))


def rows_of(
    raw: bytes, turn: int, place: Move, *, is_wanted: Callable[[int, bytes], bool] | None = None
) -> Iterator[Event]:
    """The rows of canonical bytes: numbered by `place` of their number in the chunk, from turn `turn` on.

    `is_wanted` chooses by number and line which are read at all. Shares nothing with anyone. The bytes must
    be what `canonical` wrote.
    """
    parser = RowParser(is_numbered=False)
    for number, line in enumerate(raw.split(b"\n")[:-1]):
        if is_wanted is not None and not is_wanted(number, line):
            continue
        found = parser.parse(line)
        row = decode_line(line) if found is None else found[0]
        relative = Event.from_row({"seq": number, **row})
        yield moved(relative, place(number), place, lambda count: count + turn)
