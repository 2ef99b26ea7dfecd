"""P20. Depth cannot be lost or forged (qwen#6189, claude-code#70450, RikkaRs#5, openclaw#111246).

Continued children and children started by a message wait for their issue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dsh_tasks.client import Client
from dsh_tasks.errors import LimitReached, OptionRefused
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.census import census_of
from tests.factories import a_log
from tests.model_server import ModelServer, Reply, Request
from tests.prompts import delegating, tool_of
from tests.rig_tools import Rig
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


def tools_with_cap(cap: int) -> str:
    rows = [
        f'[[tools]]\nprovider = "{provider}"\ntoolName = "{tool_of(provider)}"\nmaxDepth = {cap}\n'
        for provider in ("spawn", "fork", "fork-lite")
    ]
    return "\n".join(rows)


def nested(levels: int, provider: str) -> str:
    prompt = "!say the bottom was here"
    for _ in range(levels):
        prompt = delegating(prompt, provider=provider)
    return prompt


@pytest.mark.parametrize("provider", ["spawn", "fork", "fork-lite"])
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_cap_of_k_gives_k_levels_and_an_errored_result_at_the_last(
    provider: str,
    cap: int,
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: object,
) -> None:
    from pathlib import Path

    config = Path(str(tmp_path)) / "dsh-tasks.toml"
    config.write_text(tools_with_cap(cap))
    settings = make_settings(config=str(config))
    rig = make_rig(settings)
    # Two processes of one slot each: the chain crosses them or runs inline, as it falls.
    rig.worker(concurrency=1)
    rig.worker(concurrency=1)
    client = make_client(settings, owner="root")
    parent = a_log(turns=2)
    run = client.start(provider, parent=parent, owner="root", prompt=nested(cap, provider), max_depth=cap)
    done = run.result()
    assert done.task.status is Status.COMPLETED
    assert [task.depth for task in client.list_tasks()] == list(range(1, cap + 1))
    deepest = client.session(client.list_tasks()[-1].id)
    results = [
        row for row in deepest.events if row.type == "tool/result" and row.seq >= len(deepest.events) - 20
    ]
    message = results[-1].data["message"]
    assert message["isError"] is True
    assert "depth" in message["content"][0]["text"]
    assert deepest.header.delegation_depth == cap
    (request,) = [row for row in deepest.events if row.type == "request/header"][-1:]
    shown = [tool["name"] for tool in request.data["header"]["tools"]]
    assert tool_of(provider) in shown, "the tool stays visible at the deepest level"


def test_a_cap_of_zero_forbids_before_anything_is_enqueued(client: Client) -> None:
    with pytest.raises(LimitReached, match="depth"):
        client.start("spawn", prompt="hello", max_depth=0)
    assert client.list_tasks() == []


@pytest.mark.parametrize("forged", [-5, True, 1e309, "1"])
def test_a_cap_that_is_no_whole_number_is_refused(client: Client, forged: object) -> None:
    with pytest.raises(OptionRefused):
        client.start("spawn", prompt="hello", max_depth=forged)  # type: ignore[arg-type]


def test_the_operators_ceiling_wins_also_under_provider_managed(
    make_settings: Callable[..., Settings], make_client: Callable[..., Client]
) -> None:
    client = make_client(make_settings(max_depth_ceiling=0), owner="root")
    for cap in (3, 10**9, "provider-managed"):
        with pytest.raises(LimitReached, match="depth"):
            client.start("spawn", prompt="hello", max_depth=cap)  # type: ignore[arg-type]


@pytest.mark.parametrize("forged", ["-5", "1e309", "1", "true", "", "1000000000"])
def test_an_edited_queue_message_changes_no_depth(rig: Rig, client: Client, forged: str) -> None:
    """The message holds ids only: what stands in its headers is never read back."""
    from dsh_tasks.queue import Message, make_app, publish

    run = client.start("spawn", prompt=delegating("!say hello"))
    forged_depth: object = forged
    publish(make_app(rig.settings), Message(run.id, 0, "x", "spawn", forged_depth, "other"))  # type: ignore[arg-type]
    rig.worker()
    assert run.result().task.status is Status.COMPLETED
    assert [task.depth for task in client.list_tasks()] == [1, 2]


def test_resuming_the_root_adds_no_depth(make_client: Callable[..., Client], settings: Settings) -> None:
    parent = a_log(turns=1)
    depths = set()
    for _ in range(5):
        with Client(settings, owner="root") as client:
            depths.add(client.start("fork", parent=parent, owner="root", prompt="hello").depth)
    assert depths == {1}


def below(prompt: str) -> Reply:
    return Reply(tools=[("subagent", {"description": "below", "prompt": prompt})])


@pytest.mark.parametrize("forged", ["-5", "1e309", "1", "true", None, "1000000000"])
def test_a_stored_depth_that_was_edited_gives_no_lower_one(
    rig: Rig, client: Client, settings: Settings, forged: str | None
) -> None:
    """What is none allows nothing below; what equals the recorded one changes nothing."""

    def answer(request: Request) -> Reply:
        if request.prompt == "bottom":
            return Reply("was here")
        if request.results:
            return Reply(request.results[-1])
        return replace(below("bottom"), blocks=True)

    with ModelServer(answer) as model, census_of(settings) as census:
        rig.worker(**model.environment)
        run = client.start("spawn", prompt="top")
        wait_until(lambda: model.calls["top"], "it is with its model")
        key = census.keys.task(run.id)
        census.raw.hdel(key, "depth") if forged is None else census.raw.hset(key, "depth", forged)
        model.release()
        text = run.result().text
        census.raw.hset(key, "depth", 1)
        depths = [task.depth for task in client.list_tasks()]
    if forged == "1":
        assert (text, depths) == ("was here", [1, 2])
    else:
        assert "depth" in text
        assert depths == [1]


def test_a_child_that_goes_on_in_a_fresh_process_keeps_its_depth(rig: Rig, client: Client) -> None:
    """Of depth 2; what it starts there is of depth 3, and what that one starts is refused."""
    begun = 0

    def answer(request: Request) -> Reply:
        nonlocal begun
        if request.results:
            return Reply(request.results[-1])
        if request.prompt == "two":
            begun += 1
            return replace(below("three"), blocks=begun == 1)
        return below({"one": "two", "three": "four"}[request.prompt])

    with ModelServer(answer) as model:
        first = rig.worker(**model.environment)
        run = client.start("spawn", prompt="one")
        wait_until(lambda: begun == 1, "the child of depth 2 is with its model")
        assert first.stop() == 0
        rig.worker(**model.environment)
        assert "depth" in run.result().text
        tasks = client.list_tasks()
    assert [task.depth for task in tasks] == [1, 2, 3]
    assert {task.status for task in tasks} == {Status.COMPLETED}
    assert tasks[1].attempt == 2
