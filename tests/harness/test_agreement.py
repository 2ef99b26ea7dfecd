"""Our reader and the runtime read the same files, each with one thing changed: who refuses what is stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.agreement import changed_children, changed_parents, offspring, opinions
from tests.harness.judging import HEADLESS
from tests.harness.logs import to_be_changed

pytestmark = pytest.mark.harness

SOME = 20
"""One in so many is tried in the usual run."""


@pytest.mark.parametrize("step", [SOME, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_where_our_reader_and_the_runtime_differ_there_is_a_reason(step: int, tmp_path: Path) -> None:
    found = opinions(changed_children(to_be_changed())[::step], tmp_path)
    assert len(found) > 3000 // step
    unexplained = {
        one.mutant.kind: (one.ours, one.theirs) for one in found if not one.agrees and one.reason is None
    }
    assert unexplained == {}


@pytest.mark.parametrize("step", [SOME, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_every_seed_of_a_changed_parent_that_we_take_is_resumed_twice(step: int, tmp_path: Path) -> None:
    found = offspring(changed_parents(to_be_changed())[::step], tmp_path)
    assert len(found) > 1000 // step
    faults = {one.name: one.fault for one in found if one.fault is not None}
    # Its only system message was the thing that was changed.
    headless = [name for name, fault in faults.items() if fault == HEADLESS and "system/message: " in name]
    assert {name: fault for name, fault in faults.items() if name not in headless} == {}
