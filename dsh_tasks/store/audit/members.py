"""Members: whether all that sets, calls, inboxes and hints name is there and is what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dsh_tasks.store.audit.looking import Look, text, whole
from dsh_tasks.store.audit.report import Fault

FIELDS = ("status", "owner", "call_key", "notice", "notice_entry")
STATUS_IN = {
    "live": ("queued", "running", "stopping"),
    "leases": ("running", "stopping"),
    "stops": ("stopping",),
    "due": ("queued",),
    "deadlines": ("queued", "running"),
    "endings": ("completed", "failed", "killed"),
}
"""What a member of each is while it is one."""
OWNED = ("index", "live", "calls", "holds", "inbox")
SCANS = {
    "index": ("ZSCAN", "ZSCORE"),
    "live": ("SSCAN", "SISMEMBER"),
    "calls": ("HSCAN", "HGET"),
    "holds": ("HSCAN", "HGET"),
    "leases": ("ZSCAN", "ZSCORE"),
    "stops": ("ZSCAN", "ZSCORE"),
    "due": ("ZSCAN", "ZSCORE"),
    "kills": ("ZSCAN", "ZSCORE"),
    "deadlines": ("ZSCAN", "ZSCORE"),
    "endings": ("ZSCAN", "ZSCORE"),
}
"""How the members of a kind are gone through, and how one is asked for."""


async def member_faults(look: Look, kind: str, key: str, name: str) -> list[Fault]:
    """All that does not fit about what one key names; each page is read with its records in one moment."""
    faults: list[Fault] = []
    if kind == "inbox":
        async for entries in look.entries_of(key):
            faults += await _entries(look, key, name, entries)
        return faults
    async for members in look.members_of(key, SCANS[kind][0]):
        faults += await _members(look, kind, key, name, members)
    return faults


async def _members(look: Look, kind: str, key: str, name: str, members: Sequence[str]) -> list[Fault]:
    # A call's task stands in its value, which never changes.
    ids = await look.at_once([("HGET", key, member) for member in members]) if kind == "calls" else members
    ids = [text(one or b"") for one in ids]
    commands = [
        command
        for member, one in zip(members, ids, strict=True)
        for command in ((SCANS[kind][1], key, member), ("HMGET", look.keys.task(one), *FIELDS))
    ]
    answers = await look.at_once(commands)
    faults: list[Fault] = []
    for place, (member, one) in enumerate(zip(members, ids, strict=True)):
        value, record = answers[2 * place], answers[2 * place + 1]
        if value is None or (value == 0 and kind == "live"):
            # Gone since the page was read.
            continue
        fields = _fields(record)
        faults += _named(look, kind, key, name, one, fields)
        if kind == "calls" and fields and fields.get("call_key") != member:
            faults.append(
                Fault(key, f"has a call of {one} that is not its own", "the call_key of its record")
            )
        if kind == "holds" and whole(value) is None:
            faults.append(Fault(key, f"holds the notice of {one} until no time", "epoch ms"))
    return faults


def _fields(record: Sequence[bytes | None] | None) -> Mapping[str, str]:
    values = record or ()
    return {n: text(v) for n, v in zip(FIELDS, values, strict=False) if v is not None}


def _named(
    look: Look, kind: str, key: str, name: str, one: str, fields: Mapping[str, str]
) -> Iterator[Fault]:
    """Whether the record that `key` names is there, and belongs there."""
    if not fields:
        task = look.keys.task(one)
        yield Fault(task, f"is gone, and {key} names it", f"a record, or no longer in {key}")
        return
    if kind in OWNED and fields.get("owner") != name:
        yield Fault(key, f"has {one}, whose owner is another session", "only tasks of its own session")
    statuses = STATUS_IN.get(kind)
    if statuses and fields.get("status") not in statuses:
        yield Fault(
            key, f"has {one}, which is {fields.get('status')!r}", f"only what is {' or '.join(statuses)}"
        )
    if kind == "holds" and fields.get("notice") != "pending":
        yield Fault(key, f"holds the notice of {one}, which is not pending", "only pending notices")


async def _entries(
    look: Look, key: str, session: str, entries: Sequence[tuple[str, Mapping[str, bytes]]]
) -> list[Fault]:
    ids = [text(fields.get("task", b"")) for _, fields in entries]
    commands = [
        command
        for (entry, _), one in zip(entries, ids, strict=True)
        for command in (("XRANGE", key, entry, entry), ("HMGET", look.keys.task(one), *FIELDS))
    ]
    answers = await look.at_once(commands)
    faults: list[Fault] = []
    for place, ((entry, _), one) in enumerate(zip(entries, ids, strict=True)):
        if not answers[2 * place]:
            continue
        fields = _fields(answers[2 * place + 1])
        faults += _named(look, "inbox", key, session, one, fields)
        if fields and (fields.get("notice") != "pending" or fields.get("notice_entry") != entry):
            what = f"has {entry} for {one}, whose record knows no such notice"
            faults.append(Fault(key, what, "one entry for each pending notice"))
    return faults
