"""The judge itself was seen red: faults that seeds once had, brought back, are called faults."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path

import pytest

from dsh_tasks import seed
from dsh_tasks.session import Session
from tests.factories import CANARY, a_log
from tests.harness.expected import history_of
from tests.harness.judging import fault_of
from tests.harness.oracle import Oracle, Verdict, prompt_of

pytestmark = pytest.mark.harness

PARENT = a_log(turns=3, tools=1, open_turn=True)


def child_of(rows: seed.Seed | Session) -> Session:
    header = seed.child_header(
        parent_session="parent", child_id="child", created_at_ms=1, depth=1, seeded=True
    )
    return seed.child_session(header, rows if isinstance(rows, seed.Seed) else rows.events)


def verdict_on(child: Session, folder: Path) -> Verdict:
    with Oracle(folder) as oracle:
        return oracle.judge({"child": oracle.file_of(child, "child")})["child"]


def fault_in(verdict: Verdict, window: int | None) -> str | None:
    history = history_of([event.row() for event in PARENT.events], window)
    return fault_of(history, verdict, prompt_of("child", 1))


def test_an_open_turn_that_was_left_in_is_a_fault(tmp_path: Path) -> None:
    verdict = verdict_on(child_of(PARENT), tmp_path)
    assert verdict.is_accepted
    assert CANARY in str(verdict.requests)
    assert fault_in(verdict, None) is not None


def test_a_turn_too_few_is_a_fault(tmp_path: Path) -> None:
    verdict = verdict_on(child_of(seed.window(PARENT, 2)), tmp_path)
    assert fault_in(verdict, 2) is None
    assert fault_in(verdict, 3) is not None
    assert fault_in(verdict, 1) is not None


def test_a_changed_word_is_a_fault(tmp_path: Path) -> None:
    verdict = verdict_on(child_of(seed.cut(PARENT)), tmp_path)
    assert fault_in(verdict, None) is None
    (request,) = verdict.requests
    request["messages"][2]["content"][0]["content"][0]["text"] += "."
    assert fault_in(verdict, None) is not None


def test_a_file_that_is_not_resumed_is_a_verdict_and_not_an_exception(tmp_path: Path) -> None:
    child = child_of(seed.cut(PARENT))
    gap = changed(child, events=(*child.events[:5], *child.events[6:]))
    verdict = verdict_on(gap, tmp_path)
    assert verdict.refusal is not None
    assert "seq gap" in verdict.refusal
    assert str(tmp_path) not in verdict.refusal
    assert fault_in(verdict, None) == verdict.refusal
