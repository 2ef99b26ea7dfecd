"""Chances: what hypothesis picks from, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from dsh_tasks.task import USAGE_FIELDS
from tests.model.calls import SEEDS
from tests.model.values import TERMINAL, Ending, Times

TIMES = Times()
ROOTS = ("root-1", "root-2")
STRANGER = "stranger"
UNKNOWN = "subagent-unknown"
SESSIONS = (*ROOTS, STRANGER, UNKNOWN)
JUMPS_S = (10, 20, 30, 40, 50, 60, 300, 600, -20)

number = st.integers(0, 11)
lost = st.sampled_from((False, False, False, True))
keys = st.sampled_from(("", "", "", "k1", "k2"))
lives = st.sampled_from((0, 0, 0, 30_000, 600_000))
seeds = st.sampled_from(("", "", *SEEDS))
proofs = st.sampled_from((*["right"] * 10, "old", "forged", "early", "none"))
under_a_kill = st.sampled_from(("append", "settle", "hand_back", "claim", "submit"))
askers = st.sampled_from((*["owner"] * 4, "ancestor", "operator", "itself", "below", "stranger"))


texts = st.sampled_from(("", "done", "grüße, 𝄞"))
endings = st.builds(
    Ending,
    status=st.sampled_from(TERMINAL),
    cause=st.sampled_from(("error", "refusal", "schema", "max-tokens")),
    detail=st.sampled_from(("", "words")),
    output=texts,
    structured=st.sampled_from(({"a": 1}, None, [])),
    has_structured=st.booleans(),
    usage=st.tuples(*[number] * len(USAGE_FIELDS)),
).map(lambda said: said if said.status != "completed" else replace(said, cause=""))


def any_is(status: str) -> Callable[[Any], bool]:
    """Whether there is a task with this status, or one that is held, or one that has ended."""
    return lambda self: any(status in (task.status, task.phase) for task in self.machine.tasks.values())


held = precondition(any_is("held"))
ended = precondition(any_is("ended"))
