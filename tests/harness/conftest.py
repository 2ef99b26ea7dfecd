"""The runtime is no dependency of the package: who lacks it skips these tests, save in CI."""

from __future__ import annotations

import os

import pytest

from tests.harness.oracle import what_is_missing


@pytest.fixture(autouse=True, scope="session")
def the_runtime() -> None:
    missing = what_is_missing()
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
