"""Manifests: which chunks a seed is made of, in pages, so that seeds of one log share their lists too.

A manifest is one JSON object: `{"version":2,"form","turns","events","bytes","head","parts":[..]}`, keys
in this order, without spaces; its digest names the seed. A part is `[digest, rows, bytes]`, a chunk, or
`[digest, rows, bytes, turns]`, a page: `{"parts":[..]}`, named by its digest, that stands for its own
parts. `head` is null, or the seq of a row that stands in no chunk: an empty system message.

A page holds four parts, and begins at a turn whose number in the parent's log (from 0) its own span
of turns divides. So a log that grows by a turn has a new manifest of some ten parts and, now and then,
a new page; a window shares the pages that lie in it. Pure: no clock, no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsh_tasks.errors import SeedRefused
from dsh_tasks.format import decode_line
from dsh_tasks.log_lines import MAX_LOG_BYTES
from dsh_tasks.rows import is_count
from dsh_tasks.seed.chunks import DIGEST_LENGTH, Chunk, digest_of

VERSION = 2
SPAN = 4
"""Parts of a page."""
_CHUNK_FIELDS = 3
_PAGE_FIELDS = 4


class Part(NamedTuple):
    """What a manifest or page lists: a chunk, or a page of `turns` turns."""

    digest: str
    rows: int
    raw_bytes: int
    turns: int = 1
    is_page: bool = False

    def entry(self) -> list[Any]:
        """As it is written."""
        fields = [self.digest, self.rows, self.raw_bytes]
        return [*fields, self.turns] if self.is_page else fields


@dataclass(frozen=True, slots=True)
class Page:
    """A list of parts under a name of its own."""

    part: Part
    data: bytes
    parts: tuple[Part, ...]


Pages = MutableMapping[tuple[Part, ...], Page]
"""Pages made before, by what they list."""


def write(
    form: str, chunks: Sequence[Chunk], first_turn: int, head: int | None, known: Pages
) -> tuple[bytes, tuple[Page, ...]]:
    """The manifest of these chunks, and all pages below it.

    `first_turn` is the number (from 0) of the first chunk's turn in the parent's log. Pages in `known`
    are not made again; new ones are added to it.
    """
    used: dict[str, Page] = {}
    parts = [Part(chunk.digest, chunk.rows, chunk.raw_bytes) for chunk in chunks]
    events = sum(part.rows for part in parts) + (head is not None)
    size = sum(part.raw_bytes for part in parts)
    value = {
        "version": VERSION,
        "form": form,
        "turns": len(parts),
        "events": events,
        "bytes": size,
        "head": head,
        "parts": [part.entry() for part in _paged(parts, first_turn, known, used)],
    }
    return json.dumps(value, separators=(",", ":")).encode(), tuple(used.values())


def _paged(parts: list[Part], first: int, known: Pages, used: dict[str, Page]) -> list[Part]:
    """`parts`, the first of which has the number `first`, with each full, aligned run as a page."""
    whole = -first % SPAN
    count = (len(parts) - whole) // SPAN
    if count <= 0:
        return parts
    pages: list[Part] = []
    for at in range(whole, whole + count * SPAN, SPAN):
        run = tuple(parts[at : at + SPAN])
        page = known.get(run)
        if page is None:
            page = known[run] = _page(run)
        used[page.part.digest] = page
        pages.append(page.part)
    upper = _paged(pages, (first + whole) // SPAN, known, used)
    return [*parts[:whole], *upper, *parts[whole + count * SPAN :]]


def _page(parts: tuple[Part, ...]) -> Page:
    data = json.dumps({"parts": [part.entry() for part in parts]}, separators=(",", ":")).encode()
    part = Part(
        digest_of(data),
        sum(one.rows for one in parts),
        sum(one.raw_bytes for one in parts),
        sum(one.turns for one in parts),
        is_page=True,
    )
    return Page(part, data, parts)


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is stored under a seed's digest."""

    turns: int
    events: int
    head: int | None
    parts: tuple[Part, ...]


def read(data: bytes) -> Manifest:
    """The manifest in `data`. Raises SeedRefused where it is none."""
    value = _object(data)
    if value.get("version") != VERSION or type(value["version"]) is not int:
        raise SeedRefused("the manifest has another version")
    if value.get("form") not in ("empty", "verbatim", "folded"):
        raise SeedRefused("the manifest has another form")
    head = value.get("head")
    if head is not None and not is_count(head):
        raise SeedRefused("the manifest's head is not a row")
    if not is_count(value.get("turns")) or not is_count(value.get("events")):
        raise SeedRefused("the manifest does not say how much it lists")
    manifest = Manifest(value["turns"], value["events"], head, _parts(value))
    if sum(part.turns for part in manifest.parts) != manifest.turns:
        raise SeedRefused("the manifest does not list its turns")
    if sum(part.rows for part in manifest.parts) + (head is not None) != manifest.events:
        raise SeedRefused("the manifest does not list its rows")
    if head is not None and head >= manifest.events:
        raise SeedRefused("the manifest's head is not one of its rows")
    size = sum(part.raw_bytes for part in manifest.parts)
    # Pages may name one page many times: a few of them could stand for more turns than there is time for.
    if size != value.get("bytes") or size > MAX_LOG_BYTES:
        raise SeedRefused("the manifest does not list its bytes, or is larger than any log")
    return manifest


def page_parts(part: Part, data: bytes) -> tuple[Part, ...]:
    """What the page `part` lists. Raises SeedRefused where `data` is not what its digest says."""
    if digest_of(data) != part.digest:
        raise SeedRefused(f"page {part.digest[:12]} is not what its digest says")
    parts = _parts(_object(data))
    counts = zip(*((one.turns, one.rows, one.raw_bytes) for one in parts), strict=True)
    sums = tuple(map(sum, counts))
    if sums != (part.turns, part.rows, part.raw_bytes):
        raise SeedRefused(f"page {part.digest[:12]} does not list what it stands for")
    return parts


def chunks_of(parts: Sequence[Part], blob_of: Callable[[str], bytes]) -> Iterator[Part]:
    """The chunks below `parts`, in order; `blob_of` gives a page's bytes. Raises SeedRefused."""
    waiting = list(reversed(parts))
    while waiting:
        part = waiting.pop()
        if not part.is_page:
            yield part
        else:
            waiting += reversed(page_parts(part, blob_of(part.digest)))


def seed_parts(data: bytes) -> tuple[Part, ...]:
    """What a manifest lists. Raises SeedRefused where it is none."""
    return read(data).parts


def listed_parts(data: bytes) -> tuple[Part, ...]:
    """What a manifest or a page lists, by its text alone. Raises SeedRefused where it is neither."""
    return _parts(_object(data))


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = decode_line(data)
    except ValueError:
        raise SeedRefused("the manifest is not JSON") from None
    if not isinstance(value, dict):
        raise SeedRefused("the manifest has another version")
    return value


def _parts(value: dict[str, Any]) -> tuple[Part, ...]:
    listed = value.get("parts")
    if not isinstance(listed, list) or not all(_is_entry(entry) for entry in listed):
        raise SeedRefused("the manifest does not list chunks")
    return tuple(_part(*entry) for entry in listed)


def _part(digest: str, rows: int, raw_bytes: int, turns: int | None = None) -> Part:
    return Part(digest, rows, raw_bytes, turns or 1, is_page=turns is not None)


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) in (_CHUNK_FIELDS, _PAGE_FIELDS)
        and isinstance(entry[0], str)
        and len(entry[0]) == DIGEST_LENGTH
        and all(is_count(count) for count in entry[1:])
        # A page lists pages and chunks of at least a turn each: what lists itself would never end.
        and (len(entry) == _CHUNK_FIELDS or entry[3] > 1)
        # A turn has rows, and each of them bytes: so the bytes of a seed bound its turns.
        and 0 < entry[1] < entry[2] <= MAX_LOG_BYTES
    )
