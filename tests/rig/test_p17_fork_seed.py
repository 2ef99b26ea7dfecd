"""P17. Fork seed: completed turns only, frozen at call time.

Origin: pi-subagents#1956, agenc-core#2202, octo#1731, octos#1146, qwen#8326, qwen#7346.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dsh_tasks import format as log_format
from dsh_tasks import seed
from dsh_tasks.client import Client
from dsh_tasks.provider import Registry, fork, fork_lite, spawn
from dsh_tasks.queue import Message, publish
from dsh_tasks.session import Event, Session
from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys
from dsh_tasks.task import Status
from tests.factories import CANARY, a_log
from tests.independent_fold import completed_turns, joined, kept_history, shown_request
from tests.rig_tools import Place

pytestmark = pytest.mark.rig

WINDOWS = (0, 1, 2, 3, 99)
KEPT = {"spawn": 0, "fork": 3, **{f"lite-{n}": min(n, 3) for n in WINDOWS}}


def the_parent() -> Session:
    """Turn 2 aborted with repaired calls, turn 3 with 30 calls and notices, turn 4 open with canaries."""
    return a_log(turns=3, tools=30, notices=2, reasons={2: "aborted"}, open_turn=True)


@pytest.fixture
def place(make_place: Callable[[Registry], Place]) -> Place:
    return make_place(Registry([spawn(), fork(), *(fork_lite(f"lite-{n}", n) for n in WINDOWS)]))


def test_a_fork_is_all_rows_up_to_the_last_turn_end_contiguous_from_zero() -> None:
    parent = the_parent()
    forked = seed.cut(parent)
    last = completed_turns([event.row() for event in parent.events])[-1][1]
    assert [event.seq for event in forked.events] == list(range(len(forked.events)))
    assert forked.events[-1].type == "turn/end"
    assert forked.turns == 3
    dropped = len(parent.events[: last + 1]) - len(forked.events)
    assert dropped == 0 or all(event.surface_op is None for event in parent.events[: last + 1][:dropped])


def test_a_window_counts_turns_and_not_calls() -> None:
    parent = the_parent()
    assert [seed.window(parent, n).turns for n in WINDOWS] == [0, 1, 2, 3, 3]
    assert seed.window(parent, 1).event_count > 60, "thirty calls and their results are one turn"
    assert seed.window(parent, 99).digest == seed.cut(parent).digest
    assert (
        seed.window(parent, 0).digest
        == seed.cut(a_log(turns=0, open_turn=True)).digest
        == seed.empty().digest
    )


def test_no_child_is_shown_the_open_turn_or_what_comes_after_the_call(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publish waits while the parent goes on: results, texts, a whole turn 5, and edits in place."""
    parent = the_parent()
    rows = [event.row() for event in log_format.parse(log_format.write(parent)).events]
    released = threading.Event()

    def held_back(app: object, message: Message) -> None:
        assert released.wait(30)
        publish(app, message)  # type: ignore[arg-type]

    monkeypatch.setattr("dsh_tasks.client.publisher.publish", held_back)
    ids: dict[str, str] = {}

    def start(provider: str) -> None:
        run = place.client.start(provider, parent=parent, prompt=f"task of {provider}", label=provider)
        ids[provider] = run.id

    starters = [threading.Thread(target=start, args=(provider,)) for provider in KEPT]
    for starter in starters:
        starter.start()
    from tests.waiting import wait_until

    operator = place.client
    wait_until(lambda: len(operator.for_owner("parent").list_tasks()) == len(KEPT), "all are accepted")
    for event in parent.events:
        if event.type == "user/message":
            event.data["content"][0]["text"] = f"{CANARY} written over"  # type: ignore[index]
    later = a_log(turns=5, facts=[("x", CANARY)] * 5)
    object.__setattr__(parent, "events", (*parent.events, *later.events))
    released.set()
    for starter in starters:
        starter.join(30)

    for provider, kept in KEPT.items():
        done = place.client.output(ids[provider], wait=True)
        assert done.task.status is Status.COMPLETED, done.task.detail
        assert done.task.seed_turns == kept
        (request,) = [r for r in place.model.requests if r.prompt.endswith(f"task of {provider}")]
        assert CANARY not in str(request.body)
        prompt = ("user", f"task of {provider}", (), "")
        assert joined(shown_request(request.messages)) == joined([*kept_history(rows, kept), prompt])
    assert place.model.faults == [], "a strict provider accepts each request"


def test_two_forks_of_one_cut_share_their_storage(place: Place) -> None:
    for _ in range(2):
        place.client.start("fork", parent=the_parent(), prompt="hello").result()
    before = chunk_keys(place.settings)
    grown = a_log(turns=4, tools=30, notices=2, reasons={2: "aborted"})
    place.client.start("fork", parent=grown, prompt="hello").result()
    fresh = chunk_keys(place.settings) - before
    assert len(before) == 3
    assert len(fresh) == 2, "one more turn is one more chunk, and the first four turns are a page"


def chunk_keys(settings: Settings) -> set[bytes]:
    import redis

    with redis.Redis.from_url(settings.redis_url or "") as raw:
        return set(raw.scan_iter(Keys(settings.prefix).chunk("*")))


def test_a_log_that_gives_no_seed_is_refused_in_the_starting_call(place: Place) -> None:
    from dsh_tasks.errors import SeedRefused

    parent = a_log(turns=2)
    broken = list(parent.events)
    place_of = next(i for i, event in enumerate(broken) if event.type == "assistant/message")
    event = broken[place_of]
    broken[place_of] = Event("unheard/of", event.seq, event.time, {})
    with pytest.raises(SeedRefused) as refused:
        place.client.start("fork", parent=Session(parent.header, tuple(broken)), prompt="hello", owner="p")
    assert refused.value.facts["seq"] == event.seq
    assert place.client.for_owner("p").list_tasks() == []
    assert chunk_keys(place.settings) == set()
