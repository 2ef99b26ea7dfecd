"""`usage`: what a whole tree of children has used and cost."""

from __future__ import annotations

from typing import Annotated

import typer

from dsh_tasks.cli.border import DONE, AsJson, awaited, emit, say
from dsh_tasks.cli.connection import connected
from dsh_tasks.cli.render import cost_words, counted, usage_value
from dsh_tasks.task import Usage


def usage(
    session: Annotated[str, typer.Argument(help="The session at the top of the tree.")],
    as_json: AsJson = False,
) -> int:
    """Sum up what all children below a session have used.

    Ended and removed ones included; what runs counts when it ends.
    """

    async def read() -> Usage:
        async with connected(None) as client:
            return await client.usage(session)

    used = awaited(read())
    if as_json:
        emit(usage_value(used))
        return DONE
    for line in usage_lines(used):
        say(line)
    return DONE


def usage_lines(used: Usage) -> list[str]:
    """The sums for a person."""
    cached = f"{used.cache_read_tokens:,} from a cache, {used.cache_write_tokens:,} into one"
    lines = [
        counted(used.model_calls, "model call"),
        f"{used.input_tokens:,} tokens in ({cached})",
        f"{used.output_tokens:,} tokens out ({used.reasoning_tokens:,} of reasoning)",
    ]
    missing = f"; no price is known for {counted(used.unpriced_calls, 'call')}" if used.unpriced_calls else ""
    return [*lines, cost_words(used) + missing]
