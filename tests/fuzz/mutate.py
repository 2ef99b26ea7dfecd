"""Changes to the bytes of a log that keep most of it valid: in bytes, lines, rows, fields and references.

All of it falls as the dice fall: the same bytes and the same dice give the same bytes. Shares no code with
what it tests.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import zstandard

MAGIC = b"\x28\xb5\x2f\xfd"
CANARY = "canary-7f3a"
"""A value that no refusal may quote."""
MOST_UNPACKED = 1 << 20

Line = dict[str, Any] | bytes
"""A row, or a line that is none."""

_RAW = {
    "@1e999@": b"1e999",
    "@nan@": b"NaN",
    "@-inf@": b"-Infinity",
    "@long@": b"9" * 4_000,
    "@longer@": b"9" * 5_000,
    "@deep@": b"[" * 150 + b"]" * 150,
    "@deeper@": b'{"a":' * 250 + b"1" + b"}" * 250,
    "@lone@": b'"\\ud800"',
    "@pair@": b'"\\ud83d\\udc1f"',
    "@latin@": b'"\xe9"',
    "@nul@": b'"\\u0000"',
    "@-0@": b"-0",
    "@-0.0@": b"-0.0",
    "@1.0@": b"1.0",
}
"""Stand for what `json.dumps` does not write."""

KINDS = """
    agent/inbox/spliced assistant/attempt assistant/chunk assistant/message command/done command/run
    compaction/end compaction/prune compaction/start compaction/summary developer/message hook/invoked
    image/offload llm/retry llm/retry-started permission/preset reasoning-chunks request/context
    request/header session-log-deepseek/delivery-accepted session/end-seed session/title
    session/title-llm-request step/end step/start system/message text-chunks tool-call-chunks tool/call
    tool/code-dispatch tool/ptc-dispatch tool/ptc-dispatch-start tool/result turn/end turn/start
    user/message x/unheard
    """.split()
KEYS = """
    type version id createdAt cwd parentSession isSeeded origin agentPreset delegationDepth seedLength seq
    time data sourceEventSeqs surfaceOp ignorable op startSeq endSeq start end turn step reason kind message
    role content source stream toolCallId callId isError error name code arguments text provider model
    header config system tools messageSeqs shadowedRange shadowedSeqs compactionId sourceCommandId
    sourceEventSeq headerSeq targets imageIndexes sessionId sessionFormatVersion throughSeq inserted
    removedCount target inherited toolName rootCallId parentCallId retryId retry policyKey commandId subCallId plugin texts args
    """.split()
WORDS = [
    "user", "system", "assistant", "tool", "developer", "model", "plugin", "append", "replace", "text",
    "reasoning", "tool-call", "tool-result", "image", "tool-addition", "next-turn", "next-step",
    "compact-checkpoint", "system-prompt", "completed", "TOOL_NOT_STARTED", "ToolNotStartedError",
    "subagent", "x", "",
]  # fmt: skip


def mutated(data: bytes, dice: Random, donors: Sequence[bytes], *, max_size: int = 1 << 16) -> bytes:
    """`data`, changed in one to a few places; a zstd file is unpacked, changed and packed again, or damaged."""
    if data.startswith(MAGIC):
        inner = _unpacked(data)
        if inner is None or dice.random() < 0.15:
            return bytes_changed(data, dice)[:max_size]
        return packed(_plain(inner, dice, donors), dice)[:max_size]
    fresh = _plain(data, dice, donors)
    return (packed(fresh, dice) if dice.random() < 0.03 else fresh)[:max_size]


def _plain(data: bytes, dice: Random, donors: Sequence[bytes]) -> bytes:
    if dice.random() < 0.08:
        return bytes_changed(data, dice)
    lines = lines_in(data)
    if not lines:
        return dice.choice(donors)
    for _ in range(dice.choice((1, 1, 1, 2, 2, 3, 5))):
        lines = dice.choice(_CHANGES)(lines, dice, donors) or lines
    if dice.random() < 0.75:
        renumber(lines)
    if dice.random() < 0.3:
        recount(lines)
    fresh = written(lines)
    return bytes_changed(fresh, dice) if dice.random() < 0.03 else fresh


# -- bytes ------------------------------------------------------------------------------------------------


def bytes_changed(data: bytes, dice: Random) -> bytes:
    """A cut, a flip, an insertion, a repetition; line ends and marks of other systems."""
    at = dice.randrange(len(data) + 1)
    noise = dice.choice(
        (b"\0", b"\n", b"\r\n", b"\xff", b"\xef\xbb\xbf", b"\0" * 64, b'"', b"{", b"}", b"[", b"5\n")
    )
    noise = dice.choice((noise, dice.randbytes(dice.randrange(1, 9))))
    return dice.choice(
        (
            lambda: data[:at],
            lambda: data[:at] + noise + data[at:],
            lambda: data[:at] + noise + data[at + len(noise) :],
            lambda: data[at:],
            lambda: data + data[:at],
            lambda: b"\xef\xbb\xbf" + data,
            lambda: data.replace(b"\n", b"\r\n"),
            lambda: data.replace(b"\n", b"\n\n", 1),
            lambda: data.rstrip(b"\n"),
            lambda: data + b"\0" * 512,
            lambda: data.replace(b'{"type":', b'{"type":"x","type":', 1),
            lambda: data.replace(b'"turn":1', b'"turn":2,"turn":1', 1),
        )
    )()


def _unpacked(data: bytes) -> bytes | None:
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        return reader.read(MOST_UNPACKED)
    except zstandard.ZstdError:
        return None


def packed(data: bytes, dice: Random) -> bytes:
    """As zstd: the harness' two frames, one, one a line; with sums and sizes or without; torn, padded."""
    one = zstandard.ZstdCompressor(
        level=dice.choice((1, 3)),
        write_checksum=dice.random() < 0.5,
        write_content_size=dice.random() < 0.5,
    )
    head, _, rows = data.partition(b"\n")
    parts = dice.choice(([head + b"\n", rows], [data], [line + b"\n" for line in data.split(b"\n")]))
    frames = [one.compress(part) for part in parts]
    if dice.random() < 0.1:
        frames.insert(dice.randrange(len(frames) + 1), b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip")
    if dice.random() < 0.05:
        frames.append(one.compress(b" " * (8 << 20)))
    whole = b"".join(frames)
    return bytes_changed(whole, dice) if dice.random() < 0.15 else whole


# -- lines ------------------------------------------------------------------------------------------------


def lines_in(data: bytes) -> list[Line]:
    """The lines; what is no JSON object stays bytes."""
    lines: list[Line] = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = line
        lines.append(value if isinstance(value, dict) else line)
    return lines


def written(lines: Sequence[Line]) -> bytes:
    """The file of these lines."""
    return b"".join((line if isinstance(line, bytes) else dumped(line)) + b"\n" for line in lines)


def dumped(value: Any) -> bytes:
    """A value as JSON, with stand-ins for what is none written as what they stand for."""
    try:
        data = json.dumps(value, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return b"{}"
    if b'"@' in data:
        for name, raw in _RAW.items():
            data = data.replace(b'"%s"' % name.encode(), raw)
    return data


Change = Callable[[list[Line], Random, Sequence[bytes]], "list[Line] | None"]


def _place(lines: list[Line], dice: Random) -> int:
    return dice.randrange(1, len(lines)) if len(lines) > 1 else 0


def _drop(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> list[Line]:
    at = dice.randrange(len(lines))
    return lines[:at] + lines[at + dice.choice((1, 1, 1, 2, 5)) :]


def _cut(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> list[Line]:
    return lines[: dice.randrange(len(lines)) + 1]


def _repeat(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> list[Line]:
    at = _place(lines, dice)
    end = at + dice.choice((1, 1, 3, 8))
    times = dice.choice((1, 1, 1, 2, 40))
    return lines[:end] + [copy.deepcopy(line) for _ in range(times) for line in lines[at:end]] + lines[end:]


def _swap(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> list[Line]:
    one, other = _place(lines, dice), _place(lines, dice)
    lines = list(lines)
    lines[one], lines[other] = lines[other], lines[one]
    return lines


def _move(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> list[Line]:
    lines = list(lines)
    line = lines.pop(_place(lines, dice))
    lines.insert(dice.randrange(len(lines) + 1), line)
    return lines


def _borrow(lines: list[Line], dice: Random, donors: Sequence[bytes]) -> list[Line]:
    """Some rows of another log, their references moved along or left as they are."""
    theirs = [line for line in lines_in(_opened(dice.choice(donors))) if isinstance(line, dict)][1:]
    if not theirs:
        return lines
    first = dice.randrange(len(theirs))
    if dice.random() < 0.5:
        starts = [place for place, row in enumerate(theirs) if row.get("type") == "turn/start"]
        first = dice.choice(starts or [first])
    part = theirs[first : first + dice.choice((1, 1, 2, 5, 20, 60))]
    at = dice.choice((len(lines), _place(lines, dice)))
    if dice.random() < 0.7:
        for row in part:
            _shift(row, at - 1 - first)
    return lines[:at] + part + lines[at:]


def _opened(data: bytes) -> bytes:
    return (_unpacked(data) or b"") if data.startswith(MAGIC) else data


def _write_row(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> list[Line]:
    """A row of the mutator's own, fitted to where it goes."""
    at = dice.choice((len(lines), _place(lines, dice)))
    before = [line for line in lines[1:at] if isinstance(line, dict)]
    shown = [place for place, row in enumerate(before) if "surfaceOp" in row]
    turn = sum(row.get("type") == "turn/start" for row in before)
    steps = [row for row in before if row.get("type") == "step/start"]
    data = steps[-1].get("data") if steps else None
    step = data.get("step") if isinstance(data, dict) else None
    frame = {"turn": turn, "step": step if type(step) is int else 1}
    rows = dice.choice(_OWN)(before, shown, frame, dice)
    fresh = [{"type": kind, "seq": at - 1 + n, "time": 1, **row} for n, (kind, row) in enumerate(rows)]
    return [*lines[:at], *fresh, *lines[at:]]


Own = list[tuple[str, dict[str, Any]]]


def _own_message(_before: list[Any], shown: list[int], frame: dict[str, int], dice: Random) -> Own:
    kind = dice.choice(("user", "plugin:x", "compact-checkpoint"))
    message = {
        "role": "user",
        "id": CANARY,
        "source": {"kind": kind},
        "content": [{"type": "text", "text": CANARY}],
    }
    return [("user/message", {"data": message, **_operation(shown, dice)})]


def _own_system(_before: list[Any], shown: list[int], frame: dict[str, int], dice: Random) -> Own:
    message = {"role": "system", "id": "s", "source": {"kind": "system-prompt"}, "content": []}
    return [("system/message", {"data": {**frame, "message": message}, **_operation(shown, dice)})]


def _own_compaction(_before: list[Any], shown: list[int], frame: dict[str, int], dice: Random) -> Own:
    first, last = _span(shown, dice)
    gone = [seq for seq in shown if first <= seq <= last]
    named = {"compactionId": "own", "turn": dice.choice((frame["turn"], None))}
    summary = {**named, "shadowedRange": {"start": first, "end": last}, "shadowedSeqs": gone}
    message = {"role": "user", "id": "c", "source": {"kind": "compact-checkpoint", "compactionId": "own"}}
    operation = {"op": "replace", "startSeq": first, "endSeq": last}
    row = {"data": {**message, "content": []}, "surfaceOp": operation, "sourceEventSeqs": [[first, last]]}
    rows: Own = [
        ("compaction/start", {"data": named}),
        ("compaction/summary", {"data": summary}),
        ("user/message", row),
        ("compaction/end", {"data": named}),
    ]
    return rows if dice.random() < 0.8 else rows[: dice.randrange(4)]


def _own_splice(_before: list[Any], _shown: list[int], _frame: dict[str, int], dice: Random) -> Own:
    data: dict[str, Any] = {"target": dice.choice(("next-turn", "next-step")), "start": 0, "inserted": []}
    if dice.random() < 0.5:
        data["inserted"] = [{"id": f"w{dice.randrange(3)}", "content": [], "source": {"kind": "user"}}]
    else:
        data["removedCount"] = dice.randrange(3)
    return [("agent/inbox/spliced", {"data": data})]


def _own_marker(_before: list[Any], _shown: list[int], _frame: dict[str, int], dice: Random) -> Own:
    return [("session/end-seed", {"data": {"inherited": dice.random() < 0.5}})]


def _own_foreign(_before: list[Any], _shown: list[int], frame: dict[str, int], dice: Random) -> Own:
    return [("x/unheard", {"data": dice.choice(([], None, frame)), "ignorable": True})]


def _own_citing(before: list[Any], shown: list[int], frame: dict[str, int], dice: Random) -> Own:
    seq = dice.choice(shown or [0])
    return [
        dice.choice(
            (
                ("image/offload", {"data": {"targets": [{"seq": seq, "imageIndexes": [dice.randrange(2)]}]}}),
                ("session/title", {"data": {"messageSeqs": [seq], "title": "t", "source": {"kind": "llm"}}}),
                ("command/done", {"data": {"commandId": "own", "sourceEventSeq": seq}}),
                ("llm/retry", {"data": {**frame, "retryId": "own", "retry": 1, "provider": None}}),
                (
                    "tool/ptc-dispatch",
                    {"data": {"subCallId": "own", "rootCallId": "own", "parentCallId": "own"}},
                ),
            )
        )
    ]


def _own_frame(_before: list[Any], _shown: list[int], frame: dict[str, int], dice: Random) -> Own:
    turn, step = frame["turn"], frame["step"]
    reason = {"kind": dice.choice(("completed", "aborted", "x"))}
    return dice.choice(
        (
            [
                ("turn/start", {"data": {"turn": turn + 1}}),
                ("turn/end", {"data": {"turn": turn + 1, "reason": reason}}),
            ],
            [("step/end", {"data": frame}), ("turn/end", {"data": {"turn": turn, "reason": reason}})],
            [("turn/end", {"data": {"turn": turn, "reason": reason}})],
            [("step/end", {"data": frame}), ("step/start", {"data": {"turn": turn, "step": step + 1}})],
        )
    )


_OWN = (
    _own_message,
    _own_system,
    _own_compaction,
    _own_splice,
    _own_marker,
    _own_foreign,
    _own_citing,
    _own_frame,
)


def _span(shown: list[int], dice: Random) -> tuple[int, int]:
    one, other = sorted((dice.choice(shown or [0]), dice.choice(shown or [0])))
    return one, other


def _operation(shown: list[int], dice: Random) -> dict[str, Any]:
    if dice.random() < 0.4:
        return {"surfaceOp": "append"}
    first, last = _span(shown, dice)
    sources: list[Any] = [[first, last]] if dice.random() < 0.7 else [s for s in shown if first <= s <= last]
    return {"surfaceOp": {"op": "replace", "startSeq": first, "endSeq": last}, "sourceEventSeqs": sources}


# -- fields -----------------------------------------------------------------------------------------------


def spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    waiting = [value]
    while waiting:
        outer = waiting.pop()
        for key, inner in outer.items() if isinstance(outer, dict) else enumerate(outer):
            yield outer, key
            if isinstance(inner, dict | list):
                waiting.append(inner)


def _spot(lines: list[Line], dice: Random) -> tuple[Any, Any] | None:
    rows = [line for line in lines if isinstance(line, dict)]
    found = list(spots(dice.choice(rows))) if rows else []
    return dice.choice(found) if found else None


def interesting(dice: Random) -> Any:
    """A value that is often wrong."""
    return dice.choice(
        (
            lambda: dice.choice((None, True, False, "", [], {}, 0, 1, -1, CANARY, [CANARY], {"a": CANARY})),
            lambda: dice.choice((2**31, 2**53 - 1, 2**53, 2**63, -(2**63), 0.5, 1e300, 10**30)),
            lambda: dice.choice(tuple(_RAW)),
            lambda: dice.choice((KINDS, KEYS, WORDS))[dice.randrange(len(WORDS))],
            lambda: dice.randrange(12),
            lambda: [dice.randrange(12) for _ in range(dice.randrange(3))],
            lambda: [[dice.randrange(5), dice.randrange(40)]],
            lambda: [[0, 2**50]],
            lambda: {"op": "replace", "startSeq": dice.randrange(20), "endSeq": dice.randrange(20)},
            lambda: [{"type": dice.choice(WORDS), "text": CANARY, "id": "i", "name": "n", "arguments": "{}"}],
            lambda: "x" * dice.choice((100, 5_000)),
        )
    )()


def _replaced(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> None:
    spot = _spot(lines, dice)
    if spot is not None:
        spot[0][spot[1]] = interesting(dice)


def _nudged(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> None:
    for _ in range(8):
        spot = _spot(lines, dice)
        if spot is not None and type(spot[0][spot[1]]) is int:
            spot[0][spot[1]] += dice.choice((-1, 1, 1, 2, -2))
            return


def _removed(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> None:
    spot = _spot(lines, dice)
    if spot is not None:
        del spot[0][spot[1]]


def _added(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> None:
    spot = _spot(lines, dice)
    if spot is None:
        return
    if isinstance(spot[0], dict):
        spot[0][dice.choice(KEYS)] = interesting(dice)
    else:
        spot[0].insert(spot[1], dice.choice((spot[0][spot[1]], interesting(dice))))


def _copied(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> None:
    """A value from another place of the same name."""
    spot = _spot(lines, dice)
    if spot is None:
        return
    for _ in range(8):
        other = _spot(lines, dice)
        if other is not None and other[1] == spot[1]:
            spot[0][spot[1]] = copy.deepcopy(other[0][other[1]])
            return


def _retyped(lines: list[Line], dice: Random, _donors: Sequence[bytes]) -> None:
    line = lines[_place(lines, dice)]
    if isinstance(line, dict):
        line["type"] = dice.choice(KINDS)


_CHANGES: Sequence[Change] = (
    _drop, _cut, _repeat, _swap, _move, _borrow, _borrow, _write_row, _write_row, _write_row, _replaced,
    _replaced, _replaced, _nudged, _nudged, _removed, _added, _copied, _copied, _retyped,
)  # fmt: skip


# -- references -------------------------------------------------------------------------------------------


def references(row: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a v4 row that holds the number of another row."""
    data = row.get("data") if isinstance(row.get("data"), dict) else {}
    holders: list[tuple[Any, Sequence[Any]]] = [
        (row.get("surfaceOp"), ("startSeq", "endSeq", "start", "end")),
        (data, ("throughSeq", "headerSeq", "sourceEventSeq")),
        (data.get("shadowedRange"), ("start", "end")),
    ]
    for numbers in (row.get("sourceEventSeqs"), data.get("messageSeqs"), data.get("shadowedSeqs")):
        if isinstance(numbers, list):
            holders.append((numbers, range(len(numbers))))
            holders += [(inner, range(len(inner))) for inner in numbers if isinstance(inner, list)]
    targets = data.get("targets")
    if isinstance(targets, list):
        holders += [(target, ("seq",)) for target in targets]
    for holder, keys in holders:
        for key in keys:
            if isinstance(holder, dict) and type(holder.get(key)) is int:
                yield holder, key
            elif isinstance(holder, list) and type(key) is int and type(holder[key]) is int:
                yield holder, key


def _shift(row: dict[str, Any], by: int) -> None:
    for holder, key in references(row):
        holder[key] += by
    if type(row.get("seq")) is int:
        row["seq"] += by


def renumber(lines: list[Line]) -> None:
    """Number the rows densely again, what points at them included, where their numbers are still told."""
    rows = [line for line in lines[1:] if isinstance(line, dict)]
    places: dict[int, int] = {}
    for place, row in enumerate(rows):
        for holder, key in references(row):
            holder[key] = places.get(holder[key], holder[key])
        if type(row.get("seq")) is int:
            places[row["seq"]] = place
            row["seq"] = place


def recount(lines: list[Line]) -> None:
    """Count turns and steps anew, as the rows open them."""
    turn = step = 0
    for row in lines[1:]:
        data = row.get("data") if isinstance(row, dict) else None
        if not isinstance(data, dict):
            continue
        if row.get("type") == "turn/start":
            turn, step = turn + 1, 0
        elif row.get("type") == "step/start":
            step += 1
        if type(data.get("turn")) is int:
            data["turn"] = turn
        if type(data.get("step")) is int:
            data["step"] = step
