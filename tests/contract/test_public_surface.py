"""What must not drift: names, verbs, errors, keys, messages."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import pytest

import dsh_tasks
from dsh_tasks import errors
from dsh_tasks.client import AsyncClient, AsyncRun, AsyncSubscription, Client, Run, Subscription
from dsh_tasks.queue import Message, make_app, publish
from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys, embedded
from dsh_tasks.task import ALLOWED, TERMINAL, Status

VERBS = [
    "audit",
    "census",
    "dispose",
    "follow",
    "for_owner",
    "kill",
    "list_tasks",
    "notices",
    "on_endings",
    "output",
    "progress",
    "prune",
    "session",
    "start",
    "start_many",
    "stats",
    "task",
    "usage",
    "wait",
    "wait_for_inbox",
]


def test_the_exported_names_are_sorted_and_there() -> None:
    assert dsh_tasks.__all__ == sorted(dsh_tasks.__all__)
    assert all(hasattr(dsh_tasks, name) for name in dsh_tasks.__all__)


@pytest.mark.parametrize("verb", VERBS)
def test_both_clients_have_each_verb_with_the_same_parameters(verb: str) -> None:
    plain = inspect.signature(getattr(Client, verb)).parameters
    awaited = inspect.signature(getattr(AsyncClient, verb)).parameters
    assert [(p.name, p.kind, p.default) for p in plain.values()] == [
        (p.name, p.kind, p.default) for p in awaited.values()
    ]


def test_both_runs_have_the_same_verbs() -> None:
    public = [{name for name in vars(kind) if not name.startswith("_")} for kind in (Run, AsyncRun)]
    assert public[0] == public[1] == {"dispose", "promote", "result"}


def test_both_subscriptions_have_the_same_verbs() -> None:
    public = [
        {name for name in vars(kind) if not name.startswith("_")}
        for kind in (Subscription, AsyncSubscription)
    ]
    assert public[0] == {"is_running", "stop"}
    assert public[1] == public[0] | {"start"}


EVERY_ERROR = [
    errors.SessionRefused("cut short", line=3, seq=2, event_type="turn/end"),
    errors.SeedRefused("reaches outside", seq=7, event_type="user/message"),
    errors.OptionRefused("persona", "no capability"),
    errors.SchemaRefused("not an object"),
    errors.KeyConflict(task_id="subagent-1", differs=["prompt"]),
    errors.ConfigRefused("tools", "two of one name"),
    errors.LimitReached("depth", value=3, cap=3, way_out="do it here"),
    errors.TaskNotFound("subagent-1"),
    errors.OwnerNotRunning("subagent-1", status="killed"),
    errors.SpeakerTaken("s", for_ms=5),
    errors.McpServerFailed("files", "it did not start"),
    errors.StillRunning("subagent-1", status="running", waited_ms=5),
    errors.Promoted("subagent-1", after_ms=5),
    errors.StoreUnavailable("no connection"),
]


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.code)
def test_an_error_survives_pickle_and_json(error: errors.DshTasksError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.facts) == (type(error), str(error), error.facts)
    assert json.loads(json.dumps(error.to_json()))["code"] == error.code
    assert "\n" not in str(error)


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = {type(error) for error in EVERY_ERROR} | {errors.DshTasksError, errors.InputRefused}
    defined = {
        kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert defined == kinds
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_no_terminal_status_allows_a_change_and_every_other_can_end() -> None:
    for status in Status:
        assert (not ALLOWED[status]) == (status in TERMINAL)
        assert status in TERMINAL or ALLOWED[status] & TERMINAL


def test_every_key_pattern_is_written_down_once() -> None:
    import dsh_tasks.store.keys as module

    keys = Keys("p:")
    makers = [name for name in vars(Keys) if not name.startswith("_") and name != "prefix"]
    documented = set(re.findall(r"^    ([a-z]+):<", module.__doc__ or "", re.MULTILINE))
    documented |= set("leases stops due kills deadlines endings stats sweeper hook hooks hookstats".split())
    made = set()
    for name in makers:
        attribute = getattr(keys, name)
        key = attribute("x") if callable(attribute) else attribute
        made.add(key.removeprefix("p:").split(":")[0])
    channels = {"ended", "control"}
    assert made - channels == documented


def test_a_message_holds_ids_only(server: embedded.Server, settings: Settings) -> None:
    """Rule 11; and it stays small whatever the label."""
    import redis

    app = make_app(settings)
    publish(app, Message("subagent-1", 0, "x" * 10_000, "fork", 1, "s" * 10_000))
    raw = redis.Redis.from_url(settings.redis_url or "")
    (body,) = raw.lrange(f"{settings.prefix}celery:{settings.queue}", 0, -1)
    assert len(body) < 2048
    message = json.loads(body)
    import base64

    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    assert (args, kwargs) == (["subagent-1"], {})
    raw.delete(f"{settings.prefix}celery:{settings.queue}")
    raw.close()
