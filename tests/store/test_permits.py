"""Permits of a route: cool-downs, probes and the ceiling, on a real server; and how processes wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.settings import Settings
from dsh_tasks.store import Granted, Keys, Link, Permits, Waits, connect
from dsh_tasks.store.permits import digest_of
from workers import routes
from workers.engines.base import RouteBusy
from workers.routes import Routes

ROUTE = "openai:gpt-5"
FREE = Granted(is_probe=False, is_leased=False)
PLACE = Granted(is_probe=False, is_leased=True)
PROBE = Granted(is_probe=True, is_leased=True)

Play = Callable[[Permits], Awaitable[None]]
MakePlay = Callable[..., Callable[[Play], None]]


@pytest.fixture
def on(make_settings: Callable[..., Settings]) -> MakePlay:
    """Plays with permits under these settings."""

    def under(**knobs: object) -> Callable[[Play], None]:
        settings = make_settings(**knobs)

        def run(play: Play) -> None:
            async def main() -> None:
                client = connect(settings.redis_url or "", timeout_ms=5_000)
                link = Link(client, timeout_ms=5_000)
                try:
                    await play(Permits(link, settings))
                finally:
                    await link.close()

            asyncio.run(main())

        return run

    return under


async def kept_keys(permits: Permits) -> list[bytes]:
    prefix = permits._keys.prefix
    return [key async for key in permits._link.client.scan_iter(f"{prefix}*")]


async def passed(permits: Permits, route: str, field: str = "until") -> None:
    """The cool-down of a route lies in the past, by what the record says."""
    await permits._link.command("HSET", permits._keys.route(digest_of(route)), field, 1)


def test_without_ceiling_and_cool_down_a_call_goes_on_and_leaves_no_trace(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        assert await permits.ask(ROUTE, "a") == FREE
        await permits.accepted(ROUTE, "a")
        await permits.end(ROUTE, "a")
        assert await kept_keys(permits) == []

    on()(play)


def test_a_ceiling_counts_calls_of_one_route_and_a_given_back_place_is_free(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        assert [await permits.ask(ROUTE, token) for token in "ab"] == [PLACE, PLACE]
        assert await permits.ask(ROUTE, "c") == Waits("full", 0)
        assert await permits.ask(ROUTE, "a") == PLACE, "asked again, it is the same permit"
        assert await permits.ask("openai:gpt-5-mini", "c") == PLACE
        await permits.end(ROUTE, "a")
        await permits.end(ROUTE, "a")
        assert await permits.ask(ROUTE, "c") == PLACE
        assert await permits.ask(ROUTE, "d") == Waits("full", 0)

    on(route_calls=2)(play)


def test_the_place_of_a_worker_that_died_frees_itself_and_one_that_lives_is_kept(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        assert [await permits.ask(ROUTE, token) for token in ("dead", "alive")] == [PLACE, PLACE]
        asked = 0
        while await permits.ask(ROUTE, "next") == Waits("full", 0):
            assert await permits.keep(ROUTE, ["alive"]) == 1
            asked += 1
        assert asked
        assert await permits.ask(ROUTE, "another") == Waits("full", 0)
        assert await permits.keep(ROUTE, ["dead"]) == 0, "its place is another's"

    on(route_calls=2, lease_ms=300)(play)


def test_a_cool_down_holds_every_call_and_then_one_goes_ahead(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        assert await permits.ask(ROUTE, "a") == FREE
        assert 900 < await permits.cools(ROUTE, "a", 1_000) <= 1_000
        answer = await permits.ask(ROUTE, "b")
        assert isinstance(answer, Waits)
        assert answer.why == "cools"
        assert 0 < answer.for_ms <= 1_000
        assert await permits.ask("anthropic:x", "b") == FREE, "another route goes on"
        await passed(permits, ROUTE)
        assert await permits.ask(ROUTE, "b") == PROBE
        assert await permits.ask(ROUTE, "b") == PROBE
        waits = await permits.ask(ROUTE, "c")
        assert isinstance(waits, Waits)
        assert waits.why == "probed"
        await permits.accepted(ROUTE, "a")
        assert isinstance(await permits.ask(ROUTE, "c"), Waits), "an earlier call is no probe"
        await permits.accepted(ROUTE, "b")
        assert await permits.ask(ROUTE, "c") == FREE

    on()(play)


def test_a_probe_that_is_turned_away_cools_the_route_again_and_one_that_ends_lets_the_next_try(
    on: MakePlay,
) -> None:
    async def play(permits: Permits) -> None:
        await permits.cools(ROUTE, "a", 1_000)
        await passed(permits, ROUTE)
        assert await permits.ask(ROUTE, "b") == PROBE
        await permits.cools(ROUTE, "b", 5_000)
        answer = await permits.ask(ROUTE, "c")
        assert isinstance(answer, Waits)
        assert answer.for_ms > 4_000
        await passed(permits, ROUTE)
        assert await permits.ask(ROUTE, "c") == PROBE
        await permits.end(ROUTE, "c")
        assert await permits.ask(ROUTE, "d") == PROBE

    on()(play)


def test_the_probe_of_a_worker_that_died_is_another_s_turn(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        await permits.cools(ROUTE, "a", 1)
        await passed(permits, ROUTE)
        assert await permits.ask(ROUTE, "dead") == PROBE
        while await permits.ask(ROUTE, "next") != PROBE:
            pass

    on(lease_ms=300)(play)


def test_a_shorter_pause_ends_no_longer_one_and_a_repeated_word_changes_nothing(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        await permits.cools(ROUTE, "a", 60_000)
        assert await permits.cools(ROUTE, "b", 1_000) > 50_000
        key = permits._keys.route(digest_of(ROUTE))
        before = await permits._link.command("HGETALL", key)
        await permits.cools(ROUTE, "b", 900_000)
        assert await permits._link.command("HGETALL", key) == before

    on()(play)


def test_every_key_of_a_route_expires_and_none_names_it(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        secret = "openai:my-secret-deployment"
        await permits.ask(secret, "a")
        await permits.cools(secret, "b", 1_000)
        keys = await kept_keys(permits)
        assert len(keys) == 2
        for key in keys:
            assert b"secret" not in key
            assert await permits._link.command("PTTL", key) > 0

    on(route_calls=1)(play)


# -- how a process waits --------------------------------------------------------------------------


async def insisting(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def some_routes(permits: Permits, *, wait_ms: int = 60_000) -> Routes:
    return Routes(permits, lease_ms=permits._settings.lease_ms, wait_ms=wait_ms)


def test_two_processes_never_exceed_the_ceiling_and_all_get_their_turn(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        now, most, done = 0, 0, 0

        async def call(routes: Routes) -> None:
            nonlocal now, most, done
            async with routes.permit(ROUTE, insisting):
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.01)
                now -= 1
                done += 1

        both = some_routes(permits), some_routes(permits)
        await asyncio.gather(*(call(both[n % 2]) for n in range(40)))
        assert (most, done) == (3, 40)
        assert not await permits._link.command("EXISTS", permits._keys.permits(digest_of(ROUTE)))

    on(route_calls=3)(play)


def test_after_a_cool_down_one_probes_for_both_processes_and_the_rest_follow_its_success(
    on: MakePlay,
) -> None:
    async def play(permits: Permits) -> None:
        begun: list[bool] = []
        probing, success = asyncio.Event(), asyncio.Event()

        async def call(routes: Routes) -> None:
            async with routes.permit(ROUTE, insisting) as permit:
                begun.append(permit.is_probe)
                probing.set()
                if permit.is_probe:
                    await success.wait()
                await permit.accepted()

        await permits.cools(ROUTE, "a", 100)
        both = some_routes(permits), some_routes(permits)
        calls = asyncio.gather(*(call(both[n % 2]) for n in range(6)))
        await probing.wait()
        waits = await permits.ask(ROUTE, "looking")
        assert isinstance(waits, Waits)
        assert waits.why == "probed"
        assert begun == [True]
        success.set()
        await calls
        assert sorted(begun) == [False] * 5 + [True]

    on()(play)


def test_what_is_held_is_kept_for_longer_than_a_lease(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        async with some_routes(permits).permit(ROUTE, insisting) as permit:
            key = permits._keys.permits(digest_of(ROUTE))
            first = await permits._link.command("ZSCORE", key, permit.token)
            while await permits._link.command("ZSCORE", key, permit.token) < first + 400:
                await asyncio.sleep(0.01)
            assert await permits.ask(ROUTE, "b") == Waits("full", 0)

    on(route_calls=1, lease_ms=300)(play)


def test_a_call_that_is_stopped_while_it_waits_stops_at_once_and_lets_the_next_wait(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        mine = some_routes(permits)

        async def call() -> None:
            async with mine.permit(ROUTE, insisting):
                pass

        await permits.cools(ROUTE, "a", 600_000)
        waiting = [asyncio.create_task(call()) for _ in range(3)]
        while not mine._lines or not mine._lines[ROUTE].turn.locked():
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert loop.time() - asked_s < 1
        assert not mine._lines[ROUTE].turn.locked()

    on()(play)


def test_a_call_that_is_stopped_gives_its_place_back_at_once(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        held = asyncio.Event()

        async def call() -> None:
            async with some_routes(permits).permit(ROUTE, insisting):
                held.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(call())
        await held.wait()
        assert await permits.ask(ROUTE, "b") == Waits("full", 0)
        task.cancel()
        await asyncio.wait({task})
        assert await permits.ask(ROUTE, "b") == PLACE

    on(route_calls=1)(play)


def test_a_wait_for_a_route_has_an_end_that_says_why(on: MakePlay) -> None:
    async def play(permits: Permits) -> None:
        await permits.cools(ROUTE, "a", 600_000)
        with pytest.raises(RouteBusy, match=r"for 0.1 s: the provider wants a pause"):
            async with some_routes(permits, wait_ms=100).permit(ROUTE, insisting):
                pass

    on()(play)


def test_a_server_that_went_away_takes_no_finished_call_with_it(
    on: MakePlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(permits: Permits) -> None:
        async with AsyncExitStack() as stack:
            permit = await stack.enter_async_context(some_routes(permits).permit(ROUTE, insisting))

            async def away(*_: Any) -> Any:
                raise StoreUnavailable("no connection")

            monkeypatch.setattr(permits._link, "script", away)
            await permit.cools(1_000)
            await permit.accepted()

    on(route_calls=1)(play)


def test_calls_that_a_cool_down_held_back_are_spread(on: MakePlay, monkeypatch: pytest.MonkeyPatch) -> None:
    spread: list[float] = []

    def uniform(least: float, most: float) -> float:
        if (least, most) == (0, routes.SPREAD_S):
            spread.append(most)
        return 0.0

    monkeypatch.setattr(routes.random, "uniform", uniform)

    async def play(permits: Permits) -> None:
        mine = some_routes(permits)

        async def call() -> None:
            async with mine.permit(ROUTE, insisting) as permit:
                await permit.accepted()

        await permits.cools(ROUTE, "a", 100)
        await asyncio.gather(*(call() for _ in range(4)))
        assert len(spread) == 3, "all but the probe"

    on()(play)
