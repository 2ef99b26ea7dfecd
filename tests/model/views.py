"""Views: all that can be seen of an installation, once from the model and once from the server, to be equal."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from dsh_tasks.store import Keys, Link
from dsh_tasks.task import USAGE_FIELDS as USED
from tests.model.calls import Calls, seed_named
from tests.model.machine import Machine
from tests.model.values import NOTHING_USED, Task

View = dict[str, Any]


# -- public records -----------------------------------------------------------------------------------


def public(task: Task) -> View:
    """The fields of `dsh_tasks.task.Task`, without the clock of the reading."""
    seed = seed_named(task.asked.seed)
    has_seed = bool(task.asked.seed)
    return {
        "id": task.id,
        "owner": task.owner,
        "root": task.root,
        "parent": task.parent or None,
        "depth": task.depth,
        "label": task.asked.label,
        "provider": "spawn",
        "engine": "agent",
        "status": task.status,
        "attempt": task.attempt,
        "cause": task.cause or None,
        "detail": task.detail,
        "created_ms": task.created,
        "started_ms": task.started,
        "ended_ms": task.ended,
        "lease_until_ms": task.lease_until,
        "last_activity_ms": task.last_activity,
        "losses": task.losses,
        "worker": task.worker,
        "activity": task.activity,
        "seed_turns": seed.turns,
        "seed_events": seed.event_count,
        "seed_bytes": seed.raw_bytes if has_seed else 0,
        "output_bytes": len(task.output),
        "partial": task.partial,
        "has_output": bool(task.output),
        "usage": dict(zip(USED, task.usage, strict=True)),
        "log_rows": len(task.rows),
        "answers": task.answers,
        "streamed": task.streamed,
        "activity_since_ms": task.activity_since,
        "stalled_since_ms": task.stalled_since,
        "mode": task.mode,
        "promoted_ms": task.promoted,
        "promoted_after_ms": task.promoted_after,
    }


async def seen_records(calls: Calls, ids: list[str]) -> dict[str, View]:
    """What `Store.tasks` says of these ids."""
    found = {}
    for task in await calls.store.tasks(ids):
        fields = asdict(task)
        del fields["now_ms"]
        found[task.id] = fields
    return found


def in_full(task: Task) -> View:
    """What `Store.read` says of a record beside its public part."""
    return {
        "public": public(task),
        "log_next": len(task.rows),
        "rows": task.rows,
        "page": task.output,
        "structured": (task.has_structured, task.structured),
        "seed": seed_named(task.asked.seed).digest if task.asked.seed else "",
    }


async def seen_in_full(calls: Calls, task_id: str) -> View:
    """One record as an operator reads it, its rows and its whole output with it."""
    found = await calls.store.read(task_id, caller="", length=10_000)
    fields = asdict(found.record.task)
    del fields["now_ms"]
    return {
        "public": fields,
        "log_next": found.record.log_next,
        "rows": await calls.store.own_rows(task_id),
        "page": found.page,
        "structured": (found.record.has_structured, found.record.structured),
        "seed": found.record.seed_digest,
    }


# -- what the server keeps beside the records -----------------------------------------------------------


def kept(machine: Machine, sessions: list[str]) -> View:
    """Indexes, inboxes, hints and counters as they follow from the model's records."""
    held = [task for task in machine.tasks.values() if task.is_held]
    return {
        "index": {name: ids for name in sessions if (ids := machine.children(name))},
        "live": {name: set(ids) for name in sessions if (ids := machine.live(name))},
        "calls": {
            name: keys
            for name in sessions
            if (keys := {key: one for (owner, key), one in machine.calls.items() if owner == name})
        },
        "inbox": {name: ids for name in sessions if (ids := machine.inbox.get(name))},
        "holds": {
            name: times
            for name in sessions
            if (times := {one: at for (owner, one), at in machine.holds.items() if owner == name})
        },
        "speakers": {name: token for name, (token, _) in machine.speakers.items()},
        "trees": {
            root: {
                "live": sum(not task.is_terminal for task in tree),
                "total": len(tree),
                "usage": machine.spent.get(root, NOTHING_USED),
                "pruned": machine.pruned.get(root, NOTHING_USED),
                "committed": machine.committed.get(root, 0),
            }
            for root in {task.root for task in machine.tasks.values()}
            if (tree := machine.tree(root))
        },
        "due": dict(machine.due),
        "leases": {task.id: task.lease_until for task in held},
        "stops": {task.id: task.stop.until for task in held if task.stop},
        "deadlines": {
            task.id: task.deadline
            for task in machine.tasks.values()
            if task.deadline and task.status in ("queued", "running")
        },
        "endings": {task.id: task.ended for task in machine.tasks.values() if task.is_terminal},
        "walks": machine.walks,
        "fences": {
            task.id: (task.token, task.not_before or 0, task.notice, task.lost)
            for task in machine.tasks.values()
        },
        "seeds": dict(seed_references(machine)),
    }


def seed_references(machine: Machine) -> Counter[str]:
    """Blob to how often records, and seeds that records name, list it."""
    named = Counter(task.asked.seed for task in machine.tasks.values() if task.asked.seed)
    found: Counter[str] = Counter()
    for name, count in named.items():
        made = seed_named(name)
        assert not made.pages, "small seeds list their chunks themselves"
        found[made.digest] += count
        found.update(chunk for chunk in made.blobs)
    return found


async def seen_kept(link: Link, keys: Keys, sessions: list[str], ids: list[str]) -> View:
    """The same from the server's keys, in one exchange."""
    blobs = sorted({blob for name in ("one", "two", "window") for blob in _blobs_of(keys, name)})
    async with link.client.pipeline(transaction=False) as pipe:
        for name in sessions:
            pipe.zrange(keys.index(name), 0, -1)
            pipe.smembers(keys.live(name))
            pipe.hgetall(keys.calls(name))
            pipe.xrange(keys.inbox(name))
            pipe.hgetall(keys.holds(name))
            pipe.get(keys.speaker(name))
        for name in sessions:
            pipe.hgetall(keys.tree(name))
        for name in ids:
            pipe.hmget(keys.task(name), "token", "not_before", "notice", "lost", "id")
            pipe.lrange(keys.killing(name), 0, -1)
        for key in (keys.due, keys.leases, keys.stops, keys.deadlines, keys.endings, keys.kills):
            pipe.zrange(key, 0, -1, withscores=True)
        for _, key in blobs:
            pipe.hget(key, "refs")
            pipe.pttl(key)
        answers = iter(await link.within(pipe.execute()))
    view: View = {
        name: {}
        for name in ("walks", "index", "live", "calls", "inbox", "holds", "speakers", "trees", "fences")
    }
    for name in sessions:
        _keep(view["index"], name, [one.decode() for one in next(answers)])
        _keep(view["live"], name, {one.decode() for one in next(answers)})
        _keep(view["calls"], name, {key.decode(): one.decode() for key, one in next(answers).items()})
        _keep(view["inbox"], name, [_fields(entry)["task"] for entry in next(answers)])
        _keep(view["holds"], name, {key.decode(): int(float(at)) for key, at in next(answers).items()})
        _keep(view["speakers"], name, (next(answers) or b"").decode())
    for name in sessions:
        if raw := {key.decode(): int(value) for key, value in next(answers).items()}:
            view["trees"][name] = {
                **{one: raw.get(one, 0) for one in ("live", "total", "committed")},
                "usage": tuple(raw.get(one, 0) for one in USED),
                "pruned": tuple(raw.get(f"pruned_{one}", 0) for one in USED),
            }
    for name in ids:
        token, not_before, notice, lost, is_there = next(answers)
        if is_there:
            view["fences"][name] = (
                token.decode() if token is not None else None,
                int(float(not_before or 0)),
                (notice or b"").decode(),
                int(lost or 0),
            )
        _keep(view["walks"], name, [one.decode() for one in next(answers)])
    for hint in ("due", "leases", "stops", "deadlines", "endings", "kills"):
        view[hint] = {one.decode(): int(at) for one, at in next(answers)}
    assert view.pop("kills").keys() == view["walks"].keys(), "a kill in steps is marked, and has more to do"
    view["seeds"] = {}
    for digest, _ in blobs:
        refs, left = int(next(answers) or 0), next(answers)
        assert (refs > 0) == (left == -1), f"blob {digest}: {refs} references, {left} ms to live"
        if refs:
            view["seeds"][digest] = refs
    return view


def _blobs_of(keys: Keys, name: str) -> list[tuple[str, str]]:
    made = seed_named(name)
    return [(made.digest, keys.seed(made.digest)), *((one, keys.chunk(one)) for one in made.blobs)]


def _keep(view: View, name: str, value: Any) -> None:
    if value:
        view[name] = value


def _fields(entry: Any) -> dict[str, str]:
    raw = entry[1]
    pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
    return {key.decode(): value.decode() for key, value in pairs}


def differences(expected: View, seen: View) -> str:
    """The parts that differ, for the eye."""
    parts = [
        f"{name}:\n  model  {expected.get(name)!r}\n  server {seen.get(name)!r}"
        for name in sorted(expected.keys() | seen.keys())
        if expected.get(name) != seen.get(name)
    ]
    return "\n".join(parts)
