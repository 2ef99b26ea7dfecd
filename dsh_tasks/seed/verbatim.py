"""Verbatim or folded: the rows of some completed turns as a log of their own, row by row.

Rows are kept verbatim wherever nothing in them reaches outside what is kept; bookkeeping that does
reach outside is dropped; where anything else does, or where a call lacks its result, the turns are
folded (`folding`). Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

from dsh_tasks.errors import SeedRefused, SessionRefused
from dsh_tasks.lifecycle import Lifecycle
from dsh_tasks.rows import DELIVERY, message_of, moved
from dsh_tasks.seed.chunks import Chunk, chunk_of
from dsh_tasks.seed.folding import folded, framed
from dsh_tasks.seed.pairing import Answers, answer_of, is_paired
from dsh_tasks.seed.segment import Segment
from dsh_tasks.seed.value import EMPTY_HEAD
from dsh_tasks.session import SURFACE_TYPES, Event, turns_of
from dsh_tasks.surface import Node, offloaded, paired

BOOKKEEPING = frozenset(
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

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Kept:
    """Some turns, and what the rest of their log says of them."""

    segments: Sequence[Segment]
    live: Sequence[int]
    """Places of the rows that a model is shown at the end of the log, in the order in which it is."""
    waiting: AbstractSet[int]
    """Places of rows that belong to waiting messages."""
    system_before: bool
    """A system message stands before them."""
    has_system: bool
    """One stands before them or among them."""
    headers: Mapping[int, Event]
    """Request headers of the whole log by their places."""


def kept_chunks(kept: Kept) -> tuple[Literal["verbatim", "folded"], list[Chunk], int | None]:
    """Form; chunks; place of an empty head. Of the rows no more are in memory at once than a turn's, and
    where they are folded the live ones.

    Raises SeedRefused where folding gives no valid log either.
    """
    copy = _Copy(kept.segments[0].turn - 1)
    if copy.take_all(kept):
        head = copy.head if kept.system_before else None
        if head != _NOWHERE:
            return "verbatim", copy.chunks, head
    return "folded", _folded(kept), None


# -- verbatim -------------------------------------------------------------------------------------


class _Copy:
    """The rows numbered anew, less the bookkeeping that reaches outside. Mutable: one per attempt."""

    def __init__(self, turns_before: int) -> None:
        self.chunks: list[Chunk] = []
        self.head: int | None = None
        """Where a system message can stand first: after the first step's start.

        None where nothing is shown, so that none is needed; _NOWHERE where a message comes before.
        """
        self._turns_before = turns_before
        self._lifecycle = Lifecycle(strict=True)
        self._places: dict[int, int] = {}
        self._turn: list[Event] = []
        """Rows since the last end of a turn."""
        self._answers: dict[int, Answers] = {}
        self._step_at: int | None = None

    def take_all(self, kept: Kept) -> bool:
        """Copy all rows; False where that cannot be: more than bookkeeping reaches outside, or a call and
        its result do not stand as a strict model wants them.
        """
        for segment in kept.segments:
            for event in segment.events():
                if event.seq not in kept.waiting and not self._take(event) and event.type not in BOOKKEEPING:
                    return False
        return is_paired(self._lifecycle.surface, self._answers)

    def _take(self, event: Event) -> bool:
        seq = len(self._places)
        fresh = _renumbered(event, self._places, seq, self._turns_before)
        if fresh is None:
            return False
        try:
            self._lifecycle.accept(fresh)
        except SessionRefused:
            return False
        self._places[event.seq] = seq
        self._note(fresh)
        self._turn.append(fresh)
        if fresh.type == "turn/end":
            self.chunks.append(chunk_of(self._turn, len(self.chunks) + 1))
            self._turn = []
        return True

    def _note(self, fresh: Event) -> None:
        if fresh.type == "step/start" and self._step_at is None:
            self._step_at = fresh.seq + 1
        elif fresh.type in SURFACE_TYPES:
            if self.head is None:
                self.head = _NOWHERE if self._step_at is None else self._step_at
            answer = answer_of(fresh)
            if answer is not None:
                self._answers[fresh.seq] = answer


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


# -- folded ---------------------------------------------------------------------------------------


def _folded(kept: Kept) -> list[Chunk]:
    live = frozenset(kept.live)
    marks: list[Event] = []
    """Rows that begin and end turns."""
    nodes: dict[int, Node] = {}
    turn = kept.segments[0].turn - 1

    def is_needed(place: int, line: bytes) -> bool:
        return place in live or line.startswith(_NEEDED)

    for segment in kept.segments:
        for event in segment.events(is_wanted=is_needed):
            if event.type == "image/offload":
                _take_images_out(nodes, event)
            elif event.seq in live:
                nodes[event.seq] = Node(event, message_of(event), turn)
            else:
                marks.append(event)
                turn = event.data["turn"]
    shown = paired((nodes[seq] for seq in kept.live), completed_before=kept.segments[-1].end)
    frames = framed(turns_of(marks), {event.seq: event.time for event in marks}, shown)
    fresh = folded(frames, kept.headers, EMPTY_HEAD if kept.has_system else None)
    _check_fold(fresh)
    return [chunk_of(rows, number) for number, rows in fresh]


_NEEDED = (b'{"type":"turn/start"', b'{"type":"turn/end"', b'{"type":"image/offload"')
"""How the lines begin that are needed though no model sees them."""


def _take_images_out(nodes: dict[int, Node], event: Event) -> None:
    for target in event.data["targets"]:
        node = nodes.get(target["seq"])
        if node is not None:
            message = offloaded(node.message, frozenset(target["imageIndexes"]))
            nodes[node.seq] = replace(node, message=message)


def _check_fold(fresh: Sequence[tuple[int, Sequence[Event]]]) -> None:
    lifecycle = Lifecycle(strict=True)
    for _number, rows in fresh:
        for event in rows:
            try:
                lifecycle.accept(event)
            except SessionRefused as error:
                raise SeedRefused(f"folding gives no valid log: {error.facts['what']}") from None
