"""Report: what an audit found, in the order in which it was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAULTS_KEPT = 1_000
"""A report tells no more than so many faults; it counts all."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that does not fit: the key, what is wrong with it, what it should be. Never content."""

    key: str
    what: str
    should: str

    @property
    def line(self) -> str:
        """In one line."""
        return f"{self.key}: {self.what}; should be {self.should}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit saw. `is_clean` where nothing was wrong."""

    faults: tuple[Fault, ...]
    """The first 1,000."""
    fault_count: int
    tasks: Mapping[str, int]
    """Records by status: all that was accepted and is not yet removed, once each."""
    keys: Mapping[str, int]
    """Keys by kind."""
    census: Mapping[str, int]
    """Keys without an expiry by kind, without those of the queue."""
    unsettled: tuple[str, ...]
    """Keys whose counts changed faster than they could be added up; audit again when it is quieter."""

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong."""
        return self.fault_count == 0

    def to_json(self) -> dict[str, Any]:
        """As one JSON value."""
        return {
            "ok": self.is_clean,
            "faults": [
                {"key": fault.key, "what": fault.what, "should": fault.should} for fault in self.faults
            ],
            "fault_count": self.fault_count,
            "tasks": dict(self.tasks),
            "keys": dict(self.keys),
            "census": dict(self.census),
            "unsettled": list(self.unsettled),
        }
