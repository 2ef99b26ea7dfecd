"""Seeds: what is cut, kept, dropped, folded, shared and refused."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from typing import Any

import pytest
import zstandard

from dsh_tasks import format as log_format
from dsh_tasks import seed, surface
from dsh_tasks.seed import EMPTY_HEAD
from dsh_tasks.errors import LimitReached, SeedRefused
from dsh_tasks.lifecycle import check
from dsh_tasks.seed import Seed
from dsh_tasks.session import Event, Session
from tests.factories import CANARY, LogWriter, a_log, bytes_of, text


def child_of(log: Session, made: Seed) -> Session:
    header = seed.child_header(
        parent_session=log.header.id, child_id="child", created_at_ms=9, depth=1, seeded=made.form != "empty"
    )
    return seed.child_session(header, made)


def words(made: Seed) -> list[str]:
    return [
        block["text"]
        for message in surface.messages(made.events)
        for block in message["content"]
        if "text" in block
    ]


def digests(made: Seed) -> list[str]:
    return [chunk.digest for chunk in made.chunks]


# -- fork -----------------------------------------------------------------------------------------


def test_a_fork_keeps_the_rows_up_to_the_last_end_of_a_turn_as_they_are() -> None:
    log = a_log(3, tools=2, open_turn=True)
    made = seed.cut(log)
    assert made.form == "verbatim"
    assert made.events == log.events[: log.end_of_completed()]
    assert CANARY not in str(made.events)


def test_an_aborted_last_turn_is_kept_like_any_other() -> None:
    log = a_log(2, reasons={2: "aborted"})
    assert seed.cut(log).events[-1].data["reason"] == {"kind": "aborted"}


@pytest.mark.parametrize("log", [a_log(0), a_log(0, open_turn=True)])
def test_without_a_completed_turn_a_fork_is_empty(log: Session) -> None:
    made = seed.cut(log)
    assert made == seed.empty()
    assert made.events == ()
    assert not child_of(log, made).header.is_seeded


def test_what_happens_to_the_log_after_the_call_does_not_reach_the_seed() -> None:
    writer = LogWriter()
    writer.open_turn("question")
    writer.assistant(text("answer"))
    writer.close_turn()
    rows = [dict(row) for row in writer.rows]
    log = Session(writer.session.header, tuple(Event.from_row(row) for row in rows))
    made = seed.cut(log)
    before = made.digest
    for row in rows:
        row["data"].clear()
    assert made.digest == before
    assert words(made)[1:] == ["question", "answer"]


def test_a_fork_of_a_fork_drops_the_marker_and_renumbers() -> None:
    log = a_log(4, tools=1, compacted={4: 3}, inherited=2)
    plain = a_log(4, tools=1, compacted={4: 3})
    made = seed.cut(log)
    assert [event.type for event in made.events] == [event.type for event in plain.events]
    assert all(event.type != "session/end-seed" for event in made.events)
    child = child_of(log, made)
    assert log_format.parse(bytes_of(child)) == child
    assert surface.messages(made.events) == surface.messages(log.events)


def test_a_plain_marker_of_a_resumed_log_stays() -> None:
    writer = LogWriter()
    writer.open_turn("one")
    writer.assistant(text("answer"))
    writer.close_turn("interrupted")
    writer.add("session/end-seed", {})
    writer.open_turn("two")
    writer.close_turn()
    assert [event.type for event in seed.cut(writer.session).events].count("session/end-seed") == 1


def test_a_compaction_that_the_marker_cut_off_still_ends_there() -> None:
    writer = LogWriter()
    writer.open_turn("one")
    writer.close_turn()
    writer.add("compaction/start", {"compactionId": "k", "turn": None})
    writer.add("session/end-seed", {"inherited": True})
    writer.open_turn("two")
    writer.close_turn()
    made = seed.cut(writer.session)
    check(made.events, strict=True)
    assert [event.data for event in made.events if event.type == "session/end-seed"] == [{}]


# -- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [3, 4, 99, 10**9])
def test_a_window_beyond_what_there_is_equals_the_fork(turns: int) -> None:
    log = a_log(3, tools=2, open_turn=True)
    assert seed.window(log, turns) == seed.cut(log)
    assert seed.window(log, turns).digest == seed.cut(log).digest


def test_a_window_of_zero_turns_is_empty() -> None:
    made = seed.window(a_log(3), 0)
    assert made.form == "empty"
    assert made.digest == seed.empty().digest


def test_a_window_of_less_than_none_is_refused() -> None:
    with pytest.raises(SeedRefused):
        seed.window(a_log(1), -1)


def test_a_window_numbers_rows_and_turns_anew() -> None:
    log = a_log(4, tools=2, notices=1)
    made = seed.window(log, 2)
    assert made.form == "verbatim"
    assert [event.seq for event in made.events] == list(range(len(made.events)))
    assert [event.data["turn"] for event in made.events if event.type == "turn/start"] == [1, 2]
    for event in made.events:
        if event.type == "tool/result":
            (source,) = event.sources()
            assert made.events[source].data["callId"] == event.data["message"]["toolCallId"]
        if event.type == "session-log-deepseek/delivery-accepted":
            assert event.data["throughSeq"] == event.seq - 1


def test_a_window_holds_its_own_turns_and_no_other() -> None:
    log = a_log(4, facts=[("codeword", "amber"), ("budget", "12"), ("deadline", "May"), ("place", "Oslo")])
    said = " ".join(words(seed.window(log, 2)))
    assert "May" in said
    assert "Oslo" in said
    assert "amber" not in str(seed.window(log, 2).events)
    assert "12" not in said


def test_thirty_calls_are_one_turn() -> None:
    log = a_log(2, tools=30, notices=3)
    assert seed.window(log, 1).turns == 1
    assert len(surface.calls_of(surface.messages(seed.window(log, 1).events)[1])) == 30


def test_an_empty_system_message_stands_in_for_the_one_that_is_not_kept() -> None:
    """Without one the harness opens the child's log once and calls it corrupt ever after."""
    made = seed.window(a_log(3), 1)
    first = next(event for event in made.events if event.surface_op is not None)
    assert first.type == "system/message"
    assert first.data == {"turn": 1, "step": 1, "message": EMPTY_HEAD}
    assert made.head == first.seq
    assert made.event_count == len(made.events)
    assert [message["role"] for message in surface.messages(made.events)] == ["user", "assistant"]


def test_a_log_without_a_system_message_gets_none() -> None:
    made = seed.window(a_log(3, bookkeeping=False), 2)
    assert made.head is None
    assert all(event.type != "system/message" for event in made.events)


def a_retried_log() -> Session:
    """Two turns; in the second a request fails and is tried again under the header of the first."""
    writer = LogWriter()
    writer.open_turn("one")
    writer.assistant(text("answer"))
    writer.close_turn()
    asked = writer.open_turn("two")
    retry = {"retryId": "r", "retry": 1, **writer.frame}
    writer.add("llm/retry", {**retry, "provider": "deepseek-official", "policyKey": "k", "delayMs": 1})
    writer.add("llm/retry-started", retry)
    writer.add("session/title", {"title": "t", "messageSeqs": [asked], "source": {"kind": "llm"}})
    first = next(row["seq"] for row in writer.rows if row["type"] == "user/message")
    writer.add("session/title", {"title": "t", "messageSeqs": [first, asked], "source": {"kind": "llm"}})
    writer.assistant(text("answer"))
    writer.close_turn()
    return writer.session


def test_bookkeeping_that_cites_what_is_not_kept_is_dropped() -> None:
    log = a_retried_log()
    log_format.parse(bytes_of(log))
    made = seed.window(log, 1)
    kinds = [event.type for event in made.events]
    assert made.form == "verbatim"
    assert "llm/retry" not in kinds
    assert "llm/retry-started" not in kinds
    assert kinds.count("session/title") == 1
    assert "llm/retry" in [event.type for event in seed.cut(log).events]


def test_a_command_that_began_before_the_window_leaves_no_end_in_it() -> None:
    writer = LogWriter()
    writer.open_turn("one")
    writer.add("command/run", {"commandId": "k", "name": "n", "source": {}})
    writer.close_turn()
    writer.open_turn("two")
    writer.add("command/done", {"commandId": "k", "kind": "success"})
    writer.close_turn()
    assert "command/done" not in [event.type for event in seed.window(writer.session, 1).events]
    assert "command/done" in [event.type for event in seed.cut(writer.session).events]


# -- messages that wait ---------------------------------------------------------------------------


def a_log_with_a_waiting_message(*, then_taken: bool) -> LogWriter:
    writer = LogWriter()
    writer.open_turn("one")
    writer.assistant(text("answer"))
    writer.inbox("next-turn", [writer.user_message(CANARY)])
    writer.close_turn()
    if then_taken:
        writer.turn += 1
        writer.step = 0
        writer.add("turn/start", {"turn": writer.turn})
        writer.inbox("next-turn", [], removed=1)
        writer.open_step()
        writer.show("user/message", writer.user_message(CANARY))
        writer.assistant(text("answer to it"))
        writer.close_turn()
    return writer


def test_a_message_that_waits_at_the_end_is_not_inherited() -> None:
    """It is the parent's next turn. The harness runs it as the child's first (seen)."""
    made = seed.cut(a_log_with_a_waiting_message(then_taken=False).session)
    assert made.form == "verbatim"
    assert CANARY not in str(made.events)
    assert [event.type for event in made.events].count("agent/inbox/spliced") == 2


def test_a_message_that_was_taken_inside_is_kept_with_its_rows() -> None:
    log = a_log_with_a_waiting_message(then_taken=True).session
    assert seed.cut(log).events == log.events


def test_a_window_takes_nothing_out_that_was_put_in_before_it() -> None:
    """The harness refuses such a log when it resumes it (seen)."""
    made = seed.window(a_log_with_a_waiting_message(then_taken=True).session, 1)
    assert made.form == "verbatim"
    assert all(event.type != "agent/inbox/spliced" for event in made.events)
    assert words(made) == [CANARY, "answer to it"]


# -- folding --------------------------------------------------------------------------------------


def test_a_compaction_inside_the_window_stays_verbatim() -> None:
    log = a_log(6, compacted={6: 2})
    made = seed.window(log, 2)
    assert made.form == "verbatim"
    assert "summary by turn 6" in words(made)
    assert words(made) == words(seed.cut(log))[-3:]


def test_a_compaction_that_reaches_out_of_the_window_is_folded() -> None:
    log = a_log(4, tools=1, compacted={4: 6}, thinks=True)
    made = seed.window(log, 2)
    assert made.form == "folded"
    assert made.turns == 2
    assert "summary by turn 4" in words(made)
    check(made.events, strict=True)


def test_the_summary_keeps_its_place_before_the_messages_that_followed_it() -> None:
    writer = LogWriter()
    for number in (1, 2, 3):
        writer.open_turn(f"question {number}")
        writer.assistant(text(f"answer {number}"))
        if number == 3:
            writer.compact("summary", first=writer.live[1], last=writer.live[3])
        writer.close_turn()
    made = seed.window(writer.session, 2)
    assert made.form == "folded"
    assert words(made) == ["summary", "answer 2", "question 3", "answer 3"]
    assert made.turns == 2


def test_folded_calls_and_results_keep_their_pairs_and_frames() -> None:
    made = seed.window(a_log(4, tools=3, compacted={4: 8}), 2)
    assert made.form == "folded"
    child = child_of(a_log(1), made)
    assert log_format.parse(bytes_of(child)) == child
    assert all(event.type not in ("compaction/start", "request/header") for event in made.events)


def test_a_turn_of_which_nothing_lives_stays_as_an_empty_one() -> None:
    log = a_log(4, compacted={4: 4})
    made = seed.window(log, 2)
    assert made.form == "folded"
    assert len(made.chunks) == 2
    assert [event.data["turn"] for event in made.events if event.type == "turn/end"] == [1, 2]


def test_a_call_without_a_result_is_answered_in_the_seed() -> None:
    log = a_log(2, unanswered=(1,))
    made = seed.cut(log)
    assert made.form == "folded"
    assert surface.UNKNOWN_OUTCOME in words(made)
    check(made.events, strict=True)
    assert surface.messages(made.events) == surface.messages(log.events)


def test_a_result_without_its_call_is_not_inherited() -> None:
    """The harness' route refuses such a request (seen: 'tool result has no matching call')."""
    writer = LogWriter(bookkeeping=False)
    asked = writer.open_turn("question")
    (block,) = writer.calls(1)
    answered = writer.assistant(block)
    writer.result(writer.call(block), block, "orphan")
    writer.compact("summary", first=asked, last=answered)
    writer.assistant(text("answer"))
    writer.close_turn()
    made = seed.cut(writer.session)
    assert made.form == "folded"
    assert words(made) == ["summary", "answer"]
    assert "orphan" not in str(made.events)


def test_a_message_about_tools_takes_the_header_that_it_names_along() -> None:
    writer = LogWriter()
    writer.open_turn("one")
    writer.close_turn()
    writer.open_turn("two")
    header = next(row["seq"] for row in writer.rows if row["type"] == "request/header")
    content = [{"type": "tool-addition", "toolName": "read"}, text("read is back")]
    message = {"role": "developer", "id": "d", "source": {"kind": "plan-mode"}, "content": content}
    writer.show("developer/message", {**writer.frame, "message": message, "headerSeq": header})
    writer.close_turn()
    made = seed.window(writer.session, 1)
    assert made.form == "folded"
    named = next(event.data["headerSeq"] for event in made.events if event.type == "developer/message")
    assert made.events[named].type == "request/header"
    check(made.events, strict=True)


def test_the_number_in_the_name_of_a_repair_moves_with_its_row() -> None:
    writer = LogWriter()
    writer.open_turn("one")
    writer.close_turn()
    writer.add("session/end-seed", {"inherited": True})
    writer.open_turn("two")
    (block,) = writer.calls(1)
    writer.assistant(block)
    seq = writer.result(0, block, "not started", is_error=True)
    row = writer.rows[seq]
    del row["sourceEventSeqs"]
    row["data"]["message"]["id"] = f"forked-tool-result-{block['id']}-{seq}"
    row["data"]["error"] = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    writer.close_turn()
    for made in (seed.cut(writer.session), seed.window(writer.session, 1)):
        assert made.form == "verbatim"
        repair = next(event for event in made.events if event.type == "tool/result")
        assert repair.data["message"]["id"] == f"forked-tool-result-{block['id']}-{repair.seq}"


# -- chunks ---------------------------------------------------------------------------------------


def test_a_seed_has_one_chunk_a_turn() -> None:
    made = seed.cut(a_log(5, tools=1, open_turn=True))
    assert made.turns == len(made.chunks) == 5
    assert sum(chunk.rows for chunk in made.chunks) == len(made.events)


def test_one_more_turn_adds_one_more_chunk() -> None:
    shorter = seed.cut(a_log(4, tools=2, compacted={3: 4}))
    longer = seed.cut(a_log(5, tools=2, compacted={3: 4}))
    assert digests(longer)[:4] == digests(shorter)
    assert len(set(digests(longer)) - set(digests(shorter))) == 1


def test_a_window_shares_its_chunks_with_the_fork() -> None:
    log = a_log(6, tools=2, notices=1)
    assert digests(seed.window(log, 3)) == digests(seed.cut(log))[-3:]


def test_two_forks_of_one_cut_are_equal_to_the_byte() -> None:
    log = a_log(3, tools=2)
    later = a_log(3, tools=2, open_turn=True)
    assert seed.cut(log) == seed.cut(later)
    assert seed.cut(log).manifest == seed.cut(log_format.parse(bytes_of(later))).manifest


def test_digests_are_the_hashes_of_what_they_name() -> None:
    made = seed.cut(a_log(2))
    assert made.digest == base64.urlsafe_b64encode(hashlib.sha256(made.manifest).digest()).decode().rstrip(
        "="
    )
    assert [part.digest for part in seed.seed_parts(made.manifest)] == digests(made)
    assert made.raw_bytes == sum(chunk.raw_bytes for chunk in made.chunks)
    assert made.stored_bytes < made.raw_bytes


def test_decoding_gives_the_rows_that_were_frozen() -> None:
    for log in (a_log(3, tools=2, images=1), a_log(4, compacted={4: 6})):
        for turns in range(5):
            made = seed.window(log, turns)
            stored = made.blobs
            assert seed.decode(made.manifest, stored.__getitem__) == made.events


def test_a_manifest_says_what_it_lists() -> None:
    made = seed.window(a_log(3), 2)
    value = json.loads(made.manifest)
    assert list(value) == ["version", "form", "turns", "events", "bytes", "head", "parts"]
    assert (value["form"], value["turns"], value["events"]) == ("verbatim", 2, len(made.events))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: b"\x00" * len(data),
        lambda data: seed.cut(a_log(1, tools=5)).chunks[0].data,
    ],
)
def test_a_chunk_that_is_not_what_its_digest_says_is_refused(damage: Any) -> None:
    made = seed.cut(a_log(1))
    with pytest.raises(SeedRefused):
        seed.decode(made.manifest, lambda _digest: damage(made.chunks[0].data))


def test_a_chunk_with_other_words_of_the_same_length_is_refused() -> None:
    made = seed.cut(a_log(1))
    raw = seed.unpack(made.chunks[0].data, made.chunks[0].digest, made.chunks[0].raw_bytes).replace(
        b"answer 1", b"answer 2"
    )
    with pytest.raises(SeedRefused):
        seed.decode(made.manifest, lambda _digest: zstandard.compress(raw))


def test_a_head_that_no_step_opens_for_is_refused() -> None:
    made = seed.window(a_log(2), 1)
    value = json.loads(made.manifest)
    value["head"] += 1
    stored = made.blobs
    with pytest.raises(SeedRefused):
        seed.decode(json.dumps(value).encode(), stored.__getitem__)


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":1,"turns":0,"events":0,"parts":[]}',
        b'{"version":2,"turns":1,"events":1,"parts":[["a",1,1]]}',
        b'{"version":2,"turns":0,"events":0,"parts":{}}',
        b'{"version":2,"turns":0,"events":0,"parts":[1]}',
        b'{"version":2,"turns":0,"parts":[]}',
        b'{"version":2,"turns":0,"events":0,"head":-1,"parts":[]}',
        b'{"version":2,"turns":1,"events":1,"parts":[["' + b"a" * 43 + b'",true,1]]}',
        b'{"version":2,"turns":2,"events":1,"parts":[["' + b"a" * 43 + b'",1,1]]}',
        b'{"version":2,"turns":1,"events":2,"parts":[["' + b"a" * 43 + b'",1,1]]}',
        b'{"version":2,"turns":1,"events":1,"parts":[["' + b"a" * 43 + b'",1,1,1]]}',
    ],
)
def test_what_is_no_manifest_is_refused(manifest: bytes) -> None:
    with pytest.raises(SeedRefused):
        seed.decode(manifest, lambda _digest: b"")
    with pytest.raises(SeedRefused):
        seed.seed_parts(manifest)


# -- refusals and limits --------------------------------------------------------------------------


def test_a_log_made_by_hand_is_checked_before_it_is_frozen() -> None:
    log = a_log(3)
    rows = list(log.events)
    bad = next(event for event in rows if event.type == "step/start" and event.data["turn"] == 2)
    rows[bad.seq] = Event("step/start", bad.seq, bad.time, {"turn": 2, "step": 7})
    with pytest.raises(SeedRefused) as caught:
        seed.cut(Session(log.header, tuple(rows)))
    assert caught.value.facts["seq"] == bad.seq
    assert caught.value.facts["type"] == "step/start"


@pytest.mark.parametrize("content", ["text", [{"type": "text"}], [{}], None])
def test_a_message_made_by_hand_is_checked_before_it_is_frozen(content: Any) -> None:
    log = a_log(2)
    rows = list(log.events)
    bad = [event for event in rows if event.type == "user/message"][1]
    rows[bad.seq] = dataclasses.replace(bad, data={**bad.data, "content": content})
    with pytest.raises(SeedRefused) as caught:
        seed.window(Session(log.header, tuple(rows)), 1)
    assert caught.value.facts["seq"] == bad.seq


def test_a_value_without_json_is_refused_by_seq_and_type() -> None:
    log = a_log(1)
    rows = list(log.events)
    rows[1] = Event("turn/start", 1, 0, {"turn": 1, "x": float("inf")})
    with pytest.raises(SeedRefused) as caught:
        seed.cut(Session(log.header, tuple(rows)))
    assert caught.value.facts["seq"] == 1


def test_a_seed_over_its_limit_names_the_size_and_the_way_out() -> None:
    log = a_log(3, tools=3)
    whole = seed.cut(log)
    with pytest.raises(LimitReached) as caught:
        seed.cut(log, max_bytes=whole.raw_bytes - 1)
    assert caught.value.facts["value"] == whole.raw_bytes
    assert "fork-lite" in caught.value.message
    assert seed.window(log, 1, max_bytes=whole.raw_bytes - 1).turns == 1


# -- the child ------------------------------------------------------------------------------------


def test_a_child_is_the_seed_its_marker_and_its_own_rows() -> None:
    log = a_log(2)
    made = seed.cut(log)
    child = child_of(log, made)
    assert child.header.row() == {
        "type": "session",
        "version": 4,
        "id": "child",
        "createdAt": 9,
        "parentSession": "parent",
        "isSeeded": True,
        "origin": "subagent",
        "delegationDepth": 1,
    }
    assert child.events[:-1] == made.events
    assert child.events[-1] == seed.end_of_seed(len(made.events), 9)
    assert log_format.parse(bytes_of(child)) == child


def test_own_rows_move_up_where_the_marker_is_put_in() -> None:
    log = a_log(1)
    made = seed.cut(log)
    at = len(made.events)
    own = [
        Event("turn/start", at, 1, {"turn": 2}),
        Event("turn/end", at + 1, 1, {"turn": 2, "reason": {"kind": "error"}}),
    ]
    header = seed.child_header(parent_session="parent", child_id="c", created_at_ms=9, depth=1, seeded=True)
    child = seed.child_session(header, made, own)
    assert log_format.parse(bytes_of(child)) == child
    marked = seed.child_session(header, made.events, child.events[at:])
    assert marked == child


def test_an_unseeded_child_has_no_marker() -> None:
    header = seed.child_header(parent_session="parent", child_id="c", created_at_ms=9, depth=1, seeded=False)
    assert seed.child_session(header, seed.empty()).events == ()


def test_people_read_what_a_child_inherits() -> None:
    assert seed.inherited(seed.empty()) == "nothing inherited"
    line = seed.inherited(seed.window(a_log(3), 1))
    assert line.startswith("1 turn (of 3 completed), 10 events, ")
    assert "estimated as bytes/4" in line
    assert "2 turns" in seed.inherited(seed.window(a_log(3), 2))


# -- P17 ------------------------------------------------------------------------------------------


def test_completed_turns_only_frozen_at_call_time() -> None:
    """P17, the pure part: pi-subagents#1956, agenc-core#2202, octo#1731, octos#1146, qwen#8326, qwen#7346."""
    writer = LogWriter()
    writer.open_turn("one")
    writer.assistant(text("answer one"))
    writer.close_turn()
    writer.open_turn("two")
    (block,) = writer.calls(1)
    writer.assistant(block)
    writer.result(writer.call(block), block, "interrupted, outcome unknown", is_error=True)
    writer.close_turn("aborted")
    writer.open_turn("three")
    for number in range(30):
        (block,) = writer.calls(1)
        writer.assistant(block)
        writer.result(writer.call(block), block, f"result {number}")
        writer.open_step()
        if number % 10 == 0:
            writer.notice(f"notice {number}")
    writer.assistant(text("answer three"))
    writer.close_turn()
    end = len(writer.rows)
    writer.open_turn(CANARY)
    read, *spawns = [*writer.calls(1), *writer.calls(3, name="spawn", arguments={"prompt": CANARY})]
    writer.assistant(read, *spawns)
    writer.result(writer.call(read), read, CANARY)
    calls = [writer.call(block) for block in spawns]

    parent = writer.session
    forks = [seed.cut(parent), seed.cut(parent)]
    windows = {turns: seed.window(parent, turns) for turns in (0, 1, 2, 3, 99)}
    for call_seq, block in zip(calls, spawns, strict=True):
        writer.result(call_seq, block, CANARY)
    writer.assistant(text(CANARY))
    writer.close_turn()

    assert forks[0] == forks[1]
    assert forks[0].events == parent.events[:end]
    assert [event.seq for event in forks[0].events] == list(range(end))
    assert {turns: made.turns for turns, made in windows.items()} == {0: 0, 1: 1, 2: 2, 3: 3, 99: 3}
    assert windows[0].form == "empty"
    assert windows[3] == windows[99] == forks[0]
    for made in (*forks, *windows.values()):
        assert CANARY not in str(made.events)
        assert CANARY.encode() not in bytes_of(child_of(parent, made))
        check(made.events, strict=True)
    assert (
        len([message for message in surface.messages(windows[1].events) if message["role"] == "tool"]) == 30
    )
