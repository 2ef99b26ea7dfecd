"""Completions: how OpenAI's client is asked for a stream, without what it does to every request and chunk.

Its `create` walks through the whole body to translate names that pydantic-ai has already written as the API
has them, and builds each chunk field by field in Python. Here the body goes as it is, and a chunk is read by
pydantic's own validation, or by the client's way where a provider deviates from the schema.
"""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, AsyncStream, NotGiven, Omit
from openai.types.chat import ChatCompletionChunk
from pydantic import ValidationError

OPTIONS = {
    "extra_headers": "headers",
    "extra_body": "extra_json",
    "extra_query": "params",
    "timeout": "timeout",
}
"""What is no part of the body, by the client's names of it."""


class Chunk(ChatCompletionChunk):
    """A chunk as it is read here."""

    @classmethod
    def build(cls, *, response: Any, data: Any) -> ChatCompletionChunk:
        """See the client's ModelBuilderProtocol."""
        del response
        try:
            return ChatCompletionChunk.model_validate(data)
        except ValidationError:
            return ChatCompletionChunk.construct(**data)


def ask_plainly(client: AsyncOpenAI) -> None:
    """Let this client take streams the short way. All else stays as it is."""
    completions = client.chat.completions
    by_client = completions.create

    async def create(**given: Any) -> Any:
        if given.get("stream") is not True:
            return await by_client(**given)
        body = {name: value for name, value in given.items() if not isinstance(value, Omit | NotGiven)}
        options: Any = {
            to: value for name, to in OPTIONS.items() if (value := body.pop(name, None)) is not None
        }
        return await client.post(
            "/chat/completions",
            body=body,
            options=options,
            cast_to=Chunk,
            stream=True,
            stream_cls=AsyncStream[Chunk],
        )

    completions.create = create  # type: ignore[method-assign]
