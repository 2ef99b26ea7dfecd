"""Workspace: which file tools children get, over which folder, within which bounds (`[agent.workspace]`)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

WorkspaceTool = Literal["read", "write", "edit", "list", "search", "shell"]
WORKSPACE_TOOLS: tuple[WorkspaceTool, ...] = ("read", "write", "edit", "list", "search", "shell")
"""All of them, in the order in which a model sees them."""


class WorkspaceConfig(BaseModel):
    """`[agent.workspace]`; `workspace = true` is the table with nothing in it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True
    )

    folder: str | None = None
    """Absolute path on the workers: children work here, or in a folder below it that their start names."""
    tools: Annotated[tuple[WorkspaceTool, ...], Field(strict=False, min_length=1)] = WORKSPACE_TOOLS
    """Which of the tools there are."""
    shell_timeout_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 120_000
    """Longest run of one command; a call may ask for less."""
    shell_env: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Environment variables of the worker that commands see beside PATH, HOME and their like."""
    call_timeout_ms: Annotated[int, Field(ge=100, le=600_000)] = 30_000
    """Longest run of one call of the other tools."""
    file_bytes: Annotated[int, Field(ge=1_024, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    """Largest file that is written, edited or searched."""

    @field_validator("folder")
    @classmethod
    def _is_absolute(cls, folder: str | None) -> str | None:
        if folder is not None and not PurePosixPath(folder).is_absolute():
            msg = "should be an absolute path"
            raise ValueError(msg)
        return folder


def _switch(given: Any) -> Any:
    """`true` and `false` for the table."""
    if given is True:
        return {}
    if given is False:
        return None
    return given


WorkspaceOption = Annotated[WorkspaceConfig | None, BeforeValidator(_switch)]
