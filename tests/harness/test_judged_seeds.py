"""Every log under every window: the runtime resumes the seed, twice, and asks with the history that was meant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dsh_tasks.session import Session
from tests.harness import logs
from tests.harness.judging import cases_of, judged
from tests.harness.oracle import PROFILE

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("source", logs.SOURCES)
def test_the_model_is_asked_with_the_fold_of_the_kept_turns_and_the_prompt(
    source: str, tmp_path: Path
) -> None:
    if not logs.is_named(source):
        pytest.skip(f"{logs.SAMPLES} is not set: the logs of that folder are not judged")
    check(logs.of(source), tmp_path)


def test_so_it_is_with_files_that_are_zstd(tmp_path: Path) -> None:
    """The profile `sdk` keeps them so; it has many more tools, and plugins with rows of their own."""
    check(logs.zstd(), tmp_path, profile="sdk")


def check(found: Mapping[str, Session], folder: Path, *, profile: str = PROFILE) -> None:
    verdicts = judged(cases_of(found), folder, profile=profile)
    assert len(verdicts) >= 3 * len(found)
    assert [one.case.name for one in verdicts if one.case.refused is not None] == []
    assert {
        one.case.name: one.fault for one in verdicts if one.fault is not None and not one.is_headless
    } == {}
