"""Pauses grow, stay within their bounds, and are not the same for all."""

from __future__ import annotations

from dsh_tasks.pauses import GrowingPause, jittered


def test_a_jittered_pause_stays_around_its_base_and_differs() -> None:
    pauses = [jittered(2.0) for _ in range(200)]
    assert all(1.0 <= pause < 3.0 for pause in pauses)
    assert len(set(pauses)) > 20


def test_a_pause_doubles_up_to_its_bound_and_begins_again_after_a_success() -> None:
    pause = GrowingPause(1.0, 4.0)
    for base in (1.0, 2.0, 4.0, 4.0, 4.0):
        assert base / 2 <= pause.after_failure() < base * 1.5
    pause.after_success()
    assert pause.after_failure() < 1.5


def test_a_million_failures_are_no_overflow() -> None:
    pause = GrowingPause(1.0, 4.0)
    pause._failures = 1_000_000
    assert pause.after_failure() < 6.0
