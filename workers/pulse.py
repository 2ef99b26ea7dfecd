"""Pulse: how far an attempt has come, and for how long nothing of it has moved.

The event loop writes it and the heartbeat's thread reads it: single values, so that neither waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.clock import elapsed_s


@dataclass(slots=True)
class Pulse:
    """Mutable while the attempt runs. Times are of the local clock (workers.clock)."""

    began_s: float = field(default_factory=elapsed_s)
    """Since when the present activity runs."""
    moved_s: float = field(default_factory=elapsed_s)
    """The last sign of progress: a row, a piece of an answer, a new activity."""
    streamed: int = 0
    """Characters that answers have grown by in this attempt."""
    answers: int = 0
    """Model answers in the child's own log."""
    _looked_s: float | None = None
    _seen_s: float = 0.0
    """The last sign of progress that a look has seen."""
    _silent_s: float = 0.0

    def begins(self) -> None:
        """Another activity begins."""
        self.began_s = self.moved_s = elapsed_s()

    def moves(self) -> None:
        """Something came of it."""
        self.moved_s = elapsed_s()

    def streams(self, size: int) -> None:
        """An answer has grown by so many characters."""
        self.streamed += size
        self.moved_s = elapsed_s()

    def look(self, now_s: float, *, waits: bool, gap_s: float) -> float:
        """Seconds of silence, as of this look.

        What passes while the child waits for its own descendants is none, nor is what passes between two
        looks that are more than `gap_s` apart: a server, a host or a loop was away, and not the child.
        """
        last, self._looked_s = self._looked_s, now_s
        if self.moved_s != self._seen_s:
            last = self._seen_s = self.moved_s
            self._silent_s = 0.0
        if waits:
            self._silent_s = 0.0
        elif last is not None and 0 < now_s - last <= gap_s:
            self._silent_s += now_s - last
        return self._silent_s

    def missed(self) -> None:
        """A heartbeat was not accepted: the time until the next one is not the child's."""
        self._looked_s = None
