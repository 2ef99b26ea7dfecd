"""Sessions as values: turns, ends, routes, rows."""

from __future__ import annotations

import pytest

from dsh_tasks.errors import SessionRefused
from dsh_tasks.session import Event, Header, Replace, Session
from tests.factories import a_log


def test_a_turn_counts_as_completed_whatever_ended_it() -> None:
    log = a_log(3, reasons={1: "aborted", 2: "error", 3: "interrupted"})
    assert [turn.reason for turn in log.completed_turns()] == ["aborted", "error", "interrupted"]


def test_an_open_turn_is_the_last_one_and_not_completed() -> None:
    log = a_log(2, open_turn=True)
    assert [turn.number for turn in log.turns()] == [1, 2, 3]
    assert [turn.is_completed for turn in log.turns()] == [True, True, False]
    assert log.turns()[-1].end_seq is None


def test_the_completed_part_ends_after_the_last_end_of_a_turn() -> None:
    log = a_log(2, open_turn=True)
    end = log.end_of_completed()
    assert log.events[end - 1].type == "turn/end"
    assert all(event.type != "turn/end" for event in log.events[end:])


def test_a_log_without_a_completed_turn_ends_at_zero() -> None:
    assert a_log(0, open_turn=True).end_of_completed() == 0
    assert Session(Header(version=4, id="s", created_at=0), ()).end_of_completed() == 0


def test_a_turn_names_the_rows_that_begin_and_end_it() -> None:
    log = a_log(1)
    (turn,) = log.turns()
    assert log.events[turn.start_seq].type == "turn/start"
    assert turn.end_seq is not None
    assert log.events[turn.end_seq].type == "turn/end"


def test_the_model_route_is_the_one_of_the_last_request() -> None:
    log = a_log(1)
    assert log.model_route() == ("deepseek-official", "deepseek-v4-flash")
    later = Event(
        "request/header", len(log.events), 0, {"header": {"config": {"provider": "p", "model": "m"}}}
    )
    assert Session(log.header, (*log.events, later)).model_route() == ("p", "m")
    assert a_log(1, bookkeeping=False).model_route() is None


def test_a_header_row_has_the_keys_of_v4_in_their_order() -> None:
    header = Header(4, "c", 7, "/a", "p", is_seeded=True, origin="subagent", delegation_depth=1)
    assert list(header.row()) == [
        "type",
        "version",
        "id",
        "createdAt",
        "cwd",
        "parentSession",
        "isSeeded",
        "origin",
        "delegationDepth",
    ]
    assert list(Header(4, "c", 7).row()) == [
        "type",
        "version",
        "id",
        "createdAt",
        "isSeeded",
        "delegationDepth",
    ]


def test_a_row_becomes_an_event_and_the_same_row_again() -> None:
    row = {
        "type": "user/message",
        "seq": 9,
        "time": 5,
        "data": {"role": "user"},
        "sourceEventSeqs": [1, [3, 5]],
        "surfaceOp": {"op": "replace", "startSeq": 3, "endSeq": 5},
        "ignorable": True,
    }
    event = Event.from_row(row)
    assert event.surface_op == Replace(3, 5)
    assert event.sources() == (1, 3, 4, 5)
    assert event.row() == row


@pytest.mark.parametrize(
    "row",
    [{}, {"type": "t", "seq": 0, "time": 0}, {"type": "t", "seq": 0, "time": 0, "data": {}, "surfaceOp": 3}],
)
def test_what_is_no_row_is_refused_by_its_type(row: dict[str, object]) -> None:
    with pytest.raises(SessionRefused):
        Event.from_row(row)
