"""What a machine may lack: a skip that names it, and an error where all must be there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_unless_ci(missing: str) -> NoReturn:
    """Skip the test, naming what is missing; fail it where `CI` is set to anything at all."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {missing}")
    pytest.skip(missing)
