"""History: the messages of a log, as pydantic-ai's message values.

Calls and results are always paired, whatever the log holds: an answer's results follow it at once,
one that is missing is made up as an error, one without a call is left out. Reasoning goes back only
with its signature and only to the provider that signed it; else it is left out as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from dsh_tasks.surface import UNKNOWN_OUTCOME
from workers.engines.agent.images import Images

Block = Mapping[str, Any]

FLAGS_ERRORS = frozenset({"anthropic", "offline"})
"""Providers that are told of an errored result beside its text. For all others pydantic-ai would wrap the
text into `{"error": ..}`, and the model would read something else than the log holds."""
ANY = Images()
REPLAY_KIND = "pydantic-ai"
"""Names the replay state that this engine writes; that of the harness is for the harness."""


def history(
    messages: Iterable[Mapping[str, Any]], *, provider: str, images: Images = ANY
) -> list[ModelMessage]:
    """What a model of `provider` is sent for the messages of a surface."""
    given = list(messages)
    made = _History(provider, images, _too_many(given, images))
    for message in given:
        made.add(message)
    return made.done()


def _too_many(messages: Sequence[Mapping[str, Any]], images: Images) -> int:
    """How many of the first images there is no room for."""
    users = (message["content"] for message in messages if message["role"] == "user")
    blocks = [block for content in users for block in content if block["type"] == "image"]
    if len(blocks) <= images.most:
        return 0
    return max(0, sum(images.sent(block) is not None for block in blocks) - images.most)


def cached_before(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """A child's own messages with a mark before its prompt: its siblings have the same before it."""
    first, *others = messages
    prompt = first.parts[0]
    if not isinstance(first, ModelRequest) or not isinstance(prompt, UserPromptPart):
        return list(messages)
    content = [prompt.content] if isinstance(prompt.content, str) else prompt.content
    return [ModelRequest([UserPromptPart([CachePoint(), *content]), *first.parts[1:]]), *others]


def prompt_part(content: Sequence[UserContent]) -> UserPromptPart:
    """A user's content."""
    if len(content) == 1 and isinstance(content[0], str):
        return UserPromptPart(content[0])
    return UserPromptPart(content)


def with_system(messages: Sequence[ModelMessage], text: str) -> list[ModelMessage]:
    """The messages with `text` as the system message that stands first, in place of one that does.

    An empty text leaves none.
    """
    first = [SystemPromptPart(text)] if text else []
    if messages and isinstance(messages[0], ModelRequest):
        parts = list(messages[0].parts)
        if isinstance(parts[0], SystemPromptPart):
            parts = parts[1:]
        parts = [*first, *parts]
        return [ModelRequest(parts), *messages[1:]] if parts else list(messages[1:])
    return [ModelRequest(first), *messages] if first else list(messages)


def joined(before: Sequence[ModelMessage], after: Sequence[ModelMessage]) -> list[ModelMessage]:
    """One conversation of two: where a request meets a request, they are one."""
    if before and after and isinstance(before[-1], ModelRequest) and isinstance(after[0], ModelRequest):
        return [*before[:-1], ModelRequest([*before[-1].parts, *after[0].parts]), *after[1:]]
    return [*before, *after]


class _History:
    """Messages in the making."""

    def __init__(self, provider: str, images: Images, too_many: int) -> None:
        self._provider = provider
        self._images = images
        self._too_many = too_many
        """Images that still have to be left out."""
        self._messages: list[ModelMessage] = []
        self._parts: list[ModelRequestPart] = []
        self._waiting: dict[str, str] = {}
        """Calls of the last answer without a result: tool name by id."""

    def add(self, message: Mapping[str, Any]) -> None:
        """Take the next message of the surface."""
        role, content = message["role"], message["content"]
        if role == "tool":
            self._result(message)
            return
        self._give_up()
        if role == "assistant":
            self._answer(message)
        elif role == "user":
            self._parts.append(prompt_part([self._user_content(block) for block in content]))
        else:
            self._parts.append(SystemPromptPart(_text(content)))

    def _user_content(self, block: Block) -> UserContent:
        if block["type"] == "text":
            text: str = block["text"]
            return text
        image = self._images.sent(block)
        if image is not None and self._too_many:
            self._too_many -= 1
            image = None
        return image or _mark(block)

    def done(self) -> list[ModelMessage]:
        """All of them."""
        self._give_up()
        self._flush()
        return self._messages

    def _answer(self, message: Mapping[str, Any]) -> None:
        parts = _answer_parts(message, self._provider)
        if not parts:
            return
        self._flush()
        self._messages.append(ModelResponse(parts, provider_name=self._provider))
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        self._waiting = {call.tool_call_id: call.tool_name for call in calls}

    def _result(self, message: Mapping[str, Any]) -> None:
        call_id = message["toolCallId"]
        name = self._waiting.pop(call_id, None)
        if name is not None:
            text = _text(message["content"])
            is_error = message.get("isError") is True
            self._parts.append(tool_return(name, call_id, text, is_error=is_error, provider=self._provider))

    def _give_up(self) -> None:
        for call_id, name in self._waiting.items():
            unknown = tool_return(name, call_id, UNKNOWN_OUTCOME, is_error=True, provider=self._provider)
            self._parts.append(unknown)
        self._waiting = {}

    def _flush(self) -> None:
        if self._parts:
            self._messages.append(ModelRequest(self._parts))
            self._parts = []


def tool_return(name: str, call_id: str, text: str, *, is_error: bool, provider: str) -> ToolReturnPart:
    """A tool's answer as a model of `provider` reads it."""
    flagged = is_error and provider in FLAGS_ERRORS
    return ToolReturnPart(name, text, call_id, outcome="failed" if flagged else "success")


def _answer_parts(message: Mapping[str, Any], provider: str) -> list[ModelResponsePart]:
    parts: list[ModelResponsePart] = []
    signed = _signatures(message, provider)
    for place, block in enumerate(message["content"]):
        match block["type"]:
            case "text" if block["text"]:
                parts.append(TextPart(block["text"]))
            case "tool-call":
                parts.append(ToolCallPart(block["name"], block["arguments"], block["id"]))
            case "reasoning" if place in signed:
                parts.append(_thinking(block["text"], signed[place], provider))
            case _:
                pass
    return parts


def _signatures(message: Mapping[str, Any], provider: str) -> Mapping[int, Mapping[str, Any]]:
    """Replay state of the reasoning blocks, by place; none where another provider made it."""
    state = message.get("source", {}).get("replayState")
    if not isinstance(state, Mapping) or not isinstance(state.get("response"), Mapping):
        return {}
    response, blocks = state["response"], state.get("blocks")
    if response.get("kind") != REPLAY_KIND or response.get("provider") != provider:
        return {}
    if not isinstance(blocks, list) or len(blocks) != len(message["content"]):
        return {}
    return {place: block for place, block in enumerate(blocks) if block.get("type") == "reasoning"}


def _thinking(text: str, block: Mapping[str, Any], provider: str) -> ThinkingPart:
    return ThinkingPart(
        text,
        id=block.get("id"),
        signature=block.get("signature"),
        provider_name=provider,
        provider_details=block.get("details"),
    )


def answer_blocks(response: ModelResponse, model: str) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """An answer as content blocks of a row, and the replay state that its reasoning needs."""
    blocks: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    for part in response.parts:
        match part:
            case TextPart() if part.content:
                blocks.append({"type": "text", "text": part.content})
                states.append({"type": "text"})
            case ToolCallPart():
                blocks.append(_call_block(part))
                states.append({"type": "tool-call"})
            case ThinkingPart():
                blocks.append({"type": "reasoning", "text": part.content})
                states.append(_replayed(part))
            case _:
                pass
    if not any(state["type"] == "reasoning" for state in states):
        return blocks, None
    origin = {"kind": REPLAY_KIND, "version": 1, "provider": response.provider_name or "", "model": model}
    return blocks, {"response": origin, "blocks": states}


def _call_block(part: ToolCallPart) -> dict[str, Any]:
    arguments = arguments_of(part)
    return {"type": "tool-call", "id": part.tool_call_id, "name": part.tool_name, "arguments": arguments}


def _replayed(part: ThinkingPart) -> dict[str, Any]:
    state = {"id": part.id, "signature": part.signature, "details": part.provider_details}
    return {"type": "reasoning", **{key: value for key, value in state.items() if value is not None}}


def arguments_of(part: ToolCallPart) -> str:
    """A call's arguments as text: what the model wrote, untouched; an empty text is an empty object."""
    if isinstance(part.args, str):
        return part.args or "{}"
    return json.dumps(part.args or {}, ensure_ascii=False)


def _text(content: Iterable[Block]) -> str:
    return "\n".join(block["text"] if block["type"] == "text" else _mark(block) for block in content)


def _mark(block: Block) -> str:
    return f"[{block['type']} is not shown here]"
