"""Seeds in the store: what is sent, what is shared, what is counted, what goes."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from dsh_tasks import seed
from dsh_tasks.errors import LimitReached, SeedRefused
from dsh_tasks.seed import Seed
from dsh_tasks.settings import Settings
from dsh_tasks.store import Fence, Inbox, NewTask, Store
from dsh_tasks.store import seeds as seed_store
from dsh_tasks.task import Outcome, Status
from tests.factories import a_log
from tests.store.test_records import a_task, on_store, running

FAR = 1 << 52
DONE = Outcome(Status.COMPLETED, output="done")


def seed_of(turns: int, *, kept: int | None = None) -> Seed:
    """A fork of the first `turns` turns of one long log, or a window of it."""
    whole = a_log(turns, tools=1)
    return seed.cut(whole) if kept is None else seed.window(whole, kept)


async def keys_of(store: Store, kind: str) -> dict[str, tuple[int, bool]]:
    """Digest -> (references, whether it expires) of all blobs of a kind."""
    start = f"{store.keys.prefix}{kind}:"
    found = {}
    for key in await store.link.command("KEYS", f"{start}*"):
        refs = await store.link.command("HGET", key, "refs")
        ttl = await store.link.command("PTTL", key)
        found[key.decode().removeprefix(start)] = (int(refs), ttl > 0)
    return found


async def blobs_of(store: Store) -> dict[str, tuple[int, bool]]:
    return {**await keys_of(store, "seed"), **await keys_of(store, "chunk")}


async def ended(store: Store, new: NewTask, *, acked: bool = True) -> None:
    """Submit, run, settle; the owner knows."""
    fence: Fence = await running(store, new)
    await store.settle(new.id, new.owner, fence, DONE, 0, ())
    if acked:
        await Inbox(store.link, store.settings, new.owner).acknowledge([new.id])


async def forget(store: Store, new: NewTask) -> str:
    return await store.forget(new.id, ended_before_ms=FAR, notice_before_ms=0)


def counted(made: Seed) -> dict[str, int]:
    """How often each blob is listed by what is held, the manifest by one record."""
    listed: dict[str, int] = {made.digest: 1}
    pages = {page.part.digest: page for page in made.pages}
    parts = list(seed.seed_parts(made.manifest))
    while parts:
        part = parts.pop()
        is_new = part.digest not in listed
        listed[part.digest] = listed.get(part.digest, 0) + 1
        if is_new and part.is_page:
            parts += pages[part.digest].parts
    return listed


@pytest.mark.parametrize("turns", [1, 7, 8, 9, 64, 75])
def test_a_seed_is_held_whole_and_read_back(settings: Settings, turns: int) -> None:
    made = seed_of(turns)

    async def scenario(store: Store) -> None:
        await store.submit(a_task(seed=made))
        held = await blobs_of(store)
        assert {digest: refs for digest, (refs, _) in held.items()} == counted(made)
        assert not any(expires for _, expires in held.values())
        manifest, blobs = await seed_store.fetch(store.link, store.keys, made.digest)
        assert seed.decode(manifest, blobs.__getitem__) == made.events

    on_store(settings, scenario)


def test_one_more_turn_sends_one_chunk_and_a_short_list(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[bytes]] = []
    calls: list[str] = []

    async def scenario(store: Store) -> None:
        script = store.link.script

        async def spied(name: str, keys: Any, args: Any) -> Any:
            calls.append(name)
            if name == "upload":
                sent[-1] += args[1:]
            return await script(name, keys, args)

        monkeypatch.setattr(store.link, "script", spied)
        for turns in range(64, 76):
            sent.append([])
            await store.submit(a_task(seed=seed_of(turns), owner=f"s{turns}"))

    on_store(settings, scenario)
    assert [len(blobs) for blobs in sent[1:]] == [2, 2, 2, 3, 2, 2, 2, 3, 2, 2, 2], (
        "a page at each fourth turn"
    )
    assert max(len(blob) for blobs in sent[1:] for blob in blobs) < 1_000
    assert calls[2:] == ["upload", "submit"] * 11


def test_a_client_that_knows_nothing_sends_nothing_that_is_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: Store) -> None:
        await store.submit(a_task(seed=seed_of(75)))
        stranger = Store(store.link, settings)
        sent: list[bytes] = []
        script = store.link.script

        async def spied(name: str, keys: Any, args: Any) -> Any:
            sent.extend(args[1:] if name == "upload" else ())
            return await script(name, keys, args)

        monkeypatch.setattr(store.link, "script", spied)
        await stranger.submit(a_task(seed=seed_of(76), owner="s-2"))
        assert len(sent) == 3, "chunk, page, manifest"

    on_store(settings, scenario)


def test_a_client_whose_memory_is_wrong_is_told_so(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        made = seed_of(20)
        await store.submit(a_task(seed=made))
        for key in await store.link.command("KEYS", f"{store.keys.prefix}chunk:*"):
            await store.link.command("DEL", key)
        await store.link.command("DEL", store.keys.seed(made.digest))
        longer = seed_of(21)
        await store.submit(a_task(seed=longer, owner="s-2"))
        manifest, blobs = await seed_store.fetch(store.link, store.keys, longer.digest)
        assert seed.decode(manifest, blobs.__getitem__) == longer.events

    on_store(settings, scenario)


def test_a_large_seed_is_not_sent_for_a_child_that_is_refused(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        big = seed.cut(a_log(3, facts=[("noise", secrets.token_hex(60_000))]))
        with pytest.raises(LimitReached):
            await store.submit(a_task(seed=big, header_depth=3))
        assert await blobs_of(store) == {}

    on_store(settings, scenario)


def test_a_window_shares_the_pages_that_lie_in_it(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        await store.submit(a_task(seed=seed_of(75)))
        before = await keys_of(store, "chunk")
        await store.submit(a_task(seed=seed_of(75, kept=30)))
        assert set(await keys_of(store, "chunk")) == set(before)

    on_store(settings, scenario)


def test_what_the_last_record_names_expires_and_nothing_before(settings: Settings) -> None:
    """Forks at many lengths, forgotten in any order: what is still named stays, whole."""
    lengths = [3, 8, 9, 20, 66, 66, 75]

    async def scenario(store: Store) -> None:
        tasks = [a_task(seed=seed_of(turns), owner=f"s{place}") for place, turns in enumerate(lengths)]
        for new in tasks:
            await ended(store, new)
        order = [4, 0, 6, 2, 1, 3, 5]
        for done, place in enumerate(order):
            assert await forget(store, tasks[place]) == "forgotten"
            left = [tasks[other] for other in order[done + 1 :]]
            for new in left:
                manifest, blobs = await seed_store.fetch(store.link, store.keys, new.seed.digest)
                assert seed.decode(manifest, blobs.__getitem__) == new.seed.events
            named = {digest for new in left for digest in counted(new.seed)}
            for digest, (refs, expires) in (await blobs_of(store)).items():
                assert (refs > 0, expires) == (digest in named, digest not in named)

    on_store(settings, scenario)


def test_what_expires_is_held_again_when_it_is_named_again(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        first, again = a_task(seed=seed_of(20)), a_task(seed=seed_of(20))
        await ended(store, first)
        await forget(store, first)
        await store.submit(again)
        assert {d: r for d, (r, _) in (await blobs_of(store)).items()} == counted(again.seed)
        assert not any(expires for _, expires in (await blobs_of(store)).values())

    on_store(settings, scenario)


def test_a_chunk_that_is_gone_below_a_page_that_is_there_is_sent_again(settings: Settings) -> None:
    """A page outlives its chunks by the time between two uploads."""

    async def scenario(store: Store) -> None:
        made = seed_of(20)
        first = a_task(seed=made)
        await ended(store, first)
        await forget(store, first)
        for chunk in made.chunks[2:5]:
            await store.link.command("DEL", store.keys.chunk(chunk.digest))
        await store.submit(a_task(seed=made))
        assert {d: r for d, (r, _) in (await blobs_of(store)).items()} == counted(made)

    on_store(settings, scenario)


def test_a_seed_that_somebody_deleted_is_named_and_forgotten_all_the_same(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        new = a_task(seed=seed_of(20))
        await ended(store, new)
        await store.link.command("DEL", store.keys.chunk(new.seed.chunks[0].digest))
        with pytest.raises(SeedRefused):
            await seed_store.fetch(store.link, store.keys, new.seed.digest)
        assert await forget(store, new) == "forgotten"
        assert all(refs == 0 and expires for refs, expires in (await blobs_of(store)).values())

    on_store(settings, scenario)


def test_forgetting_leaves_nothing_but_what_expires(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        for place in range(3):
            new = a_task(seed=seed_of(9), call_key=f"k{place}", call="{}")
            await ended(store, new)
            assert await forget(store, new) == "forgotten"
            assert await forget(store, new) == "missing", "asked again it changes nothing"
        left = {key.decode() for key in await store.link.command("KEYS", f"{store.keys.prefix}*")}
        expire = {key for key in left if await store.link.command("PTTL", key) > 0}
        assert left == expire
        blobs = {store.keys.seed("")[:-1], store.keys.chunk("")[:-1]}
        assert {key for key in left if key.rsplit(":", 1)[0] not in blobs} == {store.keys.stats}
        assert await store.stats() == {"records_forgotten": 3}

    on_store(settings, scenario)


def test_what_lives_is_young_has_tasks_below_or_is_unknown_to_its_owner_stays(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        live = a_task(owner="a")
        await store.submit(live)
        assert await forget(store, live) == "queued"
        young = a_task(owner="b")
        await ended(store, young)
        assert await store.forget(young.id, ended_before_ms=1, notice_before_ms=0) == "young"
        unknown = a_task(owner="c")
        await ended(store, unknown, acked=False)
        assert await forget(store, unknown) == "notice"
        assert await store.forget(unknown.id, ended_before_ms=FAR, notice_before_ms=FAR) == "forgotten"
        parent = a_task(owner="d")
        fence = await running(store, parent)
        child = a_task(owner=parent.id)
        await running(store, child, fence=fence)
        await store.settle(parent.id, "d", fence, DONE, 0, ())
        await Inbox(store.link, store.settings, "d").acknowledge([parent.id])
        assert await forget(store, parent) == "below"

    on_store(settings, scenario)


def test_a_hundred_turns_make_a_manifest_of_few_parts() -> None:
    for turns in (100, 1000):
        log = a_log(turns, bookkeeping=False)
        assert len(seed.seed_parts(seed.cut(log).manifest)) <= 3 * 6
