"""Looking: reads of one moment, and pages of keys and members. Nothing here writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.exceptions import ResponseError

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys
from dsh_tasks.store.scripts import Arg
from dsh_tasks.store.store import glob_of

PAGE = 200
"""Keys, members or rows that are read at once."""

Command = Sequence[Arg]


class Look:
    """Reads through one link."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def at_once(self, commands: Sequence[Command], *, of_one_moment: bool = True) -> list[Any]:
        """The answers of several reads of one moment: what changes meanwhile is not seen by halves.

        None where a key has another type than the command is for.
        """
        if not commands:
            return []
        async with self.link.client.pipeline(transaction=of_one_moment) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            answers = await self.link.within(pipe.execute(raise_on_error=False))
        return [_value(answer) for answer in answers]

    async def keys_of(self, kind: str = "") -> AsyncIterator[list[bytes]]:
        """Pages of the keys under the prefix, of those that begin with `kind:` where it is given.

        A key may come twice; one that is there all the time comes.
        """
        pattern = f"{glob_of(self.keys.prefix + (kind and f'{kind}:'))}*"
        cursor: Any = 0
        while True:
            cursor, found = await self.link.command("SCAN", cursor, "MATCH", pattern, "COUNT", PAGE)
            # A server may answer with more than it was asked for.
            for start in range(0, len(found), PAGE):
                yield found[start : start + PAGE]
            if int(cursor) == 0:
                return

    async def members_of(self, key: str, scan: str) -> AsyncIterator[list[str]]:
        """Pages of the members of a set or sorted set, or of the fields of a hash."""
        cursor: Any = 0
        step = 1 if scan == "SSCAN" else 2
        while True:
            (answer,) = await self.at_once([(scan, key, cursor, "COUNT", PAGE)], of_one_moment=False)
            if answer is None:
                return
            cursor, found = answer
            names = [text(name) for name in (found if isinstance(found, dict) else _first(found, step))]
            for start in range(0, len(names), PAGE):
                yield names[start : start + PAGE]
            if int(cursor) == 0:
                return

    async def entries_of(
        self, key: str, *, most: int = PAGE
    ) -> AsyncIterator[list[tuple[str, dict[str, bytes]]]]:
        """Pages of the entries of a stream: id and fields."""
        after = "-"
        while True:
            (answer,) = await self.at_once([("XRANGE", key, after, "+", "COUNT", most)], of_one_moment=False)
            if not answer:
                return
            page = [entry_of(entry) for entry in answer]
            yield page
            after = f"({page[-1][0]}"


def _first(found: Sequence[Any], step: int) -> Sequence[Any]:
    """Members alone, whether the client made pairs of them or not."""
    if found and isinstance(found[0], (tuple, list)):
        return [pair[0] for pair in found]
    return found[::step]


def _value(answer: Any) -> Any:
    if isinstance(answer, ResponseError):
        if str(answer).startswith("WRONGTYPE"):
            return None
        msg = "the server refused a read"
        raise StoreUnavailable(msg)
    if isinstance(answer, Exception):
        msg = "the server did not answer a read"
        raise StoreUnavailable(msg)
    return answer


def entry_of(entry: Any) -> tuple[str, dict[str, bytes]]:
    """An entry of a stream, whether the client made a dict of its fields or not."""
    entry_id, fields = entry
    if not isinstance(fields, dict):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    return text(entry_id), {text(name): value for name, value in fields.items()}


def text(value: Any) -> str:
    """Text of a key, member or field; what is no UTF-8 is shown escaped."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def whole(value: Any) -> int | None:
    """A whole number from 0, as the scripts write it; None for anything else."""
    shown = text(value) if value is not None else ""
    return int(shown) if shown.isascii() and shown.isdecimal() else None
