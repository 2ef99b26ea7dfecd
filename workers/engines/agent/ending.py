"""Ending: how a child's turn ends, and what of it a record may say.

Details name what failed and never what was said: no prompt, no answer, no arguments, no address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import FinishReason

from dsh_tasks.task import Cause, Status
from workers.engines.agent.estimate import OverWindow
from workers.engines.agent.patience import Silence
from workers.engines.base import RouteBusy


@dataclass(frozen=True, slots=True)
class Ending:
    """Kind of the `turn/end`, and what the record says."""

    kind: str
    status: Status
    cause: Cause | None = None
    detail: str = ""
    code: str | None = None
    http_status: int | None = None

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The `error` of the `turn/end` row; None where the kind says it all."""
        if self.kind != "error":
            return None
        error = {"message": self.detail, "code": self.code, "status": self.http_status}
        return {key: value for key, value in error.items() if value is not None}


COMPLETED = Ending("completed", Status.COMPLETED)
ABORTED = Ending("aborted", Status.KILLED, Cause.OWNER)
STALLED = Ending("error", Status.FAILED, Cause.STALLED, "nothing moved for too long", "STALLED")
CUT_OFF = Ending("max-tokens", Status.FAILED, Cause.MAX_TOKENS, "the model reached its token limit")
REFUSED = Ending("error", Status.FAILED, Cause.REFUSAL, "the model refused", "REFUSAL")
NO_VALUE = Ending(
    "error", Status.FAILED, Cause.SCHEMA, "the child ended without a structured value", "NO_STRUCTURED_OUTPUT"
)
INVALID_VALUES = Ending(
    "error", Status.FAILED, Cause.SCHEMA, "the child gave no valid structured value", "NO_STRUCTURED_OUTPUT"
)


def failed(detail: str, code: str, http_status: int | None = None) -> Ending:
    """The child failed with an error."""
    return Ending("error", Status.FAILED, Cause.ERROR, detail, code, http_status)


def over_budget(detail: str) -> Ending:
    """A budget of the tree or of the child does not allow the next model call."""
    return Ending("error", Status.FAILED, Cause.BUDGET, detail, "BUDGET")


def of_finish(reason: FinishReason | None) -> Ending | None:
    """What a model's finish reason ends; None where the turn may go on or end well.

    A reason that is not known is a failure, never a success with partial output.
    """
    match reason:
        case "stop" | "tool_call":
            return None
        case "length":
            return CUT_OFF
        case "content_filter":
            return REFUSED
        case None:
            return failed("the model's answer ended without a reason", "NO_FINISH_REASON")
        case _:
            return failed("the model's answer ended with an error", "MODEL_ERROR")


_WORDS: tuple[tuple[type[Exception], str, str], ...] = (
    (ModelTimeoutError, "did not answer in time", "MODEL_TIMEOUT"),
    (ModelConnectionError, "could not be reached, or the connection broke", "MODEL_CONNECTION"),
    (ModelAuthenticationError, "refused the key", "MODEL_AUTHENTICATION"),
    (ModelQuotaExceededError, "has no quota left for this key", "MODEL_QUOTA"),
    (ModelRateLimitError, "limits the rate of requests", "MODEL_RATE_LIMIT"),
    (ModelOverloadedError, "is overloaded", "MODEL_OVERLOADED"),
    (ModelNotFoundError, "is not known to its provider", "MODEL_NOT_FOUND"),
    (ModelContextWindowExceededError, "was sent more than its context holds", "CONTEXT_WINDOW"),
    (ModelHTTPError, "failed", "MODEL_HTTP"),
    (UnexpectedModelBehavior, "gave an answer that cannot be read", "MODEL_ANSWER"),
)


def of_error(error: Exception, model: str, *, tries: int = 1) -> Ending:
    """What a model's failure ends. Of the error itself only kind and HTTP status are told."""
    if isinstance(error, ContentFilterError):
        return REFUSED
    tried = f", tried {tries} times" if tries > 1 else ""
    if isinstance(error, Silence):
        detail = f"the model {model[:100]} gave no byte for {error.silence_ms / 1000:g} s{tried}"
        return Ending("error", Status.FAILED, Cause.STALLED, detail, "MODEL_STALLED")
    if isinstance(error, OverWindow):
        detail = (
            f"the request takes some {error.estimate} tokens and its answer may take {error.max_output}, "
            f"the model {model[:100]} holds {error.window}; nothing was sent. Start it from a shorter "
            "window, or set agent.contextWindow where that number is wrong"
        )
        return failed(detail, "CONTEXT_WINDOW")
    if isinstance(error, RouteBusy):
        return failed(f"the model {model[:100]} could not be called, {error}", "ROUTE_BUSY")
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    words, code = next(
        ((words, code) for kind, words, code in _WORDS if isinstance(error, kind)),
        (f"failed ({type(error).__name__})", "MODEL_ERROR"),
    )
    suffix = f" (HTTP {status})" if status is not None else ""
    return failed(f"the model {model[:100]} {words}{suffix}{tried}", code, status)
