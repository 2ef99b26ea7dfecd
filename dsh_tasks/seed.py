"""Seed: the frozen, renumbered events that a child starts with; cut, window, chunks, digest.

`fork` keeps every row up to the last `turn/end`, `fork-lite` those of the last completed turns. Rows
are kept verbatim wherever nothing in them reaches outside what is kept; bookkeeping that does reach
outside is dropped, and so are messages that wait in the inbox (`inbox_rows`); where anything else
reaches outside, the turns are folded (`folding`). Same log, same turns, same bytes. Pure: no clock,
no I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dsh_tasks import chunks as chunking
from dsh_tasks.chunks import Chunk, chunk_digests, decode
from dsh_tasks.errors import LimitReached, SeedRefused, SessionRefused
from dsh_tasks.folding import folded, framed
from dsh_tasks.inbox_rows import loose
from dsh_tasks.lifecycle import Lifecycle
from dsh_tasks.rows import DELIVERY, END_SEED, checked, is_inherited_marker, moved
from dsh_tasks.session import SURFACE_TYPES, Event, Header, Session, Turn
from dsh_tasks.surface import fold, paired

__all__ = [
    "Chunk",
    "Seed",
    "child_header",
    "child_session",
    "chunk_digests",
    "cut",
    "decode",
    "empty",
    "end_of_seed",
    "inherited",
    "window",
]

Form = Literal["empty", "verbatim", "folded"]
BYTES_PER_TOKEN = 4
"""A guess, said to be one wherever it is shown."""

_BOOKKEEPING = frozenset(
    {
        "session/title",
        "session/title-llm-request",
        DELIVERY,
        "llm/retry",
        "llm/retry-started",
        "command/run",
        "command/done",
        "tool/ptc-dispatch-start",
        "tool/ptc-dispatch",
        "hook/invoked",
        "hook/result",
    }
)
"""Rows that no model sees and that may go where they cite what is not kept."""


@dataclass(frozen=True)
class Seed:
    """The start of a child's log. It shares nothing with the log that it was made from."""

    form: Form
    chunks: tuple[Chunk, ...]
    """One a turn."""
    source_turns: int
    """Completed turns that the log had when the seed was made."""
    manifest: bytes
    digest: str
    """sha256, in hex, of the manifest: the seed's name."""
    head: int | None = None
    """Seq of an empty system message that stands in for the parent's, which is not kept; in no chunk."""

    @property
    def turns(self) -> int:
        """Completed turns that it keeps."""
        return len(self.chunks)

    @property
    def event_count(self) -> int:
        """Rows, without the marker that ends the inherited part."""
        return sum(chunk.rows for chunk in self.chunks) + (self.head is not None)

    @property
    def raw_bytes(self) -> int:
        """Length of the rows as canonical JSON."""
        return sum(chunk.raw_bytes for chunk in self.chunks)

    @property
    def stored_bytes(self) -> int:
        """Length of what is kept, each chunk once."""
        return len(self.manifest) + sum({chunk.digest: len(chunk.data) for chunk in self.chunks}.values())

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The rows, numbered from 0; decoded from the frozen bytes when first asked for."""
        stored = {chunk.digest: chunk.data for chunk in self.chunks}
        return decode(self.manifest, stored.__getitem__)


def empty() -> Seed:
    """What a child starts with that inherits nothing."""
    return _seed("empty", (), 0)


def cut(session: Session, *, max_bytes: int | None = None) -> Seed:
    """Freeze every event of `session` up to and including its last `turn/end`, of whatever reason.

    A turn still open is never part of it; without a completed turn the seed is empty. The marker of
    the session's own inherited part is dropped and the rows are renumbered.

    Raises SeedRefused with `seq` and `type` of the first event that cannot be kept, LimitReached over
    `max_bytes` of raw rows.
    Source: the harness forks at the last `turn/end`.
    """
    return window(session, len(session.events), max_bytes=max_bytes)


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
    log = _completed(session)
    ended = Session(session.header, log).completed_turns()
    kept = ended[len(ended) - min(turns, len(ended)) :]
    if not kept:
        return _seed("empty", (), len(ended))
    first = 0 if len(kept) == len(ended) else _end_of(ended[-len(kept) - 1])
    form, rows, head = _kept_rows(log, first, kept)
    chunks = tuple(chunking.encode(part, number) for number, part in rows)
    seed = _seed(form, chunks, len(ended), head)
    _check_size(seed, max_bytes)
    return seed


def _seed(form: Form, chunks: tuple[Chunk, ...], source_turns: int, head: int | None = None) -> Seed:
    manifest = chunking.write_manifest(form, chunks, head=head)
    return Seed(form, chunks, source_turns, manifest, hashlib.sha256(manifest).hexdigest(), head)


def _check_size(seed: Seed, max_bytes: int | None) -> None:
    if max_bytes is not None and seed.raw_bytes > max_bytes:
        raise LimitReached(
            "seed_bytes",
            value=seed.raw_bytes,
            cap=max_bytes,
            way_out=f"it keeps {seed.turns} turns; take a fork-lite with fewer",
        )


def _end_of(turn: Turn) -> int:
    assert turn.end_seq is not None  # only completed turns come here
    return turn.end_seq + 1


# -- the completed part -------------------------------------------------------------------------


def _completed(session: Session) -> tuple[Event, ...]:
    """The checked rows up to the last `turn/end`, without the marker of an inherited part."""
    events = session.events[: session.end_of_completed()]
    lifecycle = Lifecycle()
    is_cut_in_two = False
    for place, event in enumerate(events):
        try:
            checked(event.row(), place)
            is_cut_in_two |= is_inherited_marker(event) and lifecycle.compaction is not None
            lifecycle.accept(event)
        except SessionRefused as error:
            raise _refused(error, event) from None
    return _without_marker(events, keep_plain=is_cut_in_two)


def _without_marker(events: tuple[Event, ...], *, keep_plain: bool) -> tuple[Event, ...]:
    """The rows without inherited markers; `keep_plain` leaves plain ones, which end an open compaction."""
    if not any(is_inherited_marker(event) for event in events):
        return events
    kept: list[Event] = []
    places: dict[int, int] = {}
    for event in events:
        if is_inherited_marker(event):
            if keep_plain:
                kept.append(Event(END_SEED, len(kept), event.time, {}))
            continue
        places[event.seq] = len(kept)
        try:
            kept.append(moved(event, len(kept), places.__getitem__, _same))
        except KeyError:
            raise SeedRefused(
                "it points at the marker of the inherited part", seq=event.seq, event_type=event.type
            ) from None
    return tuple(kept)


def _same(turn: int) -> int:
    return turn


def _refused(error: SessionRefused, event: Event) -> SeedRefused:
    return SeedRefused(error.facts["what"], seq=event.seq, event_type=event.type)


# -- verbatim or folded -------------------------------------------------------------------------


def _kept_rows(
    log: Sequence[Event], first: int, kept: Sequence[Turn]
) -> tuple[Form, list[tuple[int, list[Event]]], int | None]:
    """Form; the rows of the kept turns, turn by turn, numbered from 0 and from turn 1; place of a head."""
    waiting = loose(log, first)
    rows = _verbatim([event for event in log[first:] if event.seq not in waiting], kept[0].number - 1)
    if rows is not None and not _is_paired(rows):
        rows = None
    has_system = any(event.type == "system/message" for event in log[:first])
    head = _place_of_head(rows) if rows is not None and has_system else None
    if rows is not None and head != _NOWHERE:
        return "verbatim", list(enumerate(_by_turn(rows), start=1)), head
    live = (node for node in fold(log) if node.seq >= first)
    nodes = paired(live, completed_before=len(log))
    fresh = folded(framed(log, kept, nodes), log, chunking.EMPTY_HEAD)
    _check_fold(fresh)
    return "folded", fresh, None


def _is_paired(rows: Sequence[Event]) -> bool:
    """Whether calls and results stand as a strict model wants them, which the harness does not mend."""
    nodes = fold(rows)
    return paired(nodes, completed_before=len(rows)) == nodes


_NOWHERE = -1


def _place_of_head(rows: Sequence[Event]) -> int | None:
    """Where a system message can stand first: after the first step's start.

    None where nothing is shown, so that none is needed; _NOWHERE where a message comes before.
    """
    place = None
    for event in rows:
        if event.type == "step/start" and place is None:
            place = event.seq + 1
        elif event.type in SURFACE_TYPES:
            return _NOWHERE if place is None else place
    return None


def _verbatim(rows: Sequence[Event], turns_before: int) -> list[Event] | None:
    """The rows numbered anew, less the bookkeeping that reaches outside; None where more does."""
    lifecycle = Lifecycle(strict=True)
    places: dict[int, int] = {}
    kept: list[Event] = []
    is_same = not turns_before
    for event in rows:
        # Up to the first row that is dropped, the rows of a fork are numbered as they are.
        is_same = is_same and event.seq == len(kept)
        fresh = event if is_same else _renumbered(event, places, len(kept), turns_before)
        try:
            if fresh is not None:
                lifecycle.accept(fresh)
        except SessionRefused:
            fresh = None
        if fresh is not None:
            places[event.seq] = len(kept)
            kept.append(fresh)
        elif event.type not in _BOOKKEEPING:
            return None
    return kept


def _renumbered(event: Event, places: dict[int, int], seq: int, turns_before: int) -> Event | None:
    """The event at its new place; None where it points at a row or a turn that is not kept."""
    turn = event.data.get("turn") if isinstance(event.data, dict) else None
    if type(turn) is int and turn <= turns_before:
        return None

    def place(ref: int) -> int:
        # A repair's name holds its own number.
        return seq if ref == event.seq else places[ref]

    try:
        return moved(event, seq, place, lambda number: number - turns_before)
    except KeyError:
        return None


def _by_turn(rows: Sequence[Event]) -> Iterator[list[Event]]:
    first = 0
    for place, event in enumerate(rows):
        if event.type == "turn/end":
            yield list(rows[first : place + 1])
            first = place + 1


def _check_fold(fresh: Sequence[tuple[int, Sequence[Event]]]) -> None:
    lifecycle = Lifecycle(strict=True)
    for _number, rows in fresh:
        for event in rows:
            try:
                lifecycle.accept(event)
            except SessionRefused as error:
                raise SeedRefused(f"folding gives no valid log: {error.facts['what']}") from None


# -- the child ------------------------------------------------------------------------------------


def child_header(
    *,
    parent_session: str,
    child_id: str,
    created_at_ms: int,
    depth: int,
    seeded: bool,
    cwd: str | None = None,
    agent_preset: str | None = None,
) -> Header:
    """Header of a child's log. `depth` is the child's own: its parent's and one."""
    return Header(
        version=4,
        id=child_id,
        created_at=created_at_ms,
        cwd=cwd,
        parent_session=parent_session,
        is_seeded=seeded,
        origin="subagent",
        agent_preset=agent_preset,
        delegation_depth=depth,
    )


def end_of_seed(seq: int, time_ms: int) -> Event:
    """The row that says that all before it was inherited."""
    return Event(END_SEED, seq, time_ms, {"inherited": True})


def child_session(header: Header, seed: Seed | Sequence[Event], own: Sequence[Event] = ()) -> Session:
    """A child's log: the seed, the marker that ends it, the child's own rows.

    `own` goes on where the seed ends, and may begin with the marker; where it does not, the marker
    is put in (at the header's time) and `own` moves up by one. An unseeded child has no marker.
    """
    inherited_rows = tuple(seed.events if isinstance(seed, Seed) else seed)
    own = tuple(own)
    if not header.is_seeded or any(is_inherited_marker(event) for event in own):
        return Session(header, (*inherited_rows, *own))
    cut_at = len(inherited_rows)

    def up(seq: int) -> int:
        return seq + 1 if seq >= cut_at else seq

    rest = (moved(event, event.seq + 1, up, _same) for event in own)
    return Session(header, (*inherited_rows, end_of_seed(cut_at, header.created_at), *rest))


def inherited(seed: Seed) -> str:
    """What a child starts with, in a line for people."""
    if seed.form == "empty":
        return "nothing inherited"
    tokens = seed.raw_bytes // BYTES_PER_TOKEN
    return (
        f"{seed.turns} turn{'' if seed.turns == 1 else 's'} (of {seed.source_turns} completed), "
        f"{seed.event_count} events, {seed.raw_bytes} bytes "
        f"(about {tokens} tokens, estimated as bytes/{BYTES_PER_TOKEN}), {seed.form}"
    )
