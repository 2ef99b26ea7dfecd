"""Starting: one start as a value, so that many of them can be accepted in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsh_tasks.dollars import Dollars
from dsh_tasks.errors import OptionRefused
from dsh_tasks.settings import Settings
from dsh_tasks.submission import LONGEST_LIFE_MS, AgentOptions, MaxDepth, Mode, Prompt, ToolFilter

BATCH_MOST = 1_000
"""Starts in one batch: all of it is one step of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is asked of one child; each field as the parameter of `start` with this name."""

    provider: str
    prompt: Prompt
    label: str = ""
    agent_options: AgentOptions | Mapping[str, Any] | None = None
    tool_filter: ToolFilter | Mapping[str, Any] | None = None
    persona: str | None = None
    output_schema: Mapping[str, Any] | None = None
    max_depth: MaxDepth = 3
    key: str | None = None
    mode: Mode = "background"
    instance: str | None = None
    engine: str | None = None
    deadline_ms: int | None = None
    fenced_output: bool = False
    working_folder: str | None = None
    cost_budget: Dollars | None = None


def life_ms(asked: int | None, settings: Settings) -> int:
    """The shorter of the start's deadline and the installation's; 0 is none. Raises OptionRefused."""
    if asked is None:
        return settings.deadline_ms
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= LONGEST_LIFE_MS:
        raise OptionRefused("deadline_ms", f"a whole number of milliseconds from 1 to {LONGEST_LIFE_MS}")
    return min(asked, settings.deadline_ms or asked)
