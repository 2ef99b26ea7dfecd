"""Fault: what a tool raised, in the words that its model reads. Helper processes load it: keep it light."""

from __future__ import annotations

import sys


class ToolFault(Exception):
    """What one of our own tools has to say to its model, in its own words."""


def words_of(error: BaseException) -> str:
    """Kind and text of what a tool raised; of ToolFault and pydantic-ai's ModelRetry the message alone.

    A text that cannot be had is left out: `__str__` is a tool's own code and may raise too.
    """
    if isinstance(error, MemoryError):
        return "Error: the tool ran out of memory"
    exceptions = sys.modules.get("pydantic_ai.exceptions")
    try:
        if exceptions is not None and isinstance(error, exceptions.ModelRetry):
            return f"Error: {error.message}"
        if isinstance(error, ToolFault):
            return f"Error: {error}"
        return f"Error: {type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - whatever a foreign __str__ raises, the kind is told
        return f"Error: {type(error).__name__}"
