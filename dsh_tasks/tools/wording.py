"""Wording: every sentence of a delegation tool's schema, and how an ending reads. Texts only.

These bytes stand in front of every request of a parent: a change here costs each of them its prefix
cache, and shows in the snapshots of tests/contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dsh_tasks.provider import Kind, Provider
from dsh_tasks.task import Cause, Status, Task

Background = Literal["one-shot", "continuable", "disabled"]


def inherited(provider: Provider) -> str | None:
    """What of the conversation a child of `provider` sees, in words; None where it sees nothing."""
    if not provider.inherits_parent_context:
        return None
    if provider.kind is Kind.FORK_LITE and provider.max_completed_turns == 1:
        return "the last completed turn of this conversation"
    if provider.kind is Kind.FORK_LITE:
        return f"the last {provider.max_completed_turns} completed turns of this conversation"
    return "the completed turns of this conversation"


def tool_description(sees: str | None, background: Background) -> str:
    """The description of a delegation tool."""
    start = (
        "It starts fresh and sees nothing of this conversation, so the prompt must stand on its own."
        if sees is None
        else f"It starts out knowing {sees}, but nothing of the turn that is still open."
    )
    return (
        "Hand one task to a subagent: a separate agent with tools of its own, whose work stays out of "
        f"this conversation. {start} {_RETURNS[background]}"
    )


_RETURNS: Mapping[Background, str] = {
    "disabled": "The call waits until the subagent has ended and returns its final answer only.",
    "one-shot": (
        "The call waits until the subagent has ended and returns its final answer only. With "
        "run_in_background it returns a background task id at once; collect that task with task_output, "
        "stop it with task_kill."
    ),
    "continuable": (
        "The call waits until the subagent has ended and returns its final answer only. With "
        "run_in_background it starts a background subagent that keeps its conversation, and returns its "
        "subagent id at once; that subagent does not report back by itself."
    ),
}

DESCRIPTION_TEXT = "What the subagent is to do, in three to seven words; shown in lists."


def prompt_text(sees: str | None) -> str:
    """The text of the `prompt` argument."""
    if sees is None:
        return (
            "The whole task, understandable without this conversation: the aim, what is already known, "
            "files and names in full, limits, and what to report back."
        )
    return (
        f"The task, and what to report back. The subagent already sees {sees}; of the turn that is still "
        "open it sees nothing, so repeat here what it needs of that."
    )


BACKGROUND_TEXT: Mapping[Background, str] = {
    "one-shot": "true: return a background task id at once. false or left out: wait for the final answer.",
    "continuable": (
        "true: start a background subagent that keeps its conversation and return its subagent id at once. "
        "false or left out: wait for the final answer."
    ),
}

STARTED = "started background subagent task {id}"


def promoted(after_ms: int | None) -> str:
    """Why a call that was to wait has not waited to the end."""
    why = "the call was turned into a background task" if after_ms is None else f"no end within {after_ms} ms"
    return f"[{why}; the subagent goes on, collect it with task_output]"


NO_OUTPUT = "The subagent completed without any output."

ENDINGS: Mapping[Cause, str] = {
    Cause.ERROR: "failed with an error",
    Cause.MAX_TOKENS: "reached its token limit before it was done",
    Cause.REFUSAL: "refused the task",
    Cause.SCHEMA: "ended without a value that fits its output schema",
    Cause.WORKER_LOST: "was given up because its worker was lost too often",
    Cause.STALLED: "was given up because it made no progress",
    Cause.DEADLINE: "ran past its deadline",
    Cause.BUDGET: "used up its budget",
    Cause.OWNER: "was killed by its owner",
    Cause.ANCESTOR: "was killed together with the task above it",
    Cause.OPERATOR: "was killed by the operator",
}
"""How an ending without success reads, after the id."""


def ending(task: Task) -> str:
    """How a task ended, as a sentence without its output."""
    if not task.is_terminal:
        return f"{task.id} has not ended, it is {task.status.value}"
    plain = "failed" if task.status is Status.FAILED else "was killed"
    words = ENDINGS[task.cause] if task.cause is not None else plain
    return f"{task.id} {words}{_tail(task.detail)}"


def _tail(detail: str) -> str:
    words = " ".join(detail.split())
    return f": {words}" if words else ""


def detail_of(task: Task) -> str:
    """The second half of a status line: why it ended, or that its lease is lost; may be empty."""
    if task.lease_lost:
        return "lease lost"
    if task.cause is None:
        return task.detail if task.is_terminal else ""
    return f"{task.cause.value}{_tail(task.detail)}"


PARTIAL_HINT = "its partial output can be read with task_output"
PARTIAL_MARK = "[partial output, the subagent did not complete]"
