"""The runtime is no dependency of the package: who lacks it skips these tests, save in CI."""

from __future__ import annotations

import pytest

from tests.gates import skip_unless_ci
from tests.harness.oracle import what_is_missing


@pytest.fixture(autouse=True, scope="session")
def the_runtime() -> None:
    demand_the_runtime()


def demand_the_runtime() -> None:
    missing = what_is_missing()
    if missing is not None:
        skip_unless_ci(missing)
