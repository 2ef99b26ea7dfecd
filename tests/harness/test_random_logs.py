"""Logs made up by the generator of tests/laws: 2,000 through our own validator, 100 through the runtime."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dsh_tasks import format as log_format
from dsh_tasks import seed, surface
from dsh_tasks.lifecycle import check
from tests.harness.expected import history_of
from tests.harness.judging import Case, alike, cases_of, judged
from tests.harness.logs import random

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_the_runtime_resumes_every_window_of_random_logs(count: int, tmp_path: Path) -> None:
    verdicts = judged(cases_of(random(range(count))), tmp_path)
    assert len(verdicts) > 5 * count
    assert [one.case.name for one in verdicts if one.case.refused is not None] == []
    assert {
        one.case.name: one.fault for one in verdicts if one.fault is not None and not one.is_headless
    } == {}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_our_own_validator_takes_windows_of_2000_random_logs() -> None:
    for name, log in random(range(2_000)).items():
        again = log_format.parse(log_format.write(log))
        assert again == log, name
        turns = Random(name).randint(0, len(log.completed_turns()) + 1)
        made = seed.window(again, turns)
        check(made.events, strict=True)
        child = Case(name, log, turns, made).child()
        assert log_format.parse(log_format.write(child)) == child, name
        rows = [event.row() for event in log.events]
        shown = [event.row() for event in made.events]
        assert alike(history_of(rows, turns), history_of(shown, None)), (name, turns)
        assert len(surface.messages(made.events)) >= len(history_of(rows, turns)), (name, turns)
