"""Lines of a log file, plain or zstd, as a stream: never more in memory than a block and a line.

Pure but for the stream that it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, cast

import zstandard

from dsh_tasks.errors import SessionRefused

MAX_LOG_BYTES = 1 << 30
"""Largest log that is read, unpacked: a bound for files that unpack without end."""
MAX_LINE_BYTES = 1 << 28
"""Longest line: a row with a body of 256 MiB is no row."""

Line = tuple[int, bytes, bool]
"""(number, from 1; bytes without the end; whether its end is there)."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK = 1 << 18


def unpacked(stream: BinaryIO) -> BinaryIO:
    """The bytes of a log, from its beginning: what it is is seen from its first bytes."""
    start = _read(stream, 1, len(_ZSTD_MAGIC))
    stream.seek(0)
    if start != _ZSTD_MAGIC:
        return stream
    # A last frame that a crash cut off gives what it holds: the line in it is torn like any other.
    reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True, closefd=False)
    return cast("BinaryIO", reader)


def lines(stream: BinaryIO, number: int = 1) -> Iterator[Line]:
    """The lines from line `number` on. Only the last can lack its end.

    Raises SessionRefused where the log is larger than may be, or no zstd stream.
    """
    pieces: list[bytes] = []
    held = total = 0
    while block := _read(stream, number):
        total += len(block)
        if total > MAX_LOG_BYTES:
            raise SessionRefused(f"the log is larger than {MAX_LOG_BYTES} bytes", line=number)
        first, *rest = block.split(b"\n")
        pieces.append(first)
        held += len(first)
        if held > MAX_LINE_BYTES:
            raise SessionRefused(f"the line is longer than {MAX_LINE_BYTES} bytes", line=number)
        if not rest:
            continue
        yield number, b"".join(pieces), True
        number += 1
        for line in rest[:-1]:
            yield number, line, True
            number += 1
        pieces, held = [rest[-1]], len(rest[-1])
    if held:
        yield number, b"".join(pieces), False


def skip(stream: BinaryIO, count: int) -> bytes:
    """Read `count` bytes and give the last of them, up to a block; fewer where the stream is shorter."""
    last = b""
    while count > 0:
        block = _read(stream, None, min(count, _BLOCK))
        if not block:
            return b""
        last = (last + block)[-_BLOCK:]
        count -= len(block)
    return last


def _read(stream: BinaryIO, number: int | None, size: int = _BLOCK) -> bytes:
    try:
        return stream.read(size)
    except (zstandard.ZstdError, MemoryError):
        raise SessionRefused("the file is not a valid zstd stream", line=number) from None
    except OSError as error:
        raise SessionRefused(f"the file cannot be read ({type(error).__name__})", line=number) from None
