"""Page: one bounded answer over a text, status line included. Pure; sizes are UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsh_tasks.task import cut_text

STATUS_SHARE = 4
"""A status line's detail gets at most this part (one n-th) of the whole answer."""


@dataclass(frozen=True, slots=True)
class Page:
    """What is shown of a text, and the answer around it."""

    shown: str
    """The part of the text, whole characters only."""
    next_offset: int | None
    """Where the next part starts; None where this is the last."""
    answer: str
    """The part, the notes, and the status line, each on lines of its own; within the limit."""


def size(text: str) -> int:
    """UTF-8 bytes of `text`."""
    return len(text.encode())


def as_it_is(text: str) -> str:
    """A text without a frame."""
    return text


def fit(
    text: str,
    *,
    offset: int,
    total: int,
    notes: Sequence[str],
    status: str,
    limit_bytes: int,
    framed: Callable[[str], str] = as_it_is,
) -> Page:
    """The longest page of `text` whose whole answer fits into `limit_bytes`.

    `text` stands at `offset` of a whole of `total` bytes. An answer that fits whole carries no mark;
    one that is cut says how much is shown, how much there is, and the offset to continue with. The
    status line is the last line always. `framed` puts a frame of constant size around what is shown.
    """
    whole = _answer(framed(text) if text else "", notes, status)
    if offset + size(text) >= total and size(whole) <= limit_bytes:
        return Page(text, None, whole)
    # The mark's own numbers count: their widest form makes room for whatever they become.
    frame = _answer("", [_mark(total, total, total), *notes], status)
    shown = cut_text(text, max(limit_bytes - size(frame) - size(framed("")) - 1, 0))
    end = offset + size(shown)
    return Page(
        shown, end, _answer(framed(shown) if shown else "", [_mark(offset, end, total), *notes], status)
    )


def _mark(offset: int, end: int, total: int) -> str:
    return f"[output: bytes {offset} to {end} of {total}; continue with offset {end}]"


def _answer(text: str, notes: Sequence[str], status: str) -> str:
    return "\n".join([*([text] if text else []), *notes, status])


def fit_lines(lines: Sequence[str], droppable: Sequence[bool], *, what: str, limit_bytes: int) -> str:
    """The lines within `limit_bytes`: droppable ones go first, oldest first, then the last ones.

    What went is said in a line of its own.
    """
    left = sum(size(line) + 1 for line in lines)
    room = limit_bytes - size(_gone(len(lines), what))
    kept = [True] * len(lines)
    places = [place for place, may_go in enumerate(droppable) if may_go]
    places += [place for place in reversed(range(len(lines))) if not droppable[place]]
    if left - 1 <= limit_bytes:
        return "\n".join(lines)
    for place in places:
        if left <= room:
            break
        kept[place] = False
        left -= size(lines[place]) + 1
    shown = [line for line, is_kept in zip(lines, kept, strict=True) if is_kept]
    return "\n".join([*shown, _gone(len(lines) - len(shown), what)])


def _gone(count: int, what: str) -> str:
    return f"[{count} more {what} not shown]"
