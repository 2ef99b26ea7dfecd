"""Trees: whether the counters of a tree are the sums over its records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsh_tasks.store.audit.looking import PAGE, Look, text, whole
from dsh_tasks.store.audit.report import Fault
from dsh_tasks.task import USAGE_FIELDS

AT_ONCE = 1_000
"""A tree of so many records is read in one moment; a larger one in pages, between two equal looks at it."""
TRIES = 5
DEEPEST = 128
FIELDS = ("status", *USAGE_FIELDS)
TERMINAL = ("completed", "failed", "killed")
PRUNED = "pruned_"
"""What records that are gone had used: the tree keeps it."""


@dataclass
class Sums:
    """Counts over the records of a tree."""

    live: int = 0
    total: int = 0
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(USAGE_FIELDS, 0))

    def add(self, values: Sequence[Any] | None) -> None:
        """One record: status and usage; one that is gone has none."""
        status, *usage = values or (None,)
        if status is None:
            return
        self.total += 1
        self.live += text(status) not in TERMINAL
        for name, value in zip(USAGE_FIELDS, usage, strict=False):
            self.usage[name] += whole(value) or 0


async def tree_faults(look: Look, root: str) -> list[Fault] | None:
    """What is wrong with the counters of a tree; None where they changed too quickly to be judged."""
    key = look.keys.tree(root)
    before: list[Fault] | None = None
    for _ in range(TRIES):
        seen = await _small(look, root) or await _large(look, root)
        if seen is None:
            continue
        counters, sums, in_one_moment = seen
        if not counters and not sums.total:
            return []
        faults = list(sum_faults(key, counters, sums))
        if not faults or in_one_moment or faults == before:
            return faults
        before = faults
    return None


def sum_faults(key: str, counters: Mapping[str, str], sums: Sums) -> Iterator[Fault]:
    """Counters against sums."""
    should = {"live": sums.live, "total": sums.total}
    for name in USAGE_FIELDS:
        should[name] = sums.usage[name] + (whole(counters.get(f"{PRUNED}{name}")) or 0)
    for name, value in should.items():
        if whole(counters.get(name, "0")) != value:
            what = f"{name} is {counters.get(name, 'gone')!s:.20}"
            yield Fault(key, what, f"{value}, the sum over the records of this tree")


Seen = tuple[Mapping[str, str], Sums, bool]


async def _small(look: Look, root: str) -> Seen | None:
    """All of a small tree in one moment; None where it is large or changes while it is walked."""
    sessions, ids = await _walked(look, root)
    if len(ids) > AT_ONCE:
        return None
    k = look.keys
    answers = await look.at_once(
        [
            ("HGETALL", k.tree(root)),
            *(("ZRANGE", k.index(session), 0, -1) for session in sessions),
            *(("HMGET", k.task(one), *FIELDS) for one in ids),
        ]
    )
    listed = [text(one) for below in answers[1 : 1 + len(sessions)] for one in below or ()]
    if sorted(listed) != sorted(ids):
        return None
    sums = Sums()
    for values in answers[1 + len(sessions) :]:
        sums.add(values)
    return _counters(answers[0]), sums, True


async def _walked(look: Look, root: str) -> tuple[list[str], list[str]]:
    """Sessions of a tree and the ids that they started; stops behind the bound."""
    sessions, ids, level = {root: None}, list[str](), [root]
    while level and len(ids) <= AT_ONCE:
        found = await look.at_once(
            [("ZRANGE", look.keys.index(session), 0, AT_ONCE) for session in level], of_one_moment=False
        )
        # Each once: an index that was altered could lead round.
        level = list(dict.fromkeys(text(one) for below in found for one in below or ()))
        level = [one for one in level if one not in sessions]
        ids += level
        sessions.update(dict.fromkeys(level))
    return list(sessions), ids


async def _large(look: Look, root: str) -> Seen | None:
    """A tree in pages; None where its counters changed meanwhile."""
    key = look.keys.tree(root)
    (before,) = await look.at_once([("HGETALL", key)])
    sums = Sums()
    async for page in _pages(look, root, 0):
        for values in await look.at_once([("HMGET", look.keys.task(one), *FIELDS) for one in page]):
            sums.add(values)
    (after,) = await look.at_once([("HGETALL", key)])
    return (_counters(after), sums, False) if before == after else None


async def _pages(look: Look, session: str, depth: int) -> AsyncIterator[list[str]]:
    if depth > DEEPEST:
        return
    start = 0
    while True:
        (found,) = await look.at_once(
            [("ZRANGE", look.keys.index(session), start, start + PAGE - 1)], of_one_moment=False
        )
        page = [text(one) for one in found or ()]
        if not page:
            return
        yield page
        above = await look.at_once([("EXISTS", look.keys.index(one)) for one in page], of_one_moment=False)
        for one, has_below in zip(page, above, strict=True):
            if has_below:
                async for below in _pages(look, one, depth + 1):
                    yield below
        start += PAGE


def _counters(raw: Any) -> Mapping[str, str]:
    pairs = raw.items() if isinstance(raw, dict) else zip((raw or ())[::2], (raw or ())[1::2], strict=True)
    return {text(name): text(value) for name, value in pairs}
