"""Records: whether one record fits itself and all that hangs on it. The rules are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_tasks.errors import SeedRefused
from dsh_tasks.seed.manifest import read as read_manifest
from dsh_tasks.store.audit.looking import Command, Look, entry_of, text, whole
from dsh_tasks.store.audit.report import Fault
from dsh_tasks.store.keys import Keys
from dsh_tasks.submission import call_of
from dsh_tasks.task import USAGE_FIELDS, Cause, Status

WHOLE = (
    "attempt",
    "losses",
    "lost",
    "log_next",
    "created",
    "last_activity",
    "published",
    "depth",
    "seed_turns",
    "seed_events",
    "seed_bytes",
)
"""Numbers that every record has."""
WHOLE_OR_ABSENT = (
    "started",
    "attempt_started",
    "ended",
    "lease_until",
    "stop_until",
    "stop_hold",
    "not_before",
    "output_bytes",
    *USAGE_FIELDS,
    "deadline",
    "reserved",
    "answers",
    "streamed",
    "activity_since",
    "stalled_since",
    "wait_hold",
    "promoted",
    "promoted_after",
    "stalls",
)
TEXTS = (
    "id",
    "owner",
    "root",
    "parent",
    "status",
    "call_key",
    "v",
    "label",
    "provider",
    "engine",
    "seed",
    "mode",
)
"""Texts that every record has; some may be empty."""
OTHERS = (
    "cause",
    "detail",
    "token",
    "worker",
    "notice",
    "notice_entry",
    "stop_cause",
    "stop_detail",
    "stop_silent",
    "settled_by",
    "partial",
    "activity",
)
JSON_TEXTS = ("prompt", "policy", "header", "call")
"""Texts that every record has, and that may be large."""
SMALL_BYTES = 1 << 14
"""A record with a longer prompt has its texts read by itself."""
FIELDS = (*WHOLE, *WHOLE_OR_ABSENT, *TEXTS, *OTHERS)
LINKS = ("owner", "root", "call_key", "notice_entry", "seed")
"""Fields that say which other keys to read with the record."""
STATUSES = frozenset(Status)
CAUSES = frozenset(Cause)
ENTRY = re.compile(r"\d+-\d+")


@dataclass(frozen=True, slots=True)
class Around:
    """A record and what hangs on it, read in one moment."""

    id: str
    fields: Mapping[str, str]
    has: Mapping[str, bool]
    """Which of the large texts are there."""
    log_length: int
    output_bytes: int | None
    """None where there is no output."""
    index_score: float | None
    is_live: bool
    call_id: str | None
    tree: Sequence[Any]
    lease: float | None
    stop: float | None
    due: float | None
    deadline: float | None
    ending: float | None
    entry: Mapping[str, str] | None
    """The inbox entry that the record names."""
    hold: str | None
    owner: Mapping[str, str]
    """Root and depth of the owner, where it is a task."""
    seed_refs: bytes | None
    manifest: bytes | None

    def number(self, name: str) -> int:
        """A whole number of the record; 0 where it is damaged, which is told by itself."""
        return whole(self.fields.get(name)) or 0

    @property
    def status(self) -> str:
        """As the record says."""
        return self.fields.get("status", "")


async def look_at(look: Look, ids: Sequence[str]) -> list[Around]:
    """The records of these ids with their surroundings; those that are gone are left out."""
    k = look.keys
    links = await look.at_once([("HMGET", k.task(one), *LINKS) for one in ids], of_one_moment=False)
    commands: list[Command] = []
    sizes: list[int] = []
    for one, found in zip(ids, links, strict=True):
        made = _commands(k, one, [text(value) if value is not None else "" for value in found or [None] * 5])
        sizes.append(len(made))
        commands += made
    answers = await look.at_once(commands)
    seen: list[Around] = []
    at = 0
    for one, found, size in zip(ids, links, sizes, strict=True):
        around = _around(one, answers[at : at + size])
        at += size
        now = [around.fields.get(name) for name in LINKS]
        then = [text(value) if value is not None else None for value in found or [None] * 5]
        if around.fields and now == then:
            seen.append(around)
        elif around.fields:
            # Settled or altered between the two reads: by itself it is soon read whole.
            seen += await look_at(look, [one])
    return seen


def _commands(k: Keys, one: str, links: Sequence[str]) -> list[Command]:
    owner, root, call_key, entry, seed = links
    entry = entry if ENTRY.fullmatch(entry) else "0-1"
    return [
        ("HMGET", k.task(one), *FIELDS),
        *(("HEXISTS", k.task(one), name) for name in JSON_TEXTS),
        ("XLEN", k.log(one)),
        ("EXISTS", k.output(one)),
        ("STRLEN", k.output(one)),
        ("ZSCORE", k.index(owner), one),
        ("SISMEMBER", k.live(owner), one),
        ("HGET", k.calls(owner), call_key),
        ("HMGET", k.tree(root), "live", "total"),
        ("ZSCORE", k.leases, one),
        ("ZSCORE", k.stops, one),
        ("ZSCORE", k.due, one),
        ("ZSCORE", k.deadlines, one),
        ("ZSCORE", k.endings, one),
        ("XRANGE", k.inbox(owner), entry, entry),
        ("HGET", k.holds(owner), one),
        ("HMGET", k.task(owner), "root", "depth"),
        ("HMGET", k.seed(seed), "refs", "d"),
    ]


def _around(one: str, answers: Sequence[Any]) -> Around:
    values, *rest = answers
    has, rest = rest[: len(JSON_TEXTS)], rest[len(JSON_TEXTS) :]
    log, is_there, length, index, live, call, tree, lease, stop, due, deadline, ending, *last = rest
    entries, hold, owner, seed = last
    entry = entry_of(entries[0])[1] if entries else None
    above = owner or [None, None]
    refs, manifest = seed or [None, None]
    return Around(
        id=one,
        fields={n: text(v) for n, v in zip(FIELDS, values or [], strict=False) if v is not None},
        has={name: bool(there) for name, there in zip(JSON_TEXTS, has, strict=True)},
        log_length=log or 0,
        output_bytes=length if is_there else None,
        index_score=_score(index),
        is_live=bool(live),
        call_id=None if call is None else text(call),
        tree=tree or [None, None],
        lease=_score(lease),
        stop=_score(stop),
        due=_score(due),
        deadline=_score(deadline),
        ending=_score(ending),
        entry=None if entry is None else {name: text(value) for name, value in entry.items()},
        hold=None if hold is None else text(hold),
        owner={} if above[1] is None else {"root": text(above[0] or b""), "depth": text(above[1])},
        seed_refs=refs,
        manifest=manifest,
    )


def _score(value: Any) -> float | None:
    return None if value is None else float(value)


# -- the rules ------------------------------------------------------------------------------------


def faults_of(keys: Keys, a: Around) -> Iterator[Fault]:
    """All that does not fit about a record and what hangs on it."""
    yield from _fields(keys, a)
    yield from _place(keys, a)
    yield from _mode(keys, a)
    yield from _seed(keys, a)
    yield from _stored(keys, a)
    if a.status in ENDED:
        yield from _ended(keys, a)
    elif a.status in STATUSES:
        yield from _unended(keys, a)
    yield from _hints(keys, a)


def _fields(keys: Keys, a: Around) -> Iterator[Fault]:
    key = keys.task(a.id)
    yield from _numbers(key, a)
    gone = [name for name in TEXTS if name not in a.fields]
    gone += [name for name, is_there in a.has.items() if not is_there]
    for name in gone:
        yield Fault(key, f"{name} is gone", "what submit wrote")
    if a.fields.get("v", "1") != "1":
        yield Fault(key, f"v is {_shown(a.fields['v'])}", "1, the version of records that this release knows")
    if a.fields.get("id", a.id) != a.id:
        yield Fault(key, f"id is {_shown(a.fields['id'])}", "the id in its key")
    if "status" in a.fields and a.status not in STATUSES:
        yield Fault(key, f"status is {_shown(a.status)}", f"one of {', '.join(sorted(STATUSES))}")
    yield from _counts(key, a)


def _numbers(key: str, a: Around) -> Iterator[Fault]:
    for name in WHOLE:
        if whole(a.fields.get(name)) is None:
            yield Fault(key, f"{name} is {_shown(a.fields.get(name))}", "a whole number from 0")
    for name in WHOLE_OR_ABSENT:
        if name in a.fields and whole(a.fields[name]) is None:
            yield Fault(key, f"{name} is {_shown(a.fields[name])}", "a whole number from 0, or nothing")


def _counts(key: str, a: Around) -> Iterator[Fault]:
    attempt, lost = a.number("attempt"), a.number("lost")
    if lost > attempt:
        yield Fault(key, f"lost is {lost}", f"at most the attempt, {attempt}")
    if a.number("losses") > lost:
        yield Fault(key, f"losses is {a.number('losses')}", f"at most lost, {lost}")
    if a.status in ("running", "stopping", "completed") and attempt == 0:
        yield Fault(key, f"attempt is 0 and it is {a.status}", "1 or more")
    for name in ("started", "attempt_started", "worker"):
        if (name in a.fields) != (attempt > 0):
            is_there = "is there" if name in a.fields else "is gone"
            yield Fault(key, f"{name} {is_there} at attempt {attempt}", "there from the first attempt on")


def _place(keys: Keys, a: Around) -> Iterator[Fault]:
    """What leads to the record: index, calls, tree, and the parent."""
    owner, root = a.fields.get("owner", ""), a.fields.get("root", "")
    yield from _parent(keys, a)
    if a.index_score is None:
        yield Fault(keys.index(owner), f"has not got {a.id}", "all tasks that its session started")
    elif int(a.index_score) != a.number("created"):
        what = f"has {a.id} at {a.index_score:.0f}"
        yield Fault(keys.index(owner), what, f"when it was created, {a.number('created')}")
    call_key = a.fields.get("call_key", "")
    if call_key and a.call_id != a.id:
        what = f"the call of {a.id} leads to {_shown(a.call_id)}"
        yield Fault(keys.calls(owner), what, f"{a.id}, whose call_key it is")
    for name, value in zip(("live", "total"), a.tree, strict=True):
        if value is None:
            yield Fault(keys.tree(root), f"{name} is gone", f"the count of a tree that has {a.id}")


def _parent(keys: Keys, a: Around) -> Iterator[Fault]:
    """Owner, root, parent, depth."""
    key = keys.task(a.id)
    owner, root, parent = (a.fields.get(name, "") for name in ("owner", "root", "parent"))
    if a.owner:
        if parent != owner:
            yield Fault(key, f"parent is {_shown(parent)}", f"its owner {owner!r}, which is a task")
        if root != a.owner["root"]:
            yield Fault(key, f"root is {_shown(root)}", f"that of its parent, {a.owner['root']!r}")
        above = whole(a.owner["depth"])
        if above is not None and a.number("depth") != above + 1:
            yield Fault(key, f"depth is {a.number('depth')}", f"one below its parent's, {above + 1}")
    elif parent:
        yield Fault(keys.task(parent), "is gone", f"the record of the parent of {a.id}")
    elif "root" in a.fields and root != owner:
        yield Fault(key, f"root is {_shown(root)}", f"its owner {owner!r}, which is no task")
    if a.number("depth") < 1:
        yield Fault(key, f"depth is {a.number('depth')}", "1 or more")


def _mode(keys: Keys, a: Around) -> Iterator[Fault]:
    """Whether a call waits for it."""
    key, mode = keys.task(a.id), a.fields.get("mode")
    if mode not in (None, "foreground", "background"):
        yield Fault(key, f"mode is {_shown(mode)}", "foreground or background")
        return
    if mode == "foreground" and "wait_hold" not in a.fields:
        yield Fault(key, "wait_hold is gone and a call waits for it", "there until it is promoted")
    if mode == "background" and "wait_hold" in a.fields:
        yield Fault(key, "wait_hold is there and nobody waits for it", "gone")
    if mode == "foreground" and "promoted" in a.fields:
        yield Fault(key, "mode is foreground and it was promoted", "background")
    if "promoted_after" in a.fields and "promoted" not in a.fields:
        yield Fault(key, "promoted is gone", "there beside promoted_after")


def _seed(keys: Keys, a: Around) -> Iterator[Fault]:
    digest, task = a.fields.get("seed", ""), keys.task(a.id)
    if not digest:
        kept = [name for name in ("seed_turns", "seed_events", "seed_bytes") if a.number(name)]
        for name in kept if "seed" in a.fields else ():
            yield Fault(task, f"{name} is {a.number(name)} without a seed", "0")
        return
    key = keys.seed(digest)
    if a.manifest is None:
        yield Fault(key, "is gone", f"the seed of {a.id}")
        return
    if (whole(a.seed_refs) or 0) < 1:
        yield Fault(key, f"refs is {_shown(a.seed_refs)}", f"1 or more: it is the seed of {a.id}")
    try:
        listed = read_manifest(a.manifest)
    except SeedRefused:
        # Told where the seed itself is looked at.
        return
    stated = {
        "seed_turns": listed.turns,
        "seed_events": listed.events,
        "seed_bytes": sum(part.raw_bytes for part in listed.parts),
    }
    for name, value in stated.items():
        if a.number(name) != value:
            yield Fault(task, f"{name} is {a.number(name)}", f"{value}, as the manifest says")


def _stored(keys: Keys, a: Around) -> Iterator[Fault]:
    """Log and output."""
    if a.log_length != a.number("log_next"):
        should = f"{a.number('log_next')}, the log_next of its record"
        yield Fault(keys.log(a.id), f"has {a.log_length} rows", should)
    stated = a.number("output_bytes")
    if (a.output_bytes or 0) != stated:
        has = "is gone" if a.output_bytes is None else f"has {a.output_bytes} bytes"
        yield Fault(keys.output(a.id), has, f"{stated} bytes, the output_bytes of its record")


def _ended(keys: Keys, a: Around) -> Iterator[Fault]:
    key = keys.task(a.id)
    cause = a.fields.get("cause")
    if a.status == "completed" and cause != "":
        yield Fault(key, f"cause is {_shown(cause)} and it has completed", "''")
    if a.status != "completed" and cause not in CAUSES:
        yield Fault(key, f"cause is {_shown(cause)} and it has {a.status}", "one of the causes")
    for name in ("ended", "detail"):
        if name not in a.fields:
            yield Fault(key, f"{name} is gone", "there once a task has ended")
    for name in ("lease_until", "stop_until", "not_before", "token"):
        if name in a.fields:
            yield Fault(key, f"{name} is there", "gone once a task has ended")
    if a.is_live:
        yield Fault(keys.live(a.fields.get("owner", "")), f"has {a.id}, which has ended", "only what lives")
    yield from _notice(keys, a, cause or "")


def _notice(keys: Keys, a: Around, cause: str) -> Iterator[Fault]:
    key, notice = keys.task(a.id), a.fields.get("notice")
    inbox = keys.inbox(a.fields.get("owner", ""))
    if notice is None and cause != Cause.ANCESTOR:
        yield Fault(key, "notice is gone", "pending or acked: this ending is told")
    elif notice not in (None, "pending", "acked"):
        yield Fault(key, f"notice is {_shown(notice)}", "pending, acked, or nothing")
    if notice is not None and not ENTRY.fullmatch(a.fields.get("notice_entry", "")):
        yield Fault(key, f"notice_entry is {_shown(a.fields.get('notice_entry'))}", "the entry of its notice")
    if notice == "pending" and a.entry is None:
        yield Fault(inbox, f"has no notice of {a.id}", "the notice that its record calls pending")
    if notice != "pending" and a.entry is not None:
        yield Fault(inbox, f"has a notice of {a.id}", f"without it: its record says {_shown(notice)}")
    if a.hold is not None and notice != "pending":
        holds = keys.holds(a.fields.get("owner", ""))
        yield Fault(holds, f"holds a notice of {a.id}", f"without it: its record says {_shown(notice)}")
    if a.entry is None:
        return
    told = {
        "kind": "ended",
        "id": f"notice-{a.id}",
        "task": a.id,
        "status": a.status,
        "cause": cause,
        "label": a.fields.get("label", ""),
        "at": a.fields.get("ended", ""),
    }
    for name, value in told.items():
        if a.entry.get(name) != value:
            # A label is the user's: it is not repeated here.
            shown = "the record's" if name == "label" else f"{value!r}, as in its record"
            yield Fault(inbox, f"{name} of the notice of {a.id} is another one", shown)


def _unended(keys: Keys, a: Around) -> Iterator[Fault]:
    key, owner = keys.task(a.id), a.fields.get("owner", "")
    absent, present = ABSENT[a.status], PRESENT[a.status]
    for name in absent:
        if name in a.fields:
            yield Fault(key, f"{name} is there and it is {a.status}", "gone until that changes")
    for name in present:
        if name not in a.fields:
            yield Fault(key, f"{name} is gone and it is {a.status}", "there while it is")
    if not a.is_live:
        yield Fault(keys.live(owner), f"has not got {a.id}, which is {a.status}", "all that lives")


ENDED = ("completed", "failed", "killed")
_UNTIL_ENDED = ("ended", "notice", "settled_by")
_HELD = ("token", "lease_until")
_STOP = ("stop_cause", "stop_until", "stop_detail", "stop_silent", "stop_hold")
ABSENT = {
    "queued": (*_UNTIL_ENDED, *_HELD, *_STOP),
    "running": (*_UNTIL_ENDED, *_STOP),
    "stopping": _UNTIL_ENDED,
}
PRESENT = {"queued": (), "running": _HELD, "stopping": (*_HELD, *_STOP)}
"""Fields that a task of each status has not got, and those that it must have."""


def _hints(keys: Keys, a: Around) -> Iterator[Fault]:
    """What the reapers go by."""
    lease = float(a.number("lease_until")) if a.status in ("running", "stopping") else None
    stop = float(a.number("stop_until")) if a.status == "stopping" else None
    # A task whose time is over is told to stop, and no longer looked for.
    may_expire = a.status in ("queued", "running") and a.number("deadline")
    deadline = float(a.number("deadline")) if may_expire else None
    for key, seen, should in (
        (keys.leases, a.lease, lease),
        (keys.stops, a.stop, stop),
        (keys.deadlines, a.deadline, deadline),
    ):
        if seen != should:
            has = f"has not got {a.id}" if seen is None else f"has {a.id} at {seen:.0f}"
            wants = f"without it, which is {a.status}" if should is None else f"it at {should:.0f}"
            yield Fault(key, has, wants)
    if (a.due is not None) != (a.status == "queued"):
        has = "has not got" if a.due is None else "has"
        yield Fault(keys.due, f"{has} {a.id}, which is {a.status}", "all that is queued and nothing else")
    if (a.ending is not None) != (a.status in ENDED):
        has = "has not got" if a.ending is None else "has"
        yield Fault(keys.endings, f"{has} {a.id}, which is {a.status}", "all that has ended, nothing else")


def _shown(value: Any) -> str:
    """A damaged value, in short."""
    return "gone" if value is None else repr(text(value)[:60])


# -- the large texts ------------------------------------------------------------------------------


async def texts_faults(look: Look, ids: Sequence[str]) -> list[Fault]:
    """Whether prompt, policy, header and call are JSON, and the call that of prompt and label."""
    lengths = await look.at_once(
        [("HSTRLEN", look.keys.task(one), "prompt") for one in ids], of_one_moment=False
    )
    small = [one for one, length in zip(ids, lengths, strict=True) if (length or 0) <= SMALL_BYTES]
    faults = await _read_texts(look, small)
    for one in ids:
        if one not in small:
            faults += await _read_texts(look, [one])
    return faults


async def _read_texts(look: Look, ids: Sequence[str]) -> list[Fault]:
    keys = [look.keys.task(one) for one in ids]
    found = await look.at_once([("HMGET", key, *JSON_TEXTS, "label", "structured") for key in keys])
    return [fault for key, values in zip(keys, found, strict=True) if values for fault in _texts(key, values)]


def _texts(key: str, values: Sequence[bytes | None]) -> Iterator[Fault]:
    read: dict[str, Any] = {}
    for name, value in zip((*JSON_TEXTS, "label", "structured"), values, strict=True):
        if value is None or name == "label":
            continue
        try:
            read[name] = json.loads(value)
        except ValueError:
            yield Fault(key, f"{name} is no JSON", "the JSON that was written")
    yield from _call_faults(key, read, values[len(JSON_TEXTS)])


def _call_faults(key: str, read: Mapping[str, Any], label: bytes | None) -> Iterator[Fault]:
    call, prompt = read.get("call"), read.get("prompt")
    if "prompt" in read and not isinstance(prompt, list):
        yield Fault(key, "prompt is no list", "a list of content blocks")
        return
    if not isinstance(call, dict) or prompt is None or label is None or "prompt" not in call:
        return
    mode, instance = str(call.get("mode", "")), str(call.get("instance", ""))
    again = json.loads(call_of(prompt, label=text(label), mode=mode, instance=instance))
    for name, shown in (("prompt", "prompt"), ("description", "label")):
        if call.get(name) != again[name]:
            yield Fault(
                key, f"{shown} is not what the call was made with", "as submitted: its digest differs"
            )
