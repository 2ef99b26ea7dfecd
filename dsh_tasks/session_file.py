"""SessionFile: a session's log file as a parent, followed as it grows.

One pass over the file gives the seeds; another fork reads and hashes only what was added. In memory
are the bytes of the turns that seeds are made of, compressed, never the rows as objects: a log of
100 MB takes a fraction of that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dsh_tasks.errors import SessionRefused
from dsh_tasks.format import RowReader, decode_row, header_and_rows, is_v0, not_json, opened
from dsh_tasks.log_lines import Line, lines, skip, unpacked
from dsh_tasks.row_json import RowParser
from dsh_tasks.seed import Packer, Seed, SeedMaker
from dsh_tasks.session import Header, route_of

_PROOF = 1024
"""Bytes before what was added that must be those that were taken."""


class SessionFile:
    """The log at `path`: plain or zstd, v4 or v0. Its methods may be called from any thread.

    `refresh` reads what was added; a file that was replaced, cut or written over is read anew. The
    other methods tell of the log as it was last read, and read it first where it never was.
    """

    def __init__(self, path: str | Path, *, keep: int | None = None) -> None:
        """`keep`: only windows of up to so many completed turns will be asked for; memory follows these."""
        self.path = Path(path)
        self._keep = keep
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        self._maker = SeedMaker(keep=self._keep)
        self._reader: RowReader | None = None
        self._offset = 0
        """Bytes taken so far, unpacked."""
        self._lines = 0
        self._last = b""
        """The last line of these: what must still stand before what was added."""
        self._is_unended = False
        """The last line taken had no end yet."""
        self._is_v0 = False

    def refresh(self) -> None:
        """Read what was added since. Raises SessionRefused with the line; the next time all is read anew."""
        with self._lock:
            try:
                with opened(self.path) as stream:
                    self._read(stream)
            except BaseException:
                self._begin()
                raise

    @property
    def header(self) -> Header:
        """The log's first line. Raises SessionRefused where the log was never read and cannot be."""
        return self._taken().header

    def model_route(self) -> tuple[str, str] | None:
        """(provider, model) of the last request that the log records."""
        self._taken()
        request = self._maker.last_request
        return None if request is None else route_of(request)

    def seed(self, turns: int | None = None, *, max_bytes: int | None = None) -> Seed:
        """Freeze the last `turns` completed turns, or all: as `seed.window` and `seed.cut` do.

        Raises SessionRefused, SeedRefused, LimitReached.
        """
        with self._lock:
            self._taken()
            return self._maker.seed(turns, max_bytes=max_bytes)

    def _taken(self) -> RowReader:
        with self._lock:
            if self._reader is None:
                self.refresh()
            assert self._reader is not None  # a file without a header was refused
            return self._reader

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, stream: BinaryIO) -> None:
        source = unpacked(stream)
        if self._offset and not self._goes_on(stream, source):
            self._begin()
            stream.seek(0)
            source = unpacked(stream)
        found = lines(source, self._lines + (not self._is_unended))
        with Packer(self._maker):
            if self._reader is None:
                self._reader = self._begun(found)
            self._take(found, self._reader)
        self._reader.end()

    def _begun(self, found: Iterator[Line]) -> RowReader:
        """Take the header; of a v0 log, which is converted as a whole, all lines."""
        first = next(found, None)
        head = None if first is None else self._decoded(first)
        if first is None or head is None:
            raise SessionRefused("there is no header line", line=1)
        self._count(first)
        self._is_v0 = is_v0(head)
        header, rows = header_and_rows(head, self._objects(found))
        reader = RowReader(header, self._maker.add)
        if self._is_v0:
            for number, row in rows:
                reader.take(number, row)
        return reader

    def _take(self, found: Iterator[Line], reader: RowReader) -> None:
        """Take the lines of v4: nearly all are read by the fast parser."""
        parse, take, size, last = RowParser().parse, reader.take, 0, None
        for one in found:
            number, line, is_ended = one
            known = parse(line)
            if known is not None:
                take(number, known[0], line, known[1])
            elif self._is_unended and not line and is_ended:
                # Only the end of the last line was added first.
                self._offset += 1
                self._last += b"\n"
                self._is_unended = False
                continue
            elif (row := self._decoded(one)) is not None:
                take(number, row)
            else:
                break
            size += len(line) + is_ended
            last = one
        if last is not None:
            self._offset += size
            self._lines, self._last, self._is_unended = last[0], last[1], not last[2]

    def _objects(self, found: Iterator[Line]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line, its object); each is counted as taken when the next is asked for."""
        for one in found:
            row = self._decoded(one)
            if row is None:
                return
            yield one[0], row
            self._count(one)

    def _decoded(self, one: Line) -> dict[str, Any] | None:
        """The object in a line, the precise way; None where it is a last line that is not whole."""
        number, line, is_ended = one
        try:
            row = decode_row(line)
        except ValueError as error:
            if not is_ended and number > 1:
                return None
            raise not_json(error, number) from None
        if type(row) is not dict:
            raise SessionRefused("the line is not a JSON object", line=number)
        return row

    def _count(self, one: Line) -> None:
        """A line was taken."""
        number, line, is_ended = one
        self._offset += len(line) + is_ended
        self._lines, self._last, self._is_unended = number, line, not is_ended

    def _goes_on(self, stream: BinaryIO, source: BinaryIO) -> bool:
        """Whether what was taken still stands there; `source` is then read up to its end."""
        if self._is_v0:
            # Converted as a whole.
            return False
        last = self._last if self._is_unended or self._last.endswith(b"\n") else self._last + b"\n"
        last = last[-_PROOF:]
        if source is not stream:
            return skip(source, self._offset).endswith(last)
        stream.seek(self._offset - len(last))
        return stream.read(len(last)) == last
