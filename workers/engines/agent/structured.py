"""Structured output: a child that was asked for a value ends by calling one tool with it.

Tool and instruction exist only for that child. An invalid value is an error that the model reads and
may mend; the first valid one ends the turn, and no further model step is paid for. A model that ends
its turn without a value is told so. The value is kept as the model wrote it, to the letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsh_tasks.exact_json import member
from dsh_tasks.schema import WRAPPED_IN, is_wrapped, parameters
from workers.engines.agent.judging import Judge
from workers.engines.base import ChildTool, ToolAnswer
from workers.engines.transcript import REMINDER_KIND

TOOL_NAME = "structured_output"
MAX_INVALID = 5
"""So many invalid values end the child as failed: a model that cannot meet the schema must not run on."""
VALUE_MAX_BYTES = 1024 * 1024

INSTRUCTION = (
    f"When you have the result, call the tool `{TOOL_NAME}` with it. That call is your answer and ends your "
    "work; text beside it is not read."
)
REMINDER = (
    f"You ended your turn without a result: the tool `{TOOL_NAME}` was not called with a valid value. "
    f"Text is not read. Call `{TOOL_NAME}` now with the result of your work."
)
_DESCRIPTION = "Give your final result. A valid call ends your work; an invalid one says what to mend."
_DESCRIPTION_WRAPPED = f"{_DESCRIPTION} The result stands in `{WRAPPED_IN}`."
_ACCEPTED = "accepted"
OVER = "Error: refused, the result was already given"
NO_MORE = f"Error: refused, {MAX_INVALID} values did not fit the schema"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a child has come with its value; all of it stands in the rows of its log."""

    arguments: str | None = None
    """Of the call that was accepted, as the model wrote them."""
    invalid: int = 0
    """Calls whose value did not fit."""
    reminders: int = 0
    """Times that the child was told that its value is missing."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Progress:
        """Read it from the child's own rows, those of earlier attempts included.

        A call counts once its result is stored. One whose result was made up after a crash counts as none.
        """
        accepted, invalid, reminders = None, 0, 0
        begun: dict[str, str] = {}
        for row in rows:
            data = row["data"]
            if row["type"] == "tool/call" and data["name"] == TOOL_NAME:
                begun[data["callId"]] = data["arguments"]
            elif row["type"] == "tool/result":
                arguments = begun.pop(data["message"]["toolCallId"], None)
                if arguments is None or "error" in data or accepted is not None:
                    continue
                if data["message"].get("isError"):
                    invalid += 1
                else:
                    accepted = arguments
            elif row["type"] == "user/message":
                reminders += data["source"]["kind"] == REMINDER_KIND
        return cls(accepted, invalid, reminders)


class StructuredOutput:
    """The value that one child is asked for. Mutable: it takes the value when it comes."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        repair_turns: int = 1,
        progress: Progress | None = None,
        judge: Judge | None = None,
    ) -> None:
        """`repair_turns`: how often a child that ends without a value is told so. `progress`: so far."""
        self._parameters = parameters(schema)
        self._is_wrapped = is_wrapped(schema)
        self._repair_turns = repair_turns
        self._judge = judge or Judge()
        before = progress or Progress()
        self.json: str | None = None if before.arguments is None else self._value_of(before.arguments)
        """The value as the model wrote it; None while there is none."""
        self.invalid = before.invalid
        self.reminders = before.reminders
        self.tool = ChildTool(
            name=TOOL_NAME,
            description=_DESCRIPTION_WRAPPED if self._is_wrapped else _DESCRIPTION,
            parameters=self._parameters,
            call=self._call,
            exclusive=True,
            idempotent=True,
        )

    @property
    def has_value(self) -> bool:
        """The value is there."""
        return self.json is not None

    @property
    def is_over(self) -> bool:
        """The value is there, or the model had its tries."""
        return self.has_value or self.invalid >= MAX_INVALID

    @property
    def refusal(self) -> str:
        """What every call is told once it is over."""
        return OVER if self.has_value else NO_MORE

    def reminder(self) -> str | None:
        """What a child that ends its turn without a value is told now; None where it was told enough."""
        if self.reminders >= self._repair_turns:
            return None
        self.reminders += 1
        return REMINDER

    async def answer(self, arguments: str) -> ToolAnswer:
        """Judge one call by its arguments as the model wrote them."""
        faults = await self._faults(arguments)
        if not faults:
            self.json = self._value_of(arguments)
            return ToolAnswer(_ACCEPTED)
        self.invalid += 1
        left = MAX_INVALID - self.invalid
        way_out = f"Call the tool again; {left} more tries." if left > 0 else "There are no more tries."
        text = "\n".join(["Error: the value does not fit its schema:", *faults, way_out])
        return ToolAnswer(text, is_error=True)

    async def _faults(self, arguments: str) -> list[str]:
        size = len(arguments.encode("utf-8", "replace"))
        if size > VALUE_MAX_BYTES:
            return [f"$: {size} bytes of JSON, at most {VALUE_MAX_BYTES}"]
        return await self._judge.faults(self._parameters, arguments)

    def _value_of(self, arguments: str) -> str:
        return member(arguments, WRAPPED_IN) if self._is_wrapped else arguments.strip()

    async def _call(self, arguments: Mapping[str, Any], _call_id: str) -> ToolAnswer:
        return await self.answer(json.dumps(arguments, ensure_ascii=False))
