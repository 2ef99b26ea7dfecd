"""Estimate: how many tokens a request takes before anybody counts them, and whether the model holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters

BYTES_PER_TOKEN = 4
PART_TOKENS = 4
"""Beside the text of each part: its role and frame."""
IMAGE_TOKENS = 1_600
"""What a large image takes, whatever its bytes are."""


class OverWindow(Exception):
    """A request does not fit into the model's context, so it was not sent."""

    def __init__(self, *, estimate: int, max_output: int, window: int) -> None:
        super().__init__(estimate, max_output, window)
        self.estimate = estimate
        self.max_output = max_output
        self.window = window


class Estimate:
    """Grows with a conversation; of what a provider has counted already, its number is taken."""

    def __init__(self, parameters: ModelRequestParameters) -> None:
        self._tools = sum(
            tokens_of(text)
            for tool in parameters.function_tools
            for text in (tool.name, tool.description or "", _json(tool.parameters_json_schema))
        )
        self._counted_messages = 0
        self._counted_tokens = 0

    def of(self, messages: Sequence[ModelMessage]) -> int:
        """Input tokens of a request with these messages."""
        if self._counted_messages:
            return self._counted_tokens + _all(messages[self._counted_messages :])
        return 1 + self._tools + _all(messages)

    def counted(self, messages: Sequence[ModelMessage], input_tokens: int) -> None:
        """The provider counted these messages, tools included; a provider that does not count says 0."""
        if input_tokens > 0:
            self._counted_messages, self._counted_tokens = len(messages), input_tokens


def check_window(estimate: int, *, max_output: int, window: int | None) -> None:
    """Raises OverWindow where input and greatest output together do not fit. None and 0 hold everything."""
    if window and estimate > window - max_output:
        raise OverWindow(estimate=estimate, max_output=max_output, window=window)


def _all(messages: Iterable[ModelMessage]) -> int:
    return sum(PART_TOKENS + _part(part) for message in messages for part in message.parts)


def _part(part: Any) -> int:
    tokens = _content(getattr(part, "content", None))
    if hasattr(part, "args"):
        tokens += tokens_of(part.tool_name) + _content(part.args)
    return tokens


def _content(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return tokens_of(content)
    if isinstance(content, list | tuple):
        return sum(_content(one) for one in content)
    return tokens_of(_json(content)) if isinstance(content, dict) else IMAGE_TOKENS


def tokens_of(text: str) -> int:
    """About how many tokens a text takes."""
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
