"""Prompts that drive the offline model (docs/offline-model.md)."""

from __future__ import annotations

import json


def waiting(seconds: float) -> str:
    """The child streams for so long, then answers."""
    return f"!wait {seconds}\n!say waited"


def failing(words: str) -> str:
    """The child's model call fails."""
    return f"!fail {words}"


def tool_of(provider: str) -> str:
    """The tool of a default provider."""
    return {"spawn": "subagent", "fork": "subagent_fork", "fork-lite": "subagent_fork_lite"}[provider]


def delegating(prompt: str, *, provider: str = "spawn", background: bool = False) -> str:
    """The child gives `prompt` to a child of its own."""
    arguments: dict[str, object] = {"description": "below", "prompt": prompt}
    if background:
        arguments["run_in_background"] = True
    return f"!delegate {tool_of(provider)} {json.dumps(arguments)}"
