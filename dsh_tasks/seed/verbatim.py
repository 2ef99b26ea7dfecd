"""Verbatim or folded: the rows of some completed turns as a log of their own, row by row.

Rows are kept verbatim wherever nothing in them reaches outside what is kept; bookkeeping that does
reach outside is dropped; where anything else does, or where a call lacks its result, the turns are
folded (`folding`). Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

from dsh_tasks.errors import SeedRefused, SessionRefused
from dsh_tasks.lifecycle import Lifecycle
from dsh_tasks.rows import DELIVERY, message_of, moved
from dsh_tasks.seed.folding import folded, framed
from dsh_tasks.seed.value import EMPTY_HEAD
from dsh_tasks.session import SURFACE_TYPES, Event, turns_of
from dsh_tasks.surface import Node, fold, offloaded, paired

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
    """The rows of some turns, and what the rest of their log says of them."""

    rows: Sequence[Event]
    """At their places in the log."""
    live: Sequence[int]
    """Places of those that a model is shown at the end of the log, in the order in which it is."""
    waiting: AbstractSet[int]
    """Places of rows that belong to waiting messages."""
    turns_before: int
    system_before: bool
    """A system message stands before them."""
    has_system: bool
    """One stands before them or among them."""
    headers: Mapping[int, Event]
    """Request headers of the whole log by their places."""


def kept_rows(kept: Kept) -> tuple[Literal["verbatim", "folded"], list[tuple[int, list[Event]]], int | None]:
    """Form; (turn number, its rows), numbered from 0 and from turn 1; place of an empty head.

    Raises SeedRefused where folding gives no valid log either.
    """
    rows = _verbatim([event for event in kept.rows if event.seq not in kept.waiting], kept.turns_before)
    if rows is not None and not _is_paired(rows):
        rows = None
    head = _place_of_head(rows) if rows is not None and kept.system_before else None
    if rows is not None and head != _NOWHERE:
        return "verbatim", list(enumerate(_by_turn(rows), start=1)), head
    nodes = paired(_nodes(kept), completed_before=kept.rows[-1].seq + 1)
    frames = framed(kept.rows, turns_of(kept.rows), nodes)
    fresh = folded(frames, kept.headers, EMPTY_HEAD if kept.has_system else None)
    _check_fold(fresh)
    return "folded", fresh, None


def _nodes(kept: Kept) -> Iterator[Node]:
    """The live nodes among the rows, in order."""
    nodes: dict[int, Node] = {}
    turn = kept.turns_before
    for event in kept.rows:
        if event.type == "turn/start":
            turn = event.data["turn"]
        elif event.type == "image/offload":
            for target in event.data["targets"]:
                if (node := nodes.get(target["seq"])) is not None:
                    message = offloaded(node.message, frozenset(target["imageIndexes"]))
                    nodes[node.seq] = replace(node, message=message)
        elif event.type in SURFACE_TYPES:
            nodes[event.seq] = Node(event, message_of(event), turn)
    return (nodes[seq] for seq in kept.live)


def _is_paired(rows: Sequence[Event]) -> bool:
    """Whether calls and results stand as a strict model wants them, which the harness does not mend."""
    nodes = fold(rows)
    return paired(nodes, completed_before=len(rows)) == nodes


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
    for event in rows:
        fresh = _renumbered(event, places, len(kept), turns_before)
        try:
            if fresh is not None:
                lifecycle.accept(fresh)
        except SessionRefused:
            fresh = None
        if fresh is not None:
            places[event.seq] = len(kept)
            kept.append(fresh)
        elif event.type not in BOOKKEEPING:
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
