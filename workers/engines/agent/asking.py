"""Asking: the model calls of one attempt; what they used, and the text of an answer that was cut off.

It writes no row: what an answer means for the log is Turn's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from dsh_tasks.task import Usage
from workers.engines.agent.ending import Ending, of_finish
from workers.engines.agent.estimate import Estimate, check_window, tokens_of
from workers.engines.agent.growth import growth
from workers.engines.agent.model import ResolvedModel
from workers.engines.agent.patience import Patience, Silence
from workers.engines.agent.tools import definition
from workers.engines.agent.usage import ASKED, TURNED_AWAY, guessed, usage_of
from workers.engines.base import ChildTool, Permit, Run

log = logging.getLogger(__name__)


class Asking:
    """Mutable while its turn runs: what streams, what was used so far."""

    def __init__(
        self,
        run: Run,
        model: ResolvedModel,
        tools: Iterable[ChildTool],
        max_tokens: int | None,
        patience: Patience,
        used: Usage,
    ) -> None:
        self._run = run
        self._model = model
        self._patience = patience
        self._parameters = ModelRequestParameters(function_tools=[definition(tool) for tool in tools])
        self._settings = ModelSettings(**model.settings)
        if max_tokens is not None:
            self._settings["max_tokens"] = max_tokens
        self._estimate = Estimate(self._parameters)
        self._max_tokens = max_tokens
        self._streaming: StreamedResponse | None = None
        """The answer that comes in; its text is what a kill keeps."""
        self._broken = ""
        """Text of the last try that broke off; it counts while no later one says anything."""
        self.tries = 0
        """How often the last call was tried."""
        self.usage = used
        """What earlier attempts used is in it."""
        self._used_before = used.cost_nanousd
        self._guessed = 0
        """What calls are taken to have cost of which the provider did not say it, in 10^-9 US dollars."""
        self._asked_tokens = 0
        """The estimate of the request that streams."""

    async def answer(self, messages: Sequence[ModelMessage]) -> ModelResponse:
        """The model's whole answer, tried again where its failure may pass.

        Raises OverWindow before anything is sent or reserved; Fenced, BudgetExceeded, RouteBusy, Silence, or
        what the model's failure is.
        """
        self._run.check_lease()
        self.tries = 0
        estimate = self._estimate.of(messages) if self._model.window or self._run.has_budget else 0
        if self._model.window:
            check_window(estimate, max_output=self._max_tokens or 0, window=self._model.window)
        self._asked_tokens = estimate
        await self._reserve()
        while True:
            self.tries += 1
            self._run.activity("model")
            try:
                response = await self._try(messages)
                break
            except Exception as error:
                pause_ms = self._patience.pause_ms(error, self.tries)
                if pause_ms is None:
                    raise
                kind = type(error).__name__
            log.info(
                "task %s: %s at try %d of a model call, the next in %d ms",
                self._run.child.task_id,
                kind,
                self.tries,
                pause_ms,
            )
            await self._pause(pause_ms)
        self._count(response, is_whole=True)
        self._estimate.counted(messages, response.usage.input_tokens)
        # Counted and whole: a kill that comes before it is a row keeps its text.
        self._streaming, self._broken = None, text_of(response)
        # A call that fails keeps its reservation: what it cost is not known.
        taken = response.usage.input_tokens + response.usage.output_tokens
        await self._run.correct(taken, self._cost_so_far)
        return response

    @property
    def _cost_so_far(self) -> int:
        """What this attempt has cost, in 10^-9 US dollars."""
        return self.usage.cost_nanousd - self._used_before + self._guessed

    def _count(self, response: ModelResponse, *, is_whole: bool) -> None:
        used = usage_of(response, self._model, is_whole=is_whole)
        self.usage += used
        if not used.cost_nanousd and self._run.has_cost_budget:
            # A budget that takes the unknown for nothing would never be spent.
            self._guessed += guessed(self._asked_tokens, tokens_of(text_of(response)), self._model)

    async def _reserve(self) -> None:
        if self._run.has_budget:
            most_output = self._max_tokens or self._run.output_reserve
            await self._run.reserve(self._asked_tokens + most_output, self._cost_so_far)

    async def _try(self, messages: Sequence[ModelMessage]) -> ModelResponse:
        if self._model.is_offline:
            return await self._stream(messages)
        self._run.activity("model: waits for its route")
        async with self._run.permit(self._model.name) as permit:
            self._run.check_lease()
            self._run.activity("model")
            try:
                return await self._stream(messages, permit)
            except Exception as error:
                pause_ms = self._patience.cool_ms(error, self.tries)
                if pause_ms is not None:
                    await permit.cools(pause_ms)
                raise

    async def _stream(self, messages: Sequence[ModelMessage], permit: Permit | None = None) -> ModelResponse:
        self.usage += ASKED
        silence_s = self._patience.silence_ms / 1000
        clock = asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(silence_s) as watch,
                model_request_stream(
                    self._model.model,
                    messages,
                    model_settings=self._settings,
                    model_request_parameters=self._parameters,
                ) as stream,
            ):
                self._streaming = stream
                if permit is not None:
                    await permit.accepted()
                watch.reschedule(clock() + silence_s)
                async for event in stream:
                    self._run.streamed(growth(event))
                    watch.reschedule(clock() + silence_s)
                return stream.get()
        except ModelHTTPError as error:
            if not error.in_stream:
                self.usage += TURNED_AWAY
            raise
        except TimeoutError:
            if not watch.expired():
                raise
            raise Silence(self._patience.silence_ms) from None

    async def _pause(self, pause_ms: int) -> None:
        """Before the next try. One that broke off in its answer was paid for, so the next reserves anew."""
        has_begun = self._streaming is not None
        self._broken = self.cut_off()
        self._run.activity(f"model: pause before try {self.tries + 1}")
        await asyncio.sleep(pause_ms / 1000)
        self._run.check_lease()
        if has_begun:
            await self._reserve()

    def ending_of(self, response: ModelResponse) -> Ending | None:
        """What the answer's finish reason ends; None where the turn may go on or end well."""
        if response.finish_reason is None and not self._model.says_finish:
            return None
        return of_finish(response.finish_reason)

    def taken(self) -> None:
        """The last answer has become a row: nothing of it is partial any more."""
        self._streaming = None
        self._broken = ""

    def cut_off(self) -> str:
        """The text of an answer that was cut off, and its usage counted; empty where none was.

        Its calls are not whole and its reasoning is not signed: both are left out.
        """
        if self._streaming is None:
            return self._broken
        response, self._streaming = self._streaming.get(), None
        self._count(response, is_whole=False)
        self._broken = text_of(response) or self._broken
        return self._broken


def text_of(response: ModelResponse) -> str:
    """Its text blocks, joined."""
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))
