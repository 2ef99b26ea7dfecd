"""Pauses: how long to wait before trying again, so that many who failed together do not return together."""

from __future__ import annotations

import secrets

_STEPS = 1_000


def jittered(pause_s: float) -> float:
    """A pause between half and one and a half of `pause_s`."""
    return pause_s * (0.5 + secrets.randbelow(_STEPS) / _STEPS)


class GrowingPause:
    """Doubles from `first_s` to `most_s` with each failure in a row, and is jittered."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0

    def after_failure(self) -> float:
        """How long to wait now, in seconds."""
        base_s = min(self._first_s * 2 ** min(self._failures, 30), self._most_s)
        self._failures += 1
        return jittered(base_s)

    def after_success(self) -> None:
        """The next failure begins with the first pause again."""
        self._failures = 0
