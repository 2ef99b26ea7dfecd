"""Notice: the one message that tells an owner that a task ended; its words, its bounds, the wake budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsh_tasks.task import Cause, Status, cut_text

NOTICE_MAX_BYTES = 1024
LABEL_MAX_BYTES = 400


@dataclass(frozen=True, slots=True)
class Notice:
    """One ending that its owner has not acknowledged. The id is the same whenever it is told again."""

    id: str
    task_id: str
    label: str
    status: Status
    cause: Cause | None
    at_ms: int
    """When it ended, by the server's clock."""

    @property
    def text(self) -> str:
        """What the owner's model reads: id, label, status, how to read it; at most 1 KiB, no output text."""
        label = " ".join(cut_text(self.label, LABEL_MAX_BYTES).split())
        why = f", {self.cause.value}" if self.cause else ""
        words = (
            f"Background subagent task {self.task_id}"
            + (f" ({label})" if label else "")
            + f" ended. [status: {self.status.value}{why}] "
            + f'Read it with task_output {{"task_id": "{self.task_id}"}}.'
        )
        return cut_text(words, NOTICE_MAX_BYTES)


NOTICE_KIND = "background-task-ended"
"""`source.kind` of the user message that carries notices; `source.taskIds` names the endings."""


def notice_message(notices: Sequence[Notice], message_id: str) -> dict[str, Any]:
    """Many endings as one message of a log; their ids stand beside the text."""
    source = {
        "kind": NOTICE_KIND,
        "form": "notice",
        "summary": f"{len(notices)} background task{'s' if len(notices) != 1 else ''} ended",
        "taskIds": [notice.task_id for notice in notices],
    }
    content = [{"type": "text", "text": batch_text(notices)}]
    return {"content": content, "source": source, "role": "user", "id": message_id}


def batch_text(notices: Sequence[Notice]) -> str:
    """Many endings as one message, a line each."""
    return "\n".join(notice.text for notice in notices)


@dataclass(frozen=True, slots=True)
class WakeBudget:
    """How often notices may still wake an idle owner: a message of the user refills it, a notice does not."""

    limit: int
    spent: int = 0

    @property
    def may_wake(self) -> bool:
        """A wake is left."""
        return self.spent < self.limit

    def after_wake(self) -> WakeBudget:
        """One wake less."""
        return replace(self, spent=self.spent + 1)

    def after_user_message(self) -> WakeBudget:
        """Full again."""
        return replace(self, spent=0)
