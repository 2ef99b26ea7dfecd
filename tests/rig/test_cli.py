"""The command line against a real server and a real worker: exit codes, JSON, doctor, up."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from dsh_tasks import format as log_format
from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.store.locate import Running
from tests.cli_tools import COMMAND, Cli, alive, bare_environment, command_of, descendants
from tests.fork_server import ForkServer
from tests.rig_tools import Rig, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

PARENT = str(files("dsh_tasks.data") / "parent.session.v4.jsonl")
UNKNOWN = "subagent-" + "0" * 32
# What the offline model does (docs/offline-model.md).
LONG, SHORT, FAIL = "!wait 120", "!wait 1", "!fail told to"
DELEGATE = '!delegate subagent {"description": "below", "prompt": "hello"}'


@pytest.fixture
def cli(settings: Settings, tmp_path: Path, fork_server: ForkServer) -> Cli:
    return Cli(environment(settings, DSH_TASKS_STATE_DIR=str(tmp_path / "state")), fork_server)


@pytest.fixture(scope="module")
def working(
    server: embedded.Server, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Cli]:
    """With a worker, which the tests of this module share: each has an owner of its own."""
    name = secrets.token_hex(4)
    shared = Rig(
        Settings(redis_url=server.url, prefix=f"t{name}:", queue=f"q{name}"),
        tmp_path_factory.mktemp("rig"),
        fork_server,
    )
    shared.worker()
    yield Cli(environment(shared.settings, DSH_TASKS_STATE_DIR=str(shared.folder)), fork_server)
    shared.close()
    shared.audit()


def started(cli: Cli, prompt: str, *options: str, owner: str = "o") -> str:
    return str(cli.json("start", "--provider", "spawn", "--owner", owner, *options, prompt)["task_id"])


# -- exit codes ---------------------------------------------------------------------------------


def test_a_completed_child_ends_with_0(working: Cli) -> None:
    done = working(
        "start", "--provider", "fork", "--session", PARENT, "--foreground", "What is the codeword?"
    )
    assert done.returncode == 0, done.stderr
    assert "marmalade" in done.stdout
    assert done.stdout.splitlines()[-1] == "[status: completed]"


def test_a_failed_child_ends_with_1(working: Cli, owner: str) -> None:
    task_id = started(working, FAIL, owner=owner)
    assert working("output", task_id, "--wait").returncode == 1


def test_a_wait_for_several_ends_with_what_came_of_them(working: Cli, owner: str) -> None:
    good, bad = started(working, "hello", owner=owner), started(working, FAIL, owner=owner)
    long = started(working, LONG, owner=owner)
    assert working("wait", good, "--timeout", "30").returncode == 0
    assert working("wait", good, bad, "--timeout", "30").returncode == 1
    assert working("wait", good, long, "--any", "--timeout", "30").returncode == 0
    over = working("wait", good, long, "--timeout", "0.5")
    assert over.returncode == 7
    assert [line.split()[0] for line in over.stdout.splitlines()[:2]] == [good, long]
    assert "goes on" in over.stdout
    assert working("kill", long).returncode == 0
    seen = working.json("wait", good, long, "--timeout", "30", code=8)
    assert [task["status"] for task in seen["ended"]] == ["completed", "killed"]
    assert (seen["live"], seen["timed_out"], seen["wait_capped"]) == ([], False, False)
    assert working("wait", good, UNKNOWN).returncode == 3
    assert working("wait").returncode == 2


def test_an_unknown_id_and_a_strangers_id_end_with_3_and_read_the_same(cli: Cli) -> None:
    task_id = started(cli, "hello", owner="mine")
    for verb in ("output", "wait", "kill", "log"):
        unknown, foreign = cli(verb, UNKNOWN, "--owner", "me"), cli(verb, task_id, "--owner", "stranger")
        assert (unknown.returncode, foreign.returncode) == (3, 3)
        assert foreign.stderr.replace(task_id, UNKNOWN) == unknown.stderr


def test_a_limit_that_refuses_ends_with_4_and_names_itself(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    cli = Cli(environment(make_settings(live_per_owner=1), DSH_TASKS_STATE_DIR=str(tmp_path)))
    started(cli, "hello")
    error = cli.json("start", "--provider", "spawn", "--owner", "o", "hello", code=4)["error"]
    assert "live" in error["facts"]["limit"]
    assert error["facts"]["cap"] == 1


def test_another_call_under_a_used_key_ends_with_6(cli: Cli) -> None:
    first = cli.json("start", "--provider", "spawn", "--owner", "o", "--key", "k", "hello")
    again = cli.json("start", "--provider", "spawn", "--owner", "o", "--key", "k", "hello")
    assert (again["task_id"], again["repeated"]) == (first["task_id"], True)
    error = cli.json("start", "--provider", "spawn", "--owner", "o", "--key", "k", "bye", code=6)["error"]
    assert error["code"] == "key_conflict"


def test_a_task_that_waits_for_a_worker_reads_as_7(cli: Cli) -> None:
    task_id = started(cli, "hello")
    done = cli("output", task_id)
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["No output yet.", "[status: queued]"]


def test_a_wait_that_times_out_ends_with_7_and_says_so(cli: Cli) -> None:
    task_id = started(cli, "hello")
    done = cli("output", task_id, "--wait", "--timeout-ms", "300")
    assert done.returncode == 7
    assert "it goes on" in done.stdout
    assert cli.json("output", task_id, "--wait", "--timeout-ms", "300", code=7)["timed_out"] is True


def test_a_killed_child_ends_with_8_and_keeps_the_reason(working: Cli, owner: str) -> None:
    task_id = started(working, LONG, owner=owner)
    wait_until(lambda: working("output", task_id).stdout.endswith("[status: running]\n"), "it runs")
    receipt = working.json("kill", task_id, "--reason", "enough of it")
    assert receipt["accepted"] is True
    assert [one["task_id"] for one in receipt["took"]] == [task_id]
    done = working("output", task_id, "--wait")
    assert done.returncode == 8
    assert "enough of it" in done.stdout.splitlines()[-1]


def test_killing_what_has_ended_changes_nothing_and_says_so(cli: Cli) -> None:
    task_id = started(cli, "hello")
    assert cli("kill", task_id).returncode == 0
    again = cli("kill", task_id)
    assert again.returncode == 0
    assert "already ended" in again.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_a_foreground_wait_kills_the_child_and_ends_with_130(
    working: Cli, owner: str, tmp_path: Path, number: int
) -> None:
    arguments = ("start", "--provider", "spawn", "--owner", owner, "--foreground", LONG)
    with working.running(*arguments, folder=tmp_path) as waiting:
        waiting.await_words("running")
        assert waiting.end(number) == 130
    (task,) = working.json("list", "--owner", owner)["tasks"]
    assert task["status"] == "killed"


def test_interrupting_a_wait_for_output_leaves_the_child_alone(
    working: Cli, owner: str, tmp_path: Path
) -> None:
    task_id = started(working, LONG, owner=owner)
    with working.running("output", task_id, "--wait", folder=tmp_path) as waiting:
        waiting.await_words("waiting for")
        assert waiting.end(signal.SIGINT) == 130
    assert working.json("output", task_id, code=7)["task"]["status"] == "running"
    working("kill", task_id)


# -- what the verbs print -----------------------------------------------------------------------


def test_list_shows_a_tree_and_its_json_all_of_the_record(working: Cli, owner: str) -> None:
    task_id = started(working, DELEGATE, "--label", "above", owner=owner)
    assert working("output", task_id, "--wait").returncode == 0
    tasks = working.json("list", "--owner", owner)["tasks"]
    assert [(task["depth"], task["parent"]) for task in tasks] == [(1, None), (2, task_id)]
    lines = working("list", "--owner", owner).stdout.splitlines()
    assert lines[0].startswith(f"{task_id} [spawn] completed — above (depth 1, ")
    assert lines[1].startswith("  subagent-")
    assert len(working("list", "--owner", owner, "--flat").stdout.splitlines()) == 1


def test_the_operator_lists_every_session_and_an_owner_only_its_own(cli: Cli) -> None:
    first, second = started(cli, "hello", owner="a"), started(cli, "hello", owner="b")
    assert {task["id"] for task in cli.json("list")["tasks"]} == {first, second}
    assert {task["id"] for task in cli.json("list", "--all")["tasks"]} == {first, second}
    assert [task["id"] for task in cli.json("list", "--owner", "b")["tasks"]] == [second]


def test_an_owners_look_holds_its_notice_back_and_the_operators_does_not(working: Cli, owner: str) -> None:
    task_id = started(working, "hello", owner=owner)
    working("output", task_id, "--wait")
    assert [one["task_id"] for one in working.json("notices", "--owner", owner)["notices"]] == [task_id]
    working("output", task_id, "--owner", owner)
    assert working.json("notices", "--owner", owner)["notices"] == []


def test_an_acknowledged_notice_is_gone(working: Cli, owner: str) -> None:
    task_id = started(working, "hello", "--label", "greeting", owner=owner)
    working("output", task_id, "--wait")
    shown = working("notices", "--owner", owner, "--ack")
    assert task_id in shown.stdout
    assert "greeting" in shown.stdout
    assert working("notices", "--owner", owner).stdout == ""


def test_an_audit_ends_with_0_where_all_fits_and_with_1_where_a_key_does_not(
    cli: Cli, settings: Settings
) -> None:
    assert started(cli, "hello")
    whole = cli("audit")
    assert (whole.returncode, whole.stdout.splitlines()[-1].partition(";")[2]) == (0, " 1 task: 1 queued")
    assert cli.json("audit")["ok"] is True
    with redis.Redis.from_url(settings.redis_url or "") as server:
        server.set(f"{settings.prefix}stray", "x")
    torn = cli("audit")
    assert (torn.returncode, torn.stdout.splitlines()[0]) == (
        1,
        f"{settings.prefix}stray: is of no known kind; should be one of the keys of this installation",
    )
    told = cli.json("audit", code=1)
    assert (told["ok"], told["fault_count"]) == (False, 1)
    assert [fault["key"] for fault in told["faults"]] == [f"{settings.prefix}stray"]


def test_what_a_tree_used_is_summed_up_and_listed(working: Cli, owner: str) -> None:
    task_id = started(working, "!say hello", owner=owner)
    working("output", task_id, "--wait")
    tree = working.json("usage", owner)
    (task,) = working.json("list", "--owner", owner)["tasks"]
    assert tree == task["usage"]
    assert (tree["model_calls"], tree["cost_usd"], tree["unpriced_calls"]) == (1, 0.0, 0)
    assert working("usage", owner).stdout.splitlines()[0] == "1 model call"
    assert "tokens, $0.0000" in working("list", "--owner", owner).stdout


def test_prune_removes_an_ending_once_its_owner_knows(working: Cli, owner: str) -> None:
    task_id = started(working, "hello", owner=owner)
    working("output", task_id, "--wait")
    assert working.json("prune", "--older-than", "0s")["notice"] >= 1
    assert working("output", task_id).returncode == 0
    working("notices", "--owner", owner, "--ack")
    assert working.json("prune", "--older-than", "1d").get("forgotten", 0) == 0
    assert working.json("prune", "--older-than", "0s")["forgotten"] >= 1
    assert working("output", task_id).returncode == 3
    assert working("prune", "--older-than", "soon").returncode == 2


def test_long_output_pages_by_offset_to_the_same_text(
    make_settings: Callable[..., Settings], make_rig: Callable[[Settings], Rig], tmp_path: Path
) -> None:
    settings = make_settings(output_read_bytes=256)
    make_rig(settings).worker()
    cli = Cli(environment(settings, DSH_TASKS_STATE_DIR=str(tmp_path)))
    task_id = started(cli, "hello " + "äöü€𝄞 " * 200)
    assert cli("output", task_id, "--wait").returncode == 0
    whole = cli.json("output", task_id, "--whole")
    assert whole["next_offset"] is None
    pages, offset = [], 0
    while offset is not None:
        page = cli.json("output", task_id, "--offset", str(offset))
        pages.append(page["output"])
        offset = page["next_offset"]
    assert "".join(pages) == whole["output"]


def test_log_shows_the_childs_own_rows_and_writes_a_file_that_reads_back(
    working: Cli, tmp_path: Path
) -> None:
    task_id = working.json("start", "--provider", "fork", "--session", PARENT, "hello")["task_id"]
    working("output", task_id, "--wait")
    out = tmp_path / "child.jsonl"
    assert working("log", task_id, "-o", str(out)).returncode == 0
    child = log_format.read(out)
    assert child.header.id == task_id
    shown = working("log", task_id).stdout
    assert "inherited rows, not shown" in shown
    assert "turn/end: completed" in shown
    assert "marmalade" not in shown
    document = working.json("log", task_id)
    assert len(document["rows"]) == len(child.events)


def test_log_follows_a_child_to_its_end(working: Cli, owner: str, tmp_path: Path) -> None:
    task_id = started(working, SHORT, owner=owner)
    with working.running("log", task_id, "--follow", "--json", folder=tmp_path) as following:
        assert following.wait() == 0
        assert '"turn/end"' in following.lines[-1]
        rows = [json.loads(line) for line in following.lines]
    assert [row["seq"] for row in rows] == list(range(len(rows)))


def test_a_prompt_comes_from_stdin_verbatim(working: Cli, owner: str) -> None:
    done = working("start", "--provider", "spawn", "--owner", owner, "--foreground", "-", stdin="  hello\n\n")
    assert done.returncode == 0
    (task,) = working.json("list", "--owner", owner)["tasks"]
    rows = working.json("log", task["id"])["rows"]
    texts = [row["data"]["content"][0]["text"] for row in rows if row["type"] == "user/message"]
    assert "  hello\n\n" in texts


def test_a_window_given_at_the_start_is_the_seed_of_that_child_only(working: Cli) -> None:
    options = ("--provider", "fork-lite", "--session", PARENT)
    one = working.json("start", *options, "--turns", "1", "hello")["task_id"]
    stock = working.json("start", *options, "hello")["task_id"]
    turns = {task["id"]: task["seed_turns"] for task in working.json("list")["tasks"]}
    assert (turns[one], turns[stock]) == (1, 2)


def test_policy_options_reach_the_record(cli: Cli, client: Client, tmp_path: Path, owner: str) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    options = [
        *("--persona", "a pirate", "--model", "m", "--model-provider", "p", "--max-tokens", "7"),
        *("--allow", "subagent", "--allow", "task_list", "--deny", "task_kill"),
        *("--max-depth", "2", "--output-schema", str(schema), "--engine", "agent"),
    ]
    task_id = started(cli, "hello", *options, owner=owner)
    assert client.task(task_id).engine == "agent"
    policy = json.loads(client.call(_policy_of(client, task_id)))
    assert policy["persona"] == "a pirate"
    assert policy["agent_options"] == {"provider": "p", "model": "m", "maxTokens": 7}
    assert policy["tool_filter"] == {"allow": ["subagent", "task_list"], "deny": ["task_kill"]}
    assert policy["max_depth"] == 2
    assert policy["output_schema"]["type"] == "object"


async def _policy_of(client: Client, task_id: str) -> str:
    return (await client._client.store.read(task_id, caller="")).record.policy


def test_a_reader_that_goes_away_ends_the_command_quietly(cli: Cli) -> None:
    started(cli, "hello")
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(COMMAND)} list --json > >(exec true)"],
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


# -- doctor -------------------------------------------------------------------------------------


def test_doctor_finds_nothing_to_mend_with_server_and_worker(working: Cli) -> None:
    report = working.json("doctor")
    assert report["ok"] is True
    grades = {finding["check"]: finding["grade"] for finding in report["findings"]}
    assert {grades[check] for check in ("server", "version", "topology", "scripts", "queue", "workers")} == {
        "ok"
    }
    assert working("doctor").stdout.splitlines()[-1] == "nothing fails"


def test_doctor_without_a_worker_fails_and_says_how_to_start_one(cli: Cli) -> None:
    finding = next(one for one in cli.json("doctor", code=1)["findings"] if one["check"] == "workers")
    assert finding["grade"] == "fail"
    assert "dsh-tasks worker" in finding["mend"]


def test_doctor_names_the_mend_of_a_server_that_evicts_and_forgets(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    unfit = embedded.start()
    try:
        settings = make_settings(redis_url=unfit.url)
        cli = Cli(environment(settings, DSH_TASKS_STATE_DIR=str(tmp_path)))
        with redis.Redis(port=unfit.port) as connection:
            connection.config_set("maxmemory-policy", "allkeys-lru")
            connection.config_set("appendonly", "no")
        done = cli("doctor")
        report = cli.json("doctor", code=1)
    finally:
        unfit.stop()
    mends = {one["check"]: one["mend"] for one in report["findings"] if one["grade"] == "fail"}
    assert "noeviction" in mends["maxmemory-policy"]
    assert "appendonly yes" in mends["appendonly"]
    assert "CONFIG SET maxmemory-policy noeviction" in done.stdout


# -- server, up ---------------------------------------------------------------------------------


def test_server_runs_in_the_foreground_and_ends_on_sigterm(tmp_path: Path) -> None:
    cli = Cli(bare_environment(tmp_path / "state"))
    port = str(embedded.free_port())
    with cli.running("server", "--port", port, "--dir", str(tmp_path / "data"), folder=tmp_path) as server:
        url = f"redis://127.0.0.1:{port}/0"
        there = Cli(cli.env | {"DSH_TASKS_REDIS_URL": url})
        wait_until(lambda: there("list").returncode == 0, "the server answers")
        again = cli("server", "--port", port, "--dir", str(tmp_path / "other"))
        assert again.returncode == 6
        assert "another process listens" in again.stderr
        assert server.end() == 0


@pytest.fixture
def up(tmp_path: Path, fork_server: ForkServer) -> Cli:
    return Cli(bare_environment(tmp_path / "state"), fork_server)


def server_of(cli: Cli) -> Running:
    state = json.loads(Path(cli.env["DSH_TASKS_STATE_DIR"], "server.json").read_text())
    return Running(**state)


def worker_pid(up_pid: int) -> int | None:
    """The worker below `up`, once it has become one."""
    found = [
        pid
        for pid in descendants(up_pid)
        if "-m workers" in command_of(pid) and "tether" not in command_of(pid)
    ]
    return found[0] if found else None


def test_up_is_found_by_other_commands_and_leaves_nothing_on_sigterm(up: Cli, tmp_path: Path) -> None:
    with up.running("up", "--concurrency", "4", folder=tmp_path) as running:
        running.await_words("ready:")
        file = Path(up.env["DSH_TASKS_STATE_DIR"], "server.json")
        assert file.stat().st_mode & 0o777 == 0o600
        done = up("start", "--provider", "fork", "--session", PARENT, "--foreground", "What is the codeword?")
        assert (done.returncode, "marmalade" in done.stdout) == (0, True), done.stderr
        assert up.json("doctor")["ok"] is True
        below = descendants(running.process.pid)
        assert len(below) >= 2
        assert running.end() == 0
        assert alive(below) == set()
        assert not file.exists()
    assert up("list").returncode == 5


def test_what_up_held_is_there_after_a_restart(up: Cli, tmp_path: Path) -> None:
    with up.running("up", "--concurrency", "4", folder=tmp_path) as running:
        running.await_words("ready:")
        task_id = started(up, "hello")
        assert up("output", task_id, "--wait").returncode == 0
        assert running.end() == 0
    with up.running("up", "--concurrency", "4", folder=tmp_path) as running:
        running.await_words("ready:")
        assert up("output", task_id).returncode == 0
        assert running.end() == 0


def test_up_starts_a_killed_worker_again(up: Cli, tmp_path: Path) -> None:
    with up.running("up", "--concurrency", "4", folder=tmp_path) as running:
        running.await_words("ready:")
        first = worker_pid(running.process.pid)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        running.await_words("worker 1: signal 9; starts again in 0.5 s")
        wait_until(lambda: worker_pid(running.process.pid) not in (None, first), "another worker runs")
        task_id = started(up, "hello")
        assert up("output", task_id, "--wait").returncode == 0
        assert running.end() == 0


def test_up_that_is_killed_takes_server_and_workers_with_it(up: Cli, tmp_path: Path) -> None:
    with up.running("up", "--concurrency", "4", folder=tmp_path) as running:
        running.await_words("ready:")
        below = descendants(running.process.pid)
        running.process.kill()
        running.wait()
        wait_until(lambda: not alive(below), "server and worker have ended")
    assert up("list").returncode == 5


def test_a_second_up_is_refused_with_the_first_ones_pid(up: Cli, tmp_path: Path) -> None:
    with up.running("up", "--concurrency", "4", folder=tmp_path) as running:
        running.await_words("ready:")
        second = up("up")
        assert second.returncode == 6
        assert f"pid {running.process.pid}" in second.stderr
        assert len(second.stderr.splitlines()) == 1
        assert running.end() == 0


def test_up_with_a_server_given_starts_only_workers(cli: Cli, tmp_path: Path) -> None:
    with cli.running("up", "--concurrency", "4", "--json", folder=tmp_path) as running:
        assert list(running.document()["processes"]) == ["worker 1"]
        task_id = started(cli, "hello")
        assert cli("output", task_id, "--wait").returncode == 0
        assert running.end() == 0
