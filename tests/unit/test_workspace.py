"""The workspace's tools: what they answer, what they refuse, and what they leave behind (nothing)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsh_tasks.config import read_config
from dsh_tasks.errors import ConfigRefused
from dsh_tasks.task import Status
from dsh_tasks.workspace import WORKSPACE_TOOLS, WorkspaceConfig
from tests.fake_run import FakeRun, a_child, run_child
from tests.unit.test_tool_process import is_alive, pids, stopped
from tests.waiting import wait_until
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.workspace.toolbox import Workspace
from workers.engines.base import StopReason, ToolAnswer

LIMIT = 8_192


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


class Tools:
    """Calls tools over one folder, all on one loop."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self._runner = asyncio.Runner()
        self._workspace = Workspace(WorkspaceConfig(**config), result_bytes=LIMIT)
        self._tools = {tool.name: tool for tool in self._workspace.tools(str(folder))}

    def __call__(self, name: str, /, **arguments: Any) -> ToolAnswer:
        async def called() -> ToolAnswer:
            return await self._tools[name].call(arguments, "c")

        return self._runner.run(called())

    def said(self, name: str, /, **arguments: Any) -> str:
        answer = self(name, **arguments)
        assert not answer.is_error, answer.text
        return answer.text

    def refused(self, name: str, /, **arguments: Any) -> str:
        answer = self(name, **arguments)
        assert answer.is_error, answer.text
        assert answer.text.startswith("Error: ")
        return answer.text.removeprefix("Error: ")

    def close(self) -> None:
        self._runner.close()


@pytest.fixture
def tools(folder: Path) -> Iterator[Tools]:
    made = Tools(folder)
    yield made
    made.close()


# -- read --------------------------------------------------------------------------------------------


def test_a_file_is_read_in_pages_of_lines(tools: Tools, folder: Path) -> None:
    (folder / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 8)))
    first = tools.said("read", path="a.txt", limit=3)
    assert first == "line 1\nline 2\nline 3\n[lines 1 to 3 of a file of 49 bytes; continue with offset 4]"
    assert tools.said("read", path="a.txt", offset=4) == "line 4\nline 5\nline 6\nline 7\n"
    assert tools.said("read", path=str(folder / "a.txt"), offset=7) == "line 7\n"
    assert tools.refused("read", path="a.txt", offset=8) == "'a.txt' has 7 lines, there is no line 8"


def test_all_pages_of_a_large_file_are_the_file(tools: Tools, folder: Path) -> None:
    text = "".join(f"{n} " + "é" * (n % 90) + "\n" for n in range(1_000)) + "no newline"
    (folder / "a.txt").write_text(text)
    offset, read = 1, ""
    while True:
        page = tools.said("read", path="a.txt", offset=offset)
        assert len(page.encode()) <= LIMIT
        mark = re.search(r"\[lines \d+ to \d+ of a file of \d+ bytes; continue with offset (\d+)\]$", page)
        read += page[: mark.start()] if mark else page
        if mark is None:
            break
        offset = int(mark.group(1))
    assert read == text


def test_a_line_without_an_end_is_cut_and_the_next_one_is_the_next(tools: Tools, folder: Path) -> None:
    (folder / "a.txt").write_text("x" * 10_000_000 + "\nnext\n")
    shown = tools.said("read", path="a.txt").splitlines()
    assert len(shown) == 2
    assert shown[0].endswith("[line cut: 4000 of 10000001 bytes shown]")
    assert shown[1] == "next"


def test_what_is_no_text_file_is_not_read(tools: Tools, folder: Path) -> None:
    (folder / "empty").touch()
    (folder / "binary").write_bytes(b"a\0b")
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    assert tools.said("read", path="empty") == "[the file is empty]"
    assert tools.refused("read", path="binary") == "'binary' is no text (3 bytes)"
    assert tools.refused("read", path="pipe") == "'pipe' is no regular file"
    assert tools.refused("read", path="sub") == "'sub' is a folder"
    assert tools.refused("read", path="gone") == "'gone' does not exist"
    assert (
        tools.refused("read", path="empty/below") == "'empty/below' leads through something that is no folder"
    )


# -- the folder --------------------------------------------------------------------------------------

OUTSIDE = {
    "above": "../secret",
    "absolute": "{outside}/secret",
    "a link to a file": "link",
    "a link to a folder": "way/secret",
    "around": "sub/../../secret",
}


@pytest.mark.parametrize("way", OUTSIDE)
@pytest.mark.parametrize("name", ["read", "write", "edit", "list", "search"])
def test_nothing_outside_the_folder_is_reached(way: str, name: str, tools: Tools, folder: Path) -> None:
    outside = folder.parent
    (outside / "secret").write_text("the secret\n")
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(outside / "secret")
    (folder / "way").symlink_to(outside)
    more = {"write": {"content": "x"}, "edit": {"old": "the", "new": "x"}, "search": {"pattern": "."}}
    path = OUTSIDE[way].format(outside=outside)
    assert tools.refused(name, path=path, **more.get(name, {})).endswith("leads out of the working folder")
    assert (outside / "secret").read_text() == "the secret\n"


def test_links_that_stay_inside_are_followed(tools: Tools, folder: Path) -> None:
    (folder / "real").write_text("inside\n")
    (folder / "link").symlink_to("real")
    assert tools.said("read", path="link") == "inside\n"
    tools.said("write", path="link", content="changed\n")
    assert (folder / "real").read_text() == "changed\n"
    assert (folder / "link").is_symlink()


def test_a_search_follows_no_link_out(tools: Tools, folder: Path) -> None:
    (folder.parent / "secret").write_text("the secret\n")
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "way").symlink_to(folder.parent)
    (folder / "loop").symlink_to(folder)
    assert tools.said("search", pattern="secret") == "[no line fits]"


# -- write and edit ----------------------------------------------------------------------------------


def test_a_file_is_written_with_its_folders_and_keeps_its_mode(tools: Tools, folder: Path) -> None:
    assert tools.said("write", path="a/b/c.txt", content="é\r\n") == "wrote 4 bytes to 'a/b/c.txt'"
    assert (folder / "a/b/c.txt").read_bytes() == b"\xc3\xa9\r\n"
    (folder / "run").write_text("old")
    (folder / "run").chmod(0o755)
    tools.said("write", path="run", content="new")
    assert (folder / "run").stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir(folder)) == ["a", "run"]
    assert tools.refused("write", path="a", content="x") == "'a' is a folder"
    assert "at most 4194304" in tools.refused("write", path="big", content="x" * 5_000_000)


def test_an_edit_replaces_the_one_place(tools: Tools, folder: Path) -> None:
    (folder / "a.py").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert tools.said("edit", path="a.py", old="two", new="2") == "replaced one text at line 2 of 'a.py'"
    assert (folder / "a.py").read_bytes() == b"one\r\n2\r\nthree\r\n"


def test_an_edit_that_does_not_fit_says_why_and_changes_nothing(tools: Tools, folder: Path) -> None:
    text = "def a():\n    return 1\n\ndef b():\n    return 1\n"
    (folder / "a.py").write_text(text)
    refusals = {
        "twice": ({"old": "    return 1\n", "new": ""}, "old stands at 2 places of 'a.py' (lines 2, 5)"),
        "nowhere": ({"old": "def c", "new": ""}, "old does not stand in 'a.py'; read it again"),
        "half": (
            {"old": "def b():\n  return 1", "new": ""},
            "its first 1 line(s) fit at line 4, line 5 differs",
        ),
        "same": ({"old": "def a", "new": "def a"}, "old and new are the same"),
        "empty": ({"old": "", "new": "x"}, "old is empty"),
    }
    for arguments, why in refusals.values():
        assert why in tools.refused("edit", path="a.py", **arguments)
    assert (folder / "a.py").read_text() == text
    (folder / "latin").write_bytes(b"\xe9")
    assert tools.refused("edit", path="latin", old="a", new="b") == "'latin' is no text in UTF-8"


# -- list and search ---------------------------------------------------------------------------------


def test_a_new_file_is_no_program_and_its_name_may_be_as_long_as_names_are(
    tools: Tools, folder: Path
) -> None:
    name = "é" * 124
    tools.said("write", path=name, content="x")
    assert (folder / name).stat().st_mode & 0o111 == 0
    assert "names a folder" in tools.refused("write", path="new/", content="x")
    assert [path.name for path in folder.iterdir()] == [name]


def test_an_edit_counts_places_that_overlap_and_tells_of_other_line_ends(tools: Tools, folder: Path) -> None:
    (folder / "a").write_bytes(b"aaa")
    (folder / "b").write_bytes(b"one\r\ntwo\r\n")
    assert "stands at 2 places" in tools.refused("edit", path="a", old="aa", new="b")
    assert "carriage return" in tools.refused("edit", path="b", old="one\ntwo", new="x")
    assert (folder / "a").read_bytes() == b"aaa"


def test_a_line_is_the_same_line_for_search_and_read(tools: Tools, folder: Path) -> None:
    (folder / "a").write_bytes("one\x0ctwo\nthree\r\nfour \u2028x\nneedle".encode())
    assert tools.said("search", pattern="needle$") == "a:4: needle"
    assert tools.said("search", pattern="three$") == "a:2: three"
    assert tools.said("read", path="a", offset=4) == "needle"
    assert "has 4 lines, there is no line 5" in tools.refused("read", path="a", offset=5)


def test_a_folder_is_listed_in_order_and_bounded(tools: Tools, folder: Path) -> None:
    assert tools.said("list") == "[the folder is empty]"
    (folder / "sub").mkdir()
    (folder / "b.txt").write_text("12345")
    (folder / "a@b").symlink_to("b.txt")
    assert tools.said("list") == "a@b@\nb.txt  5\nsub/"
    for number in range(1_500):
        (folder / "sub" / f"{number:04}").touch()
    lines = tools.said("list", path="sub").splitlines()
    assert lines[-1] == f"[{len(lines) - 1} of 1500 entries shown]"
    assert 500 < len(lines) - 1 <= 1_000
    assert tools.refused("list", path="b.txt") == "'b.txt' leads through something that is no folder"


def test_lines_are_found_in_the_order_of_their_paths(tools: Tools, folder: Path) -> None:
    (folder / "z.py").write_text("x = 1\ny = 2\n")
    (folder / "a").mkdir()
    (folder / "a" / "m.py").write_text("y = 3\n")
    (folder / "a" / "m.txt").write_text("y = 4\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("y = 5\n")
    (folder / "binary").write_bytes(b"y = 6\0\n")
    assert tools.said("search", pattern="^y", files="*.py") == "z.py:2: y = 2\na/m.py:1: y = 3"
    assert tools.said("search", pattern="4", path="a") == "a/m.txt:1: y = 4"
    assert tools.said("search", pattern="x", path="z.py") == "z.py:1: x = 1"
    assert "no regular expression" in tools.refused("search", pattern="(")
    (folder / "many").write_text("hit\n" * 1_000)
    lines = tools.said("search", pattern="hit").splitlines()
    assert (len(lines), lines[-1]) == (
        201,
        "[200 lines shown, there are more; narrow pattern, path or files]",
    )


def test_a_pattern_that_never_ends_is_ended_and_holds_nobody(folder: Path) -> None:
    (folder / "a").write_text("a" * 60 + "b\n")
    tools = Tools(folder, call_timeout_ms=500)

    async def beside() -> tuple[ToolAnswer, float]:
        """The answer, and the longest that the loop stood still."""
        longest, calling = 0.0, asyncio.ensure_future(tools._tools["search"].call({"pattern": "(a+)+$"}, "c"))
        while not calling.done():
            at = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - at)
        return await calling, longest

    answer, longest = tools._runner.run(beside())
    assert answer == ToolAnswer("Error: search took longer than 500 ms and was ended", is_error=True)
    assert longest < 0.3
    tools.close()


# -- shell -------------------------------------------------------------------------------------------


def test_a_command_gives_output_errors_and_status(tools: Tools, folder: Path) -> None:
    said = tools.said("shell", command="pwd; echo oops >&2; cat; exit 3")
    assert said == f"{folder}\noops\n[exit status 3]"
    assert tools.said("shell", command="true") == "[exit status 0]"
    assert tools.said("shell", command="kill -9 $$") == "[ended by SIGKILL]"


def test_no_secret_of_the_worker_is_in_a_commands_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("OPENAI_API_KEY", "DEEPSEEK_API_KEY", "DSH_TASKS_REDIS_URL", "DSH_TASKS_WEBHOOK_SECRET", "ANY")
    for name in secrets:
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("GH_TOKEN", "wanted")
    tools = Tools(folder, shell_env=("GH_TOKEN",))
    said = tools.said("shell", command='env; tr "\\0" "\\n" < /proc/$PPID/environ')
    assert "canary" not in said
    assert "GH_TOKEN=wanted" in said
    assert "PATH=" in said
    tools.close()


def test_output_without_end_costs_no_memory_and_shows_both_ends(tools: Tools) -> None:
    said = tools.said(
        "shell", command="echo first; head -c 300000000 /dev/zero | tr '\\0' x; echo; echo last"
    )
    assert len(said.encode()) <= LIMIT
    assert said.startswith("first\nxxx")
    assert said.endswith("xxx\nlast\n[exit status 0]")
    assert re.search(r"\n\[29\d{7} of 300000012 bytes of output left out\]\n", said)


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(folder: Path) -> None:
    tools = Tools(folder, shell_timeout_ms=60_000)
    said = tools.refused(
        "shell",
        command="trap '' TERM; echo begun; sleep 1000 & setsid sleep 1001 & echo $$ $! > told; wait",
        timeout_ms=500,
    )
    assert said == "timed out after 500 ms; the command was ended\nbegun\n"
    assert [pid for pid in pids(folder / "told") if is_alive(pid)] == []
    tools.close()


def test_what_a_command_leaves_in_the_background_ends_with_the_call(tools: Tools, folder: Path) -> None:
    at = time.monotonic()
    command = (
        "sleep 1000 & echo $! > a; setsid sh -c 'echo $$ > b; exec sleep 1000' & until [ -s b ]; do :; done"
    )
    assert tools.said("shell", command=command) == "[exit status 0]"
    assert time.monotonic() - at < 10
    assert [pid for name in "ab" for pid in pids(folder / name) if is_alive(pid)] == []


@pytest.mark.parametrize("reason", [StopReason.KILL, StopReason.HAND_BACK, StopReason.FENCED])
def test_a_command_is_gone_when_its_child_was_stopped(reason: StopReason, folder: Path) -> None:
    command = "trap '' TERM; setsid sleep 1000 & echo $$ $! > part; mv part told; wait"
    run = FakeRun(a_child("!call shell " + json.dumps({"command": command}), working_folder=str(folder)))

    async def left() -> list[int]:
        engine = AgentEngine(workspace=WorkspaceConfig())
        if reason is StopReason.KILL:
            outcome, seconds = await stopped(run, engine, folder / "told", reason)
            assert outcome.status is Status.KILLED
            assert seconds < 2
        else:
            with pytest.raises(asyncio.CancelledError):
                await stopped(run, engine, folder / "told", reason)
        return [pid for pid in pids(folder / "told") if is_alive(pid)]

    assert asyncio.run(left()) == []


WORKER = """
import asyncio, sys
from dsh_tasks.workspace import WorkspaceConfig
from workers.engines.agent.workspace.toolbox import Workspace
(shell,) = Workspace(WorkspaceConfig(tools=("shell",)), result_bytes=8192).tools(sys.argv[1])
command = "trap '' TERM; setsid sleep 1000 & echo $$ $! > part; mv part told; wait"
async def main(): await shell.call({"command": command}, "c")
asyncio.run(main())
"""


def test_a_command_ends_with_a_worker_that_is_killed(folder: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], start_new_session=True)
    wait_until((folder / "told").exists, "the command runs")
    assert all(is_alive(pid) for pid in pids(folder / "told"))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in pids(folder / "told")), "all of it ended", within_s=5)


# -- as tools of children ----------------------------------------------------------------------------


def test_a_child_works_in_its_folder(folder: Path) -> None:
    calls = [
        {"tool": "write", "arguments": {"path": "a.txt", "content": "hello\n"}},
        {"tool": "read", "arguments": {"path": "a.txt"}},
    ]
    child = a_child("!calls " + json.dumps(calls), working_folder=str(folder))
    outcome, run = run_child(AgentEngine(workspace=WorkspaceConfig()), child)
    assert "hello" in outcome.output
    shown = [tool["name"] for tool in run.row("request/header")["header"]["tools"]]
    assert shown == list(WORKSPACE_TOOLS)


def test_readers_may_be_asked_again_and_the_others_stand_alone(folder: Path) -> None:
    made = Workspace(WorkspaceConfig(), result_bytes=LIMIT).tools(str(folder))
    assert [tool.name for tool in made if tool.idempotent] == ["read", "list", "search"]
    assert [tool.name for tool in made if tool.exclusive] == ["write", "edit", "shell"]


def test_arguments_that_do_not_fit_are_named(tools: Tools) -> None:
    assert "'path' is a required property" in tools.refused("read")
    assert "is not of type 'integer'" in tools.refused("read", path="a", offset="one")
    assert "'nope' was unexpected" in tools.refused("list", nope=1)


def test_the_settings_file_turns_it_on_and_bounds_it() -> None:
    assert read_config({}).agent.workspace is None
    assert read_config({"agent": {"workspace": False}}).agent.workspace is None
    assert read_config({"agent": {"workspace": True}}).agent.workspace == WorkspaceConfig()
    table = {"folder": "/srv/work", "tools": ["shell", "read"], "shellTimeoutMs": 1_000, "shellEnv": ["A"]}
    made = read_config({"agent": {"workspace": table}}).agent.workspace
    assert made == WorkspaceConfig(
        folder="/srv/work", tools=("shell", "read"), shell_timeout_ms=1_000, shell_env=("A",)
    )
    refused = {
        "agent.workspace.folder": {"folder": "work"},
        "agent.workspace.tools[0]": {"tools": ["rm"]},
        "agent.workspace.shellTimeoutMs": {"shellTimeoutMs": 0},
        "agent.workspace.nope": {"nope": 1},
    }
    for name, given in refused.items():
        with pytest.raises(ConfigRefused, match=re.escape(f"'{name}'")):
            read_config({"agent": {"workspace": given}})
    with pytest.raises(ConfigRefused, match="agent.workspace"):
        read_config({"agent": {"workspace": "yes"}})
    with pytest.raises(ConfigRefused, match="'read'.*two tools have this name"):
        read_config({"agent": {"workspace": True, "tools": ["some.module:read"]}})
