"""MCP file: the servers of a standard `mcpServers` file, checked, with `${VAR}` filled in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsh_tasks.errors import ConfigRefused

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HTTP = ("http", "streamable-http", "streamableHttp")


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server: a command, or a URL."""

    name: str
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def load_servers(path: str, environ: Mapping[str, str] = os.environ) -> tuple[McpServer, ...]:
    """The servers of the file, sorted by name. Raises ConfigRefused that names file, server and fault.

    Options that other hosts add to an entry are left alone.
    """
    try:
        file = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no JSON in UTF-8"
        raise ConfigRefused("agent.mcpServers", f"{path!r} cannot be read: {why}") from None
    entries = file.get("mcpServers") if isinstance(file, dict) else None
    if not isinstance(entries, dict):
        raise ConfigRefused("agent.mcpServers", f"{path!r} has no table 'mcpServers'")
    return tuple(_server(name, entries[name], environ) for name in sorted(entries))


def _server(name: str, entry: Any, environ: Mapping[str, str]) -> McpServer:
    where = f"agent.mcpServers.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigRefused(where, "a server's name is 1 to 32 letters, digits, - or _")
    if not isinstance(entry, dict):
        raise ConfigRefused(where, "should be a table")
    has_url = "url" in entry
    if has_url == ("command" in entry):
        raise ConfigRefused(where, "names a command or a url, one of them")
    if entry.get("type", "http" if has_url else "stdio") not in (_HTTP if has_url else ("stdio",)):
        raise ConfigRefused(
            f"{where}.type", f"{entry['type']!r} is none that we speak: stdio, or streamable HTTP"
        )
    read = _Reader(where, entry, environ)
    if has_url:
        url = read.text("url")
        if not url.startswith(("http://", "https://")):
            raise ConfigRefused(f"{where}.url", "should begin with http:// or https://")
        return McpServer(name, url=url, headers=read.table("headers"))
    return McpServer(name, command=read.text("command"), args=read.texts("args"), env=read.table("env"))


class _Reader:
    """Reads the options of one entry; names what does not hold, never its value."""

    def __init__(self, where: str, entry: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._where = where
        self._entry = entry
        self._environ = environ

    def text(self, option: str) -> str:
        """A text that must be there."""
        text = self._filled(option, self._entry[option])
        if not text:
            raise ConfigRefused(f"{self._where}.{option}", "is empty")
        return text

    def texts(self, option: str) -> tuple[str, ...]:
        """A list of texts, empty where it is left out."""
        given = self._entry.get(option, [])
        if not isinstance(given, list):
            raise ConfigRefused(f"{self._where}.{option}", "should be a list of texts")
        return tuple(self._filled(option, one) for one in given)

    def table(self, option: str) -> dict[str, str]:
        """A table of texts, empty where it is left out."""
        given = self._entry.get(option, {})
        if not isinstance(given, dict):
            raise ConfigRefused(f"{self._where}.{option}", "should be a table of texts")
        return {name: self._filled(f"{option}.{name}", one) for name, one in given.items()}

    def _filled(self, option: str, given: Any) -> str:
        if not isinstance(given, str) or "\0" in given:
            raise ConfigRefused(f"{self._where}.{option}", "should be a text")

        def value(found: re.Match[str]) -> str:
            name, default = found.groups()
            if self._environ.get(name) or default is None:
                if name not in self._environ:
                    raise ConfigRefused(f"{self._where}.{option}", f"the worker has no variable {name!r}")
                return self._environ[name]
            return str(default)

        return _VARIABLE.sub(value, given)
