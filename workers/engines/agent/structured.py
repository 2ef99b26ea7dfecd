"""Structured output: a child that was asked for a value ends by calling one tool with it.

Tool and instruction exist only for that child. An invalid value is an error that the model reads and
may mend; the first valid one ends the turn, and no further model step is paid for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsh_tasks.schema import violations
from workers.engines.base import ChildTool, ToolAnswer
from workers.engines.open_turn import Row

TOOL_NAME = "structured_output"
MAX_INVALID = 5
"""So many invalid values end the child as failed: a model that cannot meet the schema must not run on."""

INSTRUCTION = (
    f"When you have the result, call the tool `{TOOL_NAME}` with it. That call is your answer and ends your "
    "work; text beside it is not read."
)
_DESCRIPTION = "Give your final result. A valid call ends your work; an invalid one says what to mend."
_ACCEPTED = "accepted"


@dataclass(slots=True)
class StructuredOutput:
    """The value that one child is asked for. Mutable: it takes the value when it comes."""

    schema: Mapping[str, Any]
    value: Any = None
    has_value: bool = False
    invalid: int = 0
    tool: ChildTool = field(init=False)

    def __post_init__(self) -> None:
        """Make the tool over this schema."""
        self.tool = ChildTool(
            name=TOOL_NAME,
            description=_DESCRIPTION,
            parameters=self.schema,
            call=self._call,
            exclusive=True,
            idempotent=True,
        )

    @property
    def is_over(self) -> bool:
        """The value is there, or the model had its tries."""
        return self.has_value or self.invalid >= MAX_INVALID

    def restore(self, rows: Sequence[Row]) -> None:
        """Take over what calls of earlier attempts came to, from the rows of the turn."""
        given: dict[str, str] = {}
        for row in rows:
            if row["type"] == "tool/call" and row["data"]["name"] == TOOL_NAME:
                given[row["data"]["callId"]] = row["data"]["arguments"]
            if row["type"] != "tool/result" or row["data"]["message"]["toolCallId"] not in given:
                continue
            if row["data"]["message"]["isError"]:
                self.invalid += not self.has_value
            elif not self.has_value:
                self.value, self.has_value = json.loads(given[row["data"]["message"]["toolCallId"]]), True

    async def _call(self, arguments: Mapping[str, Any], _call_id: str) -> ToolAnswer:
        faults = violations(self.schema, dict(arguments))
        if faults:
            self.invalid += 1
            text = "\n".join(["Error: the value does not fit its schema:", *faults, "Call the tool again."])
            return ToolAnswer(text, is_error=True)
        self.value, self.has_value = dict(arguments), True
        return ToolAnswer(_ACCEPTED)
