"""Directives: what a prompt can tell the offline model to do, a line each (docs/offline-model.md).

    !say TEXT               answer with TEXT
    !wait SECONDS           take so long, with a word now and then
    !stream N               answer with N words
    !call TOOL {JSON}       call a tool
    !calls [{"tool": TOOL, "arguments": {..}}, ..]     call several tools in one answer
    !delegate TOOL {"description": "..", "prompt": ".."}    the same as !call, for a subagent tool
    !delegate TOOL "DESCRIPTION": PROMPT                    its short form, which does not nest
    !fail TEXT              the model's provider fails
    !max-tokens             the answer is cut off by the token limit
    !refuse                 the model refuses

Lines that are no directive are plain text. Pure: parses, and plays nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TASK_PLACEHOLDER = "$task"
"""As a whole argument: the id of the task that was started last in this turn."""


@dataclass(frozen=True, slots=True)
class Say:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stream:
    """So many words."""

    words: int


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call that the model makes."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one answer; ends a model step."""

    uses: tuple[ToolUse, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """The provider fails."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """The token limit is reached."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The model refuses."""


Directive = Say | Wait | Stream | Calls | Fail | CutOff | Refuse


@dataclass(frozen=True, slots=True)
class Program:
    """A prompt as the offline model reads it."""

    directives: tuple[Directive, ...]
    plain: str
    """The lines that are no directive."""

    def step(self, done: int) -> Sequence[Directive]:
        """The directives of the next model step, after `done` steps that called tools."""
        steps: list[list[Directive]] = [[]]
        for directive in self.directives:
            steps[-1].append(directive)
            if isinstance(directive, Calls):
                steps.append([])
        return steps[min(done, len(steps) - 1)]


def parse(text: str) -> Program:
    """Read a prompt. What looks like a directive and cannot be followed becomes a Say that tells so."""
    directives: list[Directive] = []
    plain: list[str] = []
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" ")
        if name in _PARSERS:
            directives.append(_parsed(name, rest.strip()))
        else:
            plain.append(line)
    return Program(tuple(directives), "\n".join(plain))


def _parsed(name: str, rest: str) -> Directive:
    try:
        return _PARSERS[name](rest)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Say(f"(offline: the directive {name} is not written as docs/offline-model.md has it)")


def _wait(rest: str) -> Wait:
    seconds = float(rest)
    if not 0 <= seconds <= MAX_WAIT_S:
        raise ValueError
    return Wait(seconds)


def _stream(rest: str) -> Stream:
    words = int(rest)
    if not 0 <= words <= MAX_WORDS:
        raise ValueError
    return Stream(words)


def _call(rest: str) -> Calls:
    tool, _, arguments = rest.partition(" ")
    return Calls((_use(tool, json.loads(arguments or "{}")),))


def _calls(rest: str) -> Calls:
    uses = tuple(_use(one["tool"], one.get("arguments", {})) for one in json.loads(rest))
    if not uses:
        raise ValueError
    return Calls(uses)


def _delegate(rest: str) -> Calls:
    short = _SHORT.fullmatch(rest)
    if short is None:
        return _call(rest)
    return Calls((ToolUse(short["tool"], {"description": short["description"], "prompt": short["prompt"]}),))


def _use(tool: str, arguments: Any) -> ToolUse:
    if not tool or not isinstance(arguments, dict):
        raise ValueError
    return ToolUse(tool, arguments)


MAX_WAIT_S = 3600.0
MAX_WORDS = 1_000_000

_SHORT = re.compile(r'(?P<tool>\S+)\s+"(?P<description>[^"]*)":\s*(?P<prompt>.+)')
_PARSERS: Mapping[str, Callable[[str], Directive]] = {
    "!say": Say,
    "!wait": _wait,
    "!stream": _stream,
    "!call": _call,
    "!calls": _calls,
    "!delegate": _delegate,
    "!fail": lambda _rest: Fail(),
    "!max-tokens": lambda _rest: CutOff(),
    "!refuse": lambda _rest: Refuse(),
}


def filled(value: Any, task_id: str) -> Any:
    """Arguments with the placeholder replaced, where it stands as a whole value."""
    if value == TASK_PLACEHOLDER:
        return task_id
    if isinstance(value, dict):
        return {key: filled(one, task_id) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, task_id) for one in value]
    return value


def ticks(seconds: float) -> Iterator[tuple[float, str]]:
    """A wait as (pause, word) pairs: at most twenty, never closer than a quarter of a second."""
    count = max(1, min(20, int(seconds * 4)))
    for number in range(1, count + 1):
        yield seconds / count, f"{seconds * number / count:g} "
