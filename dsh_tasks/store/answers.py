"""Answers: what goes into the store and what comes out, typed; never a raw reply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsh_tasks.errors import LimitReached, OwnerNotRunning
from dsh_tasks.seed import Seed
from dsh_tasks.session import Header
from dsh_tasks.submission import Mode
from dsh_tasks.task import Status, Task


@dataclass(frozen=True, slots=True)
class Fence:
    """What proves that a child that acts is the running attempt of its task (rule 3)."""

    attempt: int
    token: str


@dataclass(frozen=True, slots=True)
class NewTask:
    """What `submit` writes."""

    id: str
    owner: str
    header_depth: int
    """Depth that the owner's log header states; counts only where the owner is no recorded task."""
    label: str
    provider: str
    engine: str
    prompt: str
    """JSON list of content blocks."""
    policy: str
    """JSON of the Policy."""
    header: str
    """JSON of the header of the child's own log; its depth is set from the record."""
    depth_cap: int
    seed: Seed
    call_key: str
    call: str
    """JSON of what a repeated call must equal."""
    deadline_ms: int = 0
    """Longest life from acceptance; 0 is none."""
    mode: Mode = "background"
    """`foreground` while a call waits for its end."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The record exists."""

    task_id: str
    depth: int
    repeated: bool
    call: str
    """JSON of the first call under this key."""


Verdict = Accepted | LimitReached | OwnerNotRunning
"""What became of one child of a batch."""


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """A budget does not allow this call."""

    committed: int
    """Tokens of the tree that are spent or reserved, or 10^-9 US dollars that were spent."""
    limit: str = "tree_token_budget"
    """Or `tree_cost_budget`, or `cost_budget`, which is the child's own."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record with its private parts, as a worker needs it."""

    task: Task
    prompt: tuple[Mapping[str, Any], ...]
    policy: str
    header: Mapping[str, Any]
    seed_digest: str
    log_next: int
    structured: Any
    has_structured: bool
    structured_json: str
    """The value as it was written; '' where there is none."""

    @property
    def fenced_output(self) -> bool:
        """The start asked for a fence around the child's words."""
        return json.loads(self.policy).get("fenced_output") is True

    def child_header(self, *, seeded: bool) -> Header:
        """Header of the child's own log; its depth is the record's (rule 8)."""
        return Header(
            version=4,
            id=self.task.id,
            created_at=self.task.created_ms,
            cwd=self.header.get("cwd"),
            parent_session=self.task.owner,
            is_seeded=seeded,
            origin="subagent",
            delegation_depth=self.task.depth,
        )


@dataclass(frozen=True, slots=True)
class Claimed:
    """This attempt is ours."""

    record: Record
    attempt: int
    lease_until_ms: int


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """Somebody else has it, it has ended, it pauses, or there is no such record."""

    why: str
    """`taken`, `over`, `paused` or `missing`."""
    status: str = ""
    until_ms: int = 0
    worker: str = ""
    """Who has or had it: `host:pid`, or `inline in <task id>`."""


@dataclass(frozen=True, slots=True)
class FencedOff:
    """The write was not this attempt's to make."""

    status: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The task has ended with this status (a kill wins over what the attempt said)."""

    status: Status
    at_ms: int


@dataclass(frozen=True, slots=True)
class Requeued:
    """The task is queued again, and pauses."""

    not_before_ms: int


@dataclass(frozen=True, slots=True)
class LossesSpent:
    """One loss more would be too many: the attempt is to settle."""

    lost: int
    """Attempts that were lost or stalled, this one included."""


@dataclass(frozen=True, slots=True)
class KillReceipt:
    """What a kill took, each with the status before; or that the task had ended already."""

    task_id: str
    accepted: bool
    status: Status
    """Status of the task itself before the kill."""
    took: tuple[tuple[str, Status], ...]


@dataclass(frozen=True, slots=True)
class Promotion:
    """What came of turning a wait in the foreground into a background task."""

    task_id: str
    accepted: bool
    """It was waited for and is not any more, by this call or an earlier one: a notice tells its end."""
    in_background: bool
    """Nobody waits for it now; not accepted, it never was a foreground call's."""
    status: Status


@dataclass(frozen=True, slots=True)
class Awaited:
    """How a task stands that a call waits for."""

    status: Status | None
    """None where there is no record: it was pruned, so it had ended."""
    is_foreground: bool

    @property
    def is_left(self) -> bool:
        """There is nothing more to wait for: it has ended, or it goes on in the background."""
        return self.status is None or self.status.is_terminal or not self.is_foreground


@dataclass(frozen=True, slots=True)
class DueTask:
    """A queued task whose message is to be published."""

    task_id: str
    attempt: int
    label: str
    provider: str
    depth: int
    owner: str


@dataclass(frozen=True, slots=True)
class OutputPage:
    """A record and a page of its final text."""

    record: Record
    page: bytes
