"""A short chaos: workers, server and connections die and freeze under 60 children; nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos import Plan, perform
from tests.conftest import server_binary

pytestmark = pytest.mark.rig


def test_sixty_children_under_chaos_end_once_and_are_told_once(tmp_path: Path) -> None:
    plan = Plan(children=60, workers=2, every_s=0.7, within_s=120, chaos_s=15, seed=7, live_per_owner=2)
    report = perform(plan, tmp_path, binary=server_binary())
    assert report.faults == [], report.text()
    assert report.facts["accepted"] == 60
    assert report.facts["faults made"], report.text()
