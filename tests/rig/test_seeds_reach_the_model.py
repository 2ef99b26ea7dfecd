"""What a model is shown is the fold of the kept turns, read a second way, and then the prompt."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from dsh_tasks import format as log_format
from dsh_tasks.client import Client
from dsh_tasks.provider import Registry, fork, fork_lite, spawn
from dsh_tasks.session import Session
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.factories import a_log
from tests.independent_fold import joined, kept_history, shown_request
from tests.rig_tools import Place, Rig

pytestmark = pytest.mark.rig

WINDOWS = (0, 1, 2, 5, 99)
PROVIDERS = {"spawn": 0, "fork": None, **{f"fork-lite-{n}": n for n in WINDOWS}}


@pytest.fixture
def place(make_place: Callable[[Registry], Place]) -> Place:
    return make_place(Registry([spawn(), fork(), *(fork_lite(f"fork-lite-{n}", n) for n in WINDOWS)]))


def packaged() -> Session:
    return log_format.parse((files("dsh_tasks.data") / "parent.session.v4.jsonl").read_bytes())


LOGS: dict[str, Callable[[], Session]] = {
    "the packaged log": packaged,
    "plain turns": lambda: a_log(turns=3),
    "no completed turn": lambda: a_log(turns=0, open_turn=True),
    "parallel tools and an open turn": lambda: a_log(turns=3, tools=4, open_turn=True),
    "an aborted turn": lambda: a_log(turns=3, tools=2, reasons={2: "aborted"}),
    "a compaction in the last turn": lambda: a_log(turns=5, compacted={5: 3}),
    "notices and reasoning": lambda: a_log(turns=3, notices=2, thinks=True),
    "a forked child": lambda: a_log(turns=4, inherited=2),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_request_is_the_fold_of_the_kept_turns_and_the_prompt(place: Place, name: str) -> None:
    parent = LOGS[name]()
    rows = [event.row() for event in parent.events]
    runs = {
        provider: place.client.start(provider, parent=parent, prompt=f"do this for {provider}")
        for provider in PROVIDERS
    }
    for provider, run in runs.items():
        done = run.result()
        assert done.task.status is Status.COMPLETED, done.task.detail
        (request,) = [r for r in place.model.requests if r.prompt.endswith(f"do this for {provider}")]
        prompt = ("user", f"do this for {provider}", (), "")
        expected = joined([*kept_history(rows, PROVIDERS[provider]), prompt])
        assert joined(shown_request(request.messages)) == expected, provider
    assert place.model.faults == []


def test_the_childs_log_is_a_session_file_that_our_reader_takes(place: Place, tmp_path: Path) -> None:
    run = place.client.start("fork", parent=packaged(), prompt="hello")
    run.result()
    session = place.client.session(run.id)
    path = tmp_path / "child.jsonl"
    log_format.write_file(session, path)
    again = log_format.read(path)
    assert again.events == session.events
    assert again.header.parent_session == "autumn-release"
    assert (again.header.is_seeded, again.header.delegation_depth) == (True, 1)


def test_facts_of_turn_one_of_the_last_turn_and_of_the_open_turn(
    rig: Rig, make_client: Callable[..., Client]
) -> None:
    """With a random noun and value, so that nothing but the history can know them."""
    first, last, open_one = ((f"noun{secrets.token_hex(3)}", secrets.token_hex(4)) for _ in range(3))
    parent = a_log(turns=3, facts=[first, ("other", "thing"), last], open_turn=True)
    opened = parent.events[-1].seq
    rows = [event.row() for event in parent.events]
    said = next(row for row in reversed(rows) if row["type"] == "user/message")
    said["data"]["content"][0]["text"] += f" The {open_one[0]} is {open_one[1]}."
    assert said["seq"] <= opened
    parent = log_format.parse(log_format.write(parent))
    rig.worker()
    client = make_client(rig.settings, registry=Registry([spawn(), fork(), fork_lite("lite", 1)]))
    knows = {
        "spawn": (False, False),
        "fork": (True, True),
        "lite": (False, True),
    }
    for provider, (knows_first, knows_last) in knows.items():
        for (noun, value), known in ((first, knows_first), (last, knows_last), (open_one, False)):
            text = client.start(provider, parent=parent, prompt=f"What is the {noun}?").result().text
            assert (value in text) == known, (provider, noun, text)
            assert known or "cannot know" in text
