"""The offline model: no model at all, but a small program that really reads the history it is given.

For demonstrations, tests and newcomers. It is called `offline` wherever a model is named. It answers
`What is the <noun>?` with the last sentence `The <noun> is <value>.` that it was shown, says that it
cannot know where it was shown none, and follows the directives of a prompt (`directives.py`,
docs/offline-model.md). Everything else gets a short acknowledgement that names it as offline.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from workers.engines.agent.directives import (
    Calls,
    CutOff,
    Directive,
    Fail,
    Refuse,
    Say,
    Stream,
    ToolUse,
    Wait,
    filled,
    parse,
    ticks,
)

NAME = "offline"

_QUESTION = re.compile(r"\bwhat is the\s+([^\s?][^?\n]{0,199})\?", re.IGNORECASE)
_TASK_ID = re.compile(r"\bsubagent-[0-9a-f]{32}\b")
_NOTICE = re.compile(r"Background subagent task subagent-[0-9a-f]{32}\b")
_WORDS_AT_ONCE = 50


class OfflineModel(FunctionModel):
    """A FunctionModel that also says why its answer ended."""

    def __init__(self) -> None:
        super().__init__(answer, stream_function=stream, model_name=NAME)

    @property
    def system(self) -> str:
        """Name of the provider."""
        return NAME

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """See Model."""
        opened = super().request_stream(messages, model_settings, model_request_parameters, run_context)
        async with opened as response:
            response.finish_reason = finish_reason(Shown.of(messages))
            yield response


@dataclass(frozen=True, slots=True)
class Shown:
    """What the model was shown, as it reads it."""

    prompt: str
    """Text of the last user message."""
    texts: tuple[str, ...]
    """Every text in order, the last prompt included."""
    results: tuple[tuple[str, str, bool], ...]
    """(tool, text, is_error) of the results since the last prompt."""
    steps: int
    """Answers since the last prompt that called tools."""
    count: int
    """Messages in all."""

    @classmethod
    def of(cls, messages: Sequence[ModelMessage]) -> Shown:
        """Read a history."""
        prompt, texts, count = "", list[str](), 0
        results, steps = list[tuple[str, str, bool]](), 0
        for message in messages:
            parts = message.parts if isinstance(message, ModelRequest) else (message,)
            for part in parts:
                count += 1
                match part:
                    case UserPromptPart() if _NOTICE.match(_text(part.content)):
                        # News of its own children: it goes on with its program.
                        texts.append(_text(part.content))
                    case UserPromptPart():
                        prompt = _text(part.content)
                        texts.append(prompt)
                        results, steps = [], 0
                    case ToolReturnPart():
                        text = part.model_response_str(wrap_if_error=False)
                        texts.append(text)
                        results.append((part.tool_name, text, part.outcome != "success"))
                    case ModelResponse():
                        texts += [one.content for one in part.parts if isinstance(one, TextPart)]
                        steps += any(isinstance(one, ToolCallPart) for one in part.parts)
                    case _:
                        texts.append(str(getattr(part, "content", "")))
        return cls(prompt, tuple(texts), tuple(results), steps, count)

    def fact(self, noun: str) -> str | None:
        """The value in the last sentence `The <noun> is <value>.`; None where there is none."""
        words = r"\s+".join(re.escape(word) for word in noun.split())
        sentence = re.compile(rf"\bthe\s+{words}\s+is\s+([^\n]+?)\.(?=[\s\"'\\)]|$)", re.IGNORECASE)
        last = noun.rsplit(maxsplit=1)[-1].lower()
        for text in reversed(self.texts):
            # The pattern alone takes 30 ms for a history of two thousand turns.
            found = sentence.findall(text) if last in text.lower() else []
            if found:
                return str(found[-1])
        return None

    def last_task(self) -> str:
        """Id of the task that the results since the last prompt named last."""
        ids = [one for _, text, _ in self.results for one in _TASK_ID.findall(text)]
        return ids[-1] if ids else ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(one if isinstance(one, str) else str(getattr(one, "content", "")) for one in content)


# -- what it does -----------------------------------------------------------------------------------


def plan(shown: Shown) -> Iterator[Directive]:
    """What this answer does, in order; ends with calls, an ending, or text."""
    program = parse(shown.prompt)
    said = False
    for directive in program.step(shown.steps):
        yield directive
        said = said or isinstance(directive, Say | Stream | Wait)
        if isinstance(directive, Calls | Fail | CutOff | Refuse):
            return
    words = [*_answers(shown, program.plain), *_results(shown.results)]
    if not words and not said:
        seen = "1 message" if shown.count == 1 else f"{shown.count} messages"
        words = [f"This is the offline model: no real model answered. I was shown {seen}."]
    if words:
        yield Say("\n".join(words))


def _answers(shown: Shown, plain: str) -> Iterator[str]:
    for match in _QUESTION.finditer(plain):
        noun = " ".join(match[1].split())
        value = shown.fact(noun)
        if value is None:
            yield f"I cannot know the {noun}, because nothing I was shown says so."
        else:
            yield f"The {noun} is {value}."


def _results(results: Iterable[tuple[str, str, bool]]) -> Iterator[str]:
    for tool, text, is_error in results:
        yield f"{tool} failed: {text}" if is_error else f"{tool} said: {text}"


def finish_reason(shown: Shown) -> FinishReason:
    """Why this answer ends."""
    for directive in parse(shown.prompt).step(shown.steps):
        if isinstance(directive, Calls):
            return "tool_call"
        if isinstance(directive, CutOff):
            return "length"
        if isinstance(directive, Refuse):
            return "content_filter"
    return "stop"


async def stream(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """The stream function of the FunctionModel."""
    shown = Shown.of(messages)
    is_first = True
    for directive in plan(shown):
        if not is_first and not isinstance(directive, Calls):
            yield "\n"
        is_first = False
        async for piece in _played(directive, shown):
            yield piece


async def _played(directive: Directive, shown: Shown) -> AsyncIterator[str | DeltaToolCalls]:
    match directive:
        case Say(text):
            # FunctionModel wants at least one item.
            yield text or " "
        case Wait(seconds):
            yield f"Waiting {seconds:g} s: "
            for pause_s, word in ticks(seconds):
                await asyncio.sleep(pause_s)
                yield word
        case Stream(words):
            for first in range(0, words, _WORDS_AT_ONCE):
                yield "".join(f"word{n} " for n in range(first + 1, min(words, first + _WORDS_AT_ONCE) + 1))
                await asyncio.sleep(0)
        case Calls(uses):
            yield {place: _call(use, shown) for place, use in enumerate(uses)}
        case Fail():
            raise ModelHTTPError(400, NAME)
        case CutOff():
            yield "Cut off by the token limit"
        case Refuse():
            yield "I will not do that"


def _call(use: ToolUse, shown: Shown) -> DeltaToolCall:
    arguments = filled(dict(use.arguments), shown.last_task())
    return DeltaToolCall(use.tool, json.dumps(arguments, ensure_ascii=False))


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """The function of the FunctionModel, for requests that are not streamed."""
    text, calls = "", list[ToolCallPart]()
    async for piece in stream(messages, info):
        if isinstance(piece, str):
            text += piece
        else:
            calls += [ToolCallPart(one.name or "", one.json_args) for one in piece.values()]
    parts: list[ModelResponsePart] = [*([TextPart(text)] if text else []), *calls]
    return ModelResponse(parts=parts, finish_reason=finish_reason(Shown.of(messages)))
