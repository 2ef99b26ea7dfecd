"""Two hundred background children at once: all complete, once, with one notice each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.rig_tools import ROOT

pytestmark = pytest.mark.rig


def test_two_hundred_children_complete_once_with_one_notice_each() -> None:
    """The bench asserts each of it as it measures; here its time does not matter."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.fan_out", "--children", "200"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = json.loads(ran.stdout)
    assert report["model_calls"] == report["children"] == 200
    assert report["faults_at_the_model"] == []
    assert report["eleventh_refused_at_the_default"] is True
