"""Judging: whether a value fits its schema, beside the loop where that may take long.

A regular expression holds the interpreter for as long as it runs, unique items are compared each with each,
and a value of a megabyte takes seconds: on the loop every child of the process would wait, and its lease
would end. Such checks run in a helper process, which ends with the child and after a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from dsh_tasks.exact_json import NotExact, read
from dsh_tasks.schema import may_take_long, violations
from workers.engines.agent.tool_pool import ToolPool

JUDGED_HERE_BYTES = 8 * 1024
"""A value of more is judged beside the loop."""
JUDGED_WITHIN_S = 20.0
TOOK_LONGER = "the check of this value took longer"
HELPERS = 4
"""Values that are judged beside the loop at once; others wait."""


class Judge:
    """Judges the values of one engine's children."""

    def __init__(self, within_s: float = JUDGED_WITHIN_S) -> None:
        self._within_s = within_s
        self._pool = ToolPool(calls=HELPERS, kept=1)
        self._turns = asyncio.Semaphore(HELPERS)
        self.under_way = 0
        """Values that are judged beside the loop, or wait for their turn."""

    async def faults(self, schema: Mapping[str, Any], text: str) -> list[str]:
        """What is wrong with the value that `text` holds, a line each; empty where it fits."""
        if len(text) <= JUDGED_HERE_BYTES and not may_take_long(schema):
            return faults_of(schema, text)
        self.under_way += 1
        try:
            # The time of a check does not begin before its turn has come.
            async with self._turns, asyncio.timeout(self._within_s):
                answer = await self._pool.call(f"{__name__}:faults_as_json", (schema, text), {}, key="schema")
        except TimeoutError:
            return [f"$: {TOOK_LONGER} than {self._within_s:g} s; give a simpler one"]
        finally:
            self.under_way -= 1
        if answer.is_error:
            return ["$: this value could not be checked; give a simpler one"]
        return [str(fault) for fault in json.loads(answer.text)]


def faults_of(schema: Mapping[str, Any], text: str) -> list[str]:
    """The same, here and now."""
    try:
        value = read(text)
    except NotExact as error:
        return [f"$: {error}"]
    return violations(schema, value)


def faults_as_json(schema: Mapping[str, Any], text: str) -> str:
    """What a helper calls."""
    return json.dumps(faults_of(schema, text))
