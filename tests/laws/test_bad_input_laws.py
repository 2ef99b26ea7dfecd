"""Laws of bad input, where hypothesis picks the log and throws the dice for what is wrong with it.

`tests.fuzz.checks` holds the laws; the fuzzers (tests/fuzz/README.md) look at the same for longer.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import zstandard
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dsh_tasks import format as log_format
from dsh_tasks import seed
from dsh_tasks.errors import SessionRefused
from dsh_tasks.session import Session
from dsh_tasks.session_file import SessionFile
from tests.factories import bytes_of, file_of, lines_of
from tests.fuzz import checks, logs
from tests.fuzz.mutate import dumped, mutated, spots
from tests.laws.test_seed_laws import logs as made_up

LAW = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
CORPUS = list(logs.corpus(made_up=12))
DICE = st.integers(0, 2**48)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=5)
    | st.sampled_from([2**53, 2**63, -(2**63), 10**30, "\ud800", "\0"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def held(data: bytes, dice: Random) -> Session | None:
    """The log, with all its seeds; None where it is refused as it should be."""
    log = checks.check_log(data)
    event("read" if log is not None else "refused")
    if log is not None:
        checks.check_seeds(log, dice)
    return log


@LAW
@given(st.sampled_from(CORPUS), DICE, st.integers(1, 3))
def test_whatever_is_changed_in_a_log_the_answer_is_a_log_with_its_seeds_or_a_refusal(
    data: bytes, number: int, times: int
) -> None:
    dice = Random(number)
    for _ in range(times):
        data = mutated(data, dice, CORPUS)
    held(data, dice)


@LAW
@given(st.data())
def test_whatever_json_stands_in_a_field_the_answer_is_a_log_with_its_seeds_or_a_refusal(
    data: st.DataObject,
) -> None:
    lines: list[Any] = data.draw(
        st.sampled_from([lines_of(logs.every_kind(answered=True)), logs.old_lines(seeded=True)])
    )
    lines = json.loads(json.dumps(lines))
    for _ in range(data.draw(st.integers(1, 2))):
        row = data.draw(st.sampled_from(lines))
        holder, key = data.draw(st.sampled_from(list(spots(row)) or [(lines, 0)]))
        holder[key] = data.draw(VALUES)
    held(b"".join(dumped(line) + b"\n" for line in lines), Random(1))


@LAW
@given(
    st.binary(max_size=300), st.sampled_from(CORPUS), DICE, st.sampled_from(["alone", "in", "over", "after"])
)
def test_whatever_bytes_come_in_the_answer_is_a_log_or_a_refusal(
    noise: bytes, data: bytes, number: int, where: str
) -> None:
    at = number % (len(data) + 1)
    broken = {
        "alone": noise,
        "in": data[:at] + noise + data[at:],
        "over": data[:at] + noise + data[at + len(noise) :],
        "after": data + noise,
    }[where]
    held(broken, Random(number))
    checks.check_lines(broken)


@LAW
@given(st.lists(st.sampled_from([*range(60)]), max_size=60), st.sampled_from(["v4", "v0"]))
def test_rows_in_any_order_and_number_are_a_log_or_a_refusal(places: list[int], version: str) -> None:
    lines = lines_of(logs.every_kind()) if version == "v4" else logs.old_lines()
    picked = [lines[0], *(dict(lines[1 + place % (len(lines) - 1)]) for place in places)]
    for seq, row in enumerate(picked[1:]):
        if "seq" in row:
            row["seq"] = seq
    held(file_of(picked), Random(1))


@LAW
@given(made_up(), DICE)
def test_a_log_that_is_cut_anywhere_is_its_own_beginning(log: Session, number: int) -> None:
    data = bytes_of(log)
    end = number % (len(data) + 1)
    try:
        seen = log_format.parse(data[:end])
    except SessionRefused as error:
        checks.check_refusal(error, line_needed=True)
        assert error.facts["line"] == 1, "no header yet, or no marker of the seed yet"
        return
    assert seen.header == log.header
    assert seen.events == log.events[: len(seen.events)]
    assert len(seen.events) >= data[:end].count(b"\n") - 1


@LAW
@given(made_up(), DICE, st.integers(1, 400), st.booleans())
def test_frames_of_any_size_cut_anywhere_hold_the_beginning_of_the_log(
    log: Session, number: int, size: int, is_summed: bool
) -> None:
    data = bytes_of(log)
    one = zstandard.ZstdCompressor(level=1, write_checksum=is_summed)
    packed = b"".join(one.compress(data[at : at + size]) for at in range(0, len(data), size))
    assert log_format.parse(packed) == log
    try:
        seen = log_format.parse(packed[: number % len(packed)])
    except SessionRefused as error:
        checks.check_refusal(error, line_needed=True)
        return
    assert seen.events == log.events[: len(seen.events)]


@settings(LAW, max_examples=60)
@given(made_up(), st.lists(DICE, min_size=1, max_size=5))
def test_a_file_that_is_followed_gives_the_seeds_of_what_it_held_each_time(
    tmp_path: Path, log: Session, numbers: list[int]
) -> None:
    data, path = bytes_of(log), tmp_path / "log"
    path.unlink(missing_ok=True)
    followed = SessionFile(path)
    for end in sorted(number % (len(data) + 1) for number in numbers):
        path.write_bytes(data[:end])
        try:
            seen = log_format.parse(data[:end])
        except SessionRefused:
            seen = None
        try:
            followed.refresh()
        except SessionRefused as error:
            checks.check_refusal(error)
            assert seen is None
            continue
        assert seen is not None
        count = numbers[0] % 4
        assert followed.seed(count).manifest == seed.window(seen, count).manifest


@LAW
@given(made_up(), st.integers(1, 6), DICE)
def test_a_damaged_seed_gives_its_rows_or_a_refusal(log: Session, turns: int, number: int) -> None:
    made = seed.window(log, turns)
    dice = Random(number)
    for _ in range(5):
        checks.check_damage(made, dice)


@LAW
@given(st.sampled_from(CORPUS), DICE)
def test_the_parser_reads_any_line_as_the_standard_one_does(data: bytes, number: int) -> None:
    checks.check_lines(mutated(data, Random(number), CORPUS))
