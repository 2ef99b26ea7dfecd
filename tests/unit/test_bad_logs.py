"""Bad input, one kind a test: the answer is a log or a typed refusal, in bounded memory and time."""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dsh_tasks import format as log_format
from dsh_tasks import seed, surface
from dsh_tasks.errors import SeedRefused, SessionRefused
from dsh_tasks.seed.chunks import digest_of, pack
from dsh_tasks.session import Session
from tests.factories import LogWriter, a_log, bytes_of, file_of, lines_of
from tests.fuzz import checks, logs
from tests.fuzz.mutate import CANARY, dumped, spots
from tests.steps import steps_of

SMALL = a_log(2, tools=1, notices=1)
KINDS = logs.every_kind(answered=True)
OLD = logs.old_lines(seeded=True)
PLAIN, PACKED = bytes_of(SMALL), log_format.pack(SMALL)


def refusal(data: bytes) -> SessionRefused:
    with pytest.raises(SessionRefused) as caught:
        log_format.parse(data)
    checks.check_refusal(caught.value, line_needed=True)
    return caught.value


def holds(data: bytes) -> Session | None:
    """The log with all its seeds, or None where it is refused as it should be."""
    log = checks.check_log(data)
    if log is not None:
        checks.check_seeds(log, random.Random(1))
    return log


def peak_of(data: bytes) -> float:
    """The most memory that reading takes, as a multiple of the data, beyond the data itself."""
    tracemalloc.start()
    try:
        log_format.parse(data)
    except SessionRefused:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak / len(data)


# -- cut, swapped, doubled ------------------------------------------------------------------------


def test_a_log_cut_at_any_byte_gives_the_rows_that_are_whole() -> None:
    head = PLAIN.index(b"\n")
    for end in range(len(PLAIN)):
        if end < head:
            assert refusal(PLAIN[:end]).facts["line"] == 1
            continue
        log = log_format.parse(PLAIN[:end])
        whole = PLAIN[:end].count(b"\n") - 1 + (PLAIN[end : end + 1] == b"\n")
        assert log.events == SMALL.events[:whole]


def test_a_cut_log_of_a_child_is_refused_until_its_seed_is_whole() -> None:
    child = a_log(2, inherited=1)
    data = bytes_of(child)
    marker = next(event.seq for event in child.events if event.type == "session/end-seed")
    ends = [at for at, byte in enumerate(data) if byte == ord("\n")]
    for line, end in enumerate(ends):
        if line <= marker:
            assert refusal(data[: end + 1]).facts["line"] == 1
        else:
            assert log_format.parse(data[: end + 1]).events == child.events[:line]


def test_a_packed_log_cut_at_any_byte_gives_rows_from_its_start() -> None:
    for end in range(len(PACKED)):
        try:
            log = log_format.parse(PACKED[:end])
        except SessionRefused as error:
            checks.check_refusal(error, line_needed=True)
        else:
            assert log.events == SMALL.events[: len(log.events)]


def test_a_v0_log_cut_at_any_byte_is_read_or_refused() -> None:
    data = file_of(OLD)
    assert any([checks.check_log(data[:end]) for end in range(len(data))])


@pytest.mark.parametrize("lines", [lines_of(KINDS), OLD], ids=["v4", "v0"])
def test_rows_that_change_places_are_read_or_refused(lines: list[dict[str, Any]]) -> None:
    for at in range(len(lines) - 1):
        swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        holds(file_of(swapped))


def test_rows_of_v4_out_of_order_are_refused_at_the_first() -> None:
    lines = lines_of(KINDS)
    for at in range(1, len(lines) - 1):
        swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        facts = refusal(file_of(swapped)).facts
        assert (facts["line"], facts["seq"], facts["type"]) == (at + 1, at - 1, lines[at + 1]["type"])


def test_a_row_that_comes_twice_is_refused_where_it_comes_again() -> None:
    lines = lines_of(KINDS)
    for at in range(len(lines)):
        facts = refusal(file_of([*lines[: at + 1], *lines[at:]])).facts
        assert facts["line"] == at + 2


def test_a_v0_row_that_comes_twice_is_read_or_refused() -> None:
    for at in range(len(OLD)):
        holds(file_of([*OLD[: at + 1], *OLD[at:]]))


def test_a_row_that_is_missing_is_refused_at_the_next() -> None:
    lines = lines_of(KINDS)
    for at in range(1, len(lines) - 1):
        assert refusal(file_of([*lines[:at], *lines[at + 1 :]])).facts["line"] == at + 1
    for at in range(1, len(OLD)):
        holds(file_of([*OLD[:at], *OLD[at + 1 :]]))


def test_two_logs_in_one_file_are_refused_where_the_second_begins() -> None:
    assert refusal(PLAIN + PLAIN).facts["line"] == PLAIN.count(b"\n") + 1
    assert refusal(PACKED + PACKED).facts["line"] == PLAIN.count(b"\n") + 1


# -- wrong values, in every field -----------------------------------------------------------------

WRONG = (None, True, -1, "@1e999@", "@nan@", 2**63, 0.5, "", [], {}, [[{"a": [CANARY]}]], CANARY, "@deep@")


def firsts(lines: list[dict[str, Any]]) -> Iterator[int]:
    """The place of the header, and of the first row of each type."""
    seen: set[str] = set()
    for place, line in enumerate(lines):
        if line["type"] not in seen:
            seen.add(line["type"])
            yield place


@pytest.mark.parametrize(
    ("lines", "at"),
    [pytest.param(lines_of(KINDS), at, id=lines_of(KINDS)[at]["type"]) for at in firsts(lines_of(KINDS))]
    + [pytest.param(OLD, at, id=f"v0:{OLD[at]['type']}") for at in firsts(OLD)],
)
def test_a_wrong_value_in_any_field_is_read_or_refused(lines: list[dict[str, Any]], at: int) -> None:
    before, after = file_of(lines[:at]), file_of(lines[at + 1 :])
    for place in range(len(list(spots(lines[at])))):
        for wrong in WRONG:
            line = json.loads(json.dumps(lines[at]))
            holder, key = list(spots(line))[place]
            holder[key] = wrong
            _read_and_cut(before + dumped(line) + b"\n" + after)
        line = json.loads(json.dumps(lines[at]))
        holder, key = list(spots(line))[place]
        del holder[key]
        _read_and_cut(before + dumped(line) + b"\n" + after)


def _read_and_cut(data: bytes) -> None:
    try:
        log = log_format.parse(data)
    except SessionRefused as error:
        checks.check_refusal(error, line_needed=True)
        return
    assert log_format.parse(log_format.write(log)) == log
    checks.check_window(log, 1)
    checks.check_window(log, 9)


@pytest.mark.parametrize(
    "wrong", [b"null", b"true", b"-1", b"1e999", b"9223372036854775808", b'""', b"[]", b"3"]
)
def test_a_line_that_is_no_object_is_refused_by_its_number(wrong: bytes) -> None:
    lines = PLAIN.splitlines(keepends=True)
    for at in range(len(lines)):
        assert refusal(b"".join([*lines[:at], wrong + b"\n", *lines[at + 1 :]])).facts["line"] == at + 1


@pytest.mark.parametrize("wrong", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5_000])
def test_numbers_that_json_does_not_have_are_refused_where_they_stand(wrong: bytes) -> None:
    data = PLAIN.replace(b'"turn":2}', b'"turn":2,"x":%s}' % wrong, 1)
    assert refusal(data).facts["line"] == PLAIN[: PLAIN.index(b'"turn":2}')].count(b"\n") + 1


def test_long_numbers_that_python_still_reads_are_kept() -> None:
    for number in (b"9" * 4_300, b"-" + b"9" * 4_300, b"0." + b"3" * 100_000, b"-0.0", b"1e308"):
        log = holds(PLAIN.replace(b'"turn":1}', b'"turn":1,"x":%s}' % number, 1))
        assert log is not None


def test_a_turn_number_too_long_to_move_is_a_refused_seed() -> None:
    lines = lines_of(KINDS)
    row = next(line for line in lines if line["type"] == "permission/preset")
    row["data"]["turn"] = 1 - 10**4_300
    log = log_format.parse(file_of(lines))
    try:
        seed.cut(log)
    except SeedRefused as error:
        checks.check_refusal(error)


def test_the_name_of_a_repair_holds_any_text() -> None:
    """A repair's name ends with its row's number; what only looks like one is kept as it is."""
    for suffix in ("--5", "-" + "9" * 5_000, "-٣", "-007", "--0", "-", "-1", "-99999"):
        for inherited in (False, True):
            lines = lines_of(logs.every_kind(inherited=inherited, answered=True))
            for row in lines:
                if row["type"] == "tool/result" and "error" in row["data"]:
                    message = row["data"]["message"]
                    message["id"] = f"forked-tool-result-{message['toolCallId']}{suffix}"
            log = log_format.parse(file_of(lines))
            for turns in range(4):
                checks.check_window(log, turns)


def test_a_repair_that_was_rewritten_keeps_its_name_where_rows_are_numbered_anew() -> None:
    """Found by these tests: the row that rewrites a fork's repair is named after the repair, as that is moved."""
    lines = lines_of(logs.every_kind(answered=True))
    spliced = next(line for line in lines if line["type"] == "agent/inbox/spliced")
    spliced["data"]["target"] = "unheard"
    log = log_format.parse(file_of(lines))
    made = seed.cut(log)
    assert checks.check_window(log, 9) == made
    assert made.form == "verbatim"
    names = [event.data["message"]["id"] for event in made.events if event.data.get("error")]
    assert len(names) == 2
    assert len(set(names)) == 1


# -- text that is none ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff",
        b"\xc0\x80",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\x80",
        b"\xf8\x88\x80\x80\x80",
    ],
)
def test_bytes_that_are_not_utf_8_are_refused_where_they_stand(noise: bytes) -> None:
    at = PLAIN.index(b"question 2")
    error = refusal(PLAIN[:at] + noise + PLAIN[at:])
    assert error.facts["line"] == PLAIN[:at].count(b"\n") + 1
    assert "UTF-8" in error.facts["what"]


def test_half_a_surrogate_pair_anywhere_in_text_survives() -> None:
    lines = lines_of(SMALL)
    for line in lines[1:]:
        if line["type"] == "user/message":
            line["data"]["content"][0]["text"] = "\ud800 \udc1f\ud83d 🐟"
            line["data"]["\udfff"] = {"\ud800": "\udfff"}
            line["data"]["id"] = "\ud83d"
    assert holds(file_of(lines)) is not None


def test_half_a_surrogate_pair_as_a_type_is_refused_in_plain_text() -> None:
    lines = lines_of(SMALL)
    lines[3]["type"] = "\ud800"
    refusal(file_of(lines)).message.encode()
    lines[3] |= {"ignorable": True, "data": None}
    holds(file_of(lines))


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-32", "cp037"])
def test_a_log_in_another_encoding_is_refused_at_its_first_line(codec: str) -> None:
    assert refusal(PLAIN.decode().encode(codec)).facts["line"] == 1


def test_a_byte_order_mark_is_refused_at_its_line() -> None:
    assert refusal(b"\xef\xbb\xbf" + PLAIN).facts["line"] == 1
    assert refusal(PLAIN.replace(b"\n", b"\n\xef\xbb\xbf", 1)).facts["line"] == 2


def test_line_ends_of_another_system_change_nothing() -> None:
    assert log_format.parse(PLAIN.replace(b"\n", b"\r\n")) == SMALL
    assert refusal(PLAIN.replace(b"\n", b"\r")).facts["line"] == 1


def test_an_empty_line_is_refused_by_its_number() -> None:
    lines = PLAIN.splitlines(keepends=True)
    for at in range(len(lines) + 1):
        for empty in (b"\n", b"  \n", b"\r\n"):
            assert refusal(b"".join([*lines[:at], empty, *lines[at:]])).facts["line"] == at + 1


def test_zeros_behind_the_last_line_are_a_torn_line() -> None:
    """What a file system leaves after a power cut."""
    assert log_format.parse(PLAIN + b"\0" * 4_096) == SMALL
    assert log_format.parse(PLAIN[:-30] + b"\0" * 4_096).events == SMALL.events[:-1]


def test_zeros_between_the_lines_are_refused_where_they_stand() -> None:
    lines = PLAIN.splitlines(keepends=True)
    for at in range(len(lines)):
        assert refusal(b"".join([*lines[:at], b"\0" + lines[at], *lines[at + 1 :]])).facts["line"] == at + 1
    assert refusal(b"\0" * 4_096 + PLAIN).facts["line"] == 1


def test_a_zero_inside_text_is_text_when_it_is_escaped_and_refused_when_not() -> None:
    at = PLAIN.index(b"question 2")
    assert holds(PLAIN[:at] + b"\\u0000" + PLAIN[at:]) is not None
    refusal(PLAIN[:at] + b"\0" + PLAIN[at:])


def test_of_a_key_that_comes_twice_the_last_counts_as_in_javascript() -> None:
    lines = PLAIN.splitlines(keepends=True)
    twice = [line.replace(b'{"type":', b'{"type":["x"],"type":') for line in lines]
    assert log_format.parse(b"".join(twice)) == SMALL
    lines[2] = lines[2].replace(b'"data":', b'"data":{"turn":1},"data":7,"data":')
    assert log_format.parse(b"".join(lines)) == SMALL
    lines[2] = lines[2].replace(b"}}\n", b'},"data":7}\n')
    assert refusal(b"".join(lines)).facts["line"] == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40,
        b"\x1f\x8b\x08" + bytes(500),
        b"PK\x03\x04" + bytes(500),
        b"\x7fELF" + bytes(500),
        b"SQLite format 3\0" + bytes(4_096),
        b"\x28\xb5\x2f",
        b"\x28\xb5\x2f\xfd",
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip",
        b"#!/bin/sh\nexit\n",
        random.Random(7).randbytes(100_000),
        b"\n" * 100_000,
        b"\0" * 100_000,
        b"[" * 100_000,
        b"{" * 100_000,
        b'"' * 100_001,
        b"1" * 100_000,
    ],
    ids=lambda data: f"{data[:8]!r}-{len(data)}",
)
def test_bytes_of_another_kind_are_refused(data: bytes) -> None:
    for broken in (data, PLAIN.splitlines(keepends=True)[0] + data + b"\n{}\n"):
        refusal(broken)


def test_a_refusal_quotes_nothing_but_the_type() -> None:
    """Whatever text of a log is wrong, none of it is in the error."""
    lines = lines_of(KINDS)
    for at, line in enumerate(lines):
        for holder, key in list(spots(line)):
            if isinstance(holder[key], str) and (holder is not line or key != "type"):
                kept, holder[key] = holder[key], CANARY
                try:
                    log_format.parse(file_of(lines))
                except SessionRefused as error:
                    assert CANARY not in error.message + json.dumps(error.to_json()), (at, key)
                    assert str(pickle.loads(pickle.dumps(error))) == str(error)
                holder[key] = kept


# -- deep, long, many -----------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def deep(depth: int) -> bytes:
    return PLAIN.replace(b'"turn":1}', b'"turn":1,"x":%s}' % nested(depth), 1)


def test_nesting_is_read_up_to_a_depth_and_then_refused() -> None:
    assert holds(deep(150)) is not None
    for depth in (201, 1_000, 10_000, 1_000_000):
        assert "deep" in refusal(deep(depth)).facts["what"]
    for opening in (b'{"a":', b'[{"a":', b"[[1],"):
        refusal(PLAIN.replace(b'"turn":1}', b'"turn":1,"x":%s' % (opening * 100_000), 1))


def test_a_log_that_is_read_can_be_written_from_a_deep_stack() -> None:
    log = log_format.parse(deep(150))

    def at(depth: int) -> bytes:
        return at(depth - 1) if depth else log_format.write(log)

    assert at(500) == log_format.write(log)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("piece", "most"),
    [(b"x", 6), ("é".encode(), 6), ("深".encode(), 6), ("🐟".encode(), 9), (b"\\n", 6), (b"\\ud800", 6)],
    ids=["ascii", "latin", "kanji", "astral", "escaped", "lone"],
)
def test_a_huge_text_takes_memory_as_a_multiple_of_its_size(piece: bytes, most: int) -> None:
    at = PLAIN.index(b"question 2")
    data = PLAIN[:at] + piece * (16 * MIB // len(piece)) + PLAIN[at:]
    assert peak_of(data) < most


def test_one_wide_character_makes_a_huge_text_at_most_so_many_times_as_large() -> None:
    """Python keeps a text with one fish in it at four bytes a character: the worst there is."""
    at = PLAIN.index(b"question 2")
    data = PLAIN[:at] + "🐟".encode() + b"x" * (64 * MIB) + PLAIN[at:]
    assert peak_of(data) < 12


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"0,", b'"",', b"null,", b"1.5,", b"[[]],", b'{"a":1},'])
def test_a_huge_list_takes_memory_as_a_multiple_of_its_size(piece: bytes) -> None:
    data = PLAIN.replace(b'"turn":1}', b'"turn":1,"x":[%s0]}' % (piece * (MIB // len(piece))), 1)
    assert peak_of(data) < 40


def test_a_huge_line_that_is_no_json_is_refused_in_bounded_memory() -> None:
    head = PLAIN.splitlines(keepends=True)[0]
    for data in (
        b"x" * (64 * MIB),
        head + b"[" * (64 * MIB) + b"\n{}\n",
        head + b'{"a":"' + b"x" * (64 * MIB) + b"\n{}\n",
    ):
        assert peak_of(data) < 5


def with_each(rows: Callable[[LogWriter, int], None]) -> Callable[[int], Session]:
    """A log of one turn in which `rows` writes so many."""

    def make(count: int) -> Session:
        writer = LogWriter(bookkeeping=False)
        writer.open_turn("q")
        rows(writer, count)
        writer.close_turn()
        return writer.session

    return make


def _waiting(writer: LogWriter, count: int) -> None:
    for number in range(count):
        writer.inbox("next-turn", [{"id": f"w{number}", "source": {"kind": "user"}}])


def _replacing(writer: LogWriter, count: int) -> None:
    for _ in range(count):
        writer.notice("x")
    for _ in range(2):
        for place in reversed(range(count)):
            old = writer.live[place]
            operation = {"op": "replace", "startSeq": old, "endSeq": old}
            new = writer.add(
                "user/message", writer.user_message("y"), sourceEventSeqs=[old], surfaceOp=operation
            )
            writer.live[place] = new


def _offloading(writer: LogWriter, count: int) -> None:
    for _ in range(count):
        writer.show("user/message", writer.user_message("x", images=1))
    for place in range(count):
        writer.add("image/offload", {"targets": [{"seq": writer.live[place + 1], "imageIndexes": [0]}]})


def _citing_all(writer: LogWriter, count: int) -> None:
    for _ in range(count):
        writer.show("user/message", writer.user_message("x"), sourceEventSeqs=[[0, len(writer.rows) - 1]])


def _pruning_all(writer: LogWriter, count: int) -> None:
    for _ in range(count):
        writer.notice("x")
        writer.add("compaction/prune", {"shadowedRange": {"start": 2, "end": 2}, "shadowedSeqs": [2]})


def _rewriting(writer: LogWriter, count: int) -> None:
    """A turn for each replacement."""
    for place in range(count):
        old = writer.live[place]
        operation = {"op": "replace", "startSeq": old, "endSeq": old}
        message = writer.user_message("y")
        writer.live[place] = writer.add("user/message", message, sourceEventSeqs=[old], surfaceOp=operation)
        writer.close_turn()
        writer.open_turn("q")


def _calling(writer: LogWriter, count: int) -> None:
    blocks = writer.calls(count)
    writer.assistant(*blocks)
    begun = [writer.call(block) for block in blocks]
    for block, seq in zip(blocks, begun, strict=True):
        writer.result(seq, block, "r")


def _foreign(writer: LogWriter, count: int) -> None:
    for _ in range(count):
        writer.add("x/y", {}, ignorable=True)


KINDS_OF_ROWS = (_waiting, _replacing, _offloading, _citing_all, _pruning_all, _rewriting, _calling, _foreign)
"""Writers of many rows of a kind; bench/squares.py times them."""


@pytest.mark.parametrize("rows", KINDS_OF_ROWS, ids=lambda rows: rows.__name__)
def test_four_times_the_rows_take_about_four_times_the_steps(rows: Callable[[LogWriter, int], None]) -> None:
    make = with_each(rows)
    small, large = make(150), make(600)
    few, many = log_format.write(small), log_format.write(large)
    for name, one, other in (
        ("parse", lambda: log_format.parse(few), lambda: log_format.parse(many)),
        ("cut", lambda: seed.cut(small), lambda: seed.cut(large)),
        ("messages", lambda: surface.messages(small.events), lambda: surface.messages(large.events)),
    ):
        assert steps_of(other) < 5 * steps_of(one), name


def test_a_replacement_in_each_of_many_turns_costs_no_square() -> None:
    make = with_each(_rewriting)
    few, many = make(100), make(800)
    assert steps_of(lambda: seed.window(many, 2)) < 10 * steps_of(lambda: seed.window(few, 2))


def old_rows(count: int, **frame: Any) -> bytes:
    message = {"role": "user", "id": "i", "content": [], "source": {"kind": "user"}}
    rows: list[dict[str, Any]] = [
        {"type": "turn/start", "data": {"turn": 1}},
        {"type": "step/start", "data": {"turn": 1, "step": 1}},
    ]
    for _ in range(count):
        cited = {"sourceEventSeqs": [[0, len(rows) - 1]]}
        rows.append({"type": "user/message", "data": message, "surfaceOp": "append", **cited, **frame})
    return file_of([{"type": "session", "version": 0, "id": "old", "createdAt": 5}, *rows])


def test_v0_ranges_are_never_written_out() -> None:
    few, many = old_rows(150), old_rows(600)
    assert steps_of(lambda: log_format.parse(many)) < 5 * steps_of(lambda: log_format.parse(few))
    assert peak_of(many) < 30


@pytest.mark.parametrize(
    "sources",
    [
        [[0, 2**22]],
        [[0, 2**53 - 1]],
        [[0, 2**63]],
        [[0, 10**400]],
        [[-5, 1]],
        [[1, 0]],
        [[0]],
        [[0, 1, 2]],
        [[]],
    ]
    + [[True], [1.0], ["1"], [None], [[0, None]], [[0, "1"]], [[True, 1]], 5, {}, [[[0, 1], 1]]],
    ids=str,
)
def test_v0_sources_that_name_no_earlier_rows_are_refused_at_once(sources: Any) -> None:
    data = old_rows(3, sourceEventSeqs=sources)
    assert refusal(data).facts["line"] == 4
    assert peak_of(data) * len(data) < MIB, "nothing is written out"


# -- zstd -----------------------------------------------------------------------------------------


def test_a_log_that_unpacks_without_end_is_refused_in_bounded_memory() -> None:
    """Four gigabytes of blanks in a hundred thousand bytes, behind a header that is right."""
    head = PLAIN.splitlines(keepends=True)[0]
    one = zstandard.ZstdCompressor(level=1)
    blanks = one.compress(b" " * (64 * MIB))
    for bomb in (one.compress(head) + blanks * 64, blanks * 64):
        tracemalloc.start()
        error = refusal(bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "larger" in error.facts["what"] or error.facts["line"] is not None
        assert peak < 3 * log_format.MAX_LOG_BYTES


def test_a_log_of_endless_rows_is_refused_at_the_first_that_cannot_stand() -> None:
    one = zstandard.ZstdCompressor(level=1)
    bomb = one.compress(PLAIN) + one.compress(b"{}\n" * (8 * MIB)) * 40
    tracemalloc.start()
    error = refusal(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.facts["line"] == PLAIN.count(b"\n") + 1
    assert peak < 64 * MIB


def test_a_small_packed_log_takes_little_memory() -> None:
    tracemalloc.start()
    log_format.parse(PACKED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MIB


def test_a_packed_log_with_any_byte_changed_is_read_or_refused() -> None:
    sealed = zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)
    for data in (PACKED, sealed):
        for at in range(len(data)):
            for flip in (0x01, 0x80, 0xFF):
                broken = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
                try:
                    log_format.parse(broken)
                except SessionRefused as error:
                    checks.check_refusal(error, line_needed=True)


def test_a_frame_with_a_wrong_sum_is_refused() -> None:
    sealed = zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)
    assert "zstd" in refusal(sealed[:-1] + bytes([sealed[-1] ^ 1])).facts["what"]


@pytest.mark.parametrize(
    "frame",
    [
        b"\x28\xb5\x2f\xfd\xe0" + (2**50).to_bytes(8, "little") + b"\x01\x00\x00",
        b"\x28\xb5\x2f\xfd\xe0" + (2**63).to_bytes(8, "little") + b"\x01\x00\x00",
        b"\x28\xb5\x2f\xfd\x00\xff" + b"\x01\x00\x00",
        b"\x28\xb5\x2f\xfd\x03\x58\xff\xff\xff\xff" + b"\x01\x00\x00",
    ],
    ids=["claims-a-petabyte", "claims-more-than-there-is", "window-of-terabytes", "unknown-dictionary"],
)
def test_a_frame_that_claims_what_it_has_not_is_refused(frame: bytes) -> None:
    refusal(frame)
    try:
        log_format.parse(PACKED + frame)
    except SessionRefused as error:
        checks.check_refusal(error, line_needed=True)


def test_frames_may_be_split_anywhere_and_be_many() -> None:
    one = zstandard.ZstdCompressor()
    step = 37
    frames = b"".join(one.compress(PLAIN[at : at + step]) for at in range(0, len(PLAIN), step))
    assert log_format.parse(frames) == SMALL
    assert log_format.parse(PACKED + one.compress(b"") * 10_000) == SMALL


def test_what_follows_the_last_frame_is_read_or_refused() -> None:
    for tail in (
        b"garbage",
        b"\0" * 512,
        PLAIN,
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip",
        PACKED[:3],
        PACKED[:9],
    ):
        try:
            assert log_format.parse(PACKED + tail).events == SMALL.events
        except SessionRefused as error:
            checks.check_refusal(error, line_needed=True)


def test_a_packed_log_that_was_packed_twice_is_refused() -> None:
    refusal(zstandard.ZstdCompressor().compress(PACKED))


# -- files ----------------------------------------------------------------------------------------


def file_refusal(path: Path) -> SessionRefused:
    with pytest.raises(SessionRefused) as caught:
        log_format.read(path)
    checks.check_refusal(caught.value)
    assert str(path) not in caught.value.message
    return caught.value


def test_a_directory_a_device_a_socket_or_nothing_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    gone = tmp_path / "gone"
    gone.symlink_to(tmp_path / "nowhere")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    with listening:
        for path in (
            tmp_path,
            loop,
            gone,
            tmp_path / "s",
            tmp_path / "none",
            Path("/dev/zero"),
            Path("/dev/null"),
        ):
            file_refusal(path)
    for name in ("a\0b", "x" * 10_000, "", "\udcff"):
        file_refusal(Path(name))


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    file_refusal(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    path.chmod(0)
    if os.geteuid() == 0:  # Nothing is closed to root, save what the kernel itself refuses to give.
        path = Path("/proc/self/mem")
    file_refusal(path)


def test_a_file_that_goes_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    real = Path.is_file

    def is_file(self: Path) -> bool:
        answer = real(self)
        self.unlink(missing_ok=True)
        return answer

    monkeypatch.setattr(Path, "is_file", is_file)
    file_refusal(path)


def test_a_file_that_comes_and_goes_is_read_whole_or_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    is_over = threading.Event()

    def blink() -> None:
        while not is_over.is_set():
            other.write_bytes(PLAIN)
            other.rename(path)
            path.unlink()

    blinking = threading.Thread(target=blink)
    blinking.start()
    try:
        for _ in range(300):
            try:
                assert log_format.read(path) == SMALL
            except SessionRefused as error:
                checks.check_refusal(error)
    finally:
        is_over.set()
        blinking.join()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_a_log_that_grows_while_it_is_read_is_read_up_to_a_whole_row(tmp_path: Path, packed: bool) -> None:
    log = a_log(12, tools=2, notices=1)
    data = bytes_of(log)
    if packed:
        one = zstandard.ZstdCompressor()
        data = b"".join(one.compress(line) for line in data.splitlines(keepends=True))
    path = tmp_path / "log"
    path.write_bytes(b"")
    dice = random.Random(3)

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            at = 0
            while at < len(data):
                step = dice.choice((1, 3, 40, 700))
                file.write(data[at : at + step])
                at += step

    growing = threading.Thread(target=grow)
    growing.start()
    lengths: list[int] = []
    while growing.is_alive() or not lengths or lengths[-1] < len(log.events):
        try:
            seen = log_format.read(path)
        except SessionRefused as error:
            assert not lengths, "once a log was read, a longer one is read too"
            checks.check_refusal(error)
            continue
        assert seen.header == log.header
        assert seen.events == log.events[: len(seen.events)]
        lengths.append(len(seen.events))
        if len(lengths) % 5 == 0:
            seed.cut(seen)
    growing.join()
    assert lengths == sorted(lengths)
    assert log_format.read(path) == log


def test_a_log_that_shrinks_while_it_is_read_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(PLAIN)
    is_over = threading.Event()

    def shrink() -> None:
        while not is_over.is_set():
            for size in range(len(PLAIN), 0, -97):
                os.truncate(path, size)
            path.write_bytes(PLAIN)

    shrinking = threading.Thread(target=shrink)
    shrinking.start()
    try:
        for _ in range(300):
            try:
                seen = log_format.read(path)
            except SessionRefused as error:
                checks.check_refusal(error)
            else:
                assert seen.events == SMALL.events[: len(seen.events)]
    finally:
        is_over.set()
        shrinking.join()


# -- seeds that were damaged ----------------------------------------------------------------------

MADE = seed.window(a_log(3, tools=1), 2)
HEADED = seed.window(KINDS, 1)


@pytest.mark.parametrize("made", [MADE, HEADED, seed.empty()], ids=["verbatim", "other", "empty"])
def test_a_manifest_with_a_wrong_value_in_any_field_is_refused_or_gives_rows(made: seed.Seed) -> None:
    stored = checks.chunks_of(made)
    places = len(list(spots(json.loads(made.manifest))))
    for place in range(places):
        for wrong in (*WRONG, 0, 1, 2, 10**6, 2**29, 2**40, "0" * 64):
            value = json.loads(made.manifest)
            holder, key = list(spots(value))[place]
            holder[key] = wrong
            checks.check_decode(dumped(value), stored)
        value = json.loads(made.manifest)
        holder, key = list(spots(value))[place]
        del holder[key]
        checks.check_decode(dumped(value), stored)


def test_a_manifest_cut_at_any_byte_is_refused() -> None:
    for end in range(len(MADE.manifest)):
        with pytest.raises(SeedRefused):
            seed.decode(MADE.manifest[:end], checks.chunks_of(MADE).__getitem__)


@pytest.mark.parametrize(
    "manifest", [b"", b"null", b"[]", b"\xff", b"\0", b"[" * 10_000, b'{"version":1}', b"1e999"]
)
def test_bytes_that_are_no_manifest_are_refused(manifest: bytes) -> None:
    with pytest.raises(SeedRefused):
        seed.decode(manifest, checks.chunks_of(MADE).__getitem__)
    with pytest.raises(SeedRefused):
        seed.read_manifest(manifest)


def test_a_chunk_cut_or_changed_at_any_byte_is_refused_or_is_the_same() -> None:
    name, data = MADE.chunks[0].digest, MADE.chunks[0].data
    for at in range(len(data)):
        for broken in (data[:at], data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]):
            rows = checks.check_decode(MADE.manifest, {**checks.chunks_of(MADE), name: broken})
            assert rows is None or rows == MADE.events


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"5\n",
        b"{\n",
        b"\xff\n",
        b"[]\n",
        b"{}\n",
        b'{"type":"x"}\n',
        b'{"type":"x","time":1,"data":1}\n',
        b'{"type":[],"time":1,"data":{}}\n',
        b'{"type":"turn/start","time":1,"data":5}\n',
        b'{"type":"session/title","time":1,"data":{}}\n',
        b'{"type":"session/title","time":1,"data":{"messageSeqs":5}}\n',
        b'{"type":"session/title","time":1,"data":{"messageSeqs":["a"]}}\n',
        b'{"type":"user/message","time":1,"data":{},"sourceEventSeqs":[[1]]}\n',
        b'{"type":"user/message","time":1,"data":{},"sourceEventSeqs":5}\n',
        b'{"type":"user/message","time":1,"data":{},"surfaceOp":5}\n',
        b'{"type":"user/message","time":1,"data":{},"surfaceOp":{"startSeq":"a","endSeq":[]}}\n',
        b'{"type":"tool/result","time":1,"data":{"message":{"id":{}}}}\n',
        b'{"type":"tool/result","time":1,"data":{"message":{"id":{},"toolCallId":1},"error":{"code":"TOOL_NOT_STARTED"}}}\n',
        b'{"type":"image/offload","time":1,"data":{"targets":[1]}}\n',
        b'{"type":"x","time":1,"data":' + nested(3_000) + b"}\n",
        b'{"type":"x","time":NaN,"data":1}\n',
        b'{"type":"step/start","time":1,"data":{}}\n{"type":"x","time":1,"data":{}}\n',
    ],
    ids=lambda raw: repr(raw[:60]),
)
def test_a_chunk_that_says_what_no_seed_wrote_is_refused_or_gives_rows(raw: bytes) -> None:
    """Its digest, rows and bytes fit; what it holds does not."""
    made = seed.window(a_log(1), 1)
    value = json.loads(made.manifest)
    chunk = pack(raw, raw.count(b"\n"))
    value["parts"] = [[chunk.digest, chunk.rows, chunk.raw_bytes]]
    for head in (None, 1):
        value |= {"events": chunk.rows + (head is not None), "bytes": len(raw), "turns": 1, "head": head}
        checks.check_decode(json.dumps(value).encode(), {chunk.digest: chunk.data})


def test_a_chunk_that_unpacks_without_end_is_refused_in_bounded_memory() -> None:
    name = MADE.chunks[0].digest
    bomb = zstandard.ZstdCompressor().compress(b" " * (256 * MIB))
    lie = b"\x28\xb5\x2f\xfd\xe0" + (2**50).to_bytes(8, "little") + b"\x01\x00\x00"
    for data in (bomb, lie):
        tracemalloc.start()
        rows = checks.check_decode(MADE.manifest, {**checks.chunks_of(MADE), name: data})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert rows is None
        assert peak < 16 * MIB


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("head", 10**6), ("events", 5), ("turns", 9), ("bytes", 1), ("form", "x"), ("version", 2.0)],
)
def test_a_manifest_whose_sums_do_not_fit_is_refused(key: str, wrong: object) -> None:
    value = json.loads(MADE.manifest)
    value[key] = wrong
    value["events"] += key == "head"
    with pytest.raises(SeedRefused):
        seed.decode(json.dumps(value).encode(), checks.chunks_of(MADE).__getitem__)


@pytest.mark.parametrize("raw", [b"", b'{"type":"x/y","time":1,"data":0,"ignorable":true}\n'])
def test_pages_that_stand_for_turns_without_end_are_refused_at_once(raw: bytes) -> None:
    """Two kilobytes of pages, each of which lists the one before four times."""
    chunk = pack(raw, raw.count(b"\n"))
    blobs, part, turns = {chunk.digest: chunk.data}, [chunk.digest, chunk.rows, chunk.raw_bytes], 1
    for _ in range(20):
        data = json.dumps({"parts": [part] * 4}).encode()
        turns *= 4
        part = [digest_of(data), part[1] * 4, part[2] * 4, turns]
        blobs[part[0]] = data
    value = {
        "version": 2,
        "form": "verbatim",
        "turns": turns,
        "events": part[1],
        "bytes": part[2],
        "head": None,
    }
    assert checks.check_decode(json.dumps({**value, "parts": [part]}).encode(), blobs) is None


def test_a_refusal_of_a_row_with_a_huge_type_is_small() -> None:
    lines = lines_of(SMALL)
    lines[3]["type"] = "x" * MIB
    assert len(json.dumps(refusal(file_of(lines)).to_json())) < 1_000
