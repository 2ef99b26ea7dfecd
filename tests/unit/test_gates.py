"""The doors by which a test may be skipped: each is shown shut where it must be."""

from __future__ import annotations

import subprocess
import sys

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import skip_unless_ci
from tests.harness import conftest, logs


@pytest.mark.parametrize("ci", ["true", "1", "yes", "false"])
def test_where_ci_is_set_to_anything_what_is_missing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.fail.Exception, match="the runtime"):
        skip_unless_ci("the runtime")


@pytest.mark.parametrize("ci", [None, ""])
def test_elsewhere_it_is_a_skip_that_names_it(monkeypatch: pytest.MonkeyPatch, ci: str | None) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="the runtime"):
        skip_unless_ci("the runtime")


@pytest.mark.parametrize("ci", ["true", "1"])
def test_without_the_runtime_ci_fails_the_tests_of_the_harness(
    monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setattr(conftest, "what_is_missing", lambda: "the runtime is not installed")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.fail.Exception, match="the runtime is not installed"):
        conftest.demand_the_runtime()


def test_only_samples_that_nobody_named_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(logs.SAMPLES, raising=False)
    assert [name for name in logs.SOURCES if not logs.is_named(name)] == [logs.OTHERS]
    monkeypatch.setenv(logs.SAMPLES, str(tmp_path))
    assert all(logs.is_named(name) for name in logs.SOURCES)


@pytest.mark.parametrize("where", ["an empty folder", "no folder at all"])
def test_samples_that_are_named_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    folder = tmp_path / where
    if where == "an empty folder":
        folder.mkdir()
    monkeypatch.setenv(logs.SAMPLES, str(folder))
    with pytest.raises(AssertionError, match=where):
        logs.of(logs.OTHERS)


def written_of_ours() -> object:
    return logs.of("logs that the runtime wrote")


@pytest.mark.parametrize("use", [written_of_ours, logs.zstd])
def test_logs_of_ours_that_are_gone_are_no_skip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use: Callable[[], object]
) -> None:
    assert use()
    monkeypatch.setattr(logs, "WRITTEN", tmp_path)
    with pytest.raises(AssertionError):
        use()


@pytest.mark.parametrize("source", [name for name in logs.SOURCES if name != logs.OTHERS])
def test_every_source_of_ours_has_logs(source: str) -> None:
    assert logs.of(source)


@pytest.mark.parametrize(("expression", "runs_long"), [("", False), ("not rig", False), ("long", True)])
def test_what_is_long_runs_only_when_asked_for(expression: str, runs_long: bool) -> None:
    file = Path(__file__).parents[1] / "harness" / "test_random_logs.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        [*command, *(["-m", expression] if expression else [])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=file.parents[2],
    )
    assert (": 2" in done.stdout) == runs_long, done.stdout
