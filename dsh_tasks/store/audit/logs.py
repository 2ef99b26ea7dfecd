"""Logs: whether a child's own rows are contiguous and each attempt wrote in its turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsh_tasks.errors import SessionRefused
from dsh_tasks.store.audit.looking import Look
from dsh_tasks.store.audit.records import Around
from dsh_tasks.store.audit.report import Fault
from dsh_tasks.store.packed import unpacked_row

ATTEMPT_BORDER = "dsh-tasks/attempt"
"""The row with which a later attempt begins; workers/attempt.py writes it."""
ROWS_AT_ONCE = 50
FAULTS_OF_A_LOG = 20
"""One missing row moves all that follow."""


@dataclass
class LogReader:
    """Reads rows in order; mutable, as reading is."""

    key: str
    seed_events: int
    last_attempt: int
    """The attempt of the record: no border names a later one."""
    place: int = 0
    attempt: int = 1
    faults: list[Fault] = field(default_factory=list)

    def entry(self, entry_id: str, fields: Mapping[str, bytes]) -> None:
        """The next entry of the stream."""
        expected = f"{self.place + 1}-0"
        if entry_id != expected:
            self._fault(f"has {entry_id} in place {self.place}", expected)
        # What follows a hole is judged by its own number.
        first = entry_id.partition("-")[0]
        self.place = int(first) if first.isdecimal() else self.place + 1
        row = self._row(fields)
        if row is not None:
            self._judge(row)

    def _row(self, fields: Mapping[str, bytes]) -> dict[str, Any] | None:
        try:
            row = json.loads(unpacked_row(fields["r"]))
        except (KeyError, ValueError, SessionRefused):
            row = None
        if not isinstance(row, dict):
            self._fault(f"row {self.place - 1} is no JSON object", "a row of the log")
            return None
        return row

    def _judge(self, row: Mapping[str, Any]) -> None:
        number = self.place - 1
        if row.get("seq") != self.seed_events + number:
            what = f"row {number} has the seq {_number(row.get('seq'))}"
            self._fault(what, f"{self.seed_events + number}, after {self.seed_events} rows of the seed")
        if not isinstance(row.get("type"), str):
            self._fault(f"row {number} has no type", "the type of the row")
        if row.get("type") == ATTEMPT_BORDER:
            self._border(number, row.get("data"))

    def _border(self, number: int, data: Any) -> None:
        attempt = data.get("attempt") if isinstance(data, dict) else None
        if type(attempt) is not int or not self.attempt < attempt <= self.last_attempt:
            what = f"row {number} is the border of attempt {_number(attempt)}"
            self._fault(what, f"one after attempt {self.attempt} and up to {self.last_attempt}")
        else:
            self.attempt = attempt

    def _fault(self, what: str, should: str) -> None:
        if len(self.faults) < FAULTS_OF_A_LOG:
            self.faults.append(Fault(self.key, what, should))


def _number(value: Any) -> str:
    return str(value) if type(value) is int else f"of the type {type(value).__name__}"


async def log_faults(look: Look, around: Around) -> list[Fault]:
    """Read the whole log of a record, in pages."""
    if not around.log_length:
        return []
    key = look.keys.log(around.id)
    reader = LogReader(key, around.number("seed_events"), around.number("attempt"))
    async for page in look.entries_of(key, most=ROWS_AT_ONCE):
        for entry_id, fields in page:
            if reader.place >= around.number("log_next") and not reader.faults:
                # Written since the record was read: by an attempt that may be a later one.
                return reader.faults
            reader.entry(entry_id, fields)
    return reader.faults
