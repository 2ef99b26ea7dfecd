"""Seed: the frozen start of a child's log, and its way back into rows. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from dsh_tasks.errors import SeedRefused, SessionRefused
from dsh_tasks.seed import manifest as manifests
from dsh_tasks.seed.chunks import Chunk, digest_of, rows_of, unpack
from dsh_tasks.seed.manifest import Page, Pages
from dsh_tasks.session import Event

Form = Literal["empty", "verbatim", "folded"]

EMPTY_HEAD: dict[str, Any] = {
    "role": "system",
    "content": [],
    "source": {"kind": "system-prompt"},
    "id": "seed-head",
}
"""What stands first where the parent's own system message is not kept.

The harness writes its system message into the child's log, and refuses to open a log again in which
that is not the first message or in the place of one (seen with runtime 0.2.1rc2)."""


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
    """Name of the manifest, and so of the seed: its sha256 in base64url."""
    pages: tuple[Page, ...] = ()
    """What the manifest names and is no chunk."""
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

    @cached_property
    def raw_bytes(self) -> int:
        """Length of the rows as canonical JSON."""
        return sum(chunk.raw_bytes for chunk in self.chunks)

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        """What is stored beside the manifest, by digest: pages and chunks, each once."""
        stored = {page.part.digest: page.data for page in self.pages}
        stored.update((chunk.digest, chunk.data) for chunk in self.chunks)
        return stored

    @property
    def stored_bytes(self) -> int:
        """Length of what is kept, each page and chunk once."""
        return len(self.manifest) + sum(len(data) for data in self.blobs.values())

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The rows, numbered from 0; decoded from the frozen bytes when first asked for."""
        return decode(self.manifest, self.blobs.__getitem__)


def made(
    form: Form,
    chunks: Sequence[Chunk],
    source_turns: int,
    *,
    head: int | None = None,
    pages: Pages | None = None,
) -> Seed:
    """The seed of these chunks, the last of which is the last of `source_turns` turns."""
    first_turn = source_turns - len(chunks)
    data, used = manifests.write(form, chunks, first_turn, head, {} if pages is None else pages)
    return Seed(form, tuple(chunks), source_turns, data, digest_of(data), used, head)


def empty(source_turns: int = 0) -> Seed:
    """What a child starts with that inherits nothing."""
    return made("empty", (), source_turns)


def decode(manifest: bytes, blob_of: Callable[[str], bytes]) -> tuple[Event, ...]:
    """The rows of a seed, numbered from 0; `blob_of` gives the stored bytes of a page or chunk by digest.

    Raises SeedRefused where manifest, page or chunk are not what they were written as.
    """
    listed = manifests.read(manifest)
    events: list[Event] = []
    start = 0
    for number, part in enumerate(manifests.chunks_of(listed.parts, blob_of), start=1):
        raw = unpack(blob_of(part.digest), part.digest, part.raw_bytes)
        if raw.count(b"\n") != part.rows:
            raise SeedRefused(f"chunk {part.digest[:12]} does not hold {part.rows} rows")
        events += decoded_chunk(raw, start, number, listed.head)
        start += part.rows
    return tuple(events)


def decoded_chunk(raw: bytes, start: int, turn: int, head: int | None) -> list[Event]:
    """The rows of one chunk of a seed, the first of which has the place `start` among all chunks' rows.

    An empty system message is put in where `head` falls among them. Raises SeedRefused where no step
    opens before it.
    """

    def place(relative: int) -> int:
        seq = relative + start
        return seq if head is None or seq < head else seq + 1

    try:
        rows = list(rows_of(raw, turn, place))
    except (ValueError, LookupError, TypeError, AttributeError, SessionRefused) as error:
        # The digest fits, so somebody made it to fit.
        raise SeedRefused(f"a chunk does not hold rows ({type(error).__name__})") from None
    at = -1 if head is None else head - start
    if 0 <= at < len(rows):
        rows.insert(at, _head(rows[:at]))
    return rows


def _head(before: Sequence[Event]) -> Event:
    """A system message that is shown to nobody, right after the row that opens the first step."""
    if not before or before[-1].type != "step/start":
        raise SeedRefused("the manifest's head does not follow the start of a step")
    step = before[-1]
    message = {"turn": step.data.get("turn"), "step": step.data.get("step"), "message": EMPTY_HEAD}
    return Event("system/message", step.seq + 1, step.time, message, surface_op="append")
