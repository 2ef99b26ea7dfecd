"""Task: one background child run, its states and causes, and which change of state may follow which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What a task is."""

    QUEUED = "queued"
    """Accepted; no attempt holds it."""
    RUNNING = "running"
    """An attempt holds its lease."""
    STOPPING = "stopping"
    """A kill was accepted; the attempt has not confirmed yet."""
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def is_terminal(self) -> bool:
        """No change follows; the first terminal status wins."""
        return self in TERMINAL


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.KILLED})

ALLOWED: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.KILLED, Status.FAILED}),
    Status.RUNNING: frozenset(
        {Status.COMPLETED, Status.FAILED, Status.KILLED, Status.STOPPING, Status.QUEUED}
    ),
    Status.STOPPING: frozenset({Status.KILLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.KILLED: frozenset(),
}
"""Which status may follow which. The Lua scripts decide; this table explains, and a test compares them."""


class Cause(StrEnum):
    """Why a task failed or was killed."""

    ERROR = "error"
    MAX_TOKENS = "max-tokens"
    REFUSAL = "refusal"
    SCHEMA = "schema"
    WORKER_LOST = "worker-lost"
    STALLED = "stalled"
    DEADLINE = "deadline"
    BUDGET = "budget"
    OWNER = "owner"
    ANCESTOR = "ancestor"
    OPERATOR = "operator"


DETAIL_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, model calls and their cost, summed over the attempts."""

    input_tokens: int = 0
    """Those that a provider's cache gave or took included."""
    output_tokens: int = 0
    """Reasoning included."""
    model_calls: int = 0
    """Every try."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nanousd: int = 0
    """What is known of the cost, in 10^-9 US dollars."""
    priced_calls: int = 0
    """Model calls whose whole cost is known; what is not known is never taken for nothing."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, name) + getattr(other, name) for name in USAGE_FIELDS))

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @property
    def unpriced_calls(self) -> int:
        """Model calls whose cost nobody knows."""
        return max(0, self.model_calls - self.priced_calls)

    @property
    def cost_usd(self) -> Decimal | None:
        """US dollars; None where nothing is known, a lower bound where there are `unpriced_calls`."""
        if not self.priced_calls and not self.cost_nanousd:
            return None
        return Decimal(self.cost_nanousd).scaleb(-9)


USAGE_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Usage))
"""The counters of a record and of a tree, in the order of `settle`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as its engine says: the last thing an engine makes.

    `output` is the child's own final text, never anything of its seed; `partial` marks the text of a
    child that did not complete. `detail` is at most 4096 UTF-8 bytes without arguments, file contents
    or credentials. `rows` are the last rows of the log, written in the settling step.
    """

    status: Status
    cause: Cause | None = None
    detail: str = ""
    output: str = ""
    structured: Any = None
    has_structured: bool = False
    structured_json: str | None = None
    """The value as it was written; None where the engine knows no more than the value."""
    usage: Usage = Usage()
    rows: tuple[dict[str, Any], ...] = ()

    @property
    def partial(self) -> bool:
        """The output belongs to a child that did not complete."""
        return self.status is not Status.COMPLETED and bool(self.output)

    @property
    def structured_text(self) -> str:
        """The value as JSON, '' where there is none."""
        if not self.has_structured:
            return ""
        return json.dumps(self.structured) if self.structured_json is None else self.structured_json


@dataclass(frozen=True, slots=True)
class Task:
    """A record as read from the store. Times are epoch ms by the server's clock."""

    id: str
    owner: str
    root: str
    parent: str | None
    """Task id of the child that started this one; None below a root session."""
    depth: int
    label: str
    provider: str
    engine: str
    status: Status
    attempt: int
    cause: Cause | None
    detail: str
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    lease_until_ms: int | None
    last_activity_ms: int
    losses: int
    worker: str | None
    activity: str
    """What the child does now, in a few words without content: `model`, `tool:<name>`, `starting`."""
    seed_turns: int
    seed_events: int
    seed_bytes: int
    output_bytes: int
    partial: bool
    has_output: bool
    usage: Usage
    now_ms: int
    """The server's clock when this was read."""
    log_rows: int = 0
    """Rows of the child's own log."""
    answers: int = 0
    """Model answers in it, as of the last heartbeat."""
    streamed: int = 0
    """Characters that answers have grown by in this attempt, as of the last heartbeat."""
    activity_since_ms: int | None = None
    """Since when it does what `activity` says."""
    stalled_since_ms: int | None = None
    """Since when nothing of it moves; None where that is no stall (see DSH_TASKS_STEP_SILENCE_MS)."""
    mode: str = "background"
    """`foreground` while a call waits for its end, else `background`."""
    promoted_ms: int | None = None
    """When the wait of a call was turned into a background task; None where it was not."""
    promoted_after_ms: int | None = None
    """The time that this call had (`promoteForegroundAfterMs`); None where somebody asked for it."""

    @property
    def is_terminal(self) -> bool:
        """The task has ended."""
        return self.status.is_terminal

    @property
    def lease_lost(self) -> bool:
        """Running or stopping by the record, but its lease has expired: a takeover is due."""
        return (
            self.status in (Status.RUNNING, Status.STOPPING)
            and self.lease_until_ms is not None
            and self.lease_until_ms < self.now_ms
        )

    @property
    def stalled_ms(self) -> int:
        """For how long a running child has made no progress; 0 where it is no stall."""
        if self.status is not Status.RUNNING or self.lease_lost or self.stalled_since_ms is None:
            return 0
        return max(self.now_ms - self.stalled_since_ms, 0)

    @property
    def age_ms(self) -> int:
        """From acceptance to the end, or to now."""
        return (self.ended_ms or self.now_ms) - self.created_ms


def cut_detail(detail: str) -> str:
    """`detail` within 4096 UTF-8 bytes, cut on a character boundary."""
    return cut_text(detail, DETAIL_MAX_BYTES)


def cut_text(text: str, limit_bytes: int) -> str:
    """The longest prefix of `text` that fits into `limit_bytes` of UTF-8."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return raw.decode()
    return raw[:limit_bytes].decode("utf-8", "ignore")
