"""Playing: one attempt run again. Model and tools say what the log holds; each row is compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from dsh_tasks.session import Event
from dsh_tasks.submission import Policy
from dsh_tasks.surface import messages as surface
from dsh_tasks.task import Outcome
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.history import history, with_system
from workers.engines.agent.judging import TOOK_LONGER, Judge
from workers.engines.agent.model import Models, ResolvedModel
from workers.engines.agent.structured import TOOL_NAME
from workers.engines.base import Child, ChildTool, Fenced, Permit, StopReason, ToolAnswer
from workers.engines.open_turn import Row
from workers.engines.transcript import PARTIAL, SEEN, RouteName, text_of
from workers.replay.comparing import Difference, essence, parts
from workers.replay.household import RecordedChildren
from workers.replay.recorded import Recorded, repair_of

JUDGED_AGAIN_WITHIN_S = 600.0
STILL_S = 5.0
"""A run that makes no further row for so long makes none at all: nothing in it waits for anything outside."""
STILL_PASSES = 1_000
"""Turns of the event loop that it must have had as well: on a busy machine time alone says nothing."""
SYSTEMS = {"openai-chat": "openai", "openai-responses": "openai", "deepseek-official": "deepseek"}
"""Routes whose provider calls itself otherwise in its answers."""
FINISHES: Mapping[str, FinishReason | None] = {
    "REFUSAL": "content_filter",
    "NO_FINISH_REASON": None,
    "MODEL_ERROR": "error",
}


class RecordedFailure(Exception):
    """What ended the recorded run here came from outside of it: it is taken as recorded."""


async def play(recorded: Recorded, place: int) -> Difference | None:
    """Run attempt `place` (from 0) again; the first difference, or None."""
    if recorded.was_refused(place):
        # A worker that could not run the child at all: nothing of it is told by the log.
        return None
    run = Replayed(recorded, place)
    judge = RecordedJudge(run)
    engine = AgentEngine(models=OneModel(run), structured_repair_turns=recorded.repair_turns, judge=judge)
    run.task = asyncio.ensure_future(engine.run(run))
    made = -1
    while not run.task.done() and (made != run.place or judge.under_way):
        made = run.place
        await asyncio.wait({run.task}, timeout=STILL_S)
        for _ in range(STILL_PASSES):
            await asyncio.sleep(0)
    if not run.task.done():
        run.stop(StopReason.FENCED)
        await asyncio.wait({run.task}, timeout=STILL_S)
        return run.lacking()
    try:
        outcome = run.task.result()
    except (Fenced, asyncio.CancelledError):
        return run.difference or run.lacking()
    return run.difference or run.ending(outcome)


@dataclass
class Replayed:
    """See workers.engines.base.Run. Collects rows in place of writing them."""

    recorded: Recorded
    attempt: int
    place: int = 0
    """Rows of this attempt that came out as recorded."""
    stop_reason: StopReason | None = None
    difference: Difference | None = None
    task: asyncio.Future[Outcome] | None = None
    has_failed: bool = False
    """A failure was taken as recorded."""
    has_budget = False
    has_cost_budget = False
    output_reserve = 1
    _doubt: Difference | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """What this attempt found, and what it wrote."""
        self.child: Child = self.recorded.child(self.attempt)
        self.rows: Sequence[Row] = self.recorded.attempts[self.attempt]
        self.tools: Sequence[ChildTool] = [
            self._tool(shown) for shown in self.recorded.tools if shown["name"] != TOOL_NAME
        ]
        self.household = RecordedChildren(lambda: self.rows[self.place :], self.stopped)
        is_last = self.attempt == len(self.recorded.attempts) - 1
        self.end: Mapping[str, Any] | None = None
        """Why the turn ended; None where this attempt did not end it."""
        if is_last and self.rows[-1]["type"] == "turn/end":
            self.end = self.rows[-1]["data"]["reason"]

    @property
    def first(self) -> int:
        """Seq of this attempt's first row."""
        return len(self.child.seed) + len(self.child.log)

    @property
    def next_row(self) -> Row | None:
        """The recorded row that is to come."""
        return self.rows[self.place] if self.place < len(self.rows) else None

    # -- what the engine asks for -----------------------------------------------------------------

    def now_ms(self) -> int:
        """Times are not compared."""
        return int(self.rows[0]["time"])

    async def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Compare; where the recorded attempt was stopped, stop this one."""
        await asyncio.sleep(0)
        if self.difference is not None:
            raise Fenced
        for offset, row in enumerate(rows):
            found = self.compared(self.place + offset, row)
            if found is None:
                continue
            if self.end is None and self.place + offset == len(self.rows):
                # The attempt was lost here, or still runs.
                self.stop_reason = StopReason.FENCED
                raise Fenced
            if self.stopped_by is not None and self._doubt is None:
                self._doubt = found
                self.stop_reason = self.stopped_by
                raise asyncio.CancelledError
            self._differs(found)
        self.place += len(rows)
        self._moved.set()
        if self.end is None and self.place == len(self.rows):
            asyncio.get_running_loop().call_soon(self.stop, StopReason.FENCED)

    def activity(self, words: str) -> None:
        """Nobody looks."""

    def streamed(self, size: int) -> None:
        """Nobody looks."""

    async def reserve(self, tokens: int, cost_nanousd: int) -> None:
        """There is no budget."""

    async def correct(self, tokens: int, cost_nanousd: int) -> None:
        """There is no budget."""

    def check_lease(self) -> None:
        """There is no lease."""

    @asynccontextmanager
    async def permit(self, _route: str) -> AsyncGenerator[Permit]:
        """There is no route."""
        yield _Permit()

    # -- how the recorded attempt was stopped -------------------------------------------------------

    @property
    def stopped_by(self) -> StopReason | None:
        """What stopped the turn from outside, where something did."""
        if self.end is None:
            return None
        if self.end["kind"] == "aborted":
            return StopReason.KILL
        code = (self.end.get("error") or {}).get("code")
        return StopReason.STALLED if code == "STALLED" else None

    def stop(self, reason: StopReason) -> None:
        """What a runner does."""
        self.stop_reason = self.stop_reason or reason
        if self.task is not None:
            self.task.cancel()

    async def stopped(self) -> NoReturn:
        """Here the recorded attempt was stopped, or lost."""
        self.stop(self.stopped_by or StopReason.FENCED)
        await asyncio.Event().wait()
        raise AssertionError

    # -- comparing --------------------------------------------------------------------------------

    def compared(self, place: int, row: Mapping[str, Any]) -> Difference | None:
        """What differs between a row and the recorded one in its place."""
        made = essence(row, with_error=not self.has_failed)
        if place >= len(self.rows):
            return Difference(self.first + place, row["type"], "a row that was not recorded", None, made)
        kept = essence(self.rows[place], with_error=not self.has_failed)
        if kept == made:
            return None
        return Difference(self.first + place, self.rows[place]["type"], "another row", kept, made)

    def _differs(self, found: Difference) -> NoReturn:
        self.difference = found
        self.stop_reason = StopReason.FENCED
        raise Fenced

    def lacking(self) -> Difference | None:
        """The first recorded row that was not made."""
        row = self.next_row
        if row is None:
            return None
        return Difference(
            self.first + self.place, row["type"], "a recorded row that was not made", essence(row), None
        )

    def ending(self, outcome: Outcome) -> Difference | None:
        """What differs in the rows of the settlement."""
        for offset, row in enumerate(outcome.rows):
            if found := self.compared(self.place + offset, row):
                return self._doubt or found
        self.place += len(outcome.rows)
        return self.lacking()

    def check_request(self, sent: Sequence[ModelMessage], parameters: ModelRequestParameters) -> None:
        """The request must be what the rows before it fold to, with the tools of the last header."""
        own = [row for row in self.recorded.rows if row["seq"] < self.first + self.place]
        log = [*self.child.seed, *map(Event.from_row, own)]
        told = history(surface(log), provider=system_of(self.recorded))
        beside = [row["data"]["text"] for row in own if row["type"] == "dsh-tasks/system"]
        if beside:
            told = with_system(told, beside[-1])
        self._same("messages", parts(told), parts(sent))
        headers = [row["data"]["header"] for row in own if row["type"] == "request/header"]
        shown = [tool["name"] for tool in headers[-1].get("tools", ())] if headers else []
        self._same("tools", shown, [tool.name for tool in parameters.function_tools])

    def _same(self, what: str, implied: Any, sent: Any) -> None:
        if implied != sent:
            words = f"a request whose {what} are not what the log implies"
            self._differs(Difference(self.first + self.place, "request", words, implied, sent))

    # -- tools ------------------------------------------------------------------------------------

    def _tool(self, shown: Mapping[str, Any]) -> ChildTool:
        name = shown["name"]

        async def call(_arguments: Mapping[str, Any], call_id: str) -> ToolAnswer:
            return await self._answered(call_id)

        return ChildTool(
            name=name,
            description=shown["description"],
            parameters=shown["parameters"],
            call=call,
            exclusive=name not in self.recorded.together,
            idempotent=name not in self.recorded.once,
        )

    async def _answered(self, call_id: str) -> ToolAnswer:
        """The recorded result, once all rows before it are made; else the attempt was stopped meanwhile."""
        place = next(
            (
                at
                for at in range(self.place, len(self.rows))
                if self.rows[at]["type"] == "tool/result"
                and self.rows[at]["data"]["message"]["toolCallId"] == call_id
            ),
            None,
        )
        while self.place < (len(self.rows) if place is None else place):
            self._moved.clear()
            await self._moved.wait()
        if place is None or repair_of(self.rows[place]):
            await self.stopped()
        message = self.rows[place]["data"]["message"]
        after = self.rows[place + 1] if place + 1 < len(self.rows) else {}
        seen = tuple(after["data"]["taskIds"]) if after.get("type") == SEEN else ()
        return ToolAnswer(text_of(message["content"]), is_error=message.get("isError") is True, seen=seen)


class _Permit:
    async def accepted(self) -> None:
        """Nobody waits."""

    async def cools(self, pause_ms: int) -> None:
        """Nobody calls."""


def system_of(recorded: Recorded) -> str:
    """The provider as its answers name it."""
    for row in recorded.rows:
        if row["type"] == "assistant/message":
            state = row["data"]["message"]["source"].get("replayState") or {}
            if provider := (state.get("response") or {}).get("provider"):
                return str(provider)
    return SYSTEMS.get(recorded.route.provider, recorded.route.provider)


class RecordedJudge(Judge):
    """Judges as the engine does, but for time: what took too long then is taken as recorded."""

    def __init__(self, run: Replayed) -> None:
        super().__init__(JUDGED_AGAIN_WITHIN_S)
        self._run = run

    async def faults(self, schema: Mapping[str, Any], text: str) -> list[str]:
        """See Judge."""
        left = self._run.rows[self._run.place :]
        result = next((row for row in left if row["type"] == "tool/result"), None)
        said = "" if result is None else text_of(result["data"]["message"]["content"])
        too_long = next((line for line in said.split("\n") if TOOK_LONGER in line), None)
        return await super().faults(schema, text) if too_long is None else [too_long]


class OneModel(Models):
    """The recorded model, whatever is asked for."""

    def __init__(self, run: Replayed) -> None:
        super().__init__()
        route: RouteName = run.recorded.route
        self._one = ResolvedModel(f"{route.provider}:{route.model}", ReplayModel(run), route)

    async def ready(self, _policy: Policy, _operator_model: str | None) -> ResolvedModel:
        """See Models."""
        return self._one


class ReplayModel(Model):
    """Answers with what the log holds next, after it has looked at the request."""

    def __init__(self, run: Replayed) -> None:
        super().__init__()
        self._run = run

    @property
    def model_name(self) -> str:
        """As recorded."""
        return self._run.recorded.route.model

    @property
    def system(self) -> str:
        """As recorded."""
        return system_of(self._run.recorded)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The whole answer; the same one, looked at in the same way, as in a stream."""
        async with self.request_stream(messages, model_settings, model_request_parameters) as answer:
            async for _ in answer:
                pass
            return answer.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        _model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        _run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """See Model."""
        run = self._run
        run.check_request(messages, model_request_parameters)
        row = run.next_row
        if row is None and run.end is None:
            await run.stopped()
        yield RecordedAnswer(model_request_parameters, run=run, row=row, provider=self.system)


@dataclass
class RecordedAnswer(StreamedResponse):
    """One recorded answer as a stream; one that was cut off breaks where it broke."""

    run: Replayed
    row: Row | None
    provider: str

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for place, part in enumerate(self._recorded_parts):
            yield self._parts_manager.handle_part(vendor_part_id=place, part=part)
        if self._is_whole:
            self.finish_reason = self._finish
            return
        if self.run.end is None:
            # The worker left in mid answer: what had streamed is kept, as it was then.
            self.run.stop(StopReason.HAND_BACK)
            await asyncio.Event().wait()
        if self.run.stopped_by is not None:
            await self.run.stopped()
        self.run.has_failed = True
        raise RecordedFailure

    def get(self) -> ModelResponse:
        """The recorded parts."""
        finish = self._finish if self._is_whole else None
        return ModelResponse(self._recorded_parts, provider_name=self.provider, finish_reason=finish)

    @property
    def _is_whole(self) -> bool:
        if self.row is None or self.row["type"] != "assistant/message":
            return False
        # The text of an answer that was cut off is written without usage.
        return "usage" in self.row["data"]

    @property
    def _finish(self) -> FinishReason | None:
        after = self.run.rows[self.run.place + 1 :]
        if any(isinstance(part, ToolCallPart) for part in self._recorded_parts):
            return "tool_call"
        ends = [row["data"]["reason"] for row in after if row["type"] == "turn/end"]
        is_next = not any(row["type"] in ("user/message", "assistant/message") for row in after)
        if not ends or not is_next:
            return "stop"
        if ends[0]["kind"] == "max-tokens":
            return "length"
        return FINISHES.get((ends[0].get("error") or {}).get("code", ""), "stop")

    @property
    def _recorded_parts(self) -> list[ModelResponsePart]:
        if self.row is None or self.row["type"] not in ("assistant/message", PARTIAL):
            return []
        if self.row["type"] == PARTIAL:
            return [TextPart(self.row["data"]["text"])]
        message = self.row["data"]["message"]
        states = (message["source"].get("replayState") or {}).get("blocks") or [{}] * len(message["content"])
        return [
            _part(block, state, self.provider)
            for block, state in zip(message["content"], states, strict=True)
        ]

    @property
    def model_name(self) -> str:
        """As recorded."""
        return self.run.recorded.route.model

    @property
    def provider_name(self) -> str:
        """As recorded."""
        return self.provider

    @property
    def provider_url(self) -> None:
        """There is none."""

    @property
    def timestamp(self) -> datetime:
        """Times are not compared."""
        return datetime.fromtimestamp(0, UTC)


def _part(block: Mapping[str, Any], state: Mapping[str, Any], provider: str) -> ModelResponsePart:
    if block["type"] == "tool-call":
        return ToolCallPart(block["name"], block["arguments"], block["id"])
    if block["type"] == "reasoning":
        return ThinkingPart(
            block["text"],
            id=state.get("id"),
            signature=state.get("signature"),
            provider_name=provider,
            provider_details=state.get("details"),
        )
    return TextPart(block["text"])
