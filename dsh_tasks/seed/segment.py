"""Segments: the completed turns of a log on their way into chunks, and what each needs of the others.

A row stands at a *place*: its seq, less the markers of inherited parts before it, which no seed keeps.
Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dsh_tasks.rows import Move
from dsh_tasks.seed.chunks import Chunk, canonical, content_of, pack, pack_many, rows_of
from dsh_tasks.session import Event

NOWHERE = 1 << 62
"""Behind every place."""


@dataclass(slots=True)
class Needs:
    """What the rows of a segment name that stands before them."""

    earliest: int = NOWHERE
    """First place that a row names which cannot be dropped."""
    outside: set[int] = field(default_factory=set)
    """All places before the segment that its rows name."""
    dispensable: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Bookkeeping: its number in the segment, and the places that it names, its own segment's too."""
    earliest_dispensable: int = NOWHERE
    """First place that bookkeeping names."""
    earliest_turn: int = NOWHERE
    """Lowest turn number in a row."""


@dataclass(slots=True)
class Segment:
    """The rows of one completed turn, with those between it and the turn before."""

    turn: int
    start: int
    """Place of its first row."""
    rows: int
    raw: bytes | None
    """Canonical bytes, until they are packed; None as well where it was never to be kept."""
    needs: Needs
    step_at: int | None
    """Number of the row that opens its first step."""
    shown_at: int | None
    """Number of its first row that a model sees."""
    is_strict: bool
    """Each call has begun and has its result."""
    is_paired: bool
    """Results stand right after their calls."""
    chunk: Chunk | None = None
    rewritten: tuple[tuple[int, ...], Chunk] | None = None
    """The chunk without some rows, and what decides its bytes."""

    @property
    def end(self) -> int:
        """The place after its last row."""
        return self.start + self.rows

    def packed(self) -> Chunk:
        """Its chunk, all rows kept."""
        if self.chunk is None:
            assert self.raw is not None  # kept segments have their bytes
            self.chunk, self.raw = pack(self.raw, self.rows), None
        return self.chunk

    def events(self, *, is_wanted: Callable[[int, bytes], bool] | None = None) -> Iterator[Event]:
        """Its rows at their places; only those that `is_wanted` by place and canonical line."""
        raw, start = self.raw, self.start
        if raw is None:
            raw = content_of(self.packed())
        chosen = None if is_wanted is None else lambda number, line: is_wanted(number + start, line)
        return rows_of(raw, self.turn, lambda relative: relative + start, is_wanted=chosen)

    def without(self, dropped: Sequence[int], place: Move) -> Chunk:
        """Its chunk without the rows at `dropped`; `place` is where any row of the log then stands.

        Raises KeyError, out of `place`, where a row that is kept names one that is not.
        """
        gone = set(dropped)
        start = place(next(seq for seq in range(self.start, self.end) if seq not in gone))
        key = (*dropped, -1, *(_distance(place, seq, start) for seq in sorted(self.needs.outside)))
        if self.rewritten is None or self.rewritten[0] != key:
            lines = [
                canonical(event, lambda seq: place(seq) - start, self._relative, is_exact=True)
                for event in self.events()
                if event.seq not in gone
            ]
            self.rewritten = (key, pack(b"".join(lines), len(lines)))
        return self.rewritten[1]

    def _relative(self, turn: int) -> int:
        return turn - self.turn


def _distance(place: Move, seq: int, start: int) -> int:
    try:
        return place(seq) - start
    except KeyError:
        # Only a row that is dropped itself may name it.
        return NOWHERE


_BATCH_BYTES = 4 << 20
_THREADS = 2
"""More would wait for each other: digests are made one by one."""


def pack_all(segments: Iterable[Segment], *, threads: int = _THREADS) -> None:
    """Bring into chunks whatever is not yet, many in one call; bytes are let go of as they are packed."""
    batch: list[Segment] = []
    size = 0
    for segment in segments:
        if segment.raw is not None:
            batch.append(segment)
            size += len(segment.raw)
        if size >= _BATCH_BYTES:
            _pack(batch, threads)
            batch, size = [], 0
    _pack(batch, threads)


def _pack(batch: Sequence[Segment], threads: int) -> None:
    if not batch:
        return
    chunks = pack_many([(segment.raw or b"", segment.rows) for segment in batch], threads=threads)
    for segment, chunk in zip(batch, chunks, strict=True):
        segment.chunk, segment.raw = chunk, None
