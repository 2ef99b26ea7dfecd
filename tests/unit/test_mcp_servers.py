"""Tools of MCP servers: real servers, one process per child, over stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsh_tasks.config import load_config, read_config
from dsh_tasks.errors import ConfigRefused, McpServerFailed
from dsh_tasks.settings import Settings
from dsh_tasks.task import Outcome, Status
from tests.fake_run import FakeRun, a_child, a_tool, play, run_child
from tests.rig_tools import ROOT
from tests.unit.test_tool_process import is_alive, until
from tests.waiting import wait_until
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.mcp_file import McpServer, load_servers
from workers.engines.agent.mcp_servers import tools_of
from workers.engines.base import StopReason

TOOLS = ["add", "counted", "fails", "large", "leaves", "picture", "waits", "where"]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def notes(ledger: Path, kind: str) -> list[list[str]]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [line.split()[1:] for line in lines if line.split()[0] == kind]


def stdio(ledger: Path, name: str = "notes", **more: Any) -> McpServer:
    env = {"PYTHONPATH": str(ROOT)}
    return McpServer(
        name, command=sys.executable, args=("-m", "tests.mcp_server", str(ledger)), env=env, **more
    )


def an_engine(*servers: McpServer, **more: Any) -> AgentEngine:
    return AgentEngine(mcp_servers=servers, **more)


def result(run: FakeRun, place: int = -1) -> tuple[str, bool]:
    message = run.row("tool/result", place)["message"]
    return message["content"][0]["text"], message.get("isError", False)


def shown(run: FakeRun) -> list[str]:
    return [tool["name"] for tool in run.row("request/header")["header"]["tools"]]


def test_a_child_calls_the_tools_of_a_server(ledger: Path) -> None:
    outcome, run = run_child(an_engine(stdio(ledger)), a_child('!call notes_add {"a": 2, "b": 3}'))
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "notes_add said: 5")
    assert shown(run) == [f"notes_{name}" for name in TOOLS]
    assert all(not is_alive(int(pid)) for (pid,) in notes(ledger, "started"))


def test_results_become_text_within_the_cap_and_faults_go_back_to_the_model(ledger: Path) -> None:
    calls = [
        {"tool": "notes_large", "arguments": {"size": 9_000}},
        {"tool": "notes_picture"},
        {"tool": "notes_fails"},
        {"tool": "notes_add", "arguments": {"a": "two"}},
    ]
    outcome, run = run_child(
        an_engine(stdio(ledger), result_bytes=2_048),
        a_child("\n".join(f"!calls {json.dumps([c])}" for c in calls)),
    )
    assert outcome.status is Status.COMPLETED
    large, picture, fails, misfit = (result(run, place) for place in range(4))
    assert len(large[0]) <= 2_048
    assert large[0].endswith("of 9000 bytes shown]")
    assert picture == ("look\n[image image/png, 6 bytes, is not shown here]", False)
    assert "Error executing tool fails" in fails[0]
    assert fails[1]
    assert misfit[1]


def test_bytes_that_are_no_text_hold_no_call() -> None:
    """Its reader used to end there: this call and all later ones ran to their timeout."""
    raw = McpServer(
        "raw", command=sys.executable, args=("-m", "tests.raw_mcp_server"), env={"PYTHONPATH": str(ROOT)}
    )
    _, run = run_child(an_engine(raw, mcp_call_timeout_ms=5_000), a_child("!call raw_noise\n!call raw_noise"))
    assert [result(run, place) for place in range(2)] == [("after the noise", False)] * 2


def test_the_number_of_tools_is_bounded_on_the_first_page_too() -> None:
    page = SimpleNamespace(tools=[SimpleNamespace(name=f"t{n}") for n in range(1_001)], next_cursor=None)

    class Client:
        async def list_tools(self, *, cursor: str | None) -> SimpleNamespace:
            return page

    with pytest.raises(McpServerFailed, match="more than 1000 tools"):
        asyncio.run(tools_of(Client(), McpServer("many", command="x")))


def test_each_child_has_a_server_of_its_own_and_the_same_tools(ledger: Path) -> None:
    engine = an_engine(stdio(ledger))

    async def both() -> list[FakeRun]:
        runs = [FakeRun(a_child("!call notes_counted\n!call notes_counted")) for _ in range(2)]
        await asyncio.gather(*(play(engine, run) for run in runs))
        return runs

    first, second = asyncio.run(both())
    assert [result(run, place)[0].split()[0] for run in (first, second) for place in (0, 1)] == ["1", "2"] * 2
    assert first.row("request/header") == second.row("request/header")
    # One to ask for the tools, one for each child.
    assert len(notes(ledger, "started")) == 3


def test_a_child_that_calls_none_of_its_tools_starts_no_server(ledger: Path) -> None:
    engine = an_engine(stdio(ledger))

    async def two() -> None:
        for _ in range(2):
            await play(engine, FakeRun(a_child("hello")))

    asyncio.run(two())
    assert len(notes(ledger, "started")) == 1


def test_a_server_works_in_the_childs_folder_and_sees_no_secret(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("DSH_TASKS_REDIS_URL", "canary")
    _, run = run_child(an_engine(stdio(ledger)), a_child("!call notes_where", working_folder=str(tmp_path)))
    said = result(run)[0]
    assert said.startswith(f"{tmp_path} ")
    assert "OPENAI" not in said
    assert "DSH_TASKS" not in said


def test_a_server_that_ends_in_a_call_is_started_again_for_the_next(ledger: Path) -> None:
    outcome, run = run_child(
        an_engine(stdio(ledger)), a_child('!call notes_leaves\n!call notes_add {"a": 1, "b": 1}')
    )
    assert result(run, 0) == ("Error: the MCP server 'notes' has ended", True)
    assert result(run, 1) == ("2", False)
    assert outcome.status is Status.COMPLETED


@pytest.mark.parametrize(
    "server",
    [
        McpServer("broken", command="/no/such/command"),
        McpServer("broken", command=sys.executable, args=("-c", "raise SystemExit(3)")),
        McpServer("broken", url="http://127.0.0.1:9/mcp"),
    ],
)
def test_a_server_that_does_not_start_fails_the_child_by_name_before_any_model_call(
    server: McpServer,
) -> None:
    outcome, run = run_child(an_engine(server), a_child("hello"))
    assert outcome.status is Status.FAILED
    assert outcome.detail.startswith("MCP server 'broken': ")
    assert run.activities == []
    assert run.session.events[-1].data["reason"]["error"]["code"] == "mcp_server_failed"


@pytest.mark.parametrize("reason", [StopReason.KILL, StopReason.HAND_BACK])
def test_a_stopped_child_cancels_its_call_and_takes_its_server_along(
    reason: StopReason, ledger: Path
) -> None:
    run = FakeRun(a_child("!call notes_waits"))

    async def stopped() -> tuple[Outcome | None, float]:
        engine = an_engine(stdio(ledger))
        run.task = asyncio.ensure_future(engine.run(run))
        await until(lambda: notes(ledger, "waits"), "the call runs")
        at = time.monotonic()
        run.stop(reason)
        try:
            return await run.task, time.monotonic() - at
        except asyncio.CancelledError:
            return None, time.monotonic() - at

    outcome, seconds = asyncio.run(stopped())
    assert (outcome is not None) is (reason is StopReason.KILL)
    assert seconds < 5
    ((server, sleeper),) = notes(ledger, "waits")
    assert not is_alive(int(server))
    assert not is_alive(int(sleeper))
    assert notes(ledger, "cancelled") == [[]]


def test_a_call_that_takes_too_long_is_cancelled_at_the_server(ledger: Path) -> None:
    engine = an_engine(stdio(ledger), mcp_call_timeout_ms=1_000)
    _, run = run_child(engine, a_child("!call notes_waits"))
    assert result(run) == ("Error: waits took longer than 1000 ms and was cancelled", True)
    assert notes(ledger, "cancelled") == [[]]


WORKER = """
import asyncio, sys
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.mcp_file import McpServer
from tests.fake_run import FakeRun, a_child, play
server = McpServer("notes", command=sys.executable, args=("-m", "tests.mcp_server", sys.argv[1]),
                   env={"PYTHONPATH": sys.argv[2]})
asyncio.run(play(AgentEngine(mcp_servers=[server]), FakeRun(a_child("!call notes_waits"))))
"""


def test_a_server_ends_with_a_worker_that_is_killed(ledger: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(ledger), str(ROOT)], cwd=ROOT)
    wait_until(lambda: notes(ledger, "waits"), "the call runs")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    pids = [int(pid) for pid in notes(ledger, "waits")[0]]
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "server and sleeper ended", within_s=10)


@pytest.fixture
def http_server(ledger: Path) -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-m", "tests.mcp_server", str(ledger), "http"], cwd=ROOT)
    try:
        ((port,),) = wait_until(lambda: notes(ledger, "port"), "the server listens")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def test_a_server_over_http_is_the_same(http_server: str) -> None:
    server = McpServer("notes", url=http_server, headers={"x-key": "k"})
    outcome, run = run_child(
        an_engine(server), a_child('!call notes_add {"a": 2, "b": 3}\n!call notes_fails')
    )
    assert outcome.status is Status.COMPLETED
    assert result(run, 0) == ("5", False)
    assert result(run, 1)[1]
    assert shown(run) == [f"notes_{name}" for name in TOOLS]


def test_two_tools_of_one_name_are_refused(ledger: Path) -> None:
    outcome, _ = run_child(an_engine(stdio(ledger)), a_child("hello"), [a_tool("notes_add")])
    assert outcome.status is Status.FAILED
    assert "'notes_add': two tools have this name" in outcome.detail


def test_a_filter_narrows_them_too(ledger: Path) -> None:
    child = a_child("!call notes_counted", tool_filter={"allow": ["notes_add"]})
    _, run = run_child(an_engine(stdio(ledger)), child)
    assert shown(run) == ["notes_add"]
    assert result(run) == ("Error: unknown tool 'notes_counted'", True)


def test_nothing_of_mcp_is_imported_where_none_is_configured() -> None:
    program = "import sys, workers.engines.agent.engine as e; e.AgentEngine(); print('mcp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


# -- the file ----------------------------------------------------------------------------------------


def written(tmp_path: Path, entries: object) -> str:
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return str(path)


def test_the_standard_file_is_read_with_variables_filled_in(tmp_path: Path) -> None:
    entries = {
        "web": {"type": "http", "url": "https://${HOST}/mcp", "headers": {"Authorization": "Bearer ${KEY}"}},
        "files": {
            "command": "npx",
            "args": ["-y", "${PACKAGE:-files}"],
            "env": {"A": "${KEY}"},
            "disabled": False,
        },
    }
    read = load_servers(written(tmp_path, entries), {"HOST": "h", "KEY": "k"})
    assert read == (
        McpServer("files", command="npx", args=("-y", "files"), env={"A": "k"}),
        McpServer("web", url="https://h/mcp", headers={"Authorization": "Bearer k"}),
    )
    assert "Bearer" not in repr(read)


@pytest.mark.parametrize(
    ("entries", "where"),
    [
        ([], "has no table 'mcpServers'"),
        ({"a b": {"command": "x"}}, "'agent.mcpServers.a b'"),
        ({"a": {}}, "names a command or a url"),
        ({"a": {"command": "x", "url": "http://h"}}, "names a command or a url"),
        ({"a": {"command": ""}}, "'agent.mcpServers.a.command': is empty"),
        ({"a": {"command": "x", "args": "y"}}, "'agent.mcpServers.a.args'"),
        ({"a": {"command": "x", "env": {"A": 1}}}, "'agent.mcpServers.a.env.A'"),
        ({"a": {"command": "${NOPE}"}}, "no variable 'NOPE'"),
        ({"a": {"url": "ftp://h"}}, "'agent.mcpServers.a.url'"),
        ({"a": {"type": "sse", "url": "http://h"}}, "'agent.mcpServers.a.type'"),
    ],
)
def test_a_fault_in_the_file_is_refused_by_its_place(entries: object, where: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match=re.escape(where)):
        load_servers(written(tmp_path, entries), {})


def test_the_path_is_relative_to_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "dsh.toml").write_text('[agent]\nmcpServers = "servers.json"\n')
    config = load_config(tmp_path / "dsh.toml", settings=Settings())
    assert config.agent.mcp_servers == str(tmp_path / "servers.json")
    assert config.tool_names is None
    assert read_config({}).tool_names is not None
