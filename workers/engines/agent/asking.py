"""Asking: the model calls of one attempt; what they used, and the text of an answer that was cut off.

It writes no row: what an answer means for the log is Turn's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from dsh_tasks.task import Usage
from workers.engines.agent.ending import Ending, of_finish
from workers.engines.agent.model import ResolvedModel
from workers.engines.agent.tools import definition
from workers.engines.base import ChildTool, Run

BYTES_PER_TOKEN = 4


class Asking:
    """Mutable while its turn runs: what streams, what was used so far."""

    def __init__(
        self,
        run: Run,
        model: ResolvedModel,
        tools: Iterable[ChildTool],
        max_tokens: int | None,
        used: Usage,
    ) -> None:
        self._run = run
        self._model = model
        self._parameters = ModelRequestParameters(function_tools=[definition(tool) for tool in tools])
        self._settings = None if max_tokens is None else ModelSettings(max_tokens=max_tokens)
        self._most_output = max_tokens or run.output_reserve
        self._streaming: StreamedResponse | None = None
        """The answer that comes in; its text is what a kill keeps."""
        self.usage = used
        """What earlier attempts used is in it."""

    async def answer(self, messages: Sequence[ModelMessage]) -> ModelResponse:
        """The model's whole answer. Raises Fenced, BudgetExceeded, or what the model's failure is."""
        self._run.check_lease()
        self._run.activity("model")
        if self._run.has_budget:
            await self._run.reserve(estimated_tokens(messages, self._parameters) + self._most_output)
        self.usage = replace(self.usage, model_calls=self.usage.model_calls + 1)
        async with model_request_stream(
            self._model.model,
            messages,
            model_settings=self._settings,
            model_request_parameters=self._parameters,
        ) as stream:
            self._streaming = stream
            async for _ in stream:
                pass
            response = stream.get()
        self._count(response.usage)
        # A call that fails keeps its reservation: what it cost is not known.
        await self._run.correct(response.usage.input_tokens + response.usage.output_tokens)
        return response

    def ending_of(self, response: ModelResponse) -> Ending | None:
        """What the answer's finish reason ends; None where the turn may go on or end well."""
        if response.finish_reason is None and not self._model.says_finish:
            return None
        return of_finish(response.finish_reason)

    def taken(self) -> None:
        """The last answer has become a row: nothing of it is partial any more."""
        self._streaming = None

    def cut_off(self) -> str:
        """The text of an answer that was cut off, and its usage counted; empty where none was.

        Its calls are not whole and its reasoning is not signed: both are left out.
        """
        if self._streaming is None:
            return ""
        response, self._streaming = self._streaming.get(), None
        self._count(response.usage)
        return "".join(part.content for part in response.parts if isinstance(part, TextPart))

    def _count(self, used: RequestUsage) -> None:
        self.usage = replace(
            self.usage,
            input_tokens=self.usage.input_tokens + used.input_tokens,
            output_tokens=self.usage.output_tokens + used.output_tokens,
        )


def estimated_tokens(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> int:
    """Input tokens of a request, by its length: a token is some four bytes of JSON."""
    size = len(ModelMessagesTypeAdapter.dump_json(list(messages)))
    size += sum(
        len(tool.name) + len(tool.description or "") + len(str(tool.parameters_json_schema))
        for tool in parameters.function_tools
    )
    return size // BYTES_PER_TOKEN + 1
