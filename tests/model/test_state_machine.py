"""Random interleavings of all calls on the model and on two servers: every answer and every record is the same.

The usual run is short and always the same; `pytest -m long tests/model` takes at least 20,000 steps on each
server, other ones each time. `pytest -s` shows how many calls of each kind were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.chances import TIMES
from tests.model.driven import Driven, DrivenAndPutBack
from tests.model.worlds import FakeWorld, RealWorld, World

STEPS_PER_EXAMPLE = 50
LONG_STEPS = 20_000


@pytest.fixture(params=[FakeWorld, RealWorld], ids=["fakeredis", "server"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    opened: World = request.param(TIMES)
    yield opened
    opened.close()


@pytest.fixture
def server() -> Iterator[RealWorld]:
    """One of its own, whose file may be cut."""
    opened = RealWorld(TIMES)
    yield opened
    opened.close()


def driven(kind: type[Driven], world: World, examples: int, *, same_each_time: bool) -> Counter[str]:
    """Run a machine; returns how many calls of each kind it made."""
    steps: Counter[str] = Counter()
    machine = type(kind.__name__, (kind,), {"world": world, "steps": steps})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_PER_EXAMPLE,
            derandomize=same_each_time,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
    return steps


def calls_in(steps: Counter[str]) -> int:
    """Calls to the server, without what merely counts something about them."""
    return sum(count for name, count in steps.items() if not name.startswith("#"))


def at_least(kind: type[Driven], world: World, wanted: int, *, put_back: int = 0) -> Counter[str]:
    """Run a machine again and again until it has made so many calls, and was put back so often."""
    steps: Counter[str] = Counter()
    while calls_in(steps) < wanted or steps["put back"] < put_back:
        steps += driven(kind, world, 50, same_each_time=False)
        told = ", ".join(f"{name}: {count}" for name, count in steps.most_common())
        print(f"\n{kind.__name__} on {type(world).__name__}: {calls_in(steps)} calls ({told})", flush=True)
    return steps


def test_a_server_answers_as_the_model(world: World) -> None:
    steps = driven(Driven, world, 40, same_each_time=True)
    assert calls_in(steps) >= 1_000 and steps["# lost replies"]


def test_a_server_that_is_put_back_answers_as_the_model(server: RealWorld) -> None:
    steps = driven(DrivenAndPutBack, server, 10, same_each_time=True)
    assert calls_in(steps) >= 200 and steps["put back"]


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_server_answers_as_the_model_for_twenty_thousand_steps(world: World) -> None:
    assert calls_in(at_least(Driven, world, LONG_STEPS)) >= LONG_STEPS


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_server_that_is_put_back_answers_as_the_model_for_long(server: RealWorld) -> None:
    assert calls_in(at_least(DrivenAndPutBack, server, LONG_STEPS // 10, put_back=100)) >= LONG_STEPS // 10
