"""SeedMaker: takes the rows of a log one by one and makes seeds of its completed turns at any time.

Each turn is brought into its chunk's bytes once, as if nothing had to be left out; a seed is then
a choice of chunks. What forbids that is noted row by row (`segment.Needs`): only the turns concerned
are opened again, to leave rows out or to be folded. So another seed after one more turn costs one turn,
and rows are not kept as objects. Pure: no clock, no I/O.
"""

# ruff: noqa: SLF001 - the table at the end names the class's own methods

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from dsh_tasks.errors import LimitReached, SeedRefused, SessionRefused
from dsh_tasks.lifecycle import Lifecycle
from dsh_tasks.rows import END_SEED, Move, checked, is_inherited_marker, references
from dsh_tasks.seed import value
from dsh_tasks.seed.chunks import Chunk, canonical
from dsh_tasks.seed.inbox import TYPE as INBOX
from dsh_tasks.seed.inbox import Inbox
from dsh_tasks.seed.manifest import Page, Part
from dsh_tasks.seed.pairing import Answers, answer_of, is_paired
from dsh_tasks.seed.plain import PlainRows
from dsh_tasks.seed.segment import NOWHERE, Needs, Segment, pack_all
from dsh_tasks.seed.value import Seed
from dsh_tasks.seed.verbatim import BOOKKEEPING, Kept, kept_chunks
from dsh_tasks.session import SURFACE_TYPES, Event, Replace, Session

_UNPACKED_BYTES = 8 << 20
"""How much of a window waits unpacked: a small one is packed once, when it is asked for."""


@dataclass(slots=True)
class _Open:
    """The segment to which rows are being added."""

    turn: int
    start: int
    loose_ends: int
    place: Move
    """Place of a seq."""
    plain: PlainRows | None
    """None once a row of the segment was left out: seqs then do not tell where rows stand."""
    count: int = 0
    lines: list[bytes] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)
    step_at: int | None = None
    shown_at: int | None = None
    shown: list[int] = field(default_factory=list)

    def relative(self, seq: int) -> int:
        """Place of a seq, from the segment's own start."""
        return self.place(seq) - self.start

    def turns_on(self, turn: int) -> int:
        """A turn's number, from the segment's own."""
        self.needs.earliest_turn = min(turn, self.needs.earliest_turn)
        return turn - self.turn


class SeedMaker:
    """One per log. Rows must come in order, each checked by itself (`rows.checked`)."""

    def __init__(self, *, keep: int | None = None, first_turn: int = 1) -> None:
        """`keep`: make windows of up to so many turns only, and forget those before.

        `first_turn`: turns before this number are checked, but no seed will have them.
        """
        self._keep = keep
        self._first_turn = first_turn
        self.last_request: Event | None = None
        """The last request header, of an open turn as well."""
        self._lifecycle = Lifecycle()
        self._left_out: list[int] = []
        """Seqs of rows that no seed keeps: markers of inherited parts, and bookkeeping that names one."""
        self._segments: deque[Segment] = deque()
        self._unpacked: deque[Segment] = deque()
        """Those of them that wait to be packed."""
        self._unpacked_bytes = 0
        self._turns = 0
        self._end = 0
        """Seq after the last `turn/end`."""
        self._replaced: dict[int, list[int]] = {}
        """What rows since the last `turn/end` replaced; a copy of the surface a turn would cost a square."""
        self._has_replaced = False
        self._answers: dict[int, Answers] = {}
        self._inbox = Inbox()
        self._first_system: int | None = None
        self._begun: dict[tuple[object, ...], int] = {}
        """Places of what later bookkeeping goes on with: retries, commands, dispatches."""
        self._request = -1
        self._headers: dict[int, Event] = {}
        """Request headers, which developer messages may name from afar."""
        self._pages: dict[tuple[Part, ...], Page] = {}
        self._made: dict[int, Seed] = {}
        self._raw_bytes = 0
        self.pack: Callable[[Segment], object] = Segment.packed
        """Brings a completed turn into its chunk; may be set to have that done meanwhile (see `Packer`)."""
        self._open = _Open(1, 0, 0, self._place, PlainRows(1, 0))

    @property
    def turns(self) -> int:
        """Completed turns so far."""
        return self._turns

    @property
    def raw_bytes(self) -> int:
        """Length of the rows of all kept turns as canonical JSON."""
        return self._raw_bytes

    # -- rows -------------------------------------------------------------------------------------

    def add(self, event: Event, line: bytes | None = None, data_at: int = 0) -> None:
        """Take the next row; its line, and where in that the data begins, if `row_json` read it.

        Raises SessionRefused or SeedRefused; then the maker is of no more use.
        """
        at, kind, lifecycle = self._open, event.type, self._lifecycle
        if isinstance(event.surface_op, Replace):
            self._has_replaced = True
            gone = lifecycle.surface.run(event.surface_op.start_seq, event.surface_op.end_seq)
            self._replaced[event.seq] = gone
        in_two = lifecycle.compaction is not None
        lifecycle.accept(event)
        plain = None if line is None or at.plain is None else at.plain.line(event, line, data_at)
        if plain is None:
            if kind == END_SEED and is_inherited_marker(event):
                if not in_two:
                    self._leave_out(event)
                    return
                # It ends a compaction that a crash left open; the plain marker of a resumed log does as well.
                event, line = Event(END_SEED, event.seq, event.time, {}), None
            if not self._note_named(event):
                self._leave_out(event)
                return
        note = _NOTES.get(kind)
        if note is not None:
            note(self, event, event.seq - len(self._left_out))
        if plain is not None:
            at.lines.append(plain)
        elif at.turn >= self._first_turn:
            at.lines.append(canonical(event, at.relative, at.turns_on, is_exact=line is not None))
        at.count += 1
        if kind == "turn/end":
            self._close(event)

    def _leave_out(self, event: Event) -> None:
        self._left_out.append(event.seq)
        self._open.plain = None

    def _place(self, seq: int) -> int:
        if not self._left_out:
            return seq
        before = bisect_left(self._left_out, seq)
        if before < len(self._left_out) and self._left_out[before] == seq:
            raise KeyError(seq)
        return seq - before

    def _note_named(self, event: Event) -> bool:
        """Note which rows this one needs; False where it is to be left out with a marker that it names."""
        seqs = references(event)
        is_dispensable = event.type in BOOKKEEPING
        if not seqs and not is_dispensable:
            return True
        try:
            named = [self._place(seq) for seq in seqs]
        except KeyError:
            if is_dispensable:
                return False
            raise SeedRefused(
                "it points at the marker of the inherited part", seq=event.seq, event_type=event.type
            ) from None
        at = self._open
        if is_dispensable:
            named += self._goes_on_with(event, event.seq - len(self._left_out))
            if named:
                at.needs.dispensable.append((at.count, tuple(named)))
                at.needs.earliest_dispensable = min(at.needs.earliest_dispensable, *named)
        else:
            at.needs.earliest = min(at.needs.earliest, *named)
        at.needs.outside.update(seq for seq in named if seq < at.start)
        return True

    def _note_step(self, _event: Event, _place: int) -> None:
        if self._open.step_at is None:
            self._open.step_at = self._open.count

    def _note_inbox(self, event: Event, place: int) -> None:
        self._inbox.splice(event.data, place)

    def _note_request(self, event: Event, place: int) -> None:
        self._request = place
        self._headers[place] = self.last_request = event

    def _note_shown(self, event: Event, place: int) -> None:
        at, kind = self._open, event.type
        if at.shown_at is None:
            at.shown_at = at.count
        at.shown.append(event.seq)
        answer = answer_of(event)
        if answer is not None:
            self._answers[event.seq] = answer
        elif kind == "system/message":
            if self._first_system is None:
                self._first_system = place
            head = self._lifecycle.head
            if head is not None and head != event.seq:
                # It may stand where it does only because another stands first.
                at.needs.earliest = min(at.needs.earliest, self._place(head))

    def _goes_on_with(self, event: Event, place: int) -> list[int]:
        """Places of the rows without which the harness refuses this one, where it does not name them."""
        data, named = event.data, list[int]()
        match event.type:
            case "llm/retry":
                name, count = data.get("retryId"), data["retry"]
                named = [self._request]
                if count > 1:
                    named.append(self._begun.get(("retry", name, count - 1), -1))
                self._begun["retry", name, count] = place
            case "llm/retry-started":
                named = [self._begun.get(("retry", data.get("retryId"), data.get("retry")), -1)]
            case "command/run":
                self._begun["command", data["commandId"]] = place
            case "command/done":
                named = [self._begun.get(("command", data["commandId"]), -1)]
            case "tool/ptc-dispatch-start":
                self._begun["dispatch", data.get("subCallId")] = place
            case "tool/ptc-dispatch":
                named = [self._begun.get(("dispatch", data.get("subCallId")), -1)]
        return named

    def _close(self, event: Event) -> None:
        at = self._open
        shown = at.shown
        segment = Segment(
            turn=at.turn,
            start=at.start,
            rows=at.count,
            raw=b"".join(at.lines) if at.lines else None,
            needs=at.needs,
            step_at=at.step_at,
            shown_at=at.shown_at,
            is_strict=self._lifecycle.loose_ends == at.loose_ends,
            is_paired=is_paired(shown, self._answers),
        )
        self._raw_bytes += sum(map(len, at.lines))
        self._segments.append(segment)
        if segment.raw is not None:
            self._unpacked.append(segment)
            self._unpacked_bytes += len(segment.raw)
        if self._keep is not None and len(self._segments) > max(self._keep, 1):
            gone = self._segments.popleft()
            if self._unpacked and self._unpacked[0] is gone:
                self._let_go()
        while self._unpacked_bytes > (0 if self._keep is None else _UNPACKED_BYTES):
            self.pack(self._let_go())
        self._turns += 1
        self._end = event.seq + 1
        self._replaced.clear()
        self._inbox.cut()
        self._made.clear()
        plain = PlainRows(at.turn + 1, self._end)
        self._open = _Open(at.turn + 1, segment.end, self._lifecycle.loose_ends, self._place, plain)

    def _let_go(self) -> Segment:
        """The first of the segments that wait to be packed."""
        segment = self._unpacked.popleft()
        self._unpacked_bytes -= len(segment.raw or b"")
        return segment

    # -- seeds ------------------------------------------------------------------------------------

    def seed(self, turns: int | None = None, *, max_bytes: int | None = None) -> Seed:
        """Freeze the last `turns` completed turns, or all, as the start of a child.

        0 gives an empty seed; more than there are gives all of them. Events are numbered from 0, turns
        from 1. Raises SeedRefused, LimitReached over `max_bytes` of raw rows.
        """
        if turns is not None and turns < 0:
            raise SeedRefused("a window has 0 or more turns")
        count = self._turns if turns is None else min(turns, self._turns)
        if count > self._turns - self._first_turn + 1 or (self._keep is not None and count > self._keep):
            raise SeedRefused("turns before this window were read, but not kept")
        if not count:
            return value.empty(self._turns)
        if count not in self._made:
            kept = list(islice(self._segments, len(self._segments) - count, None))
            self._made[count] = self._chosen(kept) or self._rewritten(kept)
        seed = self._made[count]
        if max_bytes is not None and seed.raw_bytes > max_bytes:
            raise too_large(seed, "seed_bytes", max_bytes)
        return seed

    def _live(self, first: int = 0) -> list[int]:
        """Seqs from `first` on of the surface at the last end of a turn, in order."""
        live: list[int] = []
        for shown in self._lifecycle.surface:
            waiting = [shown]
            while waiting:
                seq = waiting.pop()
                if seq in self._replaced:
                    waiting += reversed(self._replaced[seq])
                elif first <= seq < self._end:
                    live.append(seq)
        return live

    def _seq(self, place: int) -> int:
        """The first seq that can stand at `place`."""
        for marker in self._left_out:
            if marker <= place:
                place += 1
        return place

    def _head(self, kept: Sequence[Segment]) -> int | None:
        """Place at which an empty system message has to be put in; NOWHERE where none can stand first."""
        if self._first_system is None or self._first_system >= kept[0].start:
            return None
        opened: int | None = None
        for segment in kept:
            if opened is None and segment.step_at is not None:
                if segment.shown_at is not None and segment.shown_at < segment.step_at:
                    return NOWHERE
                opened = segment.start + segment.step_at + 1
            if segment.shown_at is not None:
                return NOWHERE if opened is None else opened
        return None

    def _chosen(self, kept: Sequence[Segment]) -> Seed | None:
        """The seed as a choice of chunks, some without some rows; None where that cannot be."""
        first = kept[0].start
        head = self._head(kept)
        if head == NOWHERE or not self._stand_alone(kept):
            return None
        dropped = self._dropped(kept, first)
        gone = set(dropped)

        def place(seq: int) -> int:
            if seq < first or seq in gone:
                raise KeyError(seq)
            return seq - first - bisect_left(dropped, seq)

        pack_all(kept)
        self._unpacked = deque(segment for segment in self._unpacked if segment.raw is not None)
        self._unpacked_bytes = sum(len(segment.raw or b"") for segment in self._unpacked)
        try:
            chunks = [_chunk_of(segment, dropped, place) for segment in kept]
        except KeyError:
            return None
        at = None if head is None else head - first - bisect_left(dropped, head)
        return value.made("verbatim", chunks, self._turns, head=at, pages=self._pages)

    def _stand_alone(self, kept: Sequence[Segment]) -> bool:
        """Whether no row that must be kept needs what is not, and calls and results stand as they should."""
        first, first_turn = kept[0].start, kept[0].turn
        if any(
            segment.needs.earliest < first or segment.needs.earliest_turn < first_turn for segment in kept
        ):
            return False
        if self._has_replaced and not is_paired(self._live(self._seq(first)), self._answers):
            return False
        return all(segment.is_strict and (self._has_replaced or segment.is_paired) for segment in kept)

    def _dropped(self, kept: Sequence[Segment], first: int) -> list[int]:
        """Places of the rows that are left out: waiting messages, bookkeeping that names what is not kept."""
        gone = self._inbox.loose(first)
        for segment in kept:
            if not gone and segment.needs.earliest_dispensable >= first:
                continue
            for number, named in segment.needs.dispensable:
                if any(seq < first or seq in gone for seq in named):
                    gone.add(segment.start + number)
        return sorted(gone)

    def _rewritten(self, kept: Sequence[Segment]) -> Seed:
        """The seed made of rows again, row by row."""
        first = kept[0].start
        live = [self._place(seq) for seq in self._live(self._seq(first))]
        form, chunks, head = kept_chunks(
            Kept(
                segments=kept,
                live=live,
                waiting=self._inbox.loose(first),
                system_before=self._first_system is not None and self._first_system < first,
                has_system=self._first_system is not None and self._first_system < kept[-1].end,
                headers=self._headers,
            )
        )
        return value.made(form, chunks, self._turns, head=head, pages=self._pages)


_NOTES = {
    **dict.fromkeys(SURFACE_TYPES, SeedMaker._note_shown),
    "step/start": SeedMaker._note_step,
    INBOX: SeedMaker._note_inbox,
    "request/header": SeedMaker._note_request,
}
"""What else is to be known of rows of a type."""


def _chunk_of(segment: Segment, dropped: Sequence[int], place: Move) -> Chunk:
    if not dropped:
        return segment.packed()
    inside = dropped[bisect_left(dropped, segment.start) : bisect_left(dropped, segment.end)]
    if not inside and not segment.needs.outside:
        return segment.packed()
    return segment.without(inside, place)


def too_large(seed: Seed, limit: str, cap: int) -> LimitReached:
    """The refusal of a seed over `cap` bytes of raw rows; it names the window that would fit."""
    size, fits = 0, 0
    for chunk in reversed(seed.chunks):
        size += chunk.raw_bytes
        if size > cap:
            break
        fits += 1
    smaller = (
        f"use a fork-lite of {fits}, which fits" if fits else "even its last turn is larger; spawn instead"
    )
    way_out = f"it keeps {seed.turns} turns; {smaller}"
    return LimitReached(limit, value=seed.raw_bytes, cap=cap, way_out=way_out)


def cut(session: Session, *, max_bytes: int | None = None) -> Seed:
    """Freeze every event of `session` up to and including its last `turn/end`, of whatever reason.

    A turn still open is never part of it; without a completed turn the seed is empty. The marker of
    the session's own inherited part is dropped and the rows are renumbered.

    Raises SeedRefused with `seq` and `type` of the first event that cannot be kept, LimitReached over
    `max_bytes` of raw rows.
    Source: the harness forks at the last `turn/end`.
    """
    return taken(session).seed(max_bytes=max_bytes)


def window(session: Session, turns: int, *, max_bytes: int | None = None) -> Seed:
    """Freeze the last `turns` completed turns of `session` as the start of a child.

    0 gives an empty seed; more than there are gives all of them, the same bytes as `cut`. A turn is
    `turn/start` to `turn/end` of whatever reason, with the rows since the turn before. Events are
    numbered from 0, turns from 1, and share nothing with `session`.

    Raises SeedRefused with `seq` and `type` of the first event that cannot be kept, LimitReached over
    `max_bytes` of raw rows.
    Source: the window rule is ours (docs/format.md).
    """
    if turns < 0:
        raise SeedRefused("a window has 0 or more turns")
    ended = sum(event.type == "turn/end" for event in session.events)
    maker = taken(session, SeedMaker(first_turn=max(1, ended - turns + 1)))
    return maker.seed(turns, max_bytes=max_bytes)


def taken(session: Session, maker: SeedMaker | None = None, *, since: int = 0) -> SeedMaker:
    """A maker that has the completed turns of `session`, whose rows before `since` it had before.

    Raises SeedRefused with `seq` and `type` of the first event that cannot be kept.
    """
    maker = maker or SeedMaker()
    for place in range(since, session.end_of_completed()):
        event = session.events[place]
        try:
            maker.add(checked(event.row(), place))
        except SeedRefused:
            raise
        except SessionRefused as error:
            raise SeedRefused(error.facts["what"], seq=event.seq, event_type=event.type) from None
    return maker
