"""Inspection: goes through all keys, page by page, and has each kind looked at by its own rules.

A live installation gives no false alarm: what belongs together is read in one moment, and a fault is
told only where a second look sees it again. Memory is bounded: pages, and counts of so many names.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass

from dsh_tasks.store.audit import kinds
from dsh_tasks.store.audit.blobs import blob_faults
from dsh_tasks.store.audit.kinds import Kind, Life
from dsh_tasks.store.audit.logs import log_faults
from dsh_tasks.store.audit.looking import Look, text, whole
from dsh_tasks.store.audit.members import SCANS, member_faults
from dsh_tasks.store.audit.records import Around, faults_of, look_at, texts_faults
from dsh_tasks.store.audit.references import reference_faults
from dsh_tasks.store.audit.report import FAULTS_KEPT, AuditReport, Fault
from dsh_tasks.store.audit.trees import tree_faults
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys

RECORDS_AT_ONCE = 50
AT_A_TIME = 8
UNSETTLED_KEPT = 100
NO_EXPIRY, GONE = -1, -2

Check = Callable[[], Awaitable[list[Fault]]]


async def audit(link: Link, keys: Keys) -> AuditReport:
    """Look at everything under the prefix. Raises StoreUnavailable."""
    inspection = Inspection(Look(link, keys))
    await inspection.run()
    return inspection.report()


async def census(link: Link, keys: Keys) -> dict[str, int]:
    """Keys without an expiry by kind, without the queue's own: what stays for ever unless it is removed.

    When all work has ended, its notices are acknowledged and its records pruned, it is what it was before.
    """
    look = Look(link, keys)
    counted: Counter[str] = Counter()
    async for page in look.keys_of():
        for key, (_, expiry_ms) in zip(page, await _types(look, page), strict=True):
            known = kinds.kind_of(keys, text(key))
            if expiry_ms == NO_EXPIRY and (known is None or known[0] is not kinds.CELERY):
                counted[known[0].name if known else "unknown"] += 1
    return dict(sorted(counted.items()))


async def _types(look: Look, page: Sequence[bytes]) -> list[tuple[str, int]]:
    """Type and expiry of each key: ms, -1 for none, -2 where it is gone."""
    commands = [command for key in page for command in (("TYPE", key), ("PTTL", key))]
    answers = await look.at_once(commands)
    return [(text(answers[at]), int(answers[at + 1])) for at in range(0, len(answers), 2)]


async def _each(works: Iterable[Coroutine[None, None, None]]) -> None:
    """Some at a time: most of an audit is waiting for answers."""
    waiting = asyncio.Semaphore(AT_A_TIME)

    async def bounded(work: Coroutine[None, None, None]) -> None:
        async with waiting:
            await work

    await asyncio.gather(*(bounded(work) for work in works))


@dataclass(frozen=True, slots=True)
class Found:
    """A key that is of a known kind and of the type of that kind."""

    key: str
    name: str
    kind: Kind


class Inspection:
    """One audit: gathers faults and counts. Mutable, as it goes."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._keys = look.keys
        self._faults: dict[Fault, None] = {}
        self._fault_count = 0
        self._tasks: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._census: Counter[str] = Counter()
        self._unsettled: list[str] = []

    def report(self) -> AuditReport:
        """What was seen so far."""
        return AuditReport(
            faults=tuple(sorted(self._faults, key=lambda fault: fault.key)),
            fault_count=self._fault_count,
            tasks=dict(sorted(self._tasks.items())),
            keys=dict(sorted(self._kinds.items())),
            census=dict(sorted(self._census.items())),
            unsettled=tuple(self._unsettled[:UNSETTLED_KEPT]),
        )

    async def run(self) -> None:
        """Go through everything. Raises StoreUnavailable."""
        async for page in self._look.keys_of():
            await _each(self._inspect(found) for found in await self._of_known_kind(page))
        faults, unsettled = await reference_faults(self._look, self._kinds["seed"] + self._kinds["chunk"])
        # Counted again before they came here.
        self._tell(faults)
        self._unsettled += unsettled

    def _tell(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if fault in self._faults:
                continue
            self._fault_count += 1
            if len(self._faults) < FAULTS_KEPT:
                self._faults[fault] = None

    async def _seen_twice(self, check: Check) -> None:
        first = await check()
        if first:
            again = set(await check())
            self._tell([fault for fault in first if fault in again])

    # -- keys -------------------------------------------------------------------------------------

    async def _of_known_kind(self, page: Sequence[bytes]) -> list[Found]:
        found: list[Found] = []
        records: list[str] = []
        hanging: list[Found] = []
        for key, (kind_of_value, expiry_ms) in zip(page, await _types(self._look, page), strict=True):
            if expiry_ms == GONE:
                continue
            known = kinds.kind_of(self._keys, text(key))
            self._count(known[0] if known else None, expiry_ms)
            if known is None:
                self._tell([Fault(text(key), "is of no known kind", "one of the keys of this installation")])
                continue
            kind, name = known
            if kind.type and kind_of_value != kind.type:
                await self._seen_twice(lambda key=key, kind=kind: self._type_fault(key, kind))  # type: ignore[misc]
                continue
            if kind.life is not Life.FOREIGN:
                await self._expiry(Found(text(key), name, kind), expiry_ms)
            if kind.name == "task":
                records.append(name)
            elif kind.name in ("log", "output"):
                hanging.append(Found(text(key), name, kind))
            else:
                found.append(Found(text(key), name, kind))
        await self.records(records)
        await self._seen_twice(lambda: self._orphans(hanging))
        return found

    def _count(self, kind: Kind | None, expiry_ms: int) -> None:
        name = kind.name if kind else "unknown"
        self._kinds[name] += 1
        if expiry_ms == NO_EXPIRY and kind is not kinds.CELERY:
            self._census[name] += 1

    async def _type_fault(self, key: bytes, kind: Kind) -> list[Fault]:
        ((seen, expiry_ms),) = await _types(self._look, [key])
        if expiry_ms == GONE or seen == kind.type:
            return []
        return [Fault(text(key), f"is a {seen}", f"a {kind.type}")]

    async def _expiry(self, found: Found, expiry_ms: int) -> None:
        expires = expiry_ms != NO_EXPIRY
        if found.kind.life is Life.COUNTED or expires != (found.kind.life is Life.EXPIRES):
            await self._seen_twice(lambda: self._expiry_faults(found))

    async def _expiry_faults(self, found: Found) -> list[Fault]:
        (expiry_ms, refs) = await self._look.at_once(
            [("PTTL", found.key), ("HGET", found.key, "refs") if found.kind.type == "hash" else ("TIME",)]
        )
        if expiry_ms == GONE:
            return []
        expires = found.kind.life is Life.EXPIRES
        if found.kind.life is Life.COUNTED:
            expires = whole(refs) == 0
        if expires == (expiry_ms != NO_EXPIRY):
            return []
        why = f" at refs {whole(refs)}" if found.kind.life is Life.COUNTED else ""
        if expires:
            return [Fault(found.key, f"has no expiry{why}", "with an expiry: nothing refers to it")]
        return [Fault(found.key, f"expires{why}", "without an expiry")]

    # -- what is behind them ----------------------------------------------------------------------

    async def records(self, ids: Sequence[str]) -> None:
        """Look at these records and their logs."""
        for start in range(0, len(ids), RECORDS_AT_ONCE):
            some = ids[start : start + RECORDS_AT_ONCE]
            await _each(self._one(around) for around in await look_at(self._look, some))
            await self._seen_twice(lambda some=some: texts_faults(self._look, some))  # type: ignore[misc]

    async def _one(self, around: Around) -> None:
        self._tasks[around.status or "gone"] += 1
        if list(faults_of(self._keys, around)):
            await self._seen_twice(lambda: self._record(around.id))
        if around.log_length:
            await self._seen_twice(lambda: self._log(around.id))

    async def _record(self, one: str) -> list[Fault]:
        return [
            fault for around in await look_at(self._look, [one]) for fault in faults_of(self._keys, around)
        ]

    async def _log(self, one: str) -> list[Fault]:
        return [
            fault
            for around in await look_at(self._look, [one])
            for fault in await log_faults(self._look, around)
        ]

    async def _inspect(self, found: Found) -> None:
        name = found.kind.name
        if name in ("seed", "chunk"):
            await self._seen_twice(lambda: blob_faults(self._look, name, found.key, found.name))
        elif name == "tree":
            await self._seen_twice(lambda: self._tree(found.name))
        elif name == "killing":
            await self._seen_twice(lambda: self._left_over(found))
        elif name in SCANS or name == "inbox":
            await self._seen_twice(lambda: member_faults(self._look, name, found.key, found.name))

    async def _orphans(self, hanging: Sequence[Found]) -> list[Fault]:
        """Logs and outputs without a record."""
        tasks = [self._keys.task(found.name) for found in hanging]
        pairs = zip(hanging, tasks, strict=True)
        there = await self._look.at_once(
            [("EXISTS", key) for found, task in pairs for key in (found.key, task)]
        )
        return [
            Fault(task, f"is gone, and {found.key} belongs to it", f"a record, or {found.key} gone too")
            for place, (found, task) in enumerate(zip(hanging, tasks, strict=True))
            if there[2 * place] and not there[2 * place + 1]
        ]

    async def _left_over(self, found: Found) -> list[Fault]:
        """The rest of a walk whose kill is over."""
        there, marked = await self._look.at_once(
            [("EXISTS", found.key), ("ZSCORE", self._keys.kills, found.name)]
        )
        if not there or marked is not None:
            return []
        return [Fault(found.key, "is the rest of a kill that is over", f"gone, or {found.name} in kills")]

    async def _tree(self, root: str) -> list[Fault]:
        faults = await tree_faults(self._look, root)
        if faults is None:
            self._unsettled.append(self._keys.tree(root))
            return []
        return faults
