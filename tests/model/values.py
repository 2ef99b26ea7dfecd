"""Values of the model: what is asked, what is kept, what is answered. Answers are plain tuples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dsh_tasks.task import USAGE_FIELDS

Used = tuple[int, ...]
"""A number for each of USAGE_FIELDS."""
NOTHING_USED: Used = (0,) * len(USAGE_FIELDS)

TERMINAL = ("completed", "failed", "killed")

Answer = tuple[Any, ...]


@dataclass(frozen=True)
class Times:
    """The knobs that both sides run with. All are whole tens of seconds, so that a jump can hit each exactly."""

    lease: int = 30_000
    grace: int = 10_000
    first_pause: int = 10_000
    longest_pause: int = 300_000
    losses: int = 3
    max_lost: int = 4
    kill_deadline: int = 20_000
    live_per_owner: int = 4
    total_per_owner: int = 6
    live_per_tree: int = 6
    total_per_tree: int = 10
    budget: int = 100
    notice_hold: int = 60_000
    speaker_lease: int = 30_000
    republish: int = 30_000
    longest_republish: int = 600_000
    publish_within: int = 2_000
    answer: int = 60_000
    chunk_expiry: int = 600_000


@dataclass(frozen=True)
class Proof:
    """Attempt number and token: what a writer shows."""

    attempt: int
    token: str


@dataclass(frozen=True)
class Submission:
    """One child that somebody wants."""

    id: str
    owner: str
    header_depth: int = 0
    depth_cap: int = 3
    label: str = ""
    call_key: str = ""
    call: str = "{}"
    seed: str = ""
    """Name of a seed; '' is none."""
    deadline: int = 0
    """Longest life in ms; 0 is none."""
    mode: str = "background"


@dataclass(frozen=True)
class Ending:
    """How an attempt says that it ended."""

    status: str
    cause: str = ""
    detail: str = ""
    output: str = ""
    structured: Any = None
    has_structured: bool = False
    usage: Used = NOTHING_USED

    @property
    def partial(self) -> bool:
        return self.status != "completed" and bool(self.output)


@dataclass
class Stop:
    """A kill that waits for its attempt."""

    cause: str
    detail: str
    hold_until: int
    silent: bool
    until: int
    """Then it settles by itself."""


@dataclass
class Task:
    """A record."""

    asked: Submission
    root: str
    parent: str
    depth: int
    created: int
    status: str = "queued"
    attempt: int = 0
    token: str | None = None
    worker: str | None = None
    activity: str = ""
    activity_since: int | None = None
    streamed: int = 0
    answers: int = 0
    stalled_since: int | None = None
    started: int | None = None
    ended: int | None = None
    last_activity: int = 0
    lease_until: int | None = None
    not_before: int | None = None
    losses: int = 0
    lost: int = 0
    stalls: int = 0
    stop: Stop | None = None
    cause: str = ""
    detail: str = ""
    rows: list[bytes] = field(default_factory=list)
    output: bytes = b""
    partial: bool = False
    structured: Any = None
    has_structured: bool = False
    usage: Used = NOTHING_USED
    notice: str = ""
    """'', `pending` or `acked`."""
    deadline: int | None = None
    """When its life is over, as long as nobody else ends it."""
    taken: tuple[str, str] | None = None
    """Top of the kill in steps whose mark it met, and its status then."""
    reserved_for: str | None = None
    """Token and number of the model call that has reserved tokens last."""
    reserved: int | None = None
    """What is not corrected yet."""
    settled_by: str | None = None
    handed_by: str | None = None
    published: int = 0
    promoted: int | None = None
    """When the call that waited for it was let go."""
    promoted_after: int | None = None

    @property
    def mode(self) -> str:
        """Whether a call waits for it."""
        return "background" if self.promoted is not None else self.asked.mode

    @property
    def id(self) -> str:
        return self.asked.id

    @property
    def owner(self) -> str:
        return self.asked.owner

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def phase(self) -> str:
        return "ended" if self.is_terminal else "held" if self.is_held else "waiting"

    @property
    def is_held(self) -> bool:
        """An attempt may still write."""
        return self.status in ("running", "stopping")

    def is_proved_by(self, proof: Proof) -> bool:
        return self.token is not None and (self.attempt, self.token) == (proof.attempt, proof.token)


def plus(one: Used, two: Used) -> Used:
    return tuple(a + b for a, b in zip(one, two, strict=True))
