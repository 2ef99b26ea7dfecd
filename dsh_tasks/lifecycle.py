"""Lifecycle: how the rows of a log follow each other: turns, steps, surface, tools, compactions.

Rows come in one by one, each already checked by itself (`rows.checked`). Two tastes: a log that is
read may lack results of tool calls (its seed supplies them); what is to be written for the harness
may not. Seen with the harness' runtime 0.2.1rc2, whose refusals these are.
"""

# ruff: noqa: SLF001 - the table at the end names the class's own methods

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dsh_tasks.errors import SessionRefused
from dsh_tasks.rows import END_SEED, is_count, message_of, references
from dsh_tasks.session import SURFACE_TYPES, Event, Replace, Sources
from dsh_tasks.surface import LiveRows


def check(events: Iterable[Event], *, strict: bool = False) -> None:
    """Refuse rows that do not follow each other; with `strict`, also unanswered tool calls.

    Raises SessionRefused with seq and type of the first row that cannot stand where it is.
    """
    lifecycle = Lifecycle(strict=strict)
    for event in events:
        lifecycle.accept(event)


@dataclass(slots=True)
class Call:
    """A tool call that an assistant's message asks for and no result has answered."""

    name: str
    arguments: str
    is_started: bool = False


@dataclass(slots=True)
class Compaction:
    """A compaction between its start and its end."""

    id: Any
    command: Any
    turn: int | None
    has_summary: bool = False
    is_cut_off: bool = False
    """A turn began or ended inside it: a crash cut it off, and nothing continues it."""


@dataclass(slots=True)
class Lifecycle:
    """What the rows so far leave open. Mutable: one per walk."""

    strict: bool = False
    turn: int | None = None
    step: int | None = None
    next_turn: int = 1
    next_step: int = 1
    surface: LiveRows = field(default_factory=LiveRows)
    head: int | None = None
    """The system message that stands first; only another system message may take its place."""
    calls: dict[str, Call] = field(default_factory=dict)
    compaction: Compaction | None = None
    headers: dict[int, frozenset[str]] = field(default_factory=dict)
    """Request headers so far and the tools that each describes in full: developer messages name them."""
    images: dict[int, int] = field(default_factory=dict)
    """Rows of the surface with images: how many."""
    offloaded: set[tuple[int, int]] = field(default_factory=set)
    """Images that were taken out: row and index."""
    human: set[int] = field(default_factory=set)
    """User messages that a person wrote: only these can be cited by a title."""
    commands: set[str] = field(default_factory=set)
    dispatches: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Calls made by a tool's own program, as they began."""
    settled: set[str] = field(default_factory=set)
    """Those of them that have settled."""
    provider: str | None = None
    retries: dict[tuple[Any, ...], tuple[Any, int]] = field(default_factory=dict)
    retried: set[str] = field(default_factory=set)
    """Names of all chains of retries."""
    scheduled: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Retries that have not begun, and their turn and step."""
    results: dict[int, Hashable] = field(default_factory=dict)
    """Live results, without their content, as what equals only its like: a long log has tens of thousands."""
    priced: tuple[int, int] | None = None
    """Rows whose removal the row before has announced: a replacement right after it is of these."""
    loose_ends: int = 0
    """Rows so far that the strict taste would have refused."""

    def accept(self, event: Event) -> None:
        """Take the next row. Raises SessionRefused where it cannot follow."""
        kind = event.type
        priced = self.priced
        if priced is not None:
            self.priced = None
            if kind in SURFACE_TYPES and isinstance(event.surface_op, Replace):
                self._check_priced(event, event.surface_op, priced)
        step = _STEPS.get(kind)
        try:
            if kind in SURFACE_TYPES:
                self._place(event, kind)
            if step is not None:
                step(self, event)
        except (KeyError, TypeError):
            # A list where a name should be, or no name at all.
            raise no(event, "data does not have the shape of its type") from None

    # -- surface ----------------------------------------------------------------------------------

    def _place(self, event: Event, kind: str) -> None:
        if kind == "tool/result":
            message = event.data["message"]
        elif kind == "user/message":
            message = event.data
            if message["source"]["kind"] == "user":
                self.human.add(event.seq)
        else:
            message = None
            if kind == "system/message" and self.head is None and self.surface:
                raise no(event, "a system message needs one that stands first on the surface")
        operation = event.surface_op
        if isinstance(operation, Replace):
            self._shadow(event, operation)
        elif kind == "system/message" and not self.surface:
            self.head = event.seq
        if message is not None:
            self._note_message(event, kind, message)
        if operation.__class__ is not Replace:
            self.surface.append(event.seq)

    def _note_message(self, event: Event, kind: str, message: dict[str, Any]) -> None:
        if kind == "tool/result":
            self.results[event.seq] = _frame(event)
        images = 0
        for block in message["content"]:
            if block["type"] == "image":
                images += 1
        if images:
            self.images[event.seq] = images

    def _shadow(self, event: Event, operation: Replace) -> None:
        gone = self._run(event, operation.start_seq, operation.end_seq)
        if not covers(event.source_event_seqs or (), gone):
            raise no(event, "sourceEventSeqs omits a row that the replacement shadows")
        if self.head in gone:
            if event.type != "system/message" or len(gone) != 1:
                raise no(event, "the system message that stands first can only be replaced by another")
            self.head = event.seq
        if event.type == "tool/result":
            self._check_rewrite(event, gone)
        for seq in gone:
            self.results.pop(seq, None)
        self.surface.replace(gone, event.seq)

    def _check_priced(self, event: Event, operation: Replace, priced: tuple[int, int]) -> None:
        if (operation.start_seq, operation.end_seq) != priced:
            raise no(event, "the row before announced that others are replaced")

    def _run(self, event: Event, first: int, last: int) -> list[int]:
        for seq in (first, last):
            if seq not in self.surface:
                raise no(event, f"row {seq} is not on the surface any more")
        run = self.surface.run(first, last)
        if not run:
            raise no(event, "the range of live rows runs backwards")
        return run

    def _check_rewrite(self, event: Event, gone: list[int]) -> None:
        before = self.results.get(gone[0])
        if len(gone) != 1 or before is None or before != _frame(event):
            raise no(event, "a result can only take the place of one result, and change its content")

    # -- turns and steps --------------------------------------------------------------------------

    def _turn_start(self, event: Event) -> None:
        self._cut_compaction_off()
        if self.turn is not None or event.data["turn"] != self.next_turn:
            raise no(event, f"turn {self.next_turn} was to open here")
        self.turn, self.next_step = self.next_turn, 1
        self.calls.clear()

    def _turn_end(self, event: Event) -> None:
        self._cut_compaction_off()
        if self.turn is None or event.data["turn"] != self.turn:
            raise no(event, "the turn that ends here is not open")
        if self.step is not None:
            raise no(event, f"step {self.step} of turn {self.turn} is still open")
        self._check_answered(event)
        self.turn = None
        self.next_turn += 1

    def _step_start(self, event: Event) -> None:
        if self.turn is None or event.data["turn"] != self.turn or self.step is not None:
            raise no(event, "a step opens inside its own turn, after the one before it has ended")
        if event.data["step"] != self.next_step:
            raise no(event, f"step {self.next_step} was to open here")
        self.step = self.next_step

    def _step_end(self, event: Event) -> None:
        self._check_step(event)
        self._check_answered(event)
        self.step = None
        self.next_step += 1

    def _check_step(self, event: Event) -> None:
        turn, step, data = self.turn, self.step, event.data
        if turn is None or step is None or data["turn"] != turn or data["step"] != step:
            raise no(event, "the row does not belong to an open turn and step")

    def _check_turn(self, event: Event) -> None:
        if self.turn is None:
            raise no(event, "the row stands outside a turn")

    # -- tools ------------------------------------------------------------------------------------

    def _check_answered(self, event: Event) -> None:
        if self.calls:
            self._loose(event, "a tool call has no result")
        self.calls.clear()

    def _loose(self, event: Event, what: str) -> None:
        if self.strict:
            raise no(event, what)
        self.loose_ends += 1

    def _assistant(self, event: Event) -> None:
        self._check_step(event)
        for block in event.data["message"]["content"]:
            if block["type"] == "tool-call":
                if block["id"] in self.calls:
                    raise no(event, "two tool calls have one id")
                self.calls[block["id"]] = Call(block["name"], block["arguments"])

    def _tool_call(self, event: Event) -> None:
        self._check_step(event)
        call = self.calls.get(event.data["callId"])
        if call is None or call.is_started:
            raise no(event, "no assistant message asks for this call, or it began before")
        if call.name != event.data["name"] or call.arguments != event.data["arguments"]:
            raise no(event, "the call is not the one that the assistant's message asks for")
        call.is_started = True

    def _tool_result(self, event: Event) -> None:
        if isinstance(event.surface_op, Replace):
            self._check_turn(event)
            if is_named_fork_repair(event) and not is_rewritten_repair(event):
                self._loose(event, "the repair that it rewrites is another")
            return
        self._check_step(event)
        call = self.calls.pop(message_of(event)["toolCallId"], None)
        if call is None:
            raise no(event, "no open tool call waits for this result")
        if not is_repair(event) and (not call.is_started or is_named_fork_repair(event)):
            self._loose(event, "the result answers a call that never began")

    def _dispatch_start(self, event: Event) -> None:
        self._check_turn(event)
        name, began = event.data["subCallId"], _call_of_program(event)
        if name in self.dispatches:
            raise no(event, "two calls of a tool's program have one id")
        self._check_family(event)
        self.dispatches[name] = began

    def _dispatch(self, event: Event) -> None:
        self._check_turn(event)
        name = event.data["subCallId"]
        self._check_family(event)
        if name not in self.dispatches or name in self.settled:
            raise no(event, "the call of a tool's program has no start, or ended before")
        if self.dispatches[name] != _call_of_program(event):
            raise no(event, "the call of a tool's program is not the one that began")
        self.settled.add(name)

    def _check_family(self, event: Event) -> None:
        root, parent = event.data["rootCallId"], event.data["parentCallId"]
        if parent != root and self.dispatches.get(parent, (None,))[0] != root:
            raise no(event, "parentCallId is no call of the same tool")

    # -- requests ---------------------------------------------------------------------------------

    def _request_header(self, event: Event) -> None:
        self._check_turn(event)
        self.provider = event.data["header"]["config"]["provider"]
        self.headers[event.seq] = _described(event.data["header"].get("tools", ()))

    def _developer(self, event: Event) -> None:
        self._check_step(event)
        header = event.data.get("headerSeq")
        if header is None:
            return
        if header not in self.headers:
            raise no(event, f"row {header} is not a request header")
        for block in event.data["message"]["content"]:
            if block["type"] == "tool-addition" and block["toolName"] not in self.headers[header]:
                raise no(event, f"the request header {header} does not describe the tool that came")

    def _retry(self, event: Event) -> None:
        data = event.data
        step = self.next_step - 1 if self.step is None else self.step
        if self.turn is None or data["turn"] != self.turn or data["step"] != step:
            raise no(event, "the retry does not belong to the current turn and step")
        if data.get("provider") != self.provider:
            raise no(event, "the retry's provider is not the one of the last request")
        chain = (data["turn"], data["step"], data.get("provider"), data.get("policyKey"))
        name, count = self.retries.get(chain, (None, 0))
        is_new = name is None and data["retryId"] not in self.retried
        if not (is_new or name == data["retryId"]) or data["retry"] != count + 1:
            raise no(event, "the retry does not continue its chain")
        self.retries[chain] = (data["retryId"], count + 1)
        self.retried.add(data["retryId"])
        self.scheduled[data["retryId"], count + 1] = (data["turn"], data["step"])

    def _retry_started(self, event: Event) -> None:
        data = event.data
        if self.scheduled.pop((data["retryId"], data["retry"]), None) != (data["turn"], data["step"]):
            raise no(event, "the retry was not scheduled for this turn and step, or began before")

    # -- compaction and the rest ------------------------------------------------------------------

    def _cut_compaction_off(self) -> None:
        """The harness closes the turn of a crash, not its compaction; the marker that follows ends that.

        In a seed it does so at the latest, as the child's own marker follows.
        """
        if self.compaction is not None:
            self.compaction.is_cut_off = True

    def _compaction_start(self, event: Event) -> None:
        if self.compaction is not None:
            raise no(event, "a compaction is open")
        data = event.data
        if data.get("turn") != self.turn:
            raise no(event, "the compaction does not belong to the open turn")
        self.compaction = Compaction(data.get("compactionId"), data.get("sourceCommandId"), self.turn)

    def _owner(self, event: Event, named: dict[str, Any]) -> Compaction:
        owner = self.compaction
        if (
            owner is None
            or owner.is_cut_off
            or (owner.id, owner.command)
            != (
                named.get("compactionId"),
                named.get("sourceCommandId"),
            )
        ):
            raise no(event, "no compaction of this id is open")
        return owner

    def _summary(self, event: Event) -> None:
        self._span(event)
        owner = self._owner(event, event.data)
        if owner.has_summary or owner.turn != self.turn:
            raise no(event, "the compaction has a summary, or belongs to another turn")
        owner.has_summary = True

    def _compaction_end(self, event: Event) -> None:
        owner = self._owner(event, event.data)
        if owner.turn != self.turn or event.data.get("turn") != owner.turn:
            raise no(event, "the compaction belongs to another turn")
        if "error" not in event.data and not owner.has_summary:
            raise no(event, "the compaction ends well without a summary")
        self.compaction = None

    def _span(self, event: Event) -> None:
        span = event.data["shadowedRange"]
        run = self._run(event, span["start"], span["end"])
        if run != event.data["shadowedSeqs"] or self.head in run:
            raise no(event, "shadowedSeqs is not a run of live rows")
        self.priced = (span["start"], span["end"])

    def _user(self, event: Event) -> None:
        source = event.data["source"]
        if isinstance(event.surface_op, Replace) and source["kind"] == "compact-checkpoint":
            self._owner(event, source)

    def _title(self, event: Event) -> None:
        cited = event.data["messageSeqs"]
        if len(set(cited)) != len(cited) or not self.human.issuperset(cited):
            raise no(event, "messageSeqs must name messages of a person, each once")

    def _command(self, event: Event) -> None:
        name = event.data.get("commandId")
        if not isinstance(name, str) or (event.type == "command/run") == (name in self.commands):
            raise no(event, "the command's start and end do not match")
        self.commands.add(name)

    def _offload(self, event: Event) -> None:
        targets = references(event)
        if len(set(targets)) != len(targets) or not all(seq in self.surface for seq in targets):
            raise no(event, "an image is taken out of a row that is not on the surface")
        for target in event.data["targets"]:
            for index in target["imageIndexes"]:
                image = (target["seq"], index)
                if index >= self.images.get(target["seq"], 0) or image in self.offloaded:
                    raise no(event, "an image is taken out that is not there, or was taken out before")
                self.offloaded.add(image)

    def _end_seed(self, _event: Event) -> None:
        # A compaction that a crash cut off ends where the log was resumed.
        self.compaction = None


_STEPS = {
    "turn/start": Lifecycle._turn_start,
    "turn/end": Lifecycle._turn_end,
    "step/start": Lifecycle._step_start,
    "step/end": Lifecycle._step_end,
    "system/message": Lifecycle._check_step,
    "developer/message": Lifecycle._developer,
    "assistant/attempt": Lifecycle._check_step,
    "assistant/message": Lifecycle._assistant,
    "user/message": Lifecycle._user,
    "tool/call": Lifecycle._tool_call,
    "tool/result": Lifecycle._tool_result,
    "tool/ptc-dispatch-start": Lifecycle._dispatch_start,
    "tool/ptc-dispatch": Lifecycle._dispatch,
    "request/header": Lifecycle._request_header,
    "request/context": Lifecycle._check_turn,
    "llm/retry": Lifecycle._retry,
    "llm/retry-started": Lifecycle._retry_started,
    "compaction/start": Lifecycle._compaction_start,
    "compaction/summary": Lifecycle._summary,
    "compaction/prune": Lifecycle._span,
    "compaction/end": Lifecycle._compaction_end,
    "session/title": Lifecycle._title,
    "session/title-llm-request": Lifecycle._title,
    "command/run": Lifecycle._command,
    "command/done": Lifecycle._command,
    "image/offload": Lifecycle._offload,
    END_SEED: Lifecycle._end_seed,
}


def no(event: Event, what: str) -> SessionRefused:
    """The refusal of `event`, without a line."""
    return SessionRefused(what, seq=event.seq, event_type=event.type)


def covers(sources: Sources, seqs: Iterable[int]) -> bool:
    """Whether every one of `seqs` is named, singly or within a range."""
    spans = sorted(one if isinstance(one, tuple) else (one, one) for one in sources)
    starts = [span[0] for span in spans]
    for seq in seqs:
        place = bisect_right(starts, seq) - 1
        if place < 0 or spans[place][1] < seq:
            return False
    return True


NOT_STARTED = (
    "The tool call was interrupted before the Harness recorded it as started. Retry it if it is still needed."
)
"""What the harness says of a call that a crash kept from beginning, to the letter."""


def is_repair(event: Event) -> bool:
    """Whether the harness wrote this result for a call that it never began.

    A fork's repair is named after its own row, a crash's after the row that it once had.
    """
    message = event.data["message"]
    found = _repair_name(event)
    if found is None or event.source_event_seqs is not None or not _is_one_text(message["content"]):
        return False
    cause, seq = found
    return seq == event.seq if cause == "forked" else message["content"][0]["text"] == NOT_STARTED


def is_rewritten_repair(event: Event) -> bool:
    """Whether a replacement names the one row that it rewrites, as a fork's repair does."""
    found = _repair_name(event)
    is_named = found is not None and event.source_event_seqs == (found[1],)
    return is_named and _is_one_text(event.data["message"]["content"])


def is_named_fork_repair(event: Event) -> bool:
    """Whether it calls itself a fork's repair: then it must be one in everything."""
    error = event.data.get("error")
    is_not_started = isinstance(error, dict) and error.get("code") == "TOOL_NOT_STARTED"
    return is_not_started and event.data["message"]["id"].startswith("forked-tool-result-")


def _repair_name(event: Event) -> tuple[str, int] | None:
    """Why there is a repair, and the number in its name; None where it is none."""
    error, message = event.data.get("error"), event.data["message"]
    if not isinstance(error, dict) or message.get("isError") is not True:
        return None
    if (error.get("name"), error.get("code")) != ("ToolNotStartedError", "TOOL_NOT_STARTED"):
        return None
    for cause in ("interrupted", "forked"):
        number = message["id"].removeprefix(f"{cause}-tool-result-{message['toolCallId']}-")
        if number != message["id"] and re.fullmatch("0|[1-9][0-9]{0,15}", number) and is_count(int(number)):
            return cause, int(number)
    return None


def _is_one_text(content: list[dict[str, Any]]) -> bool:
    return len(content) == 1 and content[0]["type"] == "text"


def _call_of_program(event: Event) -> tuple[Any, ...]:
    """What start and end of a call of a tool's program have in common; its root first."""
    data = event.data
    return data["rootCallId"], data["parentCallId"], data.get("name"), data.get("arguments")


def _described(tools: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Names that exactly one tool has, which is described in full."""
    named = [tool for tool in tools if isinstance(tool.get("name"), str)]
    count = Counter(tool["name"] for tool in named)
    return frozenset(
        tool["name"]
        for tool in named
        if count[tool["name"]] == 1
        and isinstance(tool.get("description"), str)
        and isinstance(tool.get("parameters"), dict)
    )


_AS_TEXT = json.JSONEncoder(sort_keys=True, default=repr)
"""Made once: making one takes longer than using it."""


_PLAIN_RESULT = len(("turn", "step", "message"))
_PLAIN_MESSAGE = len(("role", "source", "toolCallId", "content", "isError", "id"))
_PLAIN_SOURCE = len(("kind", "callId"))


def _frame(result: Event) -> Hashable:
    """A result without its content, as a value that equals only its like."""
    data, message = result.data, result.data["message"]
    has_fields = len(data) == _PLAIN_RESULT and len(message) == _PLAIN_MESSAGE and "isError" in message
    if has_fields and len(message["source"]) == _PLAIN_SOURCE:
        # As nearly all are. All other fields must be there, and follow from its type: that was checked.
        return data["turn"], data["step"], message["toolCallId"], message["isError"], message["id"]
    frame = {**data, "message": {**message, "content": None}}
    try:
        text = _AS_TEXT.encode(frame).encode()
    except (ValueError, RecursionError, TypeError):
        # What has no JSON equals nothing; it is refused when it is frozen.
        text = repr(id(result)).encode()
    return hashlib.blake2b(text, digest_size=16).digest()
