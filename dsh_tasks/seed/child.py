"""The child's log: header, inherited rows, the marker that ends them, the child's own rows.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsh_tasks.rows import END_SEED, is_inherited_marker, moved
from dsh_tasks.seed.value import Seed
from dsh_tasks.session import Event, Header, Session

BYTES_PER_TOKEN = 4
"""A guess, said to be one wherever it is shown."""


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

    rest = (moved(event, event.seq + 1, up, lambda turn: turn) for event in own)
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
