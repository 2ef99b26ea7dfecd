"""The command line where no server is: seeds, usage, refusals, and the way out that each names."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from dsh_tasks import format as log_format
from dsh_tasks.store.fitness import (
    ServerFacts,
    durability_finding,
    eviction_finding,
    server_findings,
    version_finding,
)
from dsh_tasks.cli.supervisor import Kept, pause_after
from tests.cli_tools import Cli, InsideCli, bare_environment

PARENT = str(files("dsh_tasks.data") / "parent.session.v4.jsonl")
SOME_ID = "subagent-" + "0" * 32

VERBS = {
    "output": [SOME_ID],
    "wait": [SOME_ID],
    "list": [],
    "kill": [SOME_ID],
    "promote": [SOME_ID],
    "notices": ["--owner", "o"],
    "log": [SOME_ID],
    "start": ["--provider", "spawn", "--owner", "o", "hello"],
    "worker": [],
}


@pytest.fixture
def make_cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., InsideCli]:
    def make(**env: str) -> InsideCli:
        return InsideCli(bare_environment(tmp_path / "state", **env), monkeypatch=monkeypatch, capsys=capsys)

    return make


@pytest.fixture
def cli(make_cli: Callable[..., InsideCli]) -> InsideCli:
    return make_cli()


def error_of(cli: Cli, *arguments: str, code: int) -> dict[str, object]:
    """The error document, after the one line of the plain form was seen to say the same."""
    plain = cli(*arguments)
    assert plain.returncode == code, (plain.stdout, plain.stderr)
    assert plain.stdout == ""
    assert len(plain.stderr.splitlines()) == 1
    error = cli.json(*arguments, code=code)["error"]
    assert error["exit_code"] == code
    assert plain.stderr == f"dsh-tasks: {error['message']}\n"
    return error


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_server_a_verb_ends_with_5_and_names_the_way_out(cli: Cli, verb: str) -> None:
    error = error_of(cli, verb, *VERBS[verb], code=5)
    assert "dsh-tasks up" in error["message"]
    assert "DSH_TASKS_REDIS_URL" in error["message"]


@pytest.mark.parametrize("verb", ["output", "list", "start"])
def test_a_server_that_does_not_answer_ends_with_5_and_shows_no_password(
    make_cli: Callable[..., InsideCli], verb: str
) -> None:
    url = "redis://someone:verysecret@127.0.0.1:1/0"
    cli = make_cli(DSH_TASKS_REDIS_URL=url, DSH_TASKS_CALL_TIMEOUT_MS="500")
    done = cli(verb, *VERBS[verb])
    assert done.returncode == 5
    assert "verysecret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_ends_with_5_where_no_server_is_and_still_tells_the_rest(cli: Cli) -> None:
    report = cli.json("doctor", code=5)
    grades = {finding["check"]: finding["grade"] for finding in report["findings"]}
    assert grades["server"] == "fail"
    assert grades["providers"] == "ok"
    mend = next(finding["mend"] for finding in report["findings"] if finding["check"] == "server")
    assert "dsh-tasks up" in mend


def test_doctor_says_that_the_model_is_offline_and_how_to_set_one(cli: Cli) -> None:
    model = next(one for one in cli.json("doctor", code=5)["findings"] if one["check"] == "model")
    assert model["seen"].startswith("offline")
    assert "DSH_TASKS_MODEL" in model["mend"]


def test_doctor_names_what_is_wrong_in_the_settings_file(
    make_cli: Callable[..., InsideCli], tmp_path: Path
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[[tools]]\nprovider = "nobody"\n')
    cli = make_cli(DSH_TASKS_CONFIG=str(file))
    finding = next(one for one in cli.json("doctor", code=5)["findings"] if one["check"] == "settings file")
    assert finding["grade"] == "fail"
    assert "nobody" in finding["seen"]


USAGE = {
    "an unknown command": ["lst"],
    "an unknown option": ["list", "--nonsense"],
    "a missing argument": ["kill"],
    "a missing option": ["notices"],
    "a number that is none": ["output", SOME_ID, "--offset", "x"],
    "a negative number": ["output", SOME_ID, "--offset", "-1"],
    "two options that exclude each other": ["list", "--owner", "o", "--all"],
    "a depth that is no number": ["start", "--provider", "spawn", "--max-depth", "deep", "hello"],
    "Flower without a login": ["flower", "--port", "5555"],
    "a log level that is none": ["worker", "--loglevel", "loud"],
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE)
def test_wrong_usage_ends_with_2_and_one_line(cli: Cli, arguments: list[str]) -> None:
    assert "--help" in error_of(cli, *arguments, code=2)["message"]


def test_flower_says_how_to_set_a_login(cli: Cli) -> None:
    assert "FLOWER_BASIC_AUTH=user:password" in cli("flower", "--port", "5555").stderr


@pytest.mark.parametrize("login", ["nocolon", ":", "user:", ":password"])
def test_flower_refuses_a_login_that_protects_nothing(make_cli: Callable[..., InsideCli], login: str) -> None:
    cli = make_cli(FLOWER_BASIC_AUTH=login)
    done = cli("flower", "--port", "5555")
    assert done.returncode == 2
    assert "user:password" in done.stderr


@pytest.mark.parametrize(
    ("options", "turns"),
    [
        (["--provider", "spawn"], 0),
        (["--provider", "fork"], 3),
        (["--provider", "fork-lite"], 2),
        (["--provider", "fork-lite", "--turns", "0"], 0),
        (["--provider", "fork-lite", "--turns", "1"], 1),
        (["--provider", "fork-lite", "--turns", "99"], 3),
    ],
)
def test_seed_tells_what_a_child_would_inherit(cli: Cli, options: list[str], turns: int) -> None:
    seed = cli.json("seed", PARENT, *options)
    assert seed["turns"] == turns
    assert (seed["events"] > 0) == (turns > 0)
    assert (seed["raw_bytes"] > 0) == (turns > 0)


def test_seed_says_in_words_that_tokens_are_an_estimate(cli: Cli) -> None:
    done = cli("seed", PARENT, "--provider", "fork")
    assert done.returncode == 0
    assert "3 turns" in done.stdout
    assert "estimated" in done.stdout


def test_seed_writes_a_log_that_reads_back_as_a_child_of_the_parent(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "child.jsonl"
    told = cli.json("seed", PARENT, "--provider", "fork", "-o", str(out))
    child, parent = log_format.read(out), log_format.read(Path(PARENT))
    assert child.header.parent_session == parent.header.id
    assert child.header.is_seeded
    assert child.header.delegation_depth == 1
    assert len(child.events) == told["events"] + 1  # and the end-of-seed marker
    assert "swordfish" not in out.read_text()


REFUSED = {
    "no such provider": ["seed", PARENT, "--provider", "nobody"],
    "a window for a provider that has none": ["seed", PARENT, "--provider", "fork", "--turns", "1"],
    "no such file": ["seed", "/nonexistent/log.jsonl", "--provider", "fork"],
    "a folder that does not exist": ["seed", PARENT, "--provider", "fork", "-o", "/nonexistent/out.jsonl"],
    "no such schema": [
        "start",
        "--provider",
        "spawn",
        "--owner",
        "o",
        "--output-schema",
        "/nonexistent.json",
        "x",
    ],
}


@pytest.mark.parametrize("arguments", REFUSED.values(), ids=REFUSED)
def test_input_that_cannot_be_used_ends_with_6_and_one_line(cli: Cli, arguments: list[str]) -> None:
    error_of(cli, *arguments, code=6)


def test_a_log_that_is_none_ends_with_6_and_names_the_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("this is no session log\n")
    assert "line 1" in error_of(cli, "seed", str(file), "--provider", "fork", code=6)["message"]


def test_version_tells_the_parts(cli: Cli) -> None:
    assert {"python", "celery", "redis"} <= set(cli.json("version")["parts"])
    assert cli("version").stdout.startswith("dsh-tasks ")


def test_help_of_every_command_has_a_sentence_that_is_not_cut(cli: Cli) -> None:
    listed = cli("--help").stdout.split("Commands:")[1]
    assert "..." not in listed
    for command in ("up", "demo", "start", "seed", "output", "list", "kill", "notices", "log", "doctor"):
        assert command in listed


def test_an_unexpected_fault_is_one_line_with_the_way_to_more(make_cli: Callable[..., InsideCli]) -> None:
    cli = make_cli(DSH_TASKS_STATE_DIR="/dev/null/nowhere")
    done = cli("server", "--port", "1")
    assert done.returncode in (1, 6)
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


# -- rules behind the commands ------------------------------------------------------------------

FIT = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "aof_enabled": 1, "role": "master"}


def test_a_fit_server_gives_no_failure() -> None:
    assert {finding.grade for finding in server_findings(ServerFacts(FIT, "everysec"))} == {"ok"}


@pytest.mark.parametrize(
    ("wrong", "check", "mend"),
    [
        ({"redis_version": "6.2.14"}, "version", "7.0"),
        ({"cluster_enabled": 1}, "topology", "one primary"),
        ({"role": "slave"}, "topology", "primary"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy", "noeviction"),
        ({"aof_enabled": 0}, "appendonly", "appendonly yes"),
    ],
)
def test_an_unfit_server_fails_with_its_mend(wrong: dict[str, object], check: str, mend: str) -> None:
    failed = [one for one in server_findings(ServerFacts(FIT | wrong, "everysec")) if one.grade == "fail"]
    assert [one.check for one in failed] == [check]
    assert mend in failed[0].mend


@pytest.mark.parametrize(
    ("there", "asked", "grade", "says"),
    [
        (0, 0, "ok", "none"),
        (2, 0, "note", "a failover takes"),
        (2, 1, "ok", "1 of 2"),
        (1, 2, "fail", "connected are 1"),
    ],
)
def test_replicas_that_an_answer_waits_for_must_be_there(
    there: int, asked: int, grade: str, says: str
) -> None:
    found = {
        one.check: one
        for one in server_findings(ServerFacts(FIT | {"connected_slaves": there}, "everysec"), replicas=asked)
    }["replicas"]
    assert (found.grade, says in found.seen) == (grade, True)


@pytest.mark.parametrize(
    ("fsync", "grade", "loss"),
    [
        ("always", "ok", "nothing"),
        ("everysec", "ok", "two seconds"),
        ("no", "warning", "30 seconds"),
        (None, "warning", "unknown"),
    ],
)
def test_the_window_of_loss_follows_from_the_fsync(fsync: str | None, grade: str, loss: str) -> None:
    finding = durability_finding(FIT, fsync)
    assert (finding.grade, loss in finding.seen) == (grade, True)


def test_valkey_is_new_enough_whatever_redis_version_it_names() -> None:
    assert version_finding({"redis_version": "7.2.4", "valkey_version": "8.0.1"}).seen == "Valkey 8.0.1"


def test_an_unknown_eviction_policy_is_not_taken_for_a_good_one() -> None:
    assert eviction_finding({}).grade == "fail"


def test_the_pause_before_a_new_start_grows_and_is_bounded() -> None:
    pauses = [pause_after(failures) for failures in range(1, 12)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0


class Dead:
    """A process that has ended."""

    pid = 1

    def poll(self) -> int:
        return -9


def test_a_process_that_keeps_ending_is_started_again_with_growing_pauses() -> None:
    told: list[str] = []
    kept = Kept("worker 1", Dead, told.append)
    kept.begin(0.0)
    kept.look(1.0)
    kept.look(1.4)
    assert told == ["worker 1: started, pid 1", "worker 1: signal 9; starts again in 0.5 s"]
    kept.look(1.5)
    kept.look(1.6)
    assert told[2:] == ["worker 1: started, pid 1", "worker 1: signal 9; starts again in 1 s"]


def test_one_that_lived_long_begins_again_with_the_first_pause() -> None:
    told: list[str] = []
    kept = Kept("worker 1", Dead, told.append, failures=6)
    kept.begin(0.0)
    kept.look(100.0)
    assert told[-1].endswith("in 0.5 s")


def test_a_start_that_fails_is_tried_again() -> None:
    told: list[str] = []

    def start() -> Dead:
        if len(told) > 1:
            raise OSError("no memory")
        return Dead()

    kept = Kept("worker 1", start, told.append)
    kept.begin(0.0)
    kept.look(1.0)
    kept.look(2.0)
    assert told[-1] == "worker 1: did not start (OSError); starts again in 1 s"


@pytest.mark.parametrize("life", ["inf", "1e300"])
def test_a_life_without_an_end_is_refused_as_an_option(make_cli: Callable[..., InsideCli], life: str) -> None:
    cli = make_cli(DSH_TASKS_REDIS_URL="redis://127.0.0.1:1/0")
    error = error_of(cli, "start", "--provider", "spawn", "--owner", "o", "--deadline", life, "hello", code=6)
    assert error["code"] == "option_refused"
