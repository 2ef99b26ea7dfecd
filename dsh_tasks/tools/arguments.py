"""Arguments: what a model gave, checked before anything is looked up. Raises OptionRefused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dsh_tasks.errors import OptionRefused


def only(arguments: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse arguments that are not an object, or that hold a name not among `names`."""
    if not isinstance(arguments, Mapping):
        raise OptionRefused("arguments", "they must be one JSON object")
    known = tuple(names)
    there = ", ".join(known) or "none"
    for name in arguments:
        if name not in known:
            raise OptionRefused(str(name)[:80], f"there is no such argument; there are: {there}")


def text_in(arguments: Mapping[str, Any], name: str) -> str:
    """A required text that is more than white space, exactly as given."""
    given = optional_text_in(arguments, name)
    if given is None:
        raise OptionRefused(name, "it is required")
    if not given.strip():
        raise OptionRefused(name, "it is empty")
    return given


def optional_text_in(arguments: Mapping[str, Any], name: str) -> str | None:
    """A text, or None where it is left out."""
    given = arguments.get(name)
    if given is None:
        return None
    if not isinstance(given, str):
        raise OptionRefused(name, "it must be a text")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise OptionRefused(name, "it holds half a character (a lone surrogate)") from None
    return given


def flag_in(arguments: Mapping[str, Any], name: str) -> bool:
    """A boolean, False where it is left out."""
    given = arguments.get(name)
    if given is None:
        return False
    if not isinstance(given, bool):
        raise OptionRefused(name, "it must be true or false")
    return given


def milliseconds_in(arguments: Mapping[str, Any], name: str) -> int | None:
    """A positive finite number of milliseconds, rounded up; None where it is left out."""
    given = arguments.get(name)
    if given is None:
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given) or given <= 0:
        raise OptionRefused(name, "it must be a number of milliseconds above 0")
    rounded: int = math.ceil(given)
    return rounded


def offset_in(arguments: Mapping[str, Any], name: str) -> int:
    """A whole number of bytes from 0, 0 where it is left out."""
    given = arguments.get(name)
    if given is None:
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise OptionRefused(name, "it must be a whole number of bytes from 0")
    return given
