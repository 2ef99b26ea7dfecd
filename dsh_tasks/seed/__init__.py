"""Seed: the frozen, renumbered events that a child starts with; cut, window, chunks, digest.

`fork` keeps every row up to the last `turn/end`, `fork-lite` those of the last completed turns. Rows
are kept verbatim wherever nothing in them reaches outside what is kept; bookkeeping that does reach
outside is dropped, and so are messages that wait in the inbox (`inbox`); where anything else
reaches outside, the turns are folded (`folding`). Same log, same turns, same bytes. Pure: no clock,
no I/O.
"""

from dsh_tasks.seed.child import BYTES_PER_TOKEN, child_header, child_session, end_of_seed, inherited
from dsh_tasks.seed.chunks import Chunk, digest_of, unpack
from dsh_tasks.seed.maker import SeedMaker, cut, taken, too_large, window
from dsh_tasks.seed.manifest import Manifest, Page, Part, page_parts, seed_parts
from dsh_tasks.seed.manifest import read as read_manifest
from dsh_tasks.seed.packer import Packer
from dsh_tasks.seed.value import EMPTY_HEAD, Seed, decode, decoded_chunk, empty

__all__ = [
    "BYTES_PER_TOKEN",
    "EMPTY_HEAD",
    "Chunk",
    "Manifest",
    "Packer",
    "Page",
    "Part",
    "Seed",
    "SeedMaker",
    "child_header",
    "child_session",
    "cut",
    "decode",
    "decoded_chunk",
    "digest_of",
    "empty",
    "end_of_seed",
    "inherited",
    "page_parts",
    "read_manifest",
    "seed_parts",
    "taken",
    "too_large",
    "unpack",
    "window",
]
