"""The audit sees each key that is altered, lost or strange, and nothing where all is well."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from dsh_tasks import seed
from dsh_tasks.client import AsyncClient
from dsh_tasks.errors import OptionRefused
from dsh_tasks.settings import Settings
from dsh_tasks.store import Fence, Granted, Inbox, NewTask, Permits, Store
from dsh_tasks.store import audit as audits
from dsh_tasks.store import seeds as seed_store
from dsh_tasks.store.audit import AuditReport, audit, census
from dsh_tasks.store.audit import inspection, kinds, references, trees
from dsh_tasks.store.audit.looking import Look
from dsh_tasks.submission import call_of
from dsh_tasks.task import Cause, Outcome, Status, Usage
from tests.factories import a_log
from tests.store.test_records import a_task, expire_lease, on_store, reap, running

FAR = 1 << 52


def submitted(owner: str, prompt: str, **given: Any) -> NewTask:
    """A submission whose call is that of its prompt and label, as the client makes it."""
    blocks = [{"type": "text", "text": prompt}]
    call = call_of(blocks, label="a label", mode="background", instance="subagent")
    return a_task(owner, prompt=json.dumps(blocks), call=call, **given)


def row(seq: int, kind: str = "user/message", **data: Any) -> bytes:
    return json.dumps({"type": kind, "seq": seq, "time": 1, "data": data}).encode()


@dataclass
class World:
    """At least one key of every kind, and a record of every status."""

    store: Store
    tasks: dict[str, NewTask] = field(default_factory=dict)

    async def audit(self) -> AuditReport:
        return await audit(self.store.link, self.store.keys)

    async def do(self, *command: Any) -> Any:
        return await self.store.link.command(*command)

    async def make(self) -> World:
        store, k = self.store, self.store.keys
        top = self.tasks["running"] = submitted(
            "s-1", "top", call_key="k1", seed=seed.cut(a_log(5, tools=1)), label="a label"
        )
        events = top.seed.event_count
        first = await running(store, top)
        await store.append(top.id, first, 0, [row(events), row(events + 1)], ended_steps=0, activity="model")
        await expire_lease(store, top.id)
        await self.do("ZADD", k.leases, 1, top.id)
        assert await reap(store, top.id) == "requeued"
        claimed = await store.claim(top.id, "second", "w")
        assert claimed.attempt == 2
        fence = Fence(2, "second")
        border = row(events + 2, "dsh-tasks/attempt", attempt=2)
        await store.append(top.id, fence, 2, [border, row(events + 3)], ended_steps=0, activity="model")

        below = self.tasks["completed"] = submitted(top.id, "below", seed=seed.window(a_log(5, tools=1), 1))
        held = await running(store, below, fence=fence)
        done = Outcome(
            Status.COMPLETED, output="answer", structured={"a": 1}, has_structured=True, usage=Usage(3, 2, 1)
        )
        await store.settle(below.id, "s-1", held, done, 0, [row(below.seed.event_count)])
        await store.read(below.id, caller=top.id, hold=True)
        queued = self.tasks["queued"] = submitted(top.id, "queued", deadline_ms=600_000)
        await store.submit(queued, fence=fence)

        failed = self.tasks["failed"] = submitted("s-1", "failed")
        lost = await running(store, failed)
        outcome = Outcome(Status.FAILED, Cause.ERROR, "it broke", usage=Usage(1, 1, 1))
        await store.settle(failed.id, "s-1", lost, outcome, 0, ())
        inbox = Inbox(store.link, store.settings, "s-1")
        await inbox.acknowledge([failed.id])
        await inbox.speak("speaker")

        stopping = self.tasks["stopping"] = submitted("s-1", "stopping")
        stopped = await running(store, stopping)
        silent = self.tasks["killed"] = submitted(stopping.id, "silent")
        await store.submit(silent, fence=stopped)
        await store.kill(stopping.id, caller="s-1", token="kill", detail="enough")
        # As a kill of more than a thousand leaves it.
        await self.do("ZADD", k.kills, 1, stopping.id)
        await self.do("RPUSH", k.killing(stopping.id), silent.id)
        await self.do("SET", k.sweeper, "token", "PX", 600_000)
        await self.do("SET", k.hook, "digest", "PX", 600_000)
        await self.do("ZADD", k.hooks, 1, failed.id)
        await self.do("PEXPIRE", k.hooks, 600_000)
        await self.do("HSET", k.hookstats, "sent", 1)
        permits = Permits(store.link, store.settings)
        await permits.cools("a:model", "resting", 1)
        while await permits.ask("a:model", "probe") != Granted(is_probe=True, is_leased=True):
            pass
        await store.claim("subagent-unknown", "t", "w")
        loose = seed.cut(a_log(4))
        await seed_store.upload(store.link, k, loose, {""}, seed_store.Held(), expiry_ms=60_000)
        await self.do("SADD", f"{k.prefix}celery:_kombu.binding.x", "y")
        # A world that stands still for as long as the test looks at it.
        for key in await self.keys():
            if await self.do("PTTL", key) > 0:
                await self.do("PEXPIRE", key, 600_000)
        return self

    async def keys(self) -> list[str]:
        return sorted(key.decode() for key in await self.do("KEYS", f"{self.store.keys.prefix}*"))

    @asynccontextmanager
    async def restored(self, key: str) -> AsyncIterator[None]:
        """What is done to a key inside is undone behind."""
        raw, ttl = await self.do("DUMP", key), await self.do("PTTL", key)
        yield
        await self.do("DEL", key)
        if raw is not None:
            await self.do("RESTORE", key, max(ttl, 0), raw)

    async def told_of_records(self, *command: Any) -> list[str]:
        """Likewise, looking at records, their logs and the counters of their trees only: there are many cases."""
        async with self.restored(command[1]):
            await self.do(*command)
            looking = inspection.Inspection(Look(self.store.link, self.store.keys))
            await looking.records([new.id for new in self.tasks.values()])
            sums = await trees.tree_faults(Look(self.store.link, self.store.keys), "s-1")
            return [fault.line for fault in (*looking.report().faults, *(sums or ()))]

    async def told(self, *commands: tuple[Any, ...]) -> list[str]:
        """What the audit says after these commands, which touch one key; then it is as before."""
        async with self.restored(commands[0][1]):
            for command in commands:
                await self.do(*command)
            return [fault.line for fault in (await self.audit()).faults]


Scenario = Callable[[World], Awaitable[None]]


def in_world(settings: Settings, scenario: Scenario) -> None:
    async def main(store: Store) -> None:
        await scenario(await World(store).make())

    on_store(settings, main)


def test_a_world_of_every_kind_and_status_is_clean(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        report = await world.audit()
        assert (report.faults, report.fault_count, report.unsettled) == ((), 0, ())
        assert set(report.keys) == {*kinds.NAMED, *kinds.SINGLE}
        assert report.tasks == dict.fromkeys(sorted(Status), 1)
        counted = await census(world.store.link, world.store.keys)
        assert report.census == counted
        assert not {"speaker", "answer", "celery", "stats", "sweeper", "hook", "hooks"} & counted.keys()

    in_world(settings, scenario)


BY_ITSELF = {
    "speaker",
    "answer",
    "permits",
    "route",
    "celery",
    "holds",
    "kills",
    "killing",
    "stats",
    "sweeper",
    "hook",
    "hooks",
    "hookstats",
}
"""Kinds whose keys come and go by themselves: no record says that they should be there."""


def is_loose(refs: Any) -> bool:
    return refs is not None and int(refs) == 0


def test_every_key_that_is_deleted_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        for key in await world.keys():
            kind, _ = kinds.kind_of(world.store.keys, key) or (None, "")
            assert kind is not None
            if kind.name in BY_ITSELF:
                continue
            if kind.life is kinds.Life.COUNTED and is_loose(await world.do("HGET", key, "refs")):
                continue
            if kind.name == "inbox" and not await world.do("XLEN", key):
                # What the last acknowledgement leaves is as good as nothing.
                continue
            lines = await world.told(("DEL", key))
            assert any(key in line for line in lines), (key, lines)

    in_world(settings, scenario)


def test_every_key_of_another_type_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        for key in await world.keys():
            kind, _ = kinds.kind_of(world.store.keys, key) or (None, "")
            if kind is None or kind is kinds.CELERY:
                continue
            other = ("SADD", key, "x") if kind.type != "set" else ("SET", key, "x")
            lines = await world.told(("DEL", key), other)
            assert any(line.startswith(f"{key}: is a ") for line in lines), (key, lines)

    in_world(settings, scenario)


def test_every_key_with_another_expiry_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        for key in await world.keys():
            kind, _ = kinds.kind_of(world.store.keys, key) or (None, "")
            if kind is None or kind is kinds.CELERY:
                continue
            expires = await world.do("PTTL", key) > 0
            change = ("PERSIST", key) if expires else ("PEXPIRE", key, 600_000)
            lines = await world.told(change)
            assert any(
                line.startswith(f"{key}: {'has no expiry' if expires else 'expires'}") for line in lines
            )

    in_world(settings, scenario)


def test_a_key_that_nobody_knows_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        prefix = world.store.keys.prefix
        for name in ("tasks:x", "task:", "leases:x", "stray", "seeds", "ta*sk:x"):
            lines = await world.told(("SET", f"{prefix}{name}", "x"))
            assert lines == [
                f"{prefix}{name}: is of no known kind; should be one of the keys of this installation"
            ]

    in_world(settings, scenario)


MAY_GO = {
    "activity",
    "activity_since",
    "answers",
    "stalled_since",
    "streamed",
    "handed_by",
    "partial",
    "structured",
    "not_before",
    "stop_cause",
    "stop_detail",
    "stop_hold",
    "stop_silent",
    "stop_until",
    "settled_by",
    "input_tokens",
    "output_tokens",
    "model_calls",
}
"""Fields of a record that it may also lack."""
MUST_BE = {
    *(("stopping", name) for name in MAY_GO if name.startswith("stop_")),
    *(("completed", name) for name in ("input_tokens", "output_tokens", "model_calls")),
}
"""Where they must be there all the same."""


def test_every_field_of_a_record_that_is_deleted_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        tried: set[str] = set()
        for status, new in world.tasks.items():
            key = world.store.keys.task(new.id)
            for raw in await world.do("HKEYS", key):
                name, value = raw.decode(), await world.do("HGET", key, raw)
                may_go = name in MAY_GO and (status, name) not in MUST_BE
                if may_go or name in tried or (name, value) == ("output_bytes", b"0"):
                    continue
                tried.add(name)
                lines = await world.told_of_records("HDEL", key, name)
                assert any(new.id in line or name in line for line in lines), (status, name, lines)

    in_world(settings, scenario)


TEXTS_OF_NO_CONSEQUENCE = {
    "activity",
    "activity_since",
    "answers",
    "stalled_since",
    "streamed",
    "detail",
    "engine",
    "handed_by",
    "partial",
    "provider",
    "published",
    "last_activity",
    "losses",
    "lost",
    "settled_by",
    "started",
    "attempt_started",
    "stop_cause",
    "stop_detail",
    "stop_silent",
    "stop_hold",
    "token",
    "worker",
}
"""Fields that nothing else repeats: another value of the right sort cannot be told from the first."""


def other_value(name: str, value: bytes) -> bytes:
    """A value that is of the same sort where there is one."""
    if name in ("prompt", "policy", "header", "structured", "call"):
        return value[:-1]
    if value.isdigit():
        return str(int(value) + 7).encode()
    return value + b"x"


def test_every_field_of_a_record_that_is_altered_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        for status, new in world.tasks.items():
            key = world.store.keys.task(new.id)
            for raw in await world.do("HKEYS", key):
                name, value = raw.decode(), await world.do("HGET", key, raw)
                free = name in TEXTS_OF_NO_CONSEQUENCE
                # What an ended task keeps of what was: nothing depends on it any more.
                free |= status in ("completed", "failed", "killed") and name in (
                    "attempt",
                    "notice_entry",
                    "ended",
                )
                free |= name in ("attempt", "stop_until") and status in ("running", "stopping")
                if free and not (name == "notice_entry" and status == "completed"):
                    continue
                lines = await world.told_of_records("HSET", key, name, other_value(name, value))
                # A depth is judged against the parent's: what is altered at the top is seen from below.
                seen = name if name in ("depth", "input_tokens", "output_tokens", "model_calls") else new.id
                assert any(seen in line for line in lines) or (name, status) in NOBODY_BELOW, (
                    status,
                    name,
                    value,
                    lines,
                )

    in_world(settings, scenario)


NOBODY_BELOW = {("depth", "failed")}
"""A root's child may have any depth, as its log's header says, and no child of its own tells of it."""


def test_every_number_of_a_record_that_is_none_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        from dsh_tasks.store.audit.records import WHOLE, WHOLE_OR_ABSENT

        key = world.store.keys.task(world.tasks["completed"].id)
        values = ("-5", "1e309", "true", "", "1.5", "０")
        names = (*WHOLE, *WHOLE_OR_ABSENT)
        cases = [(name, values[place % len(values)]) for place, name in enumerate(names)]
        for name, value in [*cases, *((names[0], value) for value in values)]:
            lines = await world.told_of_records("HSET", key, name, value)
            assert any(line.startswith(f"{key}: {name} is ") for line in lines), (name, value, lines)

    in_world(settings, scenario)


def test_a_prompt_or_label_that_the_call_was_not_made_with_is_named_without_its_words(
    settings: Settings,
) -> None:
    async def scenario(world: World) -> None:
        key = world.store.keys.task(world.tasks["queued"].id)
        other = json.dumps([{"type": "text", "text": "a secret"}])
        for name, value in (("prompt", other), ("label", "a secret")):
            lines = await world.told(("HSET", key, name, value))
            should = "as submitted: its digest differs"
            assert lines == [f"{key}: {name} is not what the call was made with; should be {should}"]

    in_world(settings, scenario)


def test_every_altered_member_of_an_index_or_hint_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        k = world.store.keys
        ids = {status: new.id for status, new in world.tasks.items()}
        top = ids["running"]
        cases: list[tuple[str, tuple[Any, ...]]] = [
            (k.index("s-1"), ("ZREM", k.index("s-1"), top)),
            (k.index("s-1"), ("ZADD", k.index("s-1"), 5, top)),
            ("task:gone", ("ZADD", k.index("s-1"), 5, "gone")),
            (k.index("s-1"), ("ZADD", k.index("s-1"), 5, ids["queued"])),
            (k.live("s-1"), ("SREM", k.live("s-1"), top)),
            ("task:gone", ("SADD", k.live("s-1"), "gone")),
            (k.live("s-1"), ("SADD", k.live("s-1"), ids["failed"])),
            (k.calls("s-1"), ("HDEL", k.calls("s-1"), "k1")),
            (k.calls("s-1"), ("HSET", k.calls("s-1"), "k1", ids["failed"])),
            (k.calls("s-1"), ("HSET", k.calls("s-1"), "k2", top)),
            ("task:gone", ("HSET", k.calls("s-1"), "k2", "gone")),
            (k.holds(top), ("HSET", k.holds(top), ids["completed"], "never")),
            (k.holds(top), ("HSET", k.holds(top), ids["queued"], "5")),
            ("task:gone", ("HSET", k.holds(top), "gone", "5")),
            (k.leases, ("ZREM", k.leases, top)),
            (k.leases, ("ZADD", k.leases, 5, top)),
            (k.leases, ("ZADD", k.leases, 5, ids["queued"])),
            ("task:gone", ("ZADD", k.leases, 5, "gone")),
            (k.stops, ("ZREM", k.stops, ids["stopping"])),
            (k.stops, ("ZADD", k.stops, 5, ids["stopping"])),
            (k.stops, ("ZADD", k.stops, 5, top)),
            ("task:gone", ("ZADD", k.stops, 5, "gone")),
            (k.due, ("ZREM", k.due, ids["queued"])),
            (k.due, ("ZADD", k.due, 5, top)),
            ("task:gone", ("ZADD", k.due, 5, "gone")),
            ("task:gone", ("ZADD", k.kills, 5, "gone")),
        ]
        for named, command in cases:
            lines = await world.told(command)
            assert any(named in line for line in lines), (command, lines)

    in_world(settings, scenario)


def test_every_altered_notice_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        key = world.store.keys.inbox(world.tasks["running"].id)
        ((entry, fields),) = await world.do("XRANGE", key, "-", "+")
        assert f"{key}: has no notice of" in " ".join(await world.told(("XDEL", key, entry)))
        flat = [part for pair in fields.items() for part in pair]
        lines = await world.told(("XADD", key, "*", *flat))
        assert any("whose record knows no such notice" in line for line in lines), "a second notice"
        for name, value in fields.items():
            changed = {**fields, name: value + b"x"}
            again = [part for pair in changed.items() for part in pair]
            lines = await world.told(("DEL", key), ("XADD", key, entry, *again))
            assert any(key in line for line in lines), (name, lines)
            assert not any("label" in line and "a label" in line for line in lines)

    in_world(settings, scenario)


def test_every_altered_counter_of_a_tree_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        key = world.store.keys.tree("s-1")
        names = [name.decode() for name in await world.do("HKEYS", key)]
        assert set(names) == {"live", "total", "input_tokens", "output_tokens", "model_calls"}
        for name in names:
            for change in (("HINCRBY", key, name, 1), ("HDEL", key, name), ("HSET", key, name, "x")):
                lines = await world.told(change)
                assert any(line.startswith(f"{key}: {name} is ") for line in lines), (change, lines)

    in_world(settings, scenario)


def test_the_counters_of_a_tree_that_is_read_in_pages_are_added_up_as_well(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "AT_ONCE", 2)
    monkeypatch.setattr(trees, "PAGE", 2)

    async def scenario(world: World) -> None:
        assert (await world.audit()).faults == ()
        key = world.store.keys.tree("s-1")
        assert await world.told(("HINCRBY", key, "total", 1)) == [
            f"{key}: total is 7; should be 6, the sum over the records of this tree"
        ]

    in_world(settings, scenario)


def test_every_row_of_a_log_that_is_lost_altered_or_added_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        new = world.tasks["running"]
        key, events = world.store.keys.log(new.id), new.seed.event_count
        entries = await world.do("XRANGE", key, "-", "+")
        for entry, _ in entries:
            assert any(line.startswith(f"{key}: ") for line in await world.told(("XDEL", key, entry)))
        lines = await world.told(("XADD", key, "9-0", "r", row(events + 4)))
        assert any(line.startswith(f"{key}: has 5 rows") for line in lines)

        async def changed(place: int, value: bytes, name: str = "r") -> list[str]:
            commands: list[tuple[Any, ...]] = [("DEL", key)]
            for number, (entry, fields) in enumerate(entries):
                kept = ("r", fields[b"r"]) if number != place else (name, value)
                commands.append(("XADD", key, entry, *kept))
            return await world.told(*commands)

        for place, value in (
            (1, b"{"),
            (1, b"[]"),
            (1, row(events)),
            (1, json.dumps({"seq": events + 1}).encode()),
            (2, row(events + 2, "dsh-tasks/attempt", attempt=1)),
            (2, row(events + 2, "dsh-tasks/attempt", attempt=3)),
            (2, row(events + 2, "dsh-tasks/attempt", attempt="2")),
            (3, row(events + 3, "dsh-tasks/attempt", attempt=2)),
        ):
            lines = await changed(place, value)
            assert len(lines) == 1 and lines[0].startswith(f"{key}: row {place} "), (place, value, lines)
        assert await changed(1, row(events + 1), "q")

    in_world(settings, scenario)


def test_every_blob_that_is_damaged_or_miscounted_is_named(settings: Settings) -> None:
    async def scenario(world: World) -> None:
        kept: dict[tuple[bool, bool, bool], str] = {}
        for key in await world.keys():
            if ":seed:" in key or ":chunk:" in key:
                data, refs = await world.do("HMGET", key, "d", "refs")
                # One manifest, page and chunk each that is held, and that nothing refers to.
                kept[":seed:" in key, data.startswith(b"{"), int(refs) > 0] = key
        assert len(kept) == 6
        for key in kept.values():
            data, refs = await world.do("HMGET", key, "d", "refs")
            for change in (
                ("HSET", key, "d", data[:-1]),
                ("HSET", key, "d", b"{}"),
                ("HDEL", key, "d"),
                ("HINCRBY", key, "refs", 1),
                ("HSET", key, "refs", "x"),
                ("HDEL", key, "refs"),
                *([("HINCRBY", key, "refs", -1)] if int(refs) else []),
            ):
                lines = await world.told(change)
                assert any(line.startswith(f"{key}: ") for line in lines), (change[:3], lines)

    in_world(settings, scenario)


def test_references_are_counted_in_shares_where_there_are_many(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "NAMES_AT_ONCE", 3)

    async def scenario(world: World) -> None:
        assert (await world.audit()).faults == ()
        key = world.store.keys.seed(world.tasks["running"].seed.digest)
        assert await world.told(("HINCRBY", key, "refs", 2)) == [
            f"{key}: refs is 3; should be 1: so many records name it"
        ]

    in_world(settings, scenario)


def test_a_report_of_a_large_ruin_is_bounded(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "FAULTS_KEPT", 3)

    async def scenario(world: World) -> None:
        for number in range(7):
            await world.do("SET", f"{world.store.keys.prefix}stray:{number}", "x")
        report = await world.audit()
        assert (len(report.faults), report.fault_count, report.is_clean) == (3, 7, False)

    in_world(settings, scenario)


def test_an_audit_of_an_installation_at_work_finds_nothing(settings: Settings) -> None:
    """Submissions, claims, rows, settlements, kills, acknowledgements and pruning go on meanwhile."""

    kept = 0

    async def lives(store: Store, number: int, source: seed.Seed, audited: asyncio.Event) -> None:
        nonlocal kept
        owner = f"s-{number % 3}"
        inbox = Inbox(store.link, store.settings, owner)
        for count in itertools.count():
            if count >= 40 and audited.is_set():
                return
            # An audit that is slower than its neighbours would never come to the end of what only grows.
            pruned = count % 2 == 1 or count >= 40
            new = submitted(owner, "go", seed=source, call_key=secrets.token_hex(4))
            fence = await running(store, new)
            child = submitted(new.id, "below", seed=source)
            await store.submit(child, fence=fence)
            events = source.event_count
            await store.append(new.id, fence, 0, [row(events)], ended_steps=1, activity="model")
            if count % 3 == 0:
                await store.kill(new.id, caller=owner, token=secrets.token_hex(8), detail="")
                await store.settle(new.id, owner, fence, Outcome(Status.KILLED, Cause.OWNER), 1, ())
            else:
                await store.kill(child.id, caller=new.id, token=secrets.token_hex(8), detail="", fence=fence)
                done = Outcome(Status.COMPLETED, output="done", usage=Usage(1, 1, 1))
                await store.settle(new.id, owner, fence, done, 1, [row(events + 1)])
            await inbox.acknowledge([new.id])
            kept += 0 if pruned else 2
            for one in (child, new) if pruned else ():
                await store.forget(one.id, ended_before_ms=FAR, notice_before_ms=FAR)

    async def scenario(store: Store) -> None:
        sources = [seed.cut(a_log(turns, tools=1)) for turns in (5, 9)]
        audited = asyncio.Event()
        busy = asyncio.gather(*(lives(store, n, sources[n % 2], audited) for n in range(6)))
        while not busy.done():
            report = await audit(store.link, store.keys)
            assert report.faults == ()
            audited.set()
        await busy
        last = await audit(store.link, store.keys)
        assert (last.faults, last.unsettled) == ((), ())
        assert sum(last.tasks.values()) == kept >= 6 * 20 * 2

    on_store(settings, scenario)


def test_when_all_is_acknowledged_and_pruned_the_census_is_what_it_was(settings: Settings) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings) as client:
            assert await client.census() == {}
            kept = submitted("s-0", "kept", seed=seed.cut(a_log(2)))
            await running(client.store, kept)
            before = await client.census()
            world = await World(client.store).make()
            assert await client.census() != before
            for status, new in world.tasks.items():
                if status == "running":
                    await client.kill(new.id)
            await world.do("ZREM", world.store.keys.kills, world.tasks["stopping"].id)
            for key in (world.store.keys.killing(world.tasks["stopping"].id), world.store.keys.hookstats):
                await world.do("DEL", key)
            for status in ("running", "stopping"):
                # Nobody confirms: the deadline of the kill has passed.
                key = world.store.keys.task(world.tasks[status].id)
                await world.do("HSET", key, "stop_until", 1, "lease_until", 1)
                assert await reap(world.store, world.tasks[status].id) == "killed"
            for session in ("s-1", world.tasks["running"].id):
                async with AsyncClient.connect(settings, owner=session) as owner:
                    await world.do("DEL", world.store.keys.speaker(session), world.store.keys.holds(session))
                    await owner.notices(acknowledge=True)
            assert (await client.audit()).faults == ()
            told = await client.prune(older_than_ms=0)
            assert told["forgotten"] == len(world.tasks)
            assert await client.census() == before
            assert (await client.audit()).faults == ()

    asyncio.run(main())


def test_what_pruned_records_had_used_stays_in_the_sums_of_their_tree(settings: Settings) -> None:
    async def scenario(store: Store) -> None:
        first, second = submitted("s", "one"), submitted("s", "two")
        for new in (first, second):
            fence = await running(store, new)
            await store.settle(new.id, "s", fence, Outcome(Status.COMPLETED, usage=Usage(5, 3, 1)), 0, ())
        await Inbox(store.link, store.settings, "s").acknowledge([first.id])
        await store.forget(first.id, ended_before_ms=FAR, notice_before_ms=0)
        assert (await audit(store.link, store.keys)).faults == ()
        used = await store.link.command("HMGET", store.keys.tree("s"), "input_tokens", "pruned_input_tokens")
        assert used == [b"10", b"5"]

    on_store(settings, scenario)


def test_only_an_operator_audits(settings: Settings) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner="s") as client:
            for verb in (client.audit, client.census):
                with pytest.raises(OptionRefused):
                    await verb()

    asyncio.run(main())


def test_the_kinds_are_those_of_the_keys() -> None:
    """A new kind of key is one that the audit knows."""
    import re

    from dsh_tasks.store import keys

    named = set(re.findall(r"^    ([a-z]+):<", keys.__doc__ or "", re.MULTILINE))
    assert named == set(kinds.NAMED) - {"celery"}
    assert audits.__doc__
