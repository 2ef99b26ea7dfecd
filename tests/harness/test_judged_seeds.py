"""Every log under every window: the runtime resumes the seed, twice, and asks with the history that was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_tasks.session import Session
from tests.harness import logs
from tests.harness.judging import cases_of, judged

pytestmark = pytest.mark.harness

SOURCES: dict[str, Callable[[], dict[str, Session]]] = {
    "the packaged log": logs.packaged,
    "logs that the runtime wrote": logs.written,
    "the samples": logs.samples,
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_model_is_asked_with_the_fold_of_the_kept_turns_and_the_prompt(
    source: str, tmp_path: Path
) -> None:
    found = SOURCES[source]()
    if not found:
        pytest.skip(f"{source}: {logs.SAMPLES} names no folder")
    verdicts = judged(cases_of(found), tmp_path)
    assert len(verdicts) >= 3 * len(found)
    faults = {one.case.name: one.fault for one in verdicts if one.fault is not None}
    assert faults == {}
    assert [one.case.name for one in verdicts if one.case.refused is not None] == []
