"""Supervisor: keeps processes alive. One that ends is started again, after pauses that grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_AFTER_S = 60.0
"""One that has lived this long begins again with the first pause."""


class Process(Protocol):
    """What the supervisor needs of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


def pause_after(failures: int) -> float:
    """How long to wait after so many endings in a row: 0.5 s, doubling, at most 30 s."""
    return float(min(FIRST_PAUSE_S * 2 ** max(failures - 1, 0), LONGEST_PAUSE_S))


def ended_words(returncode: int) -> str:
    """How a process ended: `exit 1`, `signal 9`."""
    return f"signal {-returncode}" if returncode < 0 else f"exit {returncode}"


@dataclass
class Kept:
    """One process that is to be there."""

    name: str
    start: Callable[[], Process]
    tell: Callable[[str], None]
    log: str = ""
    """Where it says why it ended."""
    process: Process | None = None
    failures: int = 0
    since_s: float = field(default_factory=time.monotonic)
    due_s: float = 0.0

    def begin(self, now_s: float) -> None:
        """Start it."""
        self.process, self.since_s = self.start(), now_s
        self.tell(f"{self.name}: started, pid {self.process.pid}")

    def look(self, now_s: float) -> None:
        """See whether it lives; plan its next start, or start it when that is due."""
        if self.process is None:
            if now_s >= self.due_s:
                self._begin_again(now_s)
            return
        returncode = self.process.poll()
        if returncode is not None:
            self.process = None
            lived_s = now_s - self.since_s
            failures = 0 if lived_s > STEADY_AFTER_S else self.failures
            self._plan(ended_words(returncode), now_s, failures=failures)

    def _begin_again(self, now_s: float) -> None:
        try:
            self.begin(now_s)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from starting may be over next time
            self._plan(f"did not start ({type(error).__name__})", now_s, failures=self.failures)

    def _plan(self, what: str, now_s: float, *, failures: int) -> None:
        self.failures = failures + 1
        pause_s = pause_after(self.failures)
        self.due_s = now_s + pause_s
        why = f", see {self.log}" if self.log else ""
        self.tell(f"{self.name}: {what}; starts again in {pause_s:g} s{why}")
