"""The demo as a newcomer runs it: everything is shown, nothing is needed, nothing is left."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli_tools import COMMAND, Cli, alive, bare_environment, descendants
from tests.rig_tools import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """With a folder of its own for temporary files, so that what is left there is seen."""
    (tmp_path / "tmp").mkdir()
    return Cli(bare_environment(tmp_path / "state", TMPDIR=str(tmp_path / "tmp")))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One performance without a terminal; `args` holds the seconds that it took."""
    env = bare_environment(tmp_path_factory.mktemp("state"))
    began = time.monotonic()
    done = Cli(env)("demo", within_s=60)
    done.args = time.monotonic() - began
    return done


def test_the_demo_ends_by_itself_within_half_a_minute(shown: subprocess.CompletedProcess[str]) -> None:
    assert shown.returncode == 0, shown.stderr
    assert shown.args < 30
    assert shown.stderr == ""


def test_without_a_terminal_it_prints_plain_lines(shown: subprocess.CompletedProcess[str]) -> None:
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown.stdout) is None


def test_it_says_that_the_model_is_offline(shown: subprocess.CompletedProcess[str]) -> None:
    assert "model: offline" in shown.stdout


def test_it_delegates_by_every_tool_in_the_foreground_and_in_the_background(
    shown: subprocess.CompletedProcess[str],
) -> None:
    calls = [line for line in shown.stdout.splitlines() if line.startswith("-> subagent")]
    assert {line.split("(")[0] for line in calls} == {
        "-> subagent",
        "-> subagent_fork",
        "-> subagent_fork_lite",
    }
    in_background = ["run_in_background=True" in line for line in calls]
    assert any(in_background)
    assert not all(in_background)
    assert "started background subagent task subagent-" in shown.stdout


def test_it_shows_the_tree_while_children_run_with_a_grandchild_in_it(
    shown: subprocess.CompletedProcess[str],
) -> None:
    trees = re.findall(r"tree after .*\n((?:   \| .*\n)+)", shown.stdout)
    assert len(trees) >= 3
    assert any(" running " in tree for tree in trees)
    assert re.search(r"\|   subagent-\w{32} .*depth 2", trees[-1])
    assert " killed, owner " in trees[-1]
    assert not re.search(r"\] (running|queued|stopping) ", trees[-1])


def part(shown: subprocess.CompletedProcess[str], heading: str) -> str:
    """The lines below a heading, up to the next empty line."""
    return shown.stdout.split(f"== {heading}")[1].split("\n\n")[0]


def answers_in(outputs: str) -> dict[str, str]:
    """`subagent_fork: recall the codeword` -> what that child answered."""
    found = re.findall(r"^(\w+), in the \w+: (.*) \(.*\n((?:    .*\n)+)", outputs, re.MULTILINE)
    return {f"{tool}: {label}": answer for tool, label, answer in found}


def test_a_forked_child_knows_what_a_spawned_one_cannot(shown: subprocess.CompletedProcess[str]) -> None:
    answers = answers_in(part(shown, "what each came to") + "\n")
    assert "marmalade" in answers["subagent_fork: recall the codeword"]
    assert "marmalade" not in answers["subagent: guess the codeword"]
    assert "4200" in answers["subagent_fork_lite: recall the budget"]
    assert "marmalade" not in answers["subagent_fork_lite: recall the codeword, too"]


def test_no_child_knows_the_open_turn(shown: subprocess.CompletedProcess[str]) -> None:
    assert "swordfish" not in shown.stdout


def test_what_was_read_or_killed_is_not_told_again_and_the_rest_is(
    shown: subprocess.CompletedProcess[str],
) -> None:
    notices = part(shown, "notices")
    in_background = re.findall(r"started background subagent task (subagent-\w+)", shown.stdout)
    killed = re.findall(r"cancellation requested: (subagent-\w+)", shown.stdout)
    told = re.findall(r"Background subagent task (subagent-\w+)", notices)
    assert len(killed) == 1
    assert sorted(told) == sorted(set(in_background) - set(killed))


def test_it_shows_what_each_child_inherited(shown: subprocess.CompletedProcess[str]) -> None:
    rows = [line for line in part(shown, "what each child inherited").splitlines() if line][2:]
    seeds = {tuple(re.split(r"  +", row.strip())[1:3]) for row in rows}
    assert {("spawn", "0"), ("fork", "3"), ("fork-lite", "2")} <= seeds
    assert all(row.endswith("offline") or "too long" in row for row in rows)


def test_its_json_is_one_document(cli: Cli) -> None:
    document = cli.json("demo")
    assert document["model"].startswith("offline")
    assert len(document["delegated"]) >= 5
    assert {task["status"] for task in document["tasks"]} == {"completed", "killed"}


def test_it_leaves_no_process_and_no_file(cli: Cli, tmp_path: Path) -> None:
    with cli.running("demo", folder=tmp_path) as demo:
        demo.await_words("tree after")
        below = descendants(demo.process.pid)
        assert len(below) >= 2
        assert demo.wait(40) == 0
    assert alive(below) == set()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("words", ["worker: pid", "-> subagent"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_either(cli: Cli, tmp_path: Path, number: int, words: str) -> None:
    with cli.running("demo", folder=tmp_path) as demo:
        demo.await_words(words)
        below = descendants(demo.process.pid)
        assert demo.end(number) == 130
        assert "Traceback" not in demo.said
    assert alive(below) == set()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_killed_it_takes_server_and_worker_with_it(cli: Cli, tmp_path: Path) -> None:
    with cli.running("demo", folder=tmp_path) as demo:
        demo.await_words("-> subagent")
        below = descendants(demo.process.pid)
        demo.process.kill()
        demo.wait()
        wait_until(lambda: not alive(below), "server and worker have ended")


def test_in_a_terminal_the_tree_is_redrawn(cli: Cli) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(COMMAND[0], [*COMMAND, "demo"], cli.env | {"TERM": "xterm-256color", "COLUMNS": "120"})
    written = b""
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:
            break
        if not read:
            break
        written += read
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"\x1b[" in written
    assert b"last activity" in written
    assert b"done in" in written


def test_the_users_own_installation_is_not_touched(cli: Cli, tmp_path: Path) -> None:
    env = cli.env | {"DSH_TASKS_LIVE_PER_OWNER": "1", "DSH_TASKS_CONFIG": str(tmp_path / "nowhere.toml")}
    assert Cli(env).json("demo")["model"].startswith("offline")
    assert os.listdir(tmp_path) == ["tmp"]
