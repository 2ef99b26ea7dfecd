"""P5. Spawn is idempotent (pi-tasks#48, oh-my-openagent#8579, hermes#57767)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from dsh_tasks.client import Client
from dsh_tasks.errors import KeyConflict
from dsh_tasks.settings import Settings
from dsh_tasks.store.scripts import load
from dsh_tasks.task import Status
from tests.census import census_of
from tests.proxy import Proxy
from tests.rig_tools import Rig, at_once

pytestmark = pytest.mark.rig

SAME = {"prompt": "say hello", "label": "greet", "key": "c1"}

START_FIVE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from dsh_tasks.client import Client
with Client(owner=sys.argv[1]) as client:
    sys.stdin.readline()
    with ThreadPoolExecutor(5) as threads:
        runs = list(threads.map(lambda _: client.start("spawn", prompt="say hello", label="greet", key="c1"), range(5)))
    print(json.dumps([run.id for run in runs]))
"""


def ran_once(client: Client, task_id: str) -> None:
    task = client.task(task_id)
    assert (task.status, task.attempt, task.usage.model_calls) == (Status.COMPLETED, 1, 1)
    turns = [row for row in client.session(task_id).events if row.type == "turn/start"]
    assert len(turns) == 1


def test_the_same_call_in_sequence_is_one_task_also_after_its_end(rig: Rig, client: Client) -> None:
    """(a) and (f)."""
    rig.worker()
    first = client.start("spawn", **SAME)
    second = client.start("spawn", **SAME)
    assert (second.id, second.repeated) == (first.id, True)
    first.result()
    third = client.start("spawn", **SAME)
    assert (third.id, third.repeated) == (first.id, True)
    assert third.result().task.status is Status.COMPLETED
    ran_once(client, first.id)
    assert len(client.list_tasks()) == 1


def test_twenty_calls_at_once_from_four_processes_are_one_task(rig: Rig, client: Client, owner: str) -> None:
    """(b)."""
    rig.worker()
    ids = {one for told in at_once(START_FIVE, owner, rig.settings, processes=4) for one in told}
    assert len(ids) == 1
    (task_id,) = ids
    assert client.output(task_id, wait=True).task.status is Status.COMPLETED
    ran_once(client, task_id)


@pytest.mark.parametrize("script", ["submit", "mark"])
def test_a_start_whose_reply_is_lost_is_accepted_once(
    script: str, rig: Rig, make_client: Callable[..., Client], settings: Settings, owner: str, client: Client
) -> None:
    """(c): the reply to the submission, or to what follows the publish, is dropped; the library asks again."""
    rig.worker()
    with Proxy(settings.redis_url or "") as proxy:
        through = make_client(settings.model_copy(update={"redis_url": proxy.url}), owner=owner)
        through.start("spawn", prompt="warm up", key="c0").result()
        proxy.drop_reply_to(load(script).sha.encode())
        run = through.start("spawn", **SAME)
        assert proxy.dropped == 1
    again = client.start("spawn", **SAME)
    assert again.id == run.id
    assert again.result().task.status is Status.COMPLETED
    ran_once(client, run.id)
    assert len(client.list_tasks()) == 2


def test_a_kill_whose_reply_is_lost_tells_what_it_took(
    rig: Rig, make_client: Callable[..., Client], settings: Settings, owner: str
) -> None:
    with Proxy(settings.redis_url or "") as proxy:
        through = make_client(settings.model_copy(update={"redis_url": proxy.url}), owner=owner)
        run = through.start("spawn", prompt="never")
        other = through.start("spawn", prompt="never")
        through.kill(other.id)
        proxy.drop_reply_to(load("kill").sha.encode())
        receipt = through.kill(run.id)
        assert proxy.dropped == 1
        assert receipt.took == ((run.id, Status.QUEUED),)


def test_the_same_key_with_another_prompt_is_a_conflict_and_starts_nothing(
    client: Client, owner: str, settings: Settings
) -> None:
    """(d)."""
    first = client.start("spawn", **SAME)
    for change in ({"prompt": "other"}, {"label": "other"}, {"mode": "foreground"}, {"instance": "other"}):
        with pytest.raises(KeyConflict) as refused:
            client.start("spawn", **(SAME | change))
        assert refused.value.facts["task_id"] == first.id
    assert [task.id for task in client.list_tasks()] == [first.id]
    with census_of(settings) as census:
        assert (census.queued_messages(), census.live(owner)) == (1, 1), "nothing was enqueued"


def test_the_same_key_of_another_session_is_another_child(rig: Rig, client: Client) -> None:
    """(e)."""
    rig.worker()
    first = client.start("spawn", **SAME)
    other = client.for_owner("another-session").start("spawn", **SAME)
    assert other.id != first.id
    assert not other.repeated
    for run, caller in ((first, client), (other, client.for_owner("another-session"))):
        run.result()
        ran_once(caller, run.id)
