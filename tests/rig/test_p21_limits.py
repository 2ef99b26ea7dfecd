"""P21. Breadth, slots, budgets, 429 (opencode#38960, claude-code#68110, codex#18335, pawwork#1348)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise

import pytest
from genai_prices import calc_price
from pydantic_ai.usage import RequestUsage

from dsh_tasks.client import Client, Start
from dsh_tasks.errors import LimitReached
from dsh_tasks.settings import Settings
from dsh_tasks.task import Cause, Status
from tests.model_server import ModelServer, Reply, Request
from tests.prompts import delegating, failing, waiting
from tests.rig_tools import Rig, at_once
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

CAPS = {"live_per_owner": 4, "live_per_tree": 6, "total_per_tree": 50, "total_per_owner": 8}

START_MANY = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from dsh_tasks.client import Client
from dsh_tasks.errors import LimitReached

def start(number):
    try:
        return ["started", client.start("spawn", prompt="never").id]
    except LimitReached as error:
        return ["refused", error.facts["limit"], error.facts["value"], error.facts["cap"]]

with Client(owner=sys.argv[1]) as client:
    sys.stdin.readline()
    with ThreadPoolExecutor(7) as threads:
        print(json.dumps(list(threads.map(start, range(14)))))
"""


Capped = Callable[..., tuple[Rig, Client]]


@pytest.fixture
def capped(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    owner: str,
) -> Capped:
    """A rig without workers yet and a client, under these settings (the case's caps by default)."""

    def make(**knobs: object) -> tuple[Rig, Client]:
        settings = make_settings(**(knobs or CAPS))
        return make_rig(settings), make_client(settings, owner=owner)

    return make


def test_of_56_starts_at_once_exactly_the_cap_is_accepted(capped: Capped, owner: str) -> None:
    rig, client = capped()
    told = [one for lot in at_once(START_MANY, owner, rig.settings, processes=4) for one in lot]
    assert len(told) == 56
    started = {one[1] for one in told if one[0] == "started"}
    assert len(started) == 4
    assert {tuple(one[1:]) for one in told if one[0] == "refused"} == {("live_per_owner", 4, 4)}
    assert {task.id for task in client.list_tasks()} == started, "no ghost record"


def test_a_batch_is_accepted_up_to_the_cap(capped: Capped, owner: str) -> None:
    rig, client = capped()
    verdicts = client.start_many(
        [Start(provider="spawn", prompt=waiting(0.2), label=f"child {n}") for n in range(6)]
    )
    refused = [one for one in verdicts if isinstance(one, LimitReached)]
    assert [one.facts["limit"] for one in refused] == ["live_per_owner"] * 2
    assert [isinstance(one, LimitReached) for one in verdicts] == [False] * 4 + [True] * 2
    assert [task.label for task in client.list_tasks()] == [f"child {n}" for n in range(4)]
    rig.worker()
    for run in verdicts[:4]:
        assert not isinstance(run, Exception)
        assert run.result().task.status is Status.COMPLETED


def test_in_a_batch_what_cannot_be_used_is_refused_and_the_rest_starts(client: Client) -> None:
    verdicts = client.start_many(
        [
            Start(provider="spawn", prompt=""),
            Start(provider="spawn", prompt="hello"),
            Start(provider="nobody", prompt="hello"),
            Start(provider="spawn", prompt="hello", deadline_ms=0),
        ]
    )
    told = [getattr(one, "code", "started") for one in verdicts]
    assert told == ["option_refused", "started", "option_refused", "option_refused"]
    assert len(client.list_tasks()) == 1


def test_a_child_that_delegates_for_ever_is_stopped_at_the_total(capped: Capped, owner: str) -> None:
    rig, client = capped()
    rig.worker()
    run = client.start("spawn", prompt="\n".join(delegating(f"!say {n}") for n in range(10)))
    done = run.result()
    assert done.task.status is Status.COMPLETED
    children = [task for task in client.list_tasks() if task.parent == run.id]
    assert [task.status for task in children] == [Status.COMPLETED] * 8
    assert done.text.count("total_per_owner") == 2


ENDINGS = ("complete", "fail", "kill", "worker kill", "start failure")


def test_a_hundred_children_in_sequence_leak_no_slot(capped: Capped, owner: str) -> None:
    # One at a time: a leaked slot refuses the very next start. A lost worker fails its child at once.
    rig, client = capped(live_per_owner=1, live_per_tree=1, losses=1, lease_ms=600, grace_ms=0)
    worker = rig.worker()
    came: list[Status] = []
    for number in range(100):
        # Each worker takes seconds to start: two of the hundred lose theirs.
        ending = ENDINGS[number % 5]
        loses = ending == "worker kill" and number in (3, 53)
        if ending in ("kill", "worker kill"):
            run = client.start("spawn", prompt=waiting(60))
            wait_until(lambda run=run: client.task(run.id).status is Status.RUNNING, "it runs")
            if loses:
                worker.kill()
                worker = rig.worker()
            else:
                client.kill(run.id)
        elif ending == "fail":
            run = client.start("spawn", prompt=failing("on purpose"))
        elif ending == "start failure":
            run = client.start("spawn", prompt="hello", engine="no such engine")
        else:
            run = client.start("spawn", prompt="!say done")
        came.append(run.result().task.status)
    assert [came.count(status) for status in (Status.COMPLETED, Status.FAILED, Status.KILLED)] == [20, 42, 38]


PRICED = "gpt-5-mini"


def never_ends(request: Request) -> Reply:
    took = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
    return Reply("on and on", tools=[("task_list", {})], usage=took)


def test_a_child_that_never_ends_fails_when_the_budget_of_its_tree_is_spent(
    capped: Capped, owner: str
) -> None:
    rig, client = capped(tree_token_budget=30_000, reserved_output_tokens=2_000)
    with ModelServer(never_ends) as model:
        rig.worker(**model.environment)
        first, second = (client.start("spawn", prompt=f"go on {n}") for n in range(2))
        ended = [run.result().task for run in (first, second)]
        assert [(task.status, task.cause) for task in ended] == [(Status.FAILED, Cause.BUDGET)] * 2
        assert model.faults == []
        calls = len(model.requests)
    assert calls > 2
    tree = client.usage(owner)
    assert tree.model_calls == calls
    assert tree.input_tokens + tree.output_tokens <= 30_000
    assert tree.input_tokens == sum(task.usage.input_tokens for task in ended)


def test_children_add_up_in_the_costs_of_their_tree_and_one_has_a_budget_of_its_own(
    capped: Capped, owner: str
) -> None:
    rig, client = capped(tree_cost_budget="0.01")
    price = calc_price(RequestUsage(input_tokens=1_000, output_tokens=100), PRICED, provider_id="openai")
    with ModelServer(never_ends) as model:
        rig.worker(**model.environment)
        given = {"agent_options": {"model": f"openai-chat:{PRICED}"}}
        own = client.start("spawn", prompt="go on", cost_budget=0.001, **given).result()
        assert (own.task.status, own.task.cause, own.text) == (Status.FAILED, Cause.BUDGET, "on and on")
        assert own.task.detail.startswith("cost_budget: 0.001")
        assert " of 0.001 US dollars are spent" in own.task.detail
        runs = [client.start("spawn", prompt=f"go on {n}", **given) for n in range(2)]
        ended = [run.result().task for run in runs]
        assert [(task.status, task.cause) for task in ended] == [(Status.FAILED, Cause.BUDGET)] * 2
        assert all(task.detail.startswith("tree_cost_budget: 0.01") for task in ended)
        calls = len(model.requests)
        with pytest.raises(LimitReached, match="limit tree_cost_budget reached: 0.01"):
            client.start("spawn", prompt="one more", **given)
    spent = client.usage(owner).cost_usd
    assert spent == price.total_price * calls
    # Both may have had a call in flight as the other one spent the rest.
    assert Decimal("0.01") <= spent < Decimal("0.01") + 2 * price.total_price
    assert Decimal("0.001") <= (own.task.usage.cost_usd or 0) < Decimal("0.001") + price.total_price


def test_usage_of_failed_and_killed_children_counts_for_the_tree(
    rig: Rig, client: Client, owner: str
) -> None:
    rig.worker()
    done = client.start("spawn", prompt="!say yes").result().task
    failed = client.start("spawn", prompt=delegating("!say below") + "\n" + failing("then")).result().task
    run = client.start("spawn", prompt=waiting(60))
    wait_until(lambda: client.task(run.id).activity == "model", "the model streams")
    client.kill(run.id)
    killed = run.result().task
    assert [task.status for task in (done, failed, killed)] == [
        Status.COMPLETED,
        Status.FAILED,
        Status.KILLED,
    ]
    tasks = client.list_tasks()
    assert client.usage(owner).model_calls == sum(task.usage.model_calls for task in tasks) >= 5
    assert client.usage(owner).input_tokens == sum(task.usage.input_tokens for task in tasks)


REST_S = 2.0


@dataclass
class Limited:
    """A provider that turns the first calls away, asks for a pause, and turns away whatever breaks it."""

    times: int
    rejected_s: list[float] = field(default_factory=list)

    def __call__(self, request: Request) -> Reply:
        rests = bool(self.rejected_s) and request.asked_s - self.rejected_s[-1] < REST_S * 0.9
        if request.number >= self.times and not rests:
            return Reply("through", seconds=0.3)
        self.rejected_s.append(request.asked_s)
        return Reply(status=429, retry_after=f"{REST_S:g}")


def test_six_children_of_two_workers_rest_together_and_send_one_probe(capped: Capped, owner: str) -> None:
    rig, client = capped(live_per_owner=10)
    provider = Limited(5)
    with ModelServer(provider) as model:
        for _ in range(2):
            rig.worker(concurrency=3, **model.environment)
        runs = [client.start("spawn", prompt=f"child {n}") for n in range(6)]
        ended = [run.result().task for run in runs]
        assert [task.status for task in ended] == [Status.COMPLETED] * 6
        assert model.faults == []
        calls = model.requests
    rejected = len(provider.rejected_s)
    assert len(calls) == sum(task.usage.model_calls for task in ended) == 6 + rejected
    # Each child had one call on its way at most when the first was turned away: no other broke the pause.
    assert 5 <= rejected <= 5 + 5
    # What was on its way is one burst; then there is a rest.
    probes = [later for one, later in pairwise(calls) if later.asked_s - one.asked_s > REST_S * 0.9]
    assert probes, "the route rested"
    for probe in probes:
        for other in calls[probe.number + 1 :]:
            assert other.asked_s > probe.began_s, "nobody asks before the probe has its answer"
    for probe, after in pairwise(probes):
        assert after.number == probe.number + 1, "a probe that is turned away is alone"
    restarts = [one.asked_s for one in calls[probes[-1].number + 1 :]]
    assert len(restarts) >= 4
    assert max(restarts) - min(restarts) > 0.05, "those that waited do not come back at once"


def test_a_ceiling_of_a_route_holds_over_two_workers_and_over_the_death_of_one(
    capped: Capped, owner: str
) -> None:
    rig, client = capped(live_per_owner=20, route_calls=2, lease_ms=900, grace_ms=100)
    with ModelServer(lambda request: Reply("hello" * 2, seconds=0.4)) as model:
        first = rig.worker(concurrency=6, **model.environment)
        rig.worker(concurrency=12, **model.environment)
        runs = [client.start("spawn", prompt=f"child {n}") for n in range(10)]
        wait_until(lambda: len(model.requests) >= 2, "calls go on")
        first.kill()
        ended = [run.result().task for run in runs]
        assert [task.status for task in ended] == [Status.COMPLETED] * 10
        assert model.peak == 2
        assert model.faults == []


def test_a_child_that_waits_for_its_route_is_killed_at_once(capped: Capped, owner: str) -> None:
    rig, client = capped(live_per_owner=10, route_calls=1)
    with ModelServer(lambda request: Reply("hello" * 2, blocks=True)) as model:
        rig.worker(**model.environment)
        runs = [client.start("spawn", prompt=f"child {n}") for n in range(2)]
        wait_until(lambda: model.active == 1, "one of them has the route")
        wait_until(
            lambda: (
                sorted(task.activity for task in client.list_tasks())
                == ["model", "model: waits for its route"]
            ),
            "the other waits, and lists say so",
        )
        (waiting,) = (task for task in client.list_tasks() if task.activity != "model")
        client.kill(waiting.id)
        (run,) = (run for run in runs if run.id == waiting.id)
        task = run.result().task
        assert (task.status, len(model.requests)) == (Status.KILLED, 1)
        assert task.ended_ms is not None
        assert task.usage.model_calls == 0
        model.release()
        (other,) = (run for run in runs if run.id != waiting.id)
        assert other.result().task.status is Status.COMPLETED
