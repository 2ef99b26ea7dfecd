"""Turn: one attempt of one child, step by step: ask the model, run its calls, write each as it happens.

Own loop over pydantic-ai's direct model interface instead of its Agent: the order of rows (an answer
before its tools run, a call's mark before the call) and what a kill keeps are then decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import groupby
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)

from dsh_tasks.errors import DshTasksError
from dsh_tasks.notice import batch_text
from dsh_tasks.task import Outcome
from workers.engines.agent.asking import Asking
from workers.engines.agent.ending import (
    ABORTED,
    COMPLETED,
    INVALID_VALUES,
    NO_VALUE,
    STALLED,
    Ending,
    failed,
    of_error,
    over_budget,
)
from workers.engines.agent.history import answer_blocks, arguments_of, joined, tool_return
from workers.engines.agent.model import ResolvedModel
from workers.engines.agent.own_children import AtEnd, OwnChildren
from workers.engines.agent.patience import Patience
from workers.engines.agent.structured import TOOL_NAME, StructuredOutput
from workers.engines.agent.tools import dispatch
from workers.engines.agent.usage import row_usage, usage_of_rows
from workers.engines.base import BudgetExceeded, ChildTool, Fenced, Run, StopReason, ToolAnswer
from workers.engines.open_turn import OpenTurn, Row
from workers.engines.transcript import Transcript, own_text

MAX_STEPS = 1_000
"""Model steps of one attempt: a model that calls tools for ever must end."""
WRITE_GRACE_S = 2.0
"""How long a cancelled turn waits to learn whether a write that is under way was accepted."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an answer."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Given:
    """All that a turn starts from."""

    model: ResolvedModel
    conversation: Callable[[Sequence[Row]], list[ModelMessage]]
    """What the model has been sent once these are the child's own rows: the seed's messages, then its own."""
    opening: Sequence[Row]
    """Rows up to the prompt and the request header, or up to where an earlier attempt's turn goes on."""
    tools: Mapping[str, ChildTool]
    structured: StructuredOutput | None = None
    max_tokens: int | None = None
    patience: Patience = field(default_factory=Patience)
    left_open: OpenTurn | None = None
    """The turn that an earlier attempt began, where there is one."""
    at_end: AtEnd = AtEnd.WAIT


class Turn:
    """Mutable while it runs: the messages so far, what streams, what was used."""

    def __init__(self, run: Run, transcript: Transcript, given: Given) -> None:
        self._run = run
        self._transcript = transcript
        self._given = given
        self._messages: list[ModelMessage] = []
        used = usage_of_rows(transcript.rows, given.model)
        self._asking = Asking(run, given.model, given.tools.values(), given.max_tokens, given.patience, used)
        self._unwritten: list[Row] = []
        """Made, and written with the settlement."""
        self._call_ids = calls_in(transcript.rows)
        self._children = OwnChildren(run, transcript.rows, given.at_end)
        self._writes = asyncio.Lock()

    async def play(self) -> Outcome:
        """See Engine.run."""
        try:
            ending = await self._steps()
        except (asyncio.CancelledError, Fenced) as stop:
            if self._run.stop_reason is StopReason.KILL:
                ending = ABORTED
            elif self._run.stop_reason is StopReason.STALLED:
                await self._keep_partial()
                ending = STALLED
            elif self._run.stop_reason is None and isinstance(stop, asyncio.CancelledError):
                # Nobody asked: a fault inside, and its log is closed like any other.
                ending = failed("the engine cancelled itself", "ENGINE_ERROR")
            else:
                await self._keep_partial()
                raise
        except GeneratorExit:
            raise
        except DshTasksError as error:
            ending = failed(error.message, error.code)
        except BaseException as error:  # noqa: BLE001 - however a child ends, its log is closed
            # The text of a foreign exception may hold content: its kind alone is safe to keep.
            ending = failed(f"the engine raised {type(error).__name__}", "ENGINE_ERROR")
        return self._outcome(ending)

    async def _steps(self) -> Ending:
        await self._write(self._given.opening)
        await self._children.catch_up()
        ending = await self._go_on()
        if ending is not None:
            return ending
        self._messages = self._given.conversation(self._transcript.rows)
        while self._transcript.step <= MAX_STEPS:
            if (ending := self._value_ending()) is not None:
                if ending is COMPLETED:
                    # The value is the child's last word: it waits for its children and hears no more of them.
                    await self._without_children()
                return ending
            await self._hear(new_step=False)
            try:
                response = await self._asking.answer(self._messages)
            except Fenced:
                raise
            except BudgetExceeded as error:
                return over_budget(str(error))
            except Exception as error:  # noqa: BLE001 - every failure of a model ends the child, none the worker
                return of_error(error, self._given.model.name, tries=self._asking.tries)
            response = with_distinct_calls(response, self._call_ids)
            ending = self._asking.ending_of(response)
            calls = [] if ending is not None else calls_of(response)
            self._take(response, with_calls=bool(calls))
            if calls:
                await self._work(calls)
                continue
            ending = ending or await self._without_calls()
            if ending is not None:
                return ending
        return failed(f"no end after {MAX_STEPS} model steps", "TOO_MANY_STEPS")

    async def _go_on(self) -> Ending | None:
        """What an earlier attempt left open in its last step; the ending that it brings, if any."""
        turn = self._given.left_open
        if turn is None or not turn.has_answer:
            return None
        if not turn.calls:
            return await self._without_calls()
        begun = {call.id for call in turn.left if call.mark is not None}
        await self._work([Call(call.id, call.name, call.arguments) for call in turn.left], begun)
        return None

    async def _without_calls(self) -> Ending | None:
        """The model has ended its turn: the end of it, or none where it is told that its value is missing."""
        if self._given.structured is not None:
            return None if await self._reminded() else NO_VALUE
        await self._without_children()
        return None if await self._hear(new_step=True) else COMPLETED

    async def _without_children(self) -> None:
        """Wait for its own children, where that is the policy; the answer stands in the log meanwhile."""
        living = await self._children.living()
        if living:
            await self._write(self._unwritten)
            await self._children.end(living)

    async def _hear(self, *, new_step: bool) -> bool:
        """Tell the model which of its children have ended; False where none has."""
        news = await self._children.news()
        if not news:
            return False
        rows = self._transcript.news(news, self._unwritten, new_step=new_step)
        await self._write([*self._unwritten, *rows])
        self._say(batch_text(news))
        await self._children.told([notice.task_id for notice in news])
        return True

    def _value_ending(self) -> Ending | None:
        """The ending that a structured value brings, or that too many invalid ones bring."""
        structured = self._given.structured
        if structured is None or not structured.is_over:
            return None
        return COMPLETED if structured.has_value else INVALID_VALUES

    async def _reminded(self) -> bool:
        """Tell a child that ends without its value what is missing; False where nothing is left to say."""
        structured = self._given.structured
        text = None if structured is None else structured.reminder()
        if text is None:
            return False
        await self._write([*self._unwritten, *self._transcript.reminder(text, self._unwritten)])
        self._say(text)
        return True

    def _say(self, text: str) -> None:
        """A message to the model, behind its last answer."""
        last = self._messages[-1] if self._messages else None
        if isinstance(last, ModelResponse) and not has_text(last):
            # Providers refuse an answer that says nothing, and reasoning goes as a whole.
            self._messages.pop()
        self._messages = joined(self._messages, [ModelRequest([UserPromptPart(text)])])

    def _take(self, response: ModelResponse, *, with_calls: bool) -> None:
        """The answer becomes a row that is written next, and part of the next request."""
        if not with_calls:
            parts = [part for part in response.parts if not isinstance(part, ToolCallPart)]
            response = replace(response, parts=parts)
        route = self._given.model.route
        blocks, state = answer_blocks(response, route.model)
        usage = row_usage(response.usage)
        self._unwritten = self._transcript.answer(blocks, route, usage=usage, replay_state=state)
        self._messages.append(response)
        self._asking.taken()

    # -- the tools --------------------------------------------------------------------------------

    async def _work(self, calls: Sequence[Call], begun: Collection[str] = ()) -> None:
        """Run calls of the answer in its order.

        Those in `begun` have their mark from an earlier attempt.
        """
        results: list[ModelRequestPart] = []
        left = len(calls)
        structured, provider = self._given.structured, self._given.model.system

        async def one(call: Call) -> None:
            nonlocal left
            answer = await self._answer(call)
            async with self._writes:
                left -= 1
                results.append(
                    tool_return(call.name, call.id, answer.text, is_error=answer.is_error, provider=provider)
                )
                rows = self._transcript.result(call.id, answer.text, is_error=answer.is_error)
                rows += self._transcript.seen(answer.seen, rows)
                if left == 0 and (structured is None or not structured.is_over):
                    rows += self._transcript.next_step(rows)
                await self._write(rows)
            await self._children.told(answer.seen)

        for batch in batches(calls, self._given.tools):
            new = [astuple(call) for call in batch if call.id not in begun]
            marks = self._transcript.calls(new, self._unwritten)
            if marks:
                await self._write([*self._unwritten, *marks])
            await together([one(call) for call in batch])
        self._messages.append(ModelRequest(results))

    async def _answer(self, call: Call) -> ToolAnswer:
        structured = self._given.structured
        if structured is not None and structured.is_over:
            return ToolAnswer(structured.refusal, is_error=True)
        self._run.check_lease()
        # A name that no tool has is the model's own words.
        self._run.activity(f"tool:{call.name}" if call.name in self._given.tools else "tool")
        if structured is not None and call.name == TOOL_NAME:
            return await structured.answer(call.arguments)
        answer = await dispatch(
            self._given.tools, call.name, call.arguments, call.id, task_id=self._run.child.task_id
        )
        if self._run.stop_reason is not None:
            # A tool may swallow the cancellation; the child is stopped all the same.
            raise asyncio.CancelledError
        return answer

    # -- the log ----------------------------------------------------------------------------------

    async def _write(self, rows: Sequence[Row]) -> None:
        """Write rows durably, and know after a cancellation whether they were accepted."""
        writing = asyncio.ensure_future(self._store(rows))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await ended(writing, within_s=WRITE_GRACE_S)
            writing.cancel()
            raise

    async def _store(self, rows: Sequence[Row]) -> None:
        await self._run.append(rows)
        self._accept(rows)

    def _accept(self, rows: Sequence[Row]) -> None:
        self._transcript.accept(rows)
        self._unwritten = []

    async def _keep_partial(self) -> None:
        """What has streamed stays readable, though the next attempt asks again."""
        text = "" if self._run.stop_reason is StopReason.FENCED else self._asking.cut_off()
        if text and not self._unwritten:
            with contextlib.suppress(Fenced, asyncio.CancelledError):
                await self._write(self._transcript.partial(text))

    def _outcome(self, ending: Ending) -> Outcome:
        rows = [*self._unwritten, *self._partial()]
        rows += self._transcript.end(ending.kind, rows, error=ending.error)
        structured = self._given.structured if ending is COMPLETED else None
        value = None if structured is None else structured.json
        return Outcome(
            ending.status,
            ending.cause,
            ending.detail,
            output=own_text([*self._transcript.rows, *rows]),
            usage=self._asking.usage,
            structured=None if value is None else json.loads(value),
            has_structured=value is not None,
            structured_json=value,
            rows=tuple(rows),
        )

    def _partial(self) -> list[Row]:
        """The text of an answer that was cut off, as a row."""
        text = self._asking.cut_off()
        if not text:
            return []
        return self._transcript.answer([{"type": "text", "text": text}], self._given.model.route)


def has_text(response: ModelResponse) -> bool:
    """The answer says something, in text."""
    return any(isinstance(part, TextPart) and part.content.strip() for part in response.parts)


def calls_of(response: ModelResponse) -> list[Call]:
    """The tool calls of an answer, in its order."""
    return [
        Call(part.tool_call_id, part.tool_name, arguments_of(part))
        for part in response.parts
        if isinstance(part, ToolCallPart)
    ]


def calls_in(rows: Sequence[Row]) -> set[str]:
    """Ids of all calls in these rows."""
    answers = (row["data"]["message"]["content"] for row in rows if row["type"] == "assistant/message")
    return {block["id"] for blocks in answers for block in blocks if block["type"] == "tool-call"}


def with_distinct_calls(response: ModelResponse, taken: set[str]) -> ModelResponse:
    """The answer with call ids that are there and differ: some providers repeat them or leave them out.

    `taken` are those of the child's earlier answers, to which these are added: tools deduplicate by them.
    """
    parts: list[ModelResponsePart] = []
    for place, part in enumerate(response.parts):
        if isinstance(part, ToolCallPart):
            given, name = part.tool_call_id or f"call-{place}", part.tool_name or "unnamed"
            call_id, number = given, len(taken)
            while call_id in taken:
                call_id, number = f"{given}-{number}", number + 1
            taken.add(call_id)
            if (call_id, name) != (part.tool_call_id, part.tool_name):
                parts.append(ToolCallPart(name, arguments_of(part), call_id))
                continue
        parts.append(part)
    return replace(response, parts=parts)


def batches(calls: Sequence[Call], tools: Mapping[str, ChildTool]) -> Iterator[list[Call]]:
    """The calls in order, in groups that may run at once: an exclusive one stands alone."""

    def is_exclusive(call: Call) -> bool:
        tool = tools.get(call.name)
        return tool is not None and tool.exclusive

    for alone, group in groupby(calls, is_exclusive):
        if alone:
            yield from ([call] for call in group)
        else:
            yield list(group)


async def together(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all of them; where one raises or the whole is cancelled, none is left running."""
    if len(runs) == 1:
        await runs[0]
        return
    tasks = [asyncio.create_task(one) for one in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            # A second cancellation would cut short what the first one lets a task finish.
            if not task.cancelling():
                task.cancel()
        await asyncio.wait(tasks)


async def ended(task: asyncio.Future[None], *, within_s: float) -> None:
    """Wait until a task has ended, whatever is cancelled meanwhile."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while not task.done() and loop.time() < until_s:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=until_s - loop.time())
