"""P23. Ownership and tool filters hold at every level (goclaw#1525, hermes#108413, opencode#33223, agentao#255).

Messages, continued children and a set that a parent narrows later wait for their issue.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_tasks.client import Client, Start
from dsh_tasks.config import load_config
from dsh_tasks.errors import DshTasksError, OptionRefused, TaskNotFound
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.model_server import ModelServer, Reply, Request
from tests.prompts import delegating, waiting
from tests.rig_tools import Rig, by_tool
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

READERS = {"allow": ["read", "subagent"]}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def with_ceiling(
    make_settings: Callable[..., Settings], tmp_path: Path, work: Path
) -> Callable[[str], Settings]:
    """Settings of an installation whose `subagent` asks `write` for its children."""

    def made(ceiling: str) -> Settings:
        config = tmp_path / "dsh-tasks.toml"
        config.write_text(
            f'[agent.workspace]\nfolder = "{work}"\n'
            '[[tools]]\nprovider = "spawn"\ntoolFilter = {allow = ["write"]}\n'
            '[[tools]]\nprovider = "spawn"\ntoolName = "free"\n'
        )
        return make_settings(config=str(config), tool_ceiling=ceiling, live_per_owner=1_000)

    return made


def shown(client: Client, task_id: str) -> list[str]:
    """The tools that a child's model was shown last."""
    headers = [row for row in client.session(task_id).events if row.type == "request/header"]
    return [tool["name"] for tool in headers[-1].data["header"].get("tools", ())]


def results(client: Client, task_id: str) -> list[str]:
    rows = [row for row in client.session(task_id).events if row.type == "tool/result"]
    return [row.data["message"]["content"][0]["text"] for row in rows]


# -- filters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", ["parent", "none"])
def test_a_grandchild_gets_no_more_than_its_parent_where_the_operator_says_so(
    ceiling: str,
    with_ceiling: Callable[[str], Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    work: Path,
    owner: str,
) -> None:
    settings = with_ceiling(ceiling)
    make_rig(settings).worker()
    client = make_client(settings, owner=owner)
    invented = "!call write " + json.dumps({"path": "grandchild", "content": "x"})
    done = client.start("spawn", prompt=delegating(invented), tool_filter=READERS).result()
    assert done.task.status is Status.COMPLETED, done.task.detail
    child, grandchild = (task.id for task in client.list_tasks())
    assert shown(client, child) == ["read", "subagent"]
    if ceiling == "parent":
        assert shown(client, grandchild) == []
        assert results(client, grandchild) == ["Error: unknown tool 'write'"]
        assert not (work / "grandchild").exists()
    else:
        assert shown(client, grandchild) == ["write"]
        assert results(client, grandchild) == ["wrote 1 bytes to 'grandchild'"]
        assert (work / "grandchild").read_text() == "x"


def test_a_ceiling_reaches_through_a_child_without_a_filter(
    with_ceiling: Callable[[str], Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    owner: str,
) -> None:
    settings = with_ceiling("parent")
    make_rig(settings).worker(concurrency=1)
    client = make_client(settings, owner=owner)
    deep = "!say hello"
    for _ in range(2):
        deep = "!delegate free " + json.dumps({"description": "below", "prompt": deep})
    allowed = {"deny": ["write", "shell", "edit"]}
    assert client.start("spawn", prompt=deep, tool_filter=allowed).result().task.status is Status.COMPLETED
    sets = [shown(client, task.id) for task in client.list_tasks()]
    assert len(sets) == 3
    assert sets[0] == sets[1] == sets[2]
    assert sets[0][:3] == ["read", "list", "search"]


def test_children_of_different_filters_on_one_worker_do_not_mix(
    with_ceiling: Callable[[str], Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    work: Path,
    owner: str,
) -> None:
    sets = {"reads": ["read"], "writes": ["write"]}
    other = {"reads": ("write", {"path": "x", "content": "x"}), "writes": ("read", {"path": "x"})}

    def answer(request: Request) -> Reply:
        return Reply() if request.results else Reply(tools=[other[request.prompt.split()[0]]])

    settings = with_ceiling("parent")
    with ModelServer(answer) as model:
        make_rig(settings).worker(concurrency=40, **model.environment)
        client = make_client(settings, owner=owner)
        kinds = ["reads", "writes"] * 100
        starts = [
            Start(provider="spawn", prompt=f"{kind} {n}", tool_filter={"allow": sets[kind]})
            for n, kind in enumerate(kinds)
        ]
        runs = client.start_many(starts)
        for run in runs:
            assert not isinstance(run, DshTasksError)
            assert run.result().task.status is Status.COMPLETED
        assert len(model.requests) == 400
        for request in model.requests:
            kind = request.prompt.split()[0]
            assert request.tool_names == sets[kind]
            assert request.results in ([], [f"Error: unknown tool {other[kind][0]!r}"])
        assert model.faults == []
    assert list(work.iterdir()) == []


def test_an_unknown_name_in_a_filter_fails_at_the_start(
    with_ceiling: Callable[[str], Settings], make_client: Callable[..., Client], owner: str
) -> None:
    settings = with_ceiling("parent")
    names = load_config(settings=settings).tool_names
    client = make_client(settings, owner=owner, tool_names=names)
    for option in ("allow", "deny"):
        with pytest.raises(OptionRefused, match=f"toolFilter.{option}: no tool is called 'wirte'"):
            client.start("spawn", prompt="hello", tool_filter={option: ["read", "wirte"]})
    assert client.list_tasks() == []


def test_where_the_names_are_not_known_the_worker_refuses_before_a_model_call(
    with_ceiling: Callable[[str], Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    owner: str,
) -> None:
    settings = with_ceiling("none")
    with ModelServer() as model:
        make_rig(settings).worker(**model.environment)
        client = make_client(settings, owner=owner)
        done = client.start("spawn", prompt="hello", tool_filter={"allow": ["wirte"]}).result()
        assert (done.task.status, done.task.detail) == (
            Status.FAILED,
            "toolFilter.allow: no tool is called 'wirte'",
        )
        assert model.requests == []


def test_a_nested_child_works_where_its_parent_does(
    with_ceiling: Callable[[str], Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    work: Path,
    owner: str,
) -> None:
    settings = with_ceiling("none")
    make_rig(settings).worker()
    client = make_client(settings, owner=owner)
    (work / "mine").mkdir()
    prompt = delegating("!call write " + json.dumps({"path": "made", "content": "x"}))
    done = client.start("spawn", prompt=prompt, working_folder=str(work / "mine")).result()
    assert done.task.status is Status.COMPLETED
    assert (work / "mine" / "made").read_text() == "x"


# -- ownership ---------------------------------------------------------------------------------------


def asked(client: Client, task_id: str, forged: dict[str, str]) -> dict[str, Any]:
    """What a session hears of one id, by every way, the id itself left out."""
    said: dict[str, Any] = {}
    for tool, more in (
        ("task_output", {"wait": True, "timeout_ms": 50}),
        ("task_output", {}),
        ("task_kill", {}),
    ):
        result = by_tool(client, tool, task_id=task_id, **more, **forged)
        said[f"{tool} {more}"] = (result.text, result.value, result.is_error)
    said["task_list"] = by_tool(client, "task_list", **forged).text
    ways: dict[str, Callable[[], object]] = {
        "output": lambda: client.output(task_id),
        "wait": lambda: client.wait([task_id], timeout_ms=50),
        "kill": lambda: client.kill(task_id),
        "transcript": lambda: client.session(task_id),
        "task": lambda: client.task(task_id),
    }
    for name, way in ways.items():
        with pytest.raises(TaskNotFound) as refused:
            way()
        said[name] = refused.value.to_json()
    return json.loads(json.dumps(said).replace(task_id, "<id>"))


@pytest.mark.parametrize("forges", [False, True])
def test_a_strangers_ids_answer_like_random_ones_and_their_owner_notices_nothing(
    forges: bool, rig: Rig, make_client: Callable[..., Client], settings: Settings
) -> None:
    rig.worker()
    ours, theirs = make_client(settings, owner="session-a"), make_client(settings, owner="session-b")
    ended = ours.start("spawn", prompt="!say a secret")
    wait_until(lambda: ours.task(ended.id).is_terminal, "the child has ended")
    running = ours.start("spawn", prompt=waiting(30))
    wait_until(lambda: ours.task(running.id).status is Status.RUNNING, "the child runs")
    before = ours.session(ended.id)
    forged = {"owner": "session-a", "parent": "session-a"} if forges else {}
    random = asked(theirs, f"subagent-{secrets.token_hex(16)}", forged)
    assert asked(theirs, ended.id, forged) == random
    assert asked(theirs, running.id, forged) == random
    assert ours.task(running.id).status is Status.RUNNING
    assert ours.session(ended.id) == before
    assert len(ours.notices()) == 1
    ours.kill(running.id)


def test_siblings_and_parents_are_out_of_a_childs_reach(
    rig: Rig, make_client: Callable[..., Client], settings: Settings, owner: str
) -> None:
    client = make_client(settings, owner=owner)
    ids: dict[str, str] = {}

    def answer(request: Request) -> Reply:
        prompt, results = request.prompt, request.results
        if prompt == "sibling":
            return Reply("a secret")
        if prompt == "parent" and not results:
            return Reply(tools=[("subagent", {"description": "below", "prompt": "child"})])
        if prompt == "child" and not results:
            return Reply(
                tools=[
                    (tool, {"task_id": one})
                    for one in (ids["parent"], ids["sibling"], ids["nobody"])
                    for tool in ("task_kill", "task_output")
                ]
            )
        return Reply()

    with ModelServer(answer) as model:
        ids["sibling"] = client.start("spawn", prompt="sibling").id
        parent = client.start("spawn", prompt="parent")
        ids["parent"], ids["nobody"] = parent.id, f"subagent-{secrets.token_hex(16)}"
        rig.worker(**model.environment)
        assert parent.result().task.status is Status.COMPLETED
        wait_until(lambda: client.task(ids["sibling"]).is_terminal, "the sibling has ended")
        assert client.task(ids["sibling"]).status is Status.COMPLETED
        (heard,) = [request.results for request in model.requests if len(request.results) == 6]
        for one in ids.values():
            heard = [text.replace(one, "<id>") for text in heard]
        assert sorted(Counter(heard).values()) == [3, 3]
        assert all(text.startswith("Error: no task '<id>'") for text in heard)
        assert "secret" not in "".join(heard)
