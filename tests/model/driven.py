"""Driven: all rules together, on a server that stays and on one that is put back."""

from __future__ import annotations

import copy

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.model.attempt_rules import AttemptRules
from tests.model.machine import Machine
from tests.model.owner_rules import OwnerRules
from tests.model.worlds import RealWorld

HISTORY = 30
"""So many states back may the server be put."""


class Driven(OwnerRules, AttemptRules):
    """Random interleavings of everything that anybody may call."""


class DrivenAndPutBack(Driven):
    """The same on a server that now and then comes back with an older append-only file."""

    world: RealWorld

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[int, Machine]] = []

    @invariant()
    def remember(self) -> None:
        self.history = self.history[-HISTORY:]
        self.history.append((self.world.written_bytes(), copy.deepcopy(self.machine)))

    @precondition(lambda self: len(self.history) > 3)
    @rule(steps=st.integers(0, HISTORY - 1))
    def put_back(self, steps: int) -> None:
        """Nobody else is put back: workers keep their proofs, clients ask again."""
        self.steps["put back"] += 1
        self.history = self.history[: max(1, len(self.history) - steps)]
        size, then = self.history[-1]
        now = self.machine.now
        self.machine = copy.deepcopy(then)
        self.before = {one: f"{task.status} {len(task.rows)}" for one, task in then.tasks.items()}
        self.statuses = {one: task.status for one, task in then.tasks.items()}
        self.world.put_back(size, then.now)
        self.machine.jump(now - then.now)
