"""Logs that were forked before: found again, grown, replaced, forgotten."""

from __future__ import annotations

import pytest

from dsh_tasks import seed
from dsh_tasks.client import parents
from dsh_tasks.client.parents import Forked, Parents
from dsh_tasks.errors import SeedRefused
from dsh_tasks.session import Event, Session
from tests.factories import a_log


def forked(known: Parents, session: Session, turns: int | None = None) -> seed.Seed:
    return Forked(known.of(session), session).seed(turns)


def test_a_fork_of_a_grown_log_takes_only_what_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Parents()
    whole = a_log(12, tools=1)
    ends = [turn.end_seq or 0 for turn in whole.turns()]
    forked(known, Session(whole.header, whole.events[: ends[9] + 1]))
    taken: list[int] = []
    check = seed.maker.checked
    monkeypatch.setattr("dsh_tasks.seed.maker.checked", lambda row, seq: taken.append(seq) or check(row, seq))
    assert forked(known, Session(whole.header, whole.events[: ends[10] + 1])).turns == 11
    assert taken == list(range(ends[9] + 1, ends[10] + 1))


@pytest.mark.parametrize("turns", [None, 1, 2, 99])
def test_the_seeds_are_those_that_a_stranger_would_make(turns: int | None) -> None:
    known = Parents()
    for log in (a_log(3), a_log(5), a_log(5, tools=1), a_log(2), a_log(4, compacted={4: 5}, open_turn=True)):
        expected = seed.cut(log) if turns is None else seed.window(log, turns)
        assert forked(known, log, turns) == expected


def test_a_log_whose_rows_were_changed_is_another_log() -> None:
    """As a redaction does it: one event replaced, the others the same objects."""
    known = Parents()
    log = a_log(3)
    forked(known, log)
    rows = list(log.events)
    place = next(i for i, row in enumerate(rows) if row.type == "user/message")
    row = rows[place]
    rows[place] = Event(row.type, row.seq, row.time, {**row.data, "content": []}, None, row.surface_op)
    redacted = Session(log.header, tuple(rows))
    assert forked(known, redacted) == seed.cut(redacted) != seed.cut(log)


def test_a_refused_log_leaves_nothing_behind() -> None:
    known = Parents()
    log = a_log(3)
    forked(known, log)
    end = log.events[-1]
    bad = Session(log.header, (*log.events, Event("turn/end", end.seq + 1, 1, end.data)))
    for _ in range(2):
        with pytest.raises(SeedRefused) as caught:
            forked(known, bad)
        assert caught.value.facts["seq"] == end.seq + 1
    assert forked(known, log) == seed.cut(log)


def test_few_logs_and_few_bytes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Parents()
    for number in range(parents.MOST + 5):
        forked(known, a_log(1, session_id=f"s{number}"))
    assert len(known._known) == parents.MOST
    monkeypatch.setattr(parents, "MOST_BYTES", 1)
    forked(known, a_log(1, session_id="last"))
    known.of(a_log(1, session_id="other"))
    assert list(known._known) == ["other"]


def test_a_large_step_is_known_to_be_slow_and_a_small_one_is_not() -> None:
    known = Parents()
    log = a_log(40, tools=5)
    assert Forked(known.of(log), log).is_slow(100)
    forked(known, log)
    assert not Forked(known.of(log), log).is_slow(100)
