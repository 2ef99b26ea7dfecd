"""Toolbox: the workspace's tools for one folder, as an engine takes them. All run in helper processes.

A helper that is ended can write no more: a child whose kill is settled changes no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_tasks.schema import violations
from dsh_tasks.workspace import WORKSPACE_TOOLS, WorkspaceConfig
from workers.engines.agent.tool_pool import ToolPool
from workers.engines.base import ChildTool, ToolAnswer

LINES = 2_000
"""Lines of one read where the call names no number; as many at most."""
ENTRIES = 1_000
MATCHES = 200
MOST_MS = 3_600_000
PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH",
)  # fmt: skip
"""What commands see of the worker's environment: its keys and addresses are none of them."""
_MODULE = "workers.engines.agent.workspace"

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One tool: what its model is told, and which function of which helper it is."""

    description: str
    properties: Mapping[str, Any]
    required: Sequence[str]
    function: str
    given: Callable[[Arguments, WorkspaceConfig, int], tuple[Any, ...]]
    """What follows the folder: from the call's arguments, the bounds, the most bytes of a result."""
    is_idempotent: bool = False


def _text(words: str) -> dict[str, Any]:
    return {"type": "string", "description": words}


def _count(words: str, most: int | None = None) -> dict[str, Any]:
    bounds = {"minimum": 1} if most is None else {"minimum": 1, "maximum": most}
    return {"type": "integer", **bounds, "description": words}


_PATH = _text("Path below the working folder, relative to it or absolute.")
_KINDS: Mapping[str, _Kind] = {
    "read": _Kind(
        "Read lines of a text file. A long file comes in pages: the answer says with which offset to go on.",
        {
            "path": _PATH,
            "offset": _count("First line, from 1. Default 1."),
            "limit": _count(f"Most lines. Default {LINES}.", LINES),
        },
        ["path"],
        f"{_MODULE}.files:read",
        lambda call, _, most: (call["path"], call.get("offset", 1), call.get("limit", LINES), most),
        is_idempotent=True,
    ),
    "write": _Kind(
        "Write a text file whole. It replaces what stood there; folders that lack are made.",
        {"path": _PATH, "content": _text("The whole content.")},
        ["path", "content"],
        f"{_MODULE}.files:write",
        lambda call, config, _: (call["path"], call["content"], config.file_bytes),
    ),
    "edit": _Kind(
        "Replace one text in a file. It must stand there exactly once, to the letter.",
        {
            "path": _PATH,
            "old": _text("The text to replace, exactly as it stands in the file."),
            "new": _text("What takes its place."),
        },
        ["path", "old", "new"],
        f"{_MODULE}.files:edit",
        lambda call, config, _: (call["path"], call["old"], call["new"], config.file_bytes),
    ),
    "list": _Kind(
        "List the names in a folder, sorted: folders end with /, links with @, files tell their bytes.",
        {"path": _text("The folder. Default: the working folder.")},
        [],
        f"{_MODULE}.files:list_folder",
        lambda call, _, most: (call.get("path", "."), ENTRIES, most),
        is_idempotent=True,
    ),
    "search": _Kind(
        "Search text files for lines that fit a regular expression; answers path:line: text. Links, binary "
        "files and the folders of version control are passed over.",
        {
            "pattern": _text("Regular expression (Python's), looked for in each line."),
            "path": _text("File or folder to search. Default: the working folder."),
            "files": _text("Shell pattern for the names of files, such as *.py. Default: every file."),
        },
        ["pattern"],
        f"{_MODULE}.search:search",
        lambda call, config, most: (
            call["pattern"], call.get("path", "."), call.get("files", "*"), MATCHES, config.file_bytes, most,
        ),
        is_idempotent=True,
    ),
    "shell": _Kind(
        "Run a command with sh in the working folder. Its input is empty. Answers output and errors as they "
        "came, then the exit status. All that it started, also in the background, ends with the call.",
        {
            "command": _text("The command."),
            "timeout_ms": _count("Most milliseconds; the operator's bound is the default and the most."),
        },
        ["command"],
        f"{_MODULE}.shell:shell",
        lambda call, config, most: (
            call["command"], min(call.get("timeout_ms", MOST_MS), config.shell_timeout_ms), most,
        ),
    ),
}  # fmt: skip
SHELL_SLACK_MS = 5_000
"""A command's own time limit comes first: its answer holds the output so far."""


class Workspace:
    """Makes the tools of each child. Belongs to one event loop; its helpers end with it."""

    def __init__(self, config: WorkspaceConfig, *, result_bytes: int) -> None:
        self.config = config
        self._result_bytes = result_bytes
        self._pool = ToolPool(environment=environment(config, os.environ))

    def tools(self, folder: str) -> tuple[ChildTool, ...]:
        """The tools over `folder`, in the same order for every child."""
        return tuple(self._tool(name, folder) for name in WORKSPACE_TOOLS if name in self.config.tools)

    def _tool(self, name: str, folder: str) -> ChildTool:
        kind = _KINDS[name]
        schema = {
            "type": "object",
            "properties": dict(kind.properties),
            "required": list(kind.required),
            "additionalProperties": False,
        }

        async def call(arguments: Arguments, _call_id: str) -> ToolAnswer:
            faults = violations(schema, dict(arguments))
            if faults:
                return ToolAnswer("\n".join(["Error: the arguments do not fit:", *faults]), is_error=True)
            given = kind.given(arguments, self.config, self._result_bytes)
            return await self._called(name, kind, (folder, *given))

        return ChildTool(
            name=name,
            description=kind.description,
            parameters=schema,
            call=call,
            exclusive=not kind.is_idempotent,
            idempotent=kind.is_idempotent,
            result_bytes=self._result_bytes,
        )

    async def _called(self, name: str, kind: _Kind, given: tuple[Any, ...]) -> ToolAnswer:
        is_shell = name == "shell"
        limit_ms = self.config.shell_timeout_ms + SHELL_SLACK_MS if is_shell else self.config.call_timeout_ms
        # A command's helper is not kept: what the command left in the background ends with it.
        calling = self._pool.call(
            kind.function, given, {}, key="", keep=not is_shell, within_s=limit_ms / 1000
        )
        try:
            return await calling
        except TimeoutError:
            return ToolAnswer(f"Error: {name} took longer than {limit_ms} ms and was ended", is_error=True)


def environment(config: WorkspaceConfig, whole: Mapping[str, str]) -> dict[str, str]:
    """What helpers, and with them commands, see of the worker's environment."""
    names = (*PASSED_ON, *config.shell_env)
    return {name: whole[name] for name in dict.fromkeys(names) if name in whole}
