"""Log files: v4 and v0, plain and zstd; what is refused, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh_tasks import format as log_format
from dsh_tasks import log_lines
from dsh_tasks import surface
from dsh_tasks.errors import SessionRefused
from dsh_tasks.session import Event, Session
from tests.factories import a_log, bytes_of, file_of, lines_of

RICH = a_log(4, tools=2, notices=1, images=1, thinks=True, compacted={3: 4}, open_turn=True)


def refusal(data: bytes) -> SessionRefused:
    with pytest.raises(SessionRefused) as caught:
        log_format.parse(data)
    return caught.value


def place_of(log: Session, kind: str, nth: int = 0) -> int:
    return [event.seq for event in log.events if event.type == kind][nth]


# -- what is read and written ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "log", [a_log(0), a_log(2), RICH, a_log(3, inherited=2), a_log(2, bookkeeping=False)]
)
def test_what_was_written_reads_back_the_same(log: Session) -> None:
    assert log_format.parse(log_format.write(log)) == log
    assert log_format.parse(log_format.pack(log)) == log


def test_a_row_is_written_as_the_harness_writes_it() -> None:
    line = log_format.write(a_log(1)).splitlines()[2]
    assert line == b'{"type":"turn/start","seq":1,"time":1796000000010,"data":{"turn":1}}'


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_read_whether_compressed_or_not(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "session.v4.jsonl"
    log_format.write_file(RICH, path, compressed=compressed)
    assert log_format.read(path) == RICH
    assert path.read_bytes().startswith(b"\x28\xb5\x2f\xfd") == compressed


def test_the_first_frame_holds_the_header_line_alone() -> None:
    one = zstandard.ZstdDecompressor().decompressobj()
    head = one.decompress(log_format.pack(RICH))
    assert json.loads(head)["type"] == "session"
    assert head.endswith(b"\n")
    assert one.unused_data


def test_many_frames_are_read_as_one_file() -> None:
    compressor = zstandard.ZstdCompressor()
    frames = b"".join(compressor.compress(line + b"\n") for line in bytes_of(RICH).splitlines())
    assert log_format.parse(frames) == RICH


def test_text_of_any_script_and_half_a_surrogate_pair_survive() -> None:
    lines = lines_of(a_log(1))
    row = next(line for line in lines if line["type"] == "user/message")
    row["data"]["content"][0]["text"] = "深い 🐟 \ud800 \u2028 \x00"
    log = log_format.parse(file_of(lines))
    assert log_format.parse(log_format.write(log)) == log
    assert "深".encode() in log_format.write(log) or b"\\ud800" in log_format.write(log)


def test_a_torn_last_line_is_dropped() -> None:
    data = bytes_of(RICH)
    torn = log_format.parse(data[:-20])
    assert torn.events == RICH.events[:-1]


def test_a_last_line_that_only_lacks_its_end_is_kept() -> None:
    assert log_format.parse(bytes_of(RICH)[:-1]) == RICH


def test_a_torn_last_frame_gives_what_it_holds() -> None:
    data = log_format.pack(a_log(20, tools=3))
    log = log_format.parse(data[:-100])
    assert len(log.events) <= len(a_log(20, tools=3).events)


def test_a_line_in_the_middle_that_is_no_json_is_refused_by_its_number() -> None:
    lines = bytes_of(RICH).splitlines(keepends=True)
    lines[6] = lines[6][:-9] + b"\n"
    assert refusal(b"".join(lines)).facts["line"] == 7


def test_unknown_keys_inside_data_are_kept() -> None:
    lines = lines_of(a_log(1))
    lines[2]["data"]["unheard"] = {"of": [1, 2.5, None]}
    assert log_format.parse(file_of(lines)).events[1].data["unheard"] == {"of": [1, 2.5, None]}


def test_a_foreign_row_that_may_be_skipped_is_kept() -> None:
    lines = lines_of(a_log(1))
    lines.append({"type": "x/y", "seq": len(lines) - 1, "time": 1, "data": 5, "ignorable": True})
    log = log_format.parse(file_of(lines))
    assert log.events[-1].type == "x/y"
    assert log_format.parse(log_format.write(log)) == log


def test_a_range_of_sources_is_written_as_it_was_read() -> None:
    lines = lines_of(a_log(4, compacted={3: 4}))
    row = next(line for line in lines if isinstance(line.get("surfaceOp"), dict))
    low = row["surfaceOp"]["startSeq"]
    row["sourceEventSeqs"] = [[low, row["seq"] - 1]]
    log = log_format.parse(file_of(lines))
    assert log.events[row["seq"]].source_event_seqs == ((low, row["seq"] - 1),)
    assert json.loads(log_format.write(log).splitlines()[row["seq"] + 1]) == row


# -- what is refused ------------------------------------------------------------------------------

Change = Callable[[list[dict[str, Any]]], None]


def in_header(**change: Any) -> Change:
    return lambda lines: lines[0].update(change)


def in_row(kind: str, nth: int = 0, **change: Any) -> Change:
    return lambda lines: [line for line in lines[1:] if line["type"] == kind][nth].update(change)


def in_data(kind: str, nth: int = 0, **change: Any) -> Change:
    return lambda lines: [line for line in lines[1:] if line["type"] == kind][nth]["data"].update(change)


def without(key: str, line: int = 0) -> Change:
    return lambda lines: lines[line].pop(key)


@pytest.mark.parametrize(
    "change",
    [
        in_header(type="log"),
        in_header(version=5),
        in_header(version=True),
        in_header(version="4"),
        in_header(seedLength=3),
        in_header(id=""),
        in_header(id=7),
        in_header(createdAt=1.5),
        in_header(createdAt=-1),
        in_header(createdAt=True),
        in_header(createdAt=2**53),
        in_header(isSeeded=0),
        in_header(isSeeded=True),
        in_header(cwd="relative"),
        in_header(cwd=None),
        in_header(parentSession=3),
        in_header(origin="user"),
        in_header(delegationDepth=-5),
        in_header(delegationDepth="1"),
        in_header(delegationDepth=1e309),
        without("isSeeded"),
        without("delegationDepth"),
    ],
)
def test_a_header_that_is_not_exactly_one_is_refused_at_line_one(change: Change) -> None:
    lines = lines_of(RICH)
    change(lines)
    assert refusal(file_of(lines)).facts["line"] == 1


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (in_row("turn/start", seq=7), "turn/start"),
        (in_row("turn/start", seq=True), "turn/start"),
        (in_row("turn/start", time=1.5), "turn/start"),
        (in_row("turn/start", time="now"), "turn/start"),
        (in_row("turn/start", data=[]), "turn/start"),
        (in_row("turn/start", extra=1), "turn/start"),
        (in_row("turn/start", ignorable=False), "turn/start"),
        (in_row("turn/start", surfaceOp="append"), "turn/start"),
        (in_row("turn/start", sourceEventSeqs=[0]), "turn/start"),
        (in_row("turn/start", type="turn/begin"), "turn/begin"),
        (in_data("turn/start", turn=2), "turn/start"),
        (in_data("turn/start", 1, turn=True), "turn/start"),
        (in_data("turn/end", turn=9), "turn/end"),
        (in_data("turn/end", reason="completed"), "turn/end"),
        (in_data("step/start", step=2), "step/start"),
        (in_data("step/end", step=3), "step/end"),
        (in_row("user/message", surfaceOp="prepend"), "user/message"),
        (in_row("user/message", surfaceOp={"op": "replace", "start": 0, "end": 0}), "user/message"),
        (in_data("user/message", role="assistant"), "user/message"),
        (in_data("user/message", id=""), "user/message"),
        (in_data("user/message", source={}), "user/message"),
        (in_data("user/message", content="text"), "user/message"),
        (in_data("user/message", content=[{"type": "text"}]), "user/message"),
        (in_data("user/message", content=[{"type": "tool-result"}]), "user/message"),
        (in_data("assistant/message", stream=None), "assistant/message"),
        (in_data("assistant/message", step=9), "assistant/message"),
        (in_row("assistant/message", sourceEventSeqs=[0]), "assistant/message"),
        (in_data("tool/call", callId="other"), "tool/call"),
        (in_data("tool/call", arguments="{}"), "tool/call"),
        (in_row("tool/result", sourceEventSeqs=[]), "tool/result"),
        (in_row("tool/result", sourceEventSeqs=[10**6]), "tool/result"),
        (in_row("tool/result", sourceEventSeqs=[1, 1]), "tool/result"),
        (in_row("tool/result", sourceEventSeqs=[1, [0, 2]]), "tool/result"),
        (in_row("tool/result", sourceEventSeqs=[[2, 1]]), "tool/result"),
        (in_row("tool/result", sourceEventSeqs=[True]), "tool/result"),
        (in_data("session/title", messageSeqs=[0]), "session/title"),
        (in_data("session/title", messageSeqs=[10**6]), "session/title"),
        (
            in_data("session-log-deepseek/delivery-accepted", throughSeq=10**6),
            "session-log-deepseek/delivery-accepted",
        ),
        (
            in_data("session-log-deepseek/delivery-accepted", sessionId="x"),
            "session-log-deepseek/delivery-accepted",
        ),
        (in_data("compaction/start", turn=1), "compaction/start"),
        (in_data("compaction/summary", shadowedSeqs=[1]), "compaction/summary"),
        (in_data("compaction/summary", shadowedRange=None), "compaction/summary"),
        (in_data("compaction/end", compactionId="x"), "compaction/end"),
        (in_data("request/header", header={"config": {}}), "request/header"),
    ],
)
def test_a_row_that_cannot_stand_is_refused_by_line_seq_and_type(change: Change, kind: str) -> None:
    lines = lines_of(RICH)
    change(lines)
    facts = refusal(file_of(lines)).facts
    assert facts["type"] == kind
    assert facts["line"] == facts["seq"] + 2
    assert lines[facts["line"] - 1]["type"] == kind


def test_a_replacement_must_cite_all_that_it_shadows() -> None:
    lines = lines_of(RICH)
    row = next(line for line in lines if isinstance(line.get("surfaceOp"), dict))
    row["sourceEventSeqs"] = row["sourceEventSeqs"][:-1]
    assert refusal(file_of(lines)).facts["seq"] == row["seq"]


def test_a_replacement_of_what_is_gone_is_refused() -> None:
    lines = lines_of(a_log(5, compacted={3: 4, 5: 3}))
    second = [line for line in lines if isinstance(line.get("surfaceOp"), dict)][1]
    first = next(line for line in lines if isinstance(line.get("surfaceOp"), dict))
    second["surfaceOp"]["startSeq"] = first["surfaceOp"]["startSeq"]
    assert refusal(file_of(lines)).facts["seq"] == second["seq"]


def test_the_first_system_message_cannot_be_summarised_away() -> None:
    log = a_log(2)
    lines = lines_of(log)
    head = place_of(log, "system/message")
    row = [line for line in lines if line["type"] == "user/message"][1]
    row["surfaceOp"] = {"op": "replace", "startSeq": head, "endSeq": head}
    row["sourceEventSeqs"] = [head]
    assert refusal(file_of(lines)).facts["seq"] == row["seq"]


def test_two_inherited_markers_are_one_too_many() -> None:
    lines = lines_of(a_log(2, inherited=2))
    lines.append({**lines[-1], "seq": len(lines) - 1})
    assert "marker" in refusal(file_of(lines)).message


def test_a_seeded_log_needs_its_marker_and_another_has_none() -> None:
    lines = lines_of(a_log(2, inherited=2))
    assert refusal(file_of(lines[:-1])).facts["line"] == 1
    lines[0]["isSeeded"] = False
    assert refusal(file_of(lines)).facts["type"] == "session/end-seed"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{",
        b"[]\n",
        b"null\n",
        b"\xff\xfe\n",
        b"\x00" * 100,
        b"\x28\xb5\x2f\xfd",
        b"\x28\xb5\x2f\xfdgarbage",
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"type":"session","version":4,"id":"x","createdAt":NaN}\n',
        b'{"type":"session","version":4,"id":"x","createdAt":1e999,"isSeeded":false,"delegationDepth":0}\n',
        b'{"type":"session","version":' + b"9" * 5_000 + b"}\n",
        b'{"type":"session","version":0}\n',
        b'{"type":"session","version":0,"id":"x","createdAt":0}\n{"type":"turn/start"}\n',
        b'{"type":"session","version":0,"id":"x","createdAt":0,"seedLength":"4"}\n',
        b'{"type":"session","version":0,"id":"x","createdAt":0,"seedLength":4}\n',
    ],
)
def test_bytes_that_are_no_log_are_refused_by_type(data: bytes) -> None:
    refusal(data)


def test_values_without_bounds_are_refused_where_they_stand() -> None:
    lines = bytes_of(a_log(1)).splitlines(keepends=True)
    for bad in (b"1e999", b"NaN", b"-Infinity", b"[" * 300 + b"]" * 300):
        broken = [*lines[:2], lines[2].replace(b'"turn":1', b'"turn":1,"x":' + bad), *lines[3:]]
        assert refusal(b"".join(broken)).facts["line"] == 3


def test_a_file_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_LOG_BYTES", 10_000)
    bomb = zstandard.ZstdCompressor().compress(b" " * 1_000_000)
    assert "larger" in refusal(bomb).message


def test_a_file_that_is_not_there_is_refused_by_type(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, Path("a\x00b"), Path("/dev/zero")):
        with pytest.raises(SessionRefused):
            log_format.read(path)


def test_a_refusal_quotes_nothing_of_the_line() -> None:
    line = b'{"type":"secret-canary","oops\n'
    assert "canary" not in refusal(bytes_of(RICH)[:-1] + b"\n" + line).message


def test_a_value_without_json_is_refused_when_it_is_written() -> None:
    log = a_log(1)
    broken = Event("turn/start", 0, 0, {"turn": float("nan")})
    with pytest.raises(SessionRefused):
        log_format.write(Session(log.header, (broken,)))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    found: list[tuple[Any, Any]] = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(inner, dict | list):
            found += spots(inner)
    return found


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_stands_anywhere_in_a_log_the_answer_is_a_session_or_a_refusal(data: st.DataObject) -> None:
    lines = lines_of(RICH)
    for _ in range(data.draw(st.integers(1, 3))):
        spot = data.draw(st.sampled_from(spots(lines[data.draw(st.integers(0, len(lines) - 1))])))
        spot[0][spot[1]] = data.draw(VALUES)
    try:
        log = log_format.parse(file_of(lines))
    except SessionRefused:
        return
    surface.messages(log.events)
    assert log_format.parse(log_format.write(log)) == log


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 5000), st.booleans())
def test_whatever_the_bytes_the_answer_is_a_session_or_a_refusal(noise: bytes, at: int, packed: bool) -> None:
    data = log_format.pack(RICH) if packed else bytes_of(RICH)
    at %= len(data)
    for broken in (noise, data[:at] + noise + data[at + len(noise) :], data[:at]):
        try:
            log_format.parse(broken)
        except SessionRefused:
            continue


# -- v0 -------------------------------------------------------------------------------------------


def v0(*rows: dict[str, Any], **header: Any) -> bytes:
    head = {"type": "session", "version": 0, "id": "old", "createdAt": 5, "cwd": "{{cwd}}", **header}
    return file_of([head, *rows])


def said(text: str, **more: Any) -> dict[str, Any]:
    data = {
        "role": "user",
        "id": f"m-{text}",
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "user"},
    }
    return {"type": "user/message", "data": data, "surfaceOp": "append", **more}


def frame(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": {"turn": 1, **data}}


def replied(*blocks: dict[str, Any], step: int = 1, **more: Any) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": list(blocks),
        "source": {"kind": "model", "provider": "p", "model": "m"},
        "id": "a",
    }
    return {
        "type": "assistant/message",
        "data": {"turn": 1, "step": step, "message": message},
        "surfaceOp": "append",
        **more,
    }


CALL = {"type": "tool-call", "id": "c1", "name": "bash", "arguments": "{}"}
ANSWER = {
    "role": "user",
    "id": "r",
    "source": {"kind": "tool", "callId": "c1"},
    "content": [
        {
            "type": "tool-result",
            "toolCallId": "c1",
            "content": [{"type": "text", "text": "out"}],
            "isError": False,
        }
    ],
}
OLD = v0(
    frame("turn/start", trigger={"kind": "message"}),
    said("hello"),
    frame("step/start", step=1),
    {"type": "session/title", "data": {"title": "t", "messageSeqs": [1], "source": {"kind": "fallback"}}},
    {
        "type": "request/header",
        "data": {
            "header": {"config": {"provider": "p", "model": "m"}, "system": "Be good.", "tools": "{{tools}}"},
            "reason": "initial",
        },
    },
    frame("assistant/chunk", step=1, chunk={"type": "block-start"}),
    {
        "type": "text-chunks",
        "data": {"turn": 1, "step": 1, "index": 0, "dt": [1, 2], "texts": ["a", "b", "c"]},
    },
    replied({"type": "text", "text": "abc"}, CALL, sourceEventSeqs=[5, 6, 7, 8]),
    frame("tool/call", step=1, callId="c1", name="bash", arguments="{}"),
    {
        "type": "tool/result",
        "data": {"turn": 1, "step": 1, "message": ANSWER},
        "surfaceOp": "append",
        "sourceEventSeqs": [10],
    },
    frame("step/end", step=1),
    frame("turn/end", reason={"kind": "completed"}),
)


def test_a_v0_log_is_read_as_v4() -> None:
    log = log_format.parse(OLD)
    assert log.header.version == 4
    assert log.header.cwd is None
    assert [event.seq for event in log.events] == list(range(len(log.events)))
    assert log_format.parse(log_format.write(log)) == log


def test_v0_references_hold_after_the_chunks_are_gone() -> None:
    log = log_format.parse(OLD)
    result = log.events[place_of(log, "tool/result")]
    assert result.source_event_seqs == (place_of(log, "tool/call"),)
    title = log.events[place_of(log, "session/title")]
    assert title.data["messageSeqs"] == [place_of(log, "user/message")]
    assert not any("chunk" in event.type for event in log.events)


def test_a_v0_model_sees_its_system_text_first_and_results_as_a_role_of_their_own() -> None:
    shown = surface.messages(log_format.parse(OLD).events)
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "tool"]
    assert shown[0]["content"][0]["text"] == "Be good."
    assert shown[3]["toolCallId"] == "c1"
    assert shown[3]["content"] == [{"type": "text", "text": "out"}]


def test_a_v0_seed_length_counts_packed_chunks_one_by_one() -> None:
    lines = [json.loads(line) for line in OLD.splitlines()]
    lines[0] |= {"seedLength": 14, "parentSession": "p", "origin": "subagent", "delegationDepth": 1}
    lines.append({"type": "session/end-seed", "data": {}})
    log = log_format.parse(file_of(lines))
    assert log.header.is_seeded
    assert log.events[-1].data == {"inherited": True}
    assert log.events[-2].type == "turn/end"


def test_a_v0_replacement_says_start_and_end() -> None:
    rows = [json.loads(line) for line in OLD.splitlines()][1:]
    summary = said("short", sourceEventSeqs=[1])
    summary["surfaceOp"] = {"op": "replace", "start": 1, "end": 1}
    summary["data"]["source"] = {"kind": "plugin", "plugin": "compact", "compactionId": "k"}
    log = log_format.parse(v0(*rows[:10], summary, *rows[10:]))
    texts = [
        message["content"][0]["text"] for message in surface.messages(log.events) if message["role"] == "user"
    ]
    assert texts == ["short"]


@pytest.mark.parametrize("at", range(1, 12))
def test_a_v0_row_that_is_broken_is_refused_by_its_line(at: int) -> None:
    lines = [json.loads(line) for line in OLD.splitlines()]
    lines[at] = {"type": lines[at]["type"]}
    assert refusal(file_of(lines)).facts["line"] == at + 1


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_stands_anywhere_in_a_v0_log_the_answer_is_a_session_or_a_refusal(
    data: st.DataObject,
) -> None:
    lines = [json.loads(line) for line in OLD.splitlines()]
    spot = data.draw(st.sampled_from(spots(lines)))
    spot[0][spot[1]] = data.draw(VALUES)
    try:
        log_format.parse(file_of(lines))
    except SessionRefused:
        return
