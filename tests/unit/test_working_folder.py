"""Where a child works: what its start named, what its parent recorded, what the operator set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsh_tasks.task import Cause, Status
from dsh_tasks.workspace import WorkspaceConfig
from tests.fake_run import FakeRun, a_child, run_child
from workers.engines.agent.engine import AgentEngine
from workers.engines.base import Child


def in_folder(recorded: object, named: object = None) -> Child:
    given = {} if named is None else {"working_folder": str(named)}
    child = a_child('!call shell {"command": "pwd"}', **given)
    return replace(child, header=replace(child.header, cwd=None if recorded is None else str(recorded)))


def ran(child: Child, top: object = None) -> tuple[str, FakeRun]:
    """The folder that its command ran in, or why the child was refused."""
    config = WorkspaceConfig(folder=None if top is None else str(top))
    outcome, run = run_child(AgentEngine(workspace=config), child)
    if outcome.status is Status.FAILED:
        assert outcome.cause is Cause.ERROR
        assert run.activities == [], "no model was asked"
        return outcome.detail, run
    return outcome.output.removeprefix("shell said: ").splitlines()[0], run


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    made = (tmp_path / "top", tmp_path / "top" / "below", tmp_path / "beside")
    for folder in made:
        folder.mkdir()
    return made


def test_the_named_folder_goes_before_the_recorded_and_that_before_the_operators(
    folders: tuple[Path, Path, Path],
) -> None:
    top, below, beside = folders
    assert ran(in_folder(beside, below))[0] == str(below)
    assert ran(in_folder(beside))[0] == str(beside)
    assert ran(in_folder(None), top)[0] == str(top)
    assert ran(in_folder(below), top)[0] == str(below)


def test_the_operators_folder_is_the_top(folders: tuple[Path, Path, Path]) -> None:
    """A log may say anything; what a start names is refused, not replaced."""
    top, below, beside = folders
    assert ran(in_folder(beside), top)[0] == str(top)
    assert ran(in_folder("/"), top)[0] == str(top)
    (top / "way").symlink_to(beside)
    assert ran(in_folder(top / "way"), top)[0] == str(top)
    assert ran(in_folder(None, below), top)[0] == str(below)
    for outside in (beside, top / "way", top / ".." / "beside"):
        assert "is not in" in ran(in_folder(None, outside), top)[0]


def test_a_folder_that_the_worker_lacks_fails_the_child_and_says_what_to_do(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    detail, run = ran(in_folder(None, gone))
    assert detail == (
        f"working_folder: this worker has no folder {str(gone)!r} (the start named it); "
        "make it there, or name another at the start"
    )
    assert run.session.events[-1].data["reason"]["error"]["code"] == "option_refused"
    assert "the parent's log records it" in ran(in_folder(gone))[0]
    assert "the workers' settings file names it" in ran(in_folder(None), gone)[0]
    assert "none is known" in ran(in_folder(None))[0]


def test_a_named_folder_must_be_there_also_without_tools_over_it(tmp_path: Path) -> None:
    outcome, _ = run_child(AgentEngine(), in_folder(None, tmp_path / "gone"))
    assert outcome.status is Status.FAILED
    outcome, _ = run_child(
        AgentEngine(), replace(in_folder("/nowhere/at/all"), prompt=({"type": "text", "text": "hi"},))
    )
    assert outcome.status is Status.COMPLETED


def test_the_policy_of_a_record_keeps_it() -> None:
    child = in_folder(None, "/srv/work")
    assert json.loads(child.policy.to_json())["working_folder"] == "/srv/work"
