"""Calls and results: whether shown rows stand as a strict model wants them. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsh_tasks.rows import message_of
from dsh_tasks.session import Event
from dsh_tasks.surface import calls_of

Answers = tuple[str, ...] | str
"""Of a shown row: the calls that an assistant's message asks for, or the call that a result answers."""


def answer_of(event: Event) -> Answers | None:
    """What a shown row asks for or answers; None where it does neither."""
    if event.type == "assistant/message":
        return tuple(calls_of(message_of(event))) or None
    if event.type == "tool/result":
        call: str = message_of(event)["toolCallId"]
        return call
    return None


def is_paired(seqs: Iterable[int], answers: Mapping[int, Answers]) -> bool:
    """Whether results stand right after their calls and each call has one; the harness does not mend that."""
    waiting: set[str] = set()
    for seq in seqs:
        answer = answers.get(seq)
        if isinstance(answer, str):
            if answer not in waiting:
                return False
            waiting.remove(answer)
        elif waiting:
            return False
        elif answer is not None:
            waiting = set(answer)
    return not waiting
