"""Log files: reads v4 and v0, writes v4; every refusal names line, seq and type.

The one place that touches session files. Whatever bytes come in, what goes out is a Session or a
SessionRefused. Two things that a crash leaves behind are no faults: a torn last line, which is
dropped, and a turn without its end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import zstandard

from dsh_tasks import format_v0
from dsh_tasks.errors import SessionRefused
from dsh_tasks.lifecycle import Lifecycle, no
from dsh_tasks.rows import DELIVERY, DELIVERY_VERSION, checked, is_inherited_marker
from dsh_tasks.session import Event, Header, Session

VERSION = 4
MAX_LOG_BYTES = 1 << 30
"""Largest log that is read, unpacked: a bound for files that unpack without end."""
MAX_DEPTH = 200
"""How deep JSON may be nested; deeper values could be read but not written again."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_HEADER_FIELDS = frozenset(
    {
        "type",
        "version",
        "id",
        "createdAt",
        "cwd",
        "parentSession",
        "isSeeded",
        "origin",
        "agentPreset",
        "delegationDepth",
    }
)
_REQUIRED = ("version", "id", "createdAt", "isSeeded", "delegationDepth")


def read(path: str | Path) -> Session:
    """The log in the file at `path`, plain or zstd, v4 or v0. Raises SessionRefused."""
    try:
        # A device or a pipe could be read without end.
        if not Path(path).is_file():
            raise SessionRefused("there is no such file")
        if Path(path).stat().st_size > MAX_LOG_BYTES:
            raise SessionRefused(f"the log is larger than {MAX_LOG_BYTES} bytes")
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise SessionRefused(f"the file cannot be read ({type(error).__name__})") from None
    return parse(data)


def parse(data: bytes) -> Session:
    """The log in `data`; what it is, plain or zstd, v4 or v0, is seen from the bytes.

    Raises SessionRefused with the first line (from 1) that cannot be read, for any bytes whatever.
    """
    lines = _lines(_unpacked(data))
    head = next(lines, None)
    if head is None:
        raise SessionRefused("there is no header line", line=1)
    if head.get("type") != "session":
        raise SessionRefused("the first line is not a session header", line=1)
    version = head.get("version")
    if version == 0 and type(version) is int:
        header, rows = format_v0.convert(head, lines)
        return _session(header, rows)
    header = _header(head)
    return _session(header, ((place + 2, row) for place, row in enumerate(lines)))


def write(session: Session) -> bytes:
    """The log as a plain v4 file. Raises SessionRefused where a value has no JSON."""
    return b"".join(_encoded(session))


def write_file(session: Session, path: str | Path, *, compressed: bool = False) -> None:
    """Write the log to `path`, plain or zstd; the header alone is the first frame of the latter."""
    Path(path).write_bytes(pack(session) if compressed else write(session))


def pack(session: Session) -> bytes:
    """The log as a zstd file: one frame with the header line, one with the rows."""
    head, *rows = _encoded(session)
    compressor = zstandard.ZstdCompressor()
    packed = compressor.compress(head)
    return packed + compressor.compress(b"".join(rows)) if rows else packed


def encode_line(value: Any) -> bytes:
    """A value as one line of a log, without the line's end.

    Text stays UTF-8; half a surrogate pair, which has no UTF-8, is escaped as the harness does.
    Raises ValueError for what JSON does not have (NaN, infinities, a value that holds itself).
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def decode_line(line: bytes) -> Any:
    """The value of one line. Raises ValueError for whatever is not JSON of a bounded depth.

    Not a number, infinities (`1e999` too) and invalid UTF-8 are not JSON.
    """
    try:
        value = _DECODER.decode(line.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None
    # Few lines have that many brackets, so few are walked.
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        raise ValueError("nested too deep")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number without bounds")
    return number


def _no_constant(_text: str) -> float:
    raise ValueError("not a number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


# -- bytes ----------------------------------------------------------------------------------------


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(_ZSTD_MAGIC):
        if len(data) > MAX_LOG_BYTES:
            raise SessionRefused(f"the log is larger than {MAX_LOG_BYTES} bytes")
        return data
    # A last frame that a crash cut off gives what it holds: the line in it is torn like any other.
    reader = zstandard.ZstdDecompressor().stream_reader(BytesIO(data), read_across_frames=True)
    try:
        unpacked: bytes = reader.read(MAX_LOG_BYTES + 1)
    except (zstandard.ZstdError, MemoryError):
        raise SessionRefused("the file is not a valid zstd stream") from None
    if len(unpacked) > MAX_LOG_BYTES:
        raise SessionRefused(f"the log is larger than {MAX_LOG_BYTES} bytes")
    return unpacked


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    """The decoded lines; a last one without its end is dropped if it is not whole."""
    start, number = 0, 0
    while start < len(data):
        number += 1
        end = data.find(b"\n", start)
        is_torn = end < 0
        line = data[start:] if is_torn else data[start:end]
        start = len(data) if is_torn else end + 1
        try:
            value = decode_line(line)
        except ValueError as error:
            if is_torn and number > 1:
                return
            raise SessionRefused(f"the line is not JSON ({_why(error)})", line=number) from None
        if not isinstance(value, dict):
            raise SessionRefused("the line is not a JSON object", line=number)
        yield value


def _why(error: ValueError) -> str:
    """A fixed phrase: the parser's own words may quote the line."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return text if text in ("nested too deep", "a number without bounds", "not a number") else "syntax"


def _encoded(session: Session) -> Iterator[bytes]:
    yield encode_line(session.header.row()) + b"\n"
    for event in session.events:
        try:
            yield encode_line(event.row()) + b"\n"
        except (ValueError, TypeError, RecursionError) as error:
            raise SessionRefused(
                f"the row has no JSON ({type(error).__name__})", seq=event.seq, event_type=event.type
            ) from None


# -- values ---------------------------------------------------------------------------------------


def _header(row: dict[str, Any]) -> Header:
    if row.get("version") != VERSION or type(row.get("version")) is not int:
        raise SessionRefused("the log's version is neither 4 nor 0", line=1)
    for key in _REQUIRED:
        if key not in row:
            raise SessionRefused(f"the header lacks {key}", line=1)
    if not row.keys() <= _HEADER_FIELDS:
        raise SessionRefused("the header has a key that the format does not know", line=1)
    if not isinstance(row["isSeeded"], bool):
        raise SessionRefused("the header's isSeeded is not true or false", line=1)
    cwd = row.get("cwd")
    if "cwd" in row and not format_v0.is_absolute(cwd):
        raise SessionRefused("the header's cwd is not an absolute path", line=1)
    return format_v0.header(row, is_seeded=row["isSeeded"], cwd=cwd)


def _session(header: Header, rows: Iterator[tuple[int, dict[str, Any]]]) -> Session:
    """Check numbered rows, one by one and against each other, and bind them to their header."""
    lifecycle = Lifecycle()
    events: list[Event] = []
    marker: int | None = None
    for line, row in rows:
        try:
            event = checked(row, len(events))
            lifecycle.accept(event)
        except SessionRefused as error:
            raise _at(line, error) from None
        if is_inherited_marker(event):
            if marker is not None or not header.is_seeded:
                raise _at(line, no(event, "an inherited end-of-seed marker too many"))
            marker = event.seq
        events.append(event)
    if header.is_seeded and marker is None:
        raise SessionRefused("the header says isSeeded, but no row marks the end of the seed", line=1)
    _check_deliveries(header, events, marker or 0)
    return Session(header, tuple(events))


def _check_deliveries(header: Header, events: list[Event], inherited: int) -> None:
    # Inherited rows name the parent's session, own ones the log's own.
    first = inherited if header.parent_session is not None else 0
    for event in events[first:]:
        if event.type != DELIVERY or event.data.get("sessionFormatVersion") != DELIVERY_VERSION:
            continue
        if event.data["sessionId"] != header.id:
            raise _at(event.seq + 2, no(event, "the delivery row names another session"))


def _at(line: int, error: SessionRefused) -> SessionRefused:
    facts = error.facts
    return SessionRefused(facts["what"], line=line, seq=facts["seq"], event_type=facts["type"])
