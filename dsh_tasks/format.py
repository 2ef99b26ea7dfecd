"""Log files: reads v4 and v0, writes v4; every refusal names line, seq and type.

The one place that touches session files. Whatever bytes come in, what goes out is a Session or a
SessionRefused. Two things that a crash leaves behind are no faults: a torn last line, which is
dropped, and a turn without its end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from pydantic_core import from_json, to_json

from dsh_tasks import format_v0
from dsh_tasks.errors import SeedRefused, SessionRefused
from dsh_tasks.json_depth import is_deeper
from dsh_tasks.lifecycle import Lifecycle, no
from dsh_tasks.log_lines import MAX_LOG_BYTES, lines, unpacked
from dsh_tasks.row_json import MAX_DEPTH
from dsh_tasks.rows import DELIVERY, DELIVERY_VERSION, END_SEED, checked, is_inherited_marker
from dsh_tasks.session import Event, Header, Session

VERSION = 4

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
    with opened(path) as stream:
        return _parsed(stream)


def opened(path: str | Path) -> BinaryIO:
    """The file at `path`, to be read from its beginning. Raises SessionRefused."""
    try:
        # A device or a pipe could be read without end.
        if not Path(path).is_file():
            raise SessionRefused("there is no such file")
        if Path(path).stat().st_size > MAX_LOG_BYTES:
            raise SessionRefused(f"the log is larger than {MAX_LOG_BYTES} bytes")
        return Path(path).open("rb")
    except (OSError, ValueError) as error:
        raise SessionRefused(f"the file cannot be read ({type(error).__name__})") from None


def parse(data: bytes) -> Session:
    """The log in `data`; what it is, plain or zstd, v4 or v0, is seen from the bytes.

    Raises SessionRefused with the first line (from 1) that cannot be read, for any bytes whatever.
    """
    if len(data) > MAX_LOG_BYTES:
        raise SessionRefused(f"the log is larger than {MAX_LOG_BYTES} bytes")
    return _parsed(BytesIO(data))


def _parsed(stream: BinaryIO) -> Session:
    found = objects(lines(unpacked(stream)))
    _, head = next(found, (1, None))
    if head is None:
        raise SessionRefused("there is no header line", line=1)
    header, rows = header_and_rows(head, found)
    events: list[Event] = []
    lifecycle = Lifecycle()
    reader = RowReader(header, lambda event, _line, _data_at: lifecycle.accept(event))
    for line, row in rows:
        events.append(reader.take(line, row))
    reader.end()
    return Session(header, tuple(events))


def header_and_rows(
    head: dict[str, Any], rows: Iterator[tuple[int, dict[str, Any]]]
) -> tuple[Header, Iterator[tuple[int, dict[str, Any]]]]:
    """The header of a log, and its rows as rows of v4, each with its line. Raises SessionRefused."""
    if head.get("type") != "session":
        raise SessionRefused("the first line is not a session header", line=1)
    if is_v0(head):
        return format_v0.convert(head, (row for _, row in rows))
    return _header(head), rows


def is_v0(head: dict[str, Any]) -> bool:
    """Whether a header is that of an older log, which is converted as a whole."""
    version = head.get("version")
    return version == 0 and type(version) is int


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
    value = decode_row(line)
    digits = line.translate(_EXPONENTS)
    is_suspect = b"0e000" in digits or b"0e+000" in digits or b"0" * _LONG_FLOAT in digits
    return _decoded(line) if is_suspect and b"Infinity" in _as_written(value) else value


def decode_row(line: bytes) -> Any:
    """As `decode_line`, but infinities are left to whoever writes the value again."""
    try:
        value = from_json(line, allow_inf_nan=False)
    except ValueError:
        # The standard parser is the judge: it takes half surrogate pairs, and is asked for few lines.
        return _decoded(line)
    if len(line) > _LONG_INTEGER and b"00" in line[:: _LONG_INTEGER // 2].translate(_EXPONENTS):
        return _decoded(line)
    return value


_LONG_FLOAT = 300
"""Digits from which on a number with a point may be too large."""
_LONG_INTEGER = 4_000
"""Digits from which on Python may refuse to write a number. Two digits half as far apart hint at one."""
_KINDS = {**dict.fromkeys(b"0123456789", b"0"), **dict.fromkeys(b"eE", b"e"), ord("+"): b"+"}
_EXPONENTS = b"".join(_KINDS.get(byte, b" ") for byte in range(256))
"""Each byte as what it is in a number, for `bytes.translate`."""


def _as_written(value: Any) -> bytes:
    try:
        return to_json(value)
    except ValueError:
        return b"Infinity"


def _decoded(line: bytes) -> Any:
    try:
        value = _DECODER.decode(line.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None
    if _brackets(line) > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise ValueError("nested too deep")
    return value


def _brackets(line: bytes) -> int:
    return line.count(b"[") + line.count(b"{")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number without bounds")
    return number


def _no_constant(_text: str) -> float:
    raise ValueError("not a number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def not_json(error: ValueError, line: int) -> SessionRefused:
    """The refusal of a line that `decode_line` refused."""
    return SessionRefused(f"the line is not JSON ({_why(error)})", line=line)


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


def objects(found: Iterator[tuple[int, bytes, bool]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, its JSON object); a last one without its end is dropped if it is not whole.

    Raises SessionRefused.
    """
    for number, line, is_ended in found:
        try:
            value = decode_line(line)
        except ValueError as error:
            if not is_ended and number > 1:
                return
            raise not_json(error, number) from None
        if not isinstance(value, dict):
            raise SessionRefused("the line is not a JSON object", line=number)
        yield number, value


class RowReader:
    """Binds the rows of a log to its header, one by one. Mutable: one per reading."""

    def __init__(self, header: Header, accept: Callable[[Event, bytes | None, int], None]) -> None:
        """`accept` takes each checked row and refuses one that cannot follow those before it.

        It is given the line as well, and where its data begins, if the fast parser read it (`row_json`).
        """
        self.header = header
        self.count = 0
        self._accept = accept
        self._is_marked = False

    def take(self, number: int, row: dict[str, Any], line: bytes | None = None, data_at: int = 0) -> Event:
        """Check the next row, of line `number`. Raises SessionRefused with that.

        `line` and where its data begins: if the fast parser read it.
        """
        try:
            event = checked(row, self.count)
            if event.type == END_SEED and is_inherited_marker(event):
                if self._is_marked or not self.header.is_seeded:
                    raise no(event, "an inherited end-of-seed marker too many")
                self._is_marked = True
            elif event.type == DELIVERY:
                self._check_delivery(event)
            self._accept(event, line, data_at)
        except SessionRefused as error:
            raise _at(number, error) from None
        except SeedRefused as error:
            facts = error.facts
            raise SessionRefused(
                facts["what"], line=number, seq=facts["seq"], event_type=facts["type"]
            ) from None
        self.count += 1
        return event

    def end(self) -> None:
        """All that there is was taken. Raises SessionRefused where the marker of the seed is missing."""
        if self.header.is_seeded and not self._is_marked:
            raise SessionRefused("the header says isSeeded, but no row marks the end of the seed", line=1)

    def _check_delivery(self, event: Event) -> None:
        # Inherited rows name the parent's session, own ones the log's own.
        is_inherited = (
            self.header.is_seeded and not self._is_marked and self.header.parent_session is not None
        )
        if is_inherited or event.data.get("sessionFormatVersion") != DELIVERY_VERSION:
            return
        if event.data["sessionId"] != self.header.id:
            raise no(event, "the delivery row names another session")


def _at(line: int, error: SessionRefused) -> SessionRefused:
    facts = error.facts
    return SessionRefused(facts["what"], line=line, seq=facts["seq"], event_type=facts["type"])
