"""What unit tests of the agent engine share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model_server import ModelServer


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A scripted HTTP model that the engine's environment names; no request may break a provider's rules."""
    with ModelServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
        assert server.faults == []
