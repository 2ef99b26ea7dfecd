"""Patience: which failures of a model call may pass by themselves, and the pause before the next try.

The only place that retries: the clients of the providers are told not to (model.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_ai.exceptions import (
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)

PASSING = (
    ModelConnectionError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
PASSING_STATUS = frozenset({408, 409, 429})
SERVER_FAULTS = 500
"""HTTP status from here on."""
MOST_DOUBLINGS = 30


class Silence(Exception):
    """The model gave no byte for longer than it may."""

    def __init__(self, silence_ms: int) -> None:
        super().__init__(silence_ms)
        self.silence_ms = silence_ms


@dataclass(frozen=True, slots=True)
class Patience:
    """The bounds of one model call. Times in ms."""

    tries: int = 8
    """How often it is tried, the first time included."""
    first_pause_ms: int = 1_000
    """Before the second try; doubles with each."""
    longest_pause_ms: int = 120_000
    """Cap on every pause; what a provider asks for (Retry-After) is cut to it."""
    silence_ms: int = 300_000
    """How long a call may give no byte."""

    def pause_ms(
        self, error: Exception, tried: int, *, chance: Callable[[], float] = random.random
    ) -> int | None:
        """The pause before the next try of a call that failed `tried` times; None where there is none.

        Half of a pause is jitter, so that children that failed together do not come back together. After
        what the provider asked for the jitter is added: never earlier.
        """
        if tried >= self.tries or not is_passing(error):
            return None
        own = self._doubled_ms(tried) * (1 + chance()) / 2
        asked = self.asked_ms(error)
        return int(own if asked is None else asked + own / 2)

    def asked_ms(self, error: Exception) -> int | None:
        """The pause that the provider asked for, cut to the longest; None where it did not."""
        seconds: float | None = getattr(error, "retry_after", None)
        return None if seconds is None else int(min(seconds * 1000, self.longest_pause_ms))

    def cool_ms(self, error: Exception, tried: int) -> int | None:
        """How long the whole route should rest after this failure; None where it concerns this call alone."""
        if not is_passing(error):
            return None
        asked = self.asked_ms(error)
        if asked is not None or not isinstance(error, ModelRateLimitError):
            return asked
        return self._doubled_ms(tried)

    def _doubled_ms(self, tried: int) -> int:
        return min(self.first_pause_ms << min(tried - 1, MOST_DOUBLINGS), self.longest_pause_ms)


def is_passing(error: Exception) -> bool:
    """Whether the same call may succeed later. A refusal, a full context, a spent quota do not pass."""
    if isinstance(error, Silence):
        return True
    if isinstance(error, ModelQuotaExceededError):
        return False
    if isinstance(error, PASSING):
        return True
    if not isinstance(error, ModelHTTPError):
        return False
    return error.status_code in PASSING_STATUS or error.status_code >= SERVER_FAULTS
