"""The laws of bad input, as checks that a fuzzer, a law and a test all call.

Whatever bytes come in, the answer is a value or a typed error; what is accepted can be written and read
again; its seeds are logs of children that show a model what the parent's turns showed.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

from dsh_tasks import format as log_format
from dsh_tasks import seed, surface
from dsh_tasks.errors import LimitReached, SeedRefused, SessionRefused
from dsh_tasks.lifecycle import check
from dsh_tasks.seed.chunks import pack
from dsh_tasks.session import Session
from tests import independent_fold
from tests.fuzz.mutate import CANARY, bytes_changed, dumped, interesting, lines_in, spots

MOST_WINDOWS = 6
LONGEST_MESSAGE = 600
_WITHOUT_A_LINE = ("zstd", "larger than", "cannot be read", "no such file")
"""Of refusals of a file as a whole."""


class Broken(AssertionError):
    """A law does not hold."""


class Missing(Exception):
    """The store's answer where a chunk is not there."""


def check_log(data: bytes) -> Session | None:
    """Read the bytes; None where they are refused as they should be."""
    try:
        log = log_format.parse(data)
    except SessionRefused as error:
        check_refusal(error, line_needed=True)
        return None
    written = log_format.write(log)
    if log_format.parse(written) != log:
        raise Broken("what was accepted reads back as another log")
    if log_format.write(log_format.parse(written)) != written:
        raise Broken("what was written is written otherwise the second time")
    surface.messages(log.events)
    return log


def check_refusal(error: SessionRefused | SeedRefused, *, line_needed: bool = False) -> None:
    """It says where, is short, is plain JSON, and quotes nothing but the row's type."""
    facts = error.facts
    if len(error.message) > LONGEST_MESSAGE:
        raise Broken("the refusal is long")
    if CANARY in facts["what"]:
        raise Broken("the refusal quotes the log")
    line = facts.get("line")
    if line_needed and line is None and not any(part in facts["what"] for part in _WITHOUT_A_LINE):
        raise Broken(f"the refusal names no line: {facts['what']}")
    if line is not None and (type(line) is not int or line < 1):
        raise Broken("the refusal's line is no line")
    if facts["seq"] is not None and type(facts["seq"]) is not int:
        raise Broken("the refusal's seq is no number")
    json.dumps(error.to_json())


def check_seeds(log: Session, dice: Random) -> int:
    """Every window of the log (of a long log some); how many were given."""
    turns = len(log.completed_turns())
    counts = list(range(turns + 2))
    if len(counts) > MOST_WINDOWS:
        counts = sorted(dice.sample(counts, MOST_WINDOWS))
    made = [one for one in (check_window(log, count) for count in counts) if one is not None]
    whole = window(log, turns + 1)
    if whole is not None and seed.cut(log) != whole:
        raise Broken("all turns and more are not the fork")
    check_growth(log, dice)
    if made:
        damaged = dice.choice(made)
        for _ in range(4):
            check_damage(damaged, dice)
    return len(made)


def window(log: Session, turns: int) -> seed.Seed | None:
    """The seed, or None where it is refused as it should be."""
    try:
        return seed.window(log, turns)
    except SeedRefused as error:
        check_refusal(error)
        return None
    except LimitReached:
        return None


def check_window(log: Session, turns: int) -> seed.Seed | None:
    """The last `turns` turns as a child's log."""
    made = window(log, turns)
    if made is None:
        return None
    events = made.events
    if [event.seq for event in events] != list(range(made.event_count)):
        raise Broken("the seed's rows are not numbered from 0")
    if seed.decode(made.manifest, chunks_of(made).__getitem__) != events:
        raise Broken("the seed decodes to other rows")
    check(events, strict=True)
    header = seed.child_header(
        parent_session=log.header.id, child_id="child", created_at_ms=1, depth=1, seeded=bool(events)
    )
    child = seed.child_session(header, made)
    if log_format.parse(log_format.write(child)) != child:
        raise Broken("the child's log reads back as another log")
    kept = min(turns, len(log.completed_turns()))
    if [turn.number for turn in child.turns()] != list(range(1, kept + 1)):
        raise Broken("the child's turns are not the last ones, counted from 1")
    _check_shown(log, made, turns)
    return made


def _check_shown(log: Session, made: seed.Seed, turns: int) -> None:
    end = log.end_of_completed()
    first = _first_kept(log, turns)
    nodes = tuple(node for node in surface.fold(log.events[:end]) if node.seq >= first)
    if _unnamed(surface.messages(made.events)) != _unnamed(surface.shown(nodes, completed_before=end)):
        raise Broken("a model is shown something else than the fold of the turns")
    if surface.paired(nodes, completed_before=end) != nodes:
        return  # A result was left out or supplied: the plain fold knows nothing of that.
    try:
        meant = independent_fold.kept_history([event.row() for event in log.events[:end]], turns)
        given = independent_fold.kept_history([event.row() for event in made.events], None)
    except ValueError:
        return  # Arguments of a call that are not JSON; to the harness they are text.
    if independent_fold.joined(given) != independent_fold.joined(meant):
        raise Broken("a model is shown something else than the independent fold of the turns")


def _unnamed(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without ids, which no model is shown: the harness names a repair after its own row."""
    return [{**message, "id": None} for message in messages]


def _first_kept(log: Session, turns: int) -> int:
    ended = log.completed_turns()
    if turns >= len(ended):
        return 0
    return (ended[-turns - 1].end_seq or 0) + 1 if turns else len(log.events)


def chunks_of(made: seed.Seed) -> dict[str, bytes]:
    """The stored bytes of the seed's pages and chunks, by their names."""
    return dict(made.blobs)


def check_growth(log: Session, dice: Random) -> None:
    """One maker that is asked as the log grows gives what a new one gives of the log so far."""
    ends = [turn.end_seq + 1 for turn in log.completed_turns() if turn.end_seq is not None]
    if len(ends) < 2:
        return
    maker, since = seed.SeedMaker(), 0
    for end in sorted({dice.choice(ends), dice.choice(ends), ends[-1]}):
        prefix = Session(log.header, log.events[:end])
        count = dice.randrange(1, len(ends) + 1)
        straight = window(prefix, count)
        try:
            grown = seed.taken(prefix, maker, since=since).seed(count)
        except SeedRefused as error:
            check_refusal(error)
            grown = None
        if (grown and (grown.manifest, grown.blobs)) != (straight and (straight.manifest, straight.blobs)):
            raise Broken("a maker that saw the log grow gives another seed")
        if grown is None:
            return
        since = end


def check_lines(data: bytes) -> None:
    """The fast parser takes, refuses and gives what the standard one does."""
    for line in data.split(b"\n"):
        verdicts = []
        for decode in (log_format.decode_line, strict_json):
            try:
                verdicts.append(repr(decode(line)))
            except ValueError:
                verdicts.append("refused")
        if verdicts[0] != verdicts[1]:
            raise Broken("the parser gives something else than the standard one")


def strict_json(line: bytes) -> Any:
    """The value of a line, by the standard parser. Raises ValueError."""

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError
        return number

    def no_constant(_text: str) -> float:
        raise ValueError

    try:
        value = json.JSONDecoder(parse_float=finite, parse_constant=no_constant).decode(line.decode())
        level = [value]
        for _ in range(log_format.MAX_DEPTH):
            level = [
                inner
                for outer in level
                if isinstance(outer, dict | list)
                for inner in (outer.values() if isinstance(outer, dict) else outer)
            ]
    except RecursionError:
        raise ValueError from None
    if level:
        raise ValueError
    return value


# -- damage -----------------------------------------------------------------------------------------------


def check_damage(made: seed.Seed, dice: Random) -> None:
    """Decode the seed with a damaged manifest, or damaged chunks: its rows, or a typed error."""
    manifest, stored = made.manifest, chunks_of(made)
    if stored and dice.random() < 0.3:
        manifest, stored = forged(made, dice)
    elif dice.random() < 0.5 or not stored:
        manifest = damaged_manifest(manifest, dice)
    else:
        name = dice.choice(sorted(stored))
        stored[name] = dice.choice((bytes_changed(stored[name], dice), *stored.values(), b"", b"\0" * 9))
    check_decode(manifest, stored)


def forged(made: seed.Seed, dice: Random) -> tuple[bytes, dict[str, bytes]]:
    """A seed with one chunk changed, and named and counted as if it had been written so."""
    stored, value = chunks_of(made), json.loads(made.manifest)
    entry = dice.choice(value["parts"])
    if len(entry) > 3:
        return made.manifest, stored
    raw = seed.unpack(stored[entry[0]], entry[0], entry[2])
    lines = lines_in(raw)
    for _ in range(dice.choice((1, 1, 2))):
        row = dice.choice(lines)
        found = list(spots(row)) if isinstance(row, dict) else []
        holder, key = dice.choice(found) if found else (lines, 0)
        holder[key] = interesting(dice)
    raw = (
        bytes_changed(raw, dice)
        if dice.random() < 0.2
        else b"".join((line if isinstance(line, bytes) else dumped(line)) + b"\n" for line in lines)
    )
    chunk = pack(raw, raw.count(b"\n"))
    entry[:3] = [chunk.digest, chunk.rows, chunk.raw_bytes]
    stored[chunk.digest] = chunk.data
    value["events"] = sum(part[1] for part in value["parts"]) + (value["head"] is not None)
    return json.dumps(value).encode(), stored


def damaged_manifest(manifest: bytes, dice: Random) -> bytes:
    """Other bytes, or the same JSON with another value in one place."""
    if dice.random() < 0.3:
        return bytes_changed(manifest, dice)
    value = json.loads(manifest)
    parts = json.loads(manifest)["parts"]
    holder, key = dice.choice(list(spots(value)))
    holder[key] = dice.choice((interesting(dice), dice.choice(parts or [0]), parts * 3, 2**29))
    return json.dumps(value).encode()


def check_decode(manifest: bytes, stored: dict[str, bytes]) -> tuple[Any, ...] | None:
    """The rows, or None where manifest or chunks are refused as they should be."""

    def chunk_of(digest: str) -> bytes:
        if digest not in stored:
            raise Missing
        return stored[digest]

    try:
        return seed.decode(manifest, chunk_of)
    except (SeedRefused, LimitReached) as error:
        if isinstance(error, SeedRefused):
            check_refusal(error)
        return None
    except Missing:
        return None
