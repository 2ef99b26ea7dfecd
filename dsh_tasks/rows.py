"""Rows: what one row of a v4 log may be, and which other rows it points at.

A row is checked here by itself; how rows follow each other is `lifecycle`. Every place in which a row
names another by number is listed once, in `moved`: whoever numbers rows anew goes through it.
Seen with the harness' runtime 0.2.1rc2, whose refusals these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal

from dsh_tasks.errors import SessionRefused
from dsh_tasks.session import SURFACE_TYPES, Event, Replace, Sources

MAX_SAFE = 2**53 - 1
"""Largest whole number that JavaScript holds exactly; the harness refuses seqs and times above it."""

KNOWN_TYPES = frozenset(
    """
    agent-preset/selected agent/inbox/spliced approval/asked approval/decided approval/policy
    assistant/attempt assistant/message command/done command/run compaction/end compaction/prune
    compaction/start compaction/summary deliverables/presented developer/message feedback/message-delete
    feedback/message-put feedback/record goal/change hook/invoked hook/result image/offload
    job/registered job/settled llm/retry llm/retry-started model/selection permission/preset plan/mode
    request/context request/header sandbox/mode schedule/change session-log-deepseek/delivery-accepted
    session/end-seed session/title session/title-llm-request step/end step/start subagent/catalog
    subagent/descriptor subagent/model-selection-policy system/message team/member team/message/delivered
    team/message/queued team/task todo/write tool-workflow/agent-end tool-workflow/agent-start
    tool-workflow/run-end tool-workflow/run-start tool/call tool/ptc-dispatch tool/ptc-dispatch-start
    tool/result turn/end turn/start user/message web/deepseek-search-llm-request working-directory/change
    workspace/changes
    """.split()  # noqa: SIM905 - sixty quoted strings are harder to read
)
"""Types that the harness knows; any other is refused unless its row says `ignorable`."""

END_SEED = "session/end-seed"
DELIVERY = "session-log-deepseek/delivery-accepted"
DELIVERY_VERSION = 4
"""A delivery row of another format version speaks of a log that is not this one."""

ROLES: Mapping[str, str] = {
    "system/message": "system",
    "developer/message": "developer",
    "user/message": "user",
    "assistant/message": "assistant",
    "tool/result": "tool",
}
"""Role of the message that a surface row carries."""

_FIELDS = frozenset({"type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp", "ignorable"})
_COMMON_FIELDS = _FIELDS - {"ignorable"}
_PLAIN_FIELDS = 4
"""Fields that every row has: type, seq, time, data."""
_REPLACE_KEYS = {"op", "startSeq", "endSeq"}
PAIR = 2
_NOT_STARTED = "TOOL_NOT_STARTED"


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 that JavaScript holds exactly; booleans are not numbers."""
    return type(value) is int and 0 <= value <= MAX_SAFE


def is_inherited_marker(event: Event) -> bool:
    """Whether the row says where an inherited part ends. The plain marker of a resumed log does not."""
    return event.type == END_SEED and event.data.get("inherited") is True


def message_of(event: Event) -> dict[str, Any]:
    """The message of a surface row, as logged."""
    message: dict[str, Any] = event.data if event.type == "user/message" else event.data["message"]
    return message


# -- one row by itself ----------------------------------------------------------------------------


def checked(row: Any, seq: int) -> Event:
    """The Event of a decoded v4 line that should be row `seq`. Raises SessionRefused, without a line."""
    if not isinstance(row, dict):
        raise SessionRefused("a row is a JSON object", seq=seq)
    kind = row.get("type")
    if not isinstance(kind, str) or not kind:
        raise SessionRefused("a row needs a type", seq=seq)
    try:
        return _event(row, kind, seq)
    except _Fault as fault:
        raise SessionRefused(str(fault), seq=seq, event_type=kind) from None


def _event(row: dict[str, Any], kind: str, seq: int) -> Event:
    _check_frame(row, seq)
    checks = _CHECKS.get(kind)
    if checks is None:
        return _opaque(row)
    data = row["data"]
    if not isinstance(data, dict):
        raise _Fault("data is not a JSON object")
    sources, operation = None, None
    if len(row) > _PLAIN_FIELDS or kind in SURFACE_TYPES:
        sources, operation = _checked_pointers(row)
    for check in checks:
        check(data, seq)
    return Event(kind, seq, row["time"], data, sources, operation, "ignorable" in row)


class _Fault(Exception):
    """What is wrong with a row; `checked` says which row it is."""


def _check_frame(row: dict[str, Any], seq: int) -> None:
    # Almost every row: a long log has a hundred thousand.
    time_ms = row.get("time")
    is_in_place = row.get("seq") == seq and type(row["seq"]) is int
    is_in_time = type(time_ms) is int and 0 <= time_ms <= MAX_SAFE
    has_fields = "data" in row and (len(row) == _PLAIN_FIELDS or row.keys() <= _COMMON_FIELDS)
    if is_in_place and is_in_time and has_fields:
        return
    for key in ("seq", "time", "data"):
        if key not in row:
            raise _Fault(f"the row lacks {key}")
    if not row.keys() <= _FIELDS:
        raise _Fault("the row has a field that the format does not know")
    if not is_count(row["seq"]):
        raise _Fault("seq is not a whole number from 0")
    if row["seq"] != seq:
        raise _Fault(f"seq has a gap (expected {seq}, got {row['seq']})")
    if type(row["time"]) is not int or abs(row["time"]) > MAX_SAFE:
        raise _Fault("time is not epoch milliseconds")
    if row.get("ignorable", True) is not True:
        raise _Fault("ignorable can only be true")


def _checked_pointers(row: dict[str, Any]) -> tuple[Sources | None, Literal["append"] | Replace | None]:
    sources = _checked_sources(row) if "sourceEventSeqs" in row else None
    operation = _checked_operation(row) if row["type"] in SURFACE_TYPES or "surfaceOp" in row else None
    return sources, operation


def _opaque(row: dict[str, Any]) -> Event:
    if "ignorable" not in row:
        raise _Fault("the type is not known and the row is not marked ignorable")
    if "sourceEventSeqs" in row or "surfaceOp" in row:
        # What it means cannot be known, so it could not be numbered anew either.
        raise _Fault("a row of unknown type cannot point at other rows")
    return Event(row["type"], row["seq"], row["time"], row["data"], ignorable=True)


def _checked_sources(row: dict[str, Any]) -> Sources:
    value, kind, seq = row["sourceEventSeqs"], row["type"], row["seq"]
    if kind not in SURFACE_TYPES or kind == "assistant/message":
        raise _Fault("a row of this type carries no sourceEventSeqs")
    if not isinstance(value, list) or not value:
        raise _Fault("sourceEventSeqs is not a list with members")
    spans: list[tuple[int, int]] = []
    if len(value) == 1 and type(value[0]) is int and 0 <= value[0] < seq:
        # A tool's result, and most others.
        return (value[0],)
    for member in value:
        first, last = member if isinstance(member, list) and len(member) == PAIR else (member, member)
        if not is_count(first) or not is_count(last) or first > last or last >= seq:
            raise _Fault("sourceEventSeqs must name earlier rows, singly or as ranges")
        spans.append((first, last))
    # Never written out: a range in every row of a long log would cost its square.
    if any(before[1] >= after[0] for before, after in pairwise(sorted(spans))):
        raise _Fault("sourceEventSeqs names a row twice")
    return tuple(
        span if isinstance(member, list) else span[0] for member, span in zip(value, spans, strict=True)
    )


def _checked_operation(row: dict[str, Any]) -> Literal["append"] | Replace:
    if row["type"] not in SURFACE_TYPES:
        raise _Fault("a row of this type is not shown to the model and carries no surfaceOp")
    value = row.get("surfaceOp")
    if value == "append":
        return "append"
    if not isinstance(value, dict) or value.keys() != _REPLACE_KEYS or value["op"] != "replace":
        raise _Fault("surfaceOp is neither append nor a replacement")
    first, last = value["startSeq"], value["endSeq"]
    if not is_count(first) or not is_count(last) or first >= row["seq"] or last >= row["seq"]:
        raise _Fault("the replacement does not name earlier rows")
    return Replace(first, last)


def _check_turn(data: dict[str, Any], _seq: int) -> None:
    turn = data.get("turn")
    if type(turn) is not int or not 0 <= turn <= MAX_SAFE:
        raise _Fault("turn is not a whole number")


def _check_step(data: dict[str, Any], _seq: int) -> None:
    turn, step = data.get("turn"), data.get("step")
    if type(turn) is not int or not 0 <= turn <= MAX_SAFE:
        raise _Fault("turn is not a whole number")
    if type(step) is not int or not 0 <= step <= MAX_SAFE:
        raise _Fault("step is not a whole number")


Check = Callable[[dict[str, Any], int], None]
"""Looks at the data of a row, and at its seq."""


def _message_check(kind: str, check_source: Callable[[dict[str, Any], dict[str, Any]], None] | None) -> Check:
    """The check of the message that a surface row carries; its source is looked at once more."""
    role = ROLES[kind]

    def check(data: dict[str, Any], _seq: int) -> None:
        message = data if kind == "user/message" else data.get("message")
        if not isinstance(message, dict):
            raise _Fault("the row carries no message")
        if message.get("role") != role:
            raise _Fault(f"the message's role is not {role}")
        if not isinstance(message.get("id"), str) or not message["id"]:
            raise _Fault("the message has no id")
        source = message.get("source")
        if not isinstance(source, dict) or not _is_producer(source):
            raise _Fault("the message does not say where it comes from")
        if check_source is not None:
            check_source(message, source)
        _check_content(message.get("content"))

    return check


def _check_model(_message: dict[str, Any], source: dict[str, Any]) -> None:
    if source["kind"] != "model" or not _is_route(source):
        raise _Fault("the message's source is not a model")


def _check_prompt(_message: dict[str, Any], source: dict[str, Any]) -> None:
    if source["kind"] != "system-prompt":
        raise _Fault("the message's source is not the system prompt")


def _is_producer(source: Any) -> bool:
    """Whether it says where a message comes from; `plugin` is a word of older formats."""
    kind = source.get("kind") if isinstance(source, dict) else None
    return isinstance(kind, str) and kind not in ("", "plugin")


def _check_result(message: dict[str, Any], source: dict[str, Any]) -> None:
    call = message.get("toolCallId")
    if not isinstance(call, str) or not call or source.get("kind") != "tool" or source.get("callId") != call:
        raise _Fault("the result does not name its tool call")
    if not isinstance(message.get("isError", False), bool):
        raise _Fault("isError is not true or false")


def _check_content(content: Any) -> None:
    if not isinstance(content, list):
        raise _Fault("content is not a list of blocks")
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            continue
        if not isinstance(kind, str) or not kind:
            raise _Fault("content holds something that is not a block")
        for key in _BLOCK_TEXTS.get(kind, ()):
            if not isinstance(block.get(key), str):
                raise _Fault(f"a block of type {kind} lacks {key}")
        if kind == "tool-result":
            raise _Fault("content holds a result block of an older format")
        if kind == "tool-call" and not (block["id"] and block["name"]):
            raise _Fault("a tool call has no id or no name")


_BLOCK_TEXTS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "reasoning": ("text",),
    "tool-call": ("id", "name", "arguments"),
}


def _is_route(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    provider, model = value.get("provider"), value.get("model")
    return isinstance(provider, str) and isinstance(model, str) and bool(provider and model)


_ONLY_OBJECTS = {dict}


def _check_assistant(data: dict[str, Any], _seq: int) -> None:
    stream = data.get("stream")
    if not isinstance(stream, list) or not {*map(type, stream)} <= _ONLY_OBJECTS:
        raise _Fault("stream is not a list of objects")
    if not isinstance(data.get("usage", {}), dict):
        raise _Fault("usage is not an object")


def _check_tool_result(data: dict[str, Any], _seq: int) -> None:
    error = data.get("error")
    if error is not None and (not isinstance(error, dict) or data["message"].get("isError") is not True):
        raise _Fault("an error stands beside a result that is none")


def _check_tool_call(data: dict[str, Any], _seq: int) -> None:
    call, name = data.get("callId"), data.get("name")
    if not isinstance(call, str) or not isinstance(name, str) or not call or not name:
        raise _Fault("the call has no id or no name")
    if not isinstance(data.get("arguments"), str):
        raise _Fault("the call's arguments are not text")


def _check_turn_end(data: dict[str, Any], _seq: int) -> None:
    reason = data.get("reason")
    if not isinstance(reason, dict) or not isinstance(reason.get("kind"), str) or not reason["kind"]:
        raise _Fault("the turn does not say how it ended")


def _check_request(data: dict[str, Any], _seq: int) -> None:
    header = data.get("header")
    if not isinstance(header, dict) or not _is_route(header.get("config")):
        raise _Fault("the request header names no provider and model")
    if "system" in header:
        raise _Fault("the request header holds a system text, which has a row of its own")
    tools = header.get("tools", [{}])
    if not isinstance(tools, list) or not tools or not all(isinstance(one, dict) for one in tools):
        raise _Fault("the request header's tools are not a list with members")
    if data.get("reason") not in _REQUEST_REASONS:
        raise _Fault("the request header does not say why it was written")
    _check_defaults(header)


_REQUEST_REASONS = ("initial", "resume", "change", "series")


def _check_defaults(header: dict[str, Any]) -> None:
    config = header["config"]
    effort = config.get("reasoningEffort", "some")
    if not isinstance(effort, str) or not effort:
        raise _Fault("the request header's reasoningEffort is not a word")
    defaults = header.get("adapterDefaults", {"maxTokens": True})
    if not isinstance(defaults, dict) or not defaults:
        raise _Fault("the request header's adapterDefaults is not an object with members")
    if "adapterDefaults" in header and not all(
        key in ("reasoningEffort", "maxTokens") and value is True and key in config
        for key, value in defaults.items()
    ):
        raise _Fault("the request header's adapterDefaults names what its config does not hold")


def _check_title(data: dict[str, Any], seq: int) -> None:
    if not _are_earlier(data.get("messageSeqs"), seq):
        raise _Fault("messageSeqs does not name earlier rows")


def _check_session_title(data: dict[str, Any], seq: int) -> None:
    _check_title(data, seq)
    source = data.get("source")
    if not isinstance(source, dict):
        raise _Fault("the title does not say where it comes from")
    if (source.get("kind") == "user") == bool(data["messageSeqs"]):
        raise _Fault("a title cites no message exactly where a person gave it")


def _check_span(data: dict[str, Any], seq: int) -> None:
    span = data.get("shadowedRange")
    if not isinstance(span, dict) or not _are_earlier([span.get("start"), span.get("end")], seq):
        raise _Fault("the compaction's range does not name earlier rows")
    if not _are_earlier(data.get("shadowedSeqs"), seq):
        raise _Fault("shadowedSeqs does not name earlier rows")


def _check_compaction(data: dict[str, Any], _seq: int) -> None:
    if data.get("turn") is not None and not is_count(data["turn"]):
        raise _Fault("turn is neither a whole number nor null")


def _check_done(data: dict[str, Any], seq: int) -> None:
    if "sourceEventSeq" in data and not _are_earlier([data["sourceEventSeq"]], seq):
        raise _Fault("sourceEventSeq does not name an earlier row")


def _check_developer(data: dict[str, Any], seq: int) -> None:
    changes = [block for block in data["message"]["content"] if block["type"] in TOOL_CHANGES]
    for block in changes:
        if not isinstance(block.get("toolName"), str) or not block["toolName"] or "tool" in block:
            raise _Fault("a tool that came or went has no name, or is described in place")
    if ("headerSeq" in data) != any(block["type"] == "tool-addition" for block in changes):
        raise _Fault("headerSeq stands exactly where a tool came")
    if "headerSeq" in data and not _are_earlier([data["headerSeq"]], seq):
        raise _Fault("headerSeq does not name an earlier row")


TOOL_CHANGES = ("tool-addition", "tool-removal")
"""Blocks of a developer message that change the list of tools."""


def _check_offload(data: dict[str, Any], seq: int) -> None:
    targets = data.get("targets")
    if data.keys() != {"targets"} or not isinstance(targets, list) or not targets:
        raise _Fault("targets is not a list of rows, and all that there is")
    if not all(isinstance(one, dict) and one.keys() == {"seq", "imageIndexes"} for one in targets):
        raise _Fault("a target is not a row and its images")
    if not _are_earlier([one.get("seq") for one in targets], seq):
        raise _Fault("targets does not name earlier rows")
    if not all(_are_indexes(one.get("imageIndexes")) for one in targets):
        raise _Fault("imageIndexes does not rise from 0")


def _check_delivery(data: dict[str, Any], seq: int) -> None:
    if not is_count(data.get("sessionFormatVersion", 0)):
        raise _Fault("the delivery row's version is not a whole number from 0")
    if data.get("sessionFormatVersion", 0) != DELIVERY_VERSION:
        return
    if not isinstance(data.get("sessionId"), str) or not data["sessionId"]:
        raise _Fault("the delivery row names no session")
    if not _are_earlier([data.get("throughSeq")], seq):
        raise _Fault("the delivery row does not lie after what it covers")


def _check_inbox(data: dict[str, Any], _seq: int) -> None:
    inserted = data.get("inserted")
    if not isinstance(inserted, list) or not all(isinstance(one, dict) for one in inserted):
        raise _Fault("inserted is not a list of messages")
    if not all(_is_producer(one.get("source")) for one in inserted):
        raise _Fault("an inserted message does not say where it comes from")
    if not is_count(data.get("start")) or not is_count(data.get("removedCount", 0)):
        raise _Fault("the inbox change does not say where")


def _are_earlier(value: Any, seq: int) -> bool:
    return isinstance(value, list) and all(is_count(one) and one < seq for one in value)


def _are_indexes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(is_count(one) for one in value)
        and all(one < other for one, other in pairwise(value))
    )


def _check_dispatch(data: dict[str, Any], _seq: int) -> None:
    for key in ("subCallId", "rootCallId", "parentCallId"):
        if not isinstance(data.get(key), str) or not data[key]:
            raise _Fault(f"the call of a tool's program has no {key}")


def _check_retry(data: dict[str, Any], _seq: int) -> None:
    if not isinstance(data.get("retryId"), str) or not data["retryId"] or not is_count(data.get("retry")):
        raise _Fault("the retry has no name or no number")


_CHECKS: Mapping[str, tuple[Check, ...]] = {
    **dict.fromkeys(KNOWN_TYPES, ()),
    "turn/start": (_check_turn,),
    "turn/end": (_check_turn, _check_turn_end),
    "step/start": (_check_step,),
    "step/end": (_check_step,),
    "system/message": (_message_check("system/message", _check_prompt), _check_step),
    "developer/message": (_message_check("developer/message", None), _check_step, _check_developer),
    "user/message": (_message_check("user/message", None),),
    "assistant/message": (_message_check("assistant/message", _check_model), _check_step, _check_assistant),
    "assistant/attempt": (_check_step, _check_assistant),
    "tool/result": (_message_check("tool/result", _check_result), _check_step, _check_tool_result),
    "tool/call": (_check_step, _check_tool_call),
    "request/header": (_check_request,),
    "session/title": (_check_session_title,),
    "session/title-llm-request": (_check_title,),
    "compaction/summary": (_check_span,),
    "compaction/prune": (_check_span,),
    "compaction/start": (_check_compaction,),
    "compaction/end": (_check_compaction,),
    "command/done": (_check_done,),
    "image/offload": (_check_offload,),
    DELIVERY: (_check_delivery,),
    "agent/inbox/spliced": (_check_inbox,),
    "tool/ptc-dispatch-start": (_check_dispatch,),
    "tool/ptc-dispatch": (_check_dispatch,),
    "llm/retry": (_check_step, _check_retry),
    "llm/retry-started": (_check_step, _check_retry),
}
"""What is looked at in the data of each type that the harness knows."""


# -- rows that point at rows ----------------------------------------------------------------------

Move = Callable[[int], int]


def moved(event: Event, seq: int, ref: Move, turn: Move) -> Event:
    """The same row at place `seq`, with every number that names a row sent through `ref` and every
    turn number through `turn`. Shares with `event` what does not change.
    """
    sources, operation = moved_frame(event, ref)
    data = moved_data(event, ref, turn)
    # Not dataclasses.replace, which takes five times as long; a seed of 20 MB has 30,000 rows.
    return Event(event.type, seq, event.time, data, sources, operation, event.ignorable)


def moved_frame(event: Event, ref: Move) -> tuple[Sources | None, Literal["append"] | Replace | None]:
    """`source_event_seqs` and `surface_op` of `moved`."""
    sources, operation = event.source_event_seqs, event.surface_op
    if sources is not None and len(sources) == 1 and type(sources[0]) is int:
        sources = (ref(sources[0]),)
    elif sources is not None:
        sources = tuple((ref(one[0]), ref(one[1])) if isinstance(one, tuple) else ref(one) for one in sources)
    if isinstance(operation, Replace):
        operation = Replace(ref(operation.start_seq), ref(operation.end_seq))
    return sources, operation


def moved_data(event: Event, ref: Move, turn: Move) -> dict[str, Any]:
    """`data` of `moved`."""
    if event.type not in KNOWN_TYPES:
        return event.data
    data = event.data
    if type(data.get("turn")) is int:
        data = {**data, "turn": turn(data["turn"])}
    if event.type == "tool/result":
        return _moved_repair(event, data, ref) if "error" in data else data
    move = _MOVES.get(event.type)
    return data if move is None else move(data, ref)


def references(event: Event) -> list[int]:
    """Every row that `event` points at; a range counts by its two ends."""
    if event.source_event_seqs is None and event.type not in _MOVES and event.surface_op in (None, "append"):
        return []
    found: list[int] = []

    def note(seq: int) -> int:
        found.append(seq)
        return seq

    moved_frame(event, note)
    if event.type in _MOVES:
        _MOVES[event.type](event.data, note)
    return found


def _move_list(key: str) -> Callable[[dict[str, Any], Move], dict[str, Any]]:
    return lambda data, ref: {**data, key: [ref(one) for one in data[key]]}


def _move_one(key: str) -> Callable[[dict[str, Any], Move], dict[str, Any]]:
    return lambda data, ref: {**data, key: ref(data[key])} if key in data else data


def _move_span(data: dict[str, Any], ref: Move) -> dict[str, Any]:
    span = data["shadowedRange"]
    return {
        **data,
        "shadowedRange": {**span, "start": ref(span["start"]), "end": ref(span["end"])},
        "shadowedSeqs": [ref(one) for one in data["shadowedSeqs"]],
    }


def _move_targets(data: dict[str, Any], ref: Move) -> dict[str, Any]:
    return {**data, "targets": [{**one, "seq": ref(one["seq"])} for one in data["targets"]]}


def _move_delivery(data: dict[str, Any], ref: Move) -> dict[str, Any]:
    if data.get("sessionFormatVersion", 0) != DELIVERY_VERSION:
        return data
    return {**data, "throughSeq": ref(data["throughSeq"])}


def _moved_repair(event: Event, data: dict[str, Any], ref: Move) -> dict[str, Any]:
    # The harness names the repair of a call that a fork cut off after the row itself, and checks it;
    # a row that rewrites it keeps its name.
    message, operation = data["message"], event.surface_op
    seq = operation.start_seq if isinstance(operation, Replace) else event.seq
    if message["id"] != f"forked-tool-result-{message['toolCallId']}-{seq}":
        return data
    if not isinstance(data.get("error"), dict) or data["error"].get("code") != _NOT_STARTED:
        return data
    return {**data, "message": {**message, "id": f"forked-tool-result-{message['toolCallId']}-{ref(seq)}"}}


_MOVES: Mapping[str, Callable[[dict[str, Any], Move], dict[str, Any]]] = {
    "session/title": _move_list("messageSeqs"),
    "session/title-llm-request": _move_list("messageSeqs"),
    "compaction/summary": _move_span,
    "compaction/prune": _move_span,
    "command/done": _move_one("sourceEventSeq"),
    "developer/message": _move_one("headerSeq"),
    "image/offload": _move_targets,
    DELIVERY: _move_delivery,
}

TYPES_WITH_POINTERS = frozenset(_MOVES)
"""Types whose data names rows. So may the data of a tool's result, where it is a repair."""
