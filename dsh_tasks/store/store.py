"""Store: the record of tasks. Typed answers come out, never a raw reply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from dsh_tasks.errors import DshTasksError, OwnerNotRunning, StoreUnavailable, TaskNotFound
from dsh_tasks.seed import Seed
from dsh_tasks.settings import Settings
from dsh_tasks.store import seeds
from dsh_tasks.store.answers import (
    Accepted,
    Awaited,
    BudgetSpent,
    Claimed,
    DueTask,
    Fence,
    FencedOff,
    KillReceipt,
    LossesSpent,
    NewTask,
    NotClaimed,
    OutputPage,
    Promotion,
    Requeued,
    Settled,
    Verdict,
)
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys
from dsh_tasks.store.packed import packed, unpacked
from dsh_tasks.store.records import LISTED, due_tasks, limit_reached, record_of, task_of
from dsh_tasks.task import USAGE_FIELDS, Outcome, Status, Task, Usage, cut_detail, cut_text

PUBLISH_WITHIN_MS = 2_000
"""A message not published by then is published by a reaper."""
ANSWER_MS = 60_000
NOTICE_KEPT_MS = 30 * 24 * 3_600_000
"""How long a notice that nobody acknowledges keeps its record."""
NODES_PER_KILL = 1_000

PRUNED_AT_ONCE = 500

NO_FENCE = ("", "")


class Store:
    """One installation's records, through one link."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self.link = link
        self.settings = settings
        self.keys = Keys(settings.prefix)
        self._held = seeds.Held()

    # -- accept ---------------------------------------------------------------------------------

    async def submit(self, new: NewTask, *, fence: Fence | None = None) -> Accepted:
        """Accept one child in one step; uploads what the server lacks of its seed.

        Raises LimitReached, OwnerNotRunning, StoreUnavailable; then nothing remains but chunks that expire.
        """
        (verdict,) = await self.submit_many([new], fence=fence)
        if isinstance(verdict, DshTasksError):
            raise verdict
        return verdict

    async def submit_many(self, children: Sequence[NewTask], *, fence: Fence | None = None) -> list[Verdict]:
        """Accept children in one step, in their order, each with a verdict of its own.

        A child counts for the limits of those after it. Raises StoreUnavailable; then none was accepted,
        or the reply was lost and asking again gives the same verdicts.
        """
        if not children:
            return []
        for seed in _seeds_of(children):
            await seeds.upload_small(
                self.link, self.keys, seed, self._held, expiry_ms=self.settings.chunk_expiry_ms
            )
        for _ in range(4):
            answer = await self.link.script("submit", [self.keys.due], self._submit_args(children, fence))
            if answer[0] == b"verdicts":
                return [self._verdict(new, given) for new, given in zip(children, answer[1:], strict=True)]
            await self._upload_missing(children, {digest.decode() for digest in answer[1:]})
        msg = "seed chunks vanish faster than they are uploaded"
        raise StoreUnavailable(msg)

    async def _upload_missing(self, children: Sequence[NewTask], missing: set[str]) -> None:
        for seed in _seeds_of(children):
            lacks = missing & seed.blobs.keys()
            if seed.digest in missing:
                lacks.add("")
            if lacks:
                await seeds.upload(
                    self.link, self.keys, seed, lacks, self._held, expiry_ms=self.settings.chunk_expiry_ms
                )

    def _verdict(self, new: NewTask, answer: Sequence[Any]) -> Verdict:
        match answer[0]:
            case b"accepted":
                self._held.add(new.seed)
                return Accepted(new.id, int(answer[2]), repeated=False, call=new.call)
            case b"repeat":
                return Accepted(answer[1].decode(), int(answer[3]), repeated=True, call=answer[2].decode())
            case b"limit":
                return limit_reached(answer[1].decode(), int(answer[2]), int(answer[3]))
        return OwnerNotRunning(new.owner, status=answer[1].decode())

    def _submit_args(
        self, children: Sequence[NewTask], fence: Fence | None
    ) -> list[str | bytes | int | float]:
        args: list[str | bytes | int | float] = [self.keys.prefix, PUBLISH_WITHIN_MS]
        for new in children:
            args += self._child_args(new, fence)
        return args

    def _child_args(self, new: NewTask, fence: Fence | None) -> list[str | bytes | int | float]:
        attempt, token = (fence.attempt, fence.token) if fence else NO_FENCE
        has_seed = new.seed.event_count > 0
        fields: dict[str, str | int] = {
            "v": 1,
            "label": new.label,
            "provider": new.provider,
            "engine": new.engine,
            "prompt": new.prompt,
            "policy": new.policy,
            "header": new.header,
            "seed_turns": new.seed.turns,
            "seed_events": new.seed.event_count,
            "seed_bytes": new.seed.raw_bytes if has_seed else 0,
            "mode": new.mode,
        }
        limits = self.settings
        if new.mode == "foreground":
            # While a call waits for it, its ending is the call's to tell.
            fields["wait_hold"] = limits.notice_hold_ms
        return [
            new.id,
            new.owner,
            attempt,
            token,
            new.header_depth,
            new.depth_cap,
            limits.live_per_owner,
            limits.total_per_owner,
            limits.live_per_tree,
            limits.total_per_tree,
            limits.tree_token_budget,
            limits.tree_cost_budget_microusd,
            new.call_key,
            new.call,
            new.seed.digest if has_seed else "",
            new.deadline_ms,
            len(fields),
            *(part for pair in fields.items() for part in pair),
        ]

    async def mark_published(self, task_id: str) -> None:
        """The message is out; the task is due again only if it stays queued."""
        await self.link.script(
            "mark", [self.keys.due], [self.keys.prefix, task_id, self.settings.republish_ms, 0]
        )

    async def due(self, most: int = 100) -> list[DueTask]:
        """Queued tasks that want a message now; each is moved on."""
        answer = await self.link.script(
            "due", [self.keys.due], [self.keys.prefix, most, self.settings.republish_ms]
        )
        return due_tasks(answer)

    # -- one attempt ----------------------------------------------------------------------------

    async def claim(self, task_id: str, token: str, worker: str) -> Claimed | NotClaimed:
        """Take a queued task as its next attempt."""
        k = self.keys
        answer = await self.link.script(
            "claim",
            [k.task(task_id), k.leases, k.due],
            [task_id, token, self.settings.lease_ms, worker, k.prefix],
        )
        match answer[0]:
            case b"claimed":
                record = record_of(answer[4:], now_ms=int(answer[3]))
                return Claimed(record, int(answer[1]), int(answer[2]))
            case b"over":
                return NotClaimed("over", status=answer[1].decode(), worker=answer[2].decode())
            case b"paused":
                return NotClaimed("paused", until_ms=int(answer[1]))
            case b"taken":
                return NotClaimed("taken", worker=answer[2].decode())
        return NotClaimed("missing")

    async def append(
        self,
        task_id: str,
        fence: Fence,
        first: int,
        rows: Sequence[bytes],
        *,
        ended_steps: int,
        activity: str,
    ) -> int | FencedOff:
        """Write rows after the first `first` own rows; returns how many there are now."""
        k = self.keys
        answer = await self.link.script(
            "append",
            [k.task(task_id), k.log(task_id)],
            [
                k.prefix,
                task_id,
                self.settings.kill_deadline_ms,
                fence.attempt,
                fence.token,
                first,
                ended_steps,
                activity,
                *(await packed(rows)),
            ],
        )
        if answer[0] == b"ok":
            return int(answer[1])
        if answer[0] == b"fenced":
            return FencedOff(answer[1].decode())
        msg = f"row {first} does not continue the log, which wants {int(answer[1])}"
        raise StoreUnavailable(msg)

    async def settle(
        self, task_id: str, root: str, fence: Fence, outcome: Outcome, first: int, rows: Sequence[bytes]
    ) -> Settled | FencedOff:
        """End the task: status, output, notice, released limits and usage in one step."""
        k = self.keys
        output, cut = self._bounded(outcome.output)
        detail = outcome.detail + (f"; output cut at {len(output)} bytes" if cut else "")
        answer = await self.link.script(
            "settle",
            [k.task(task_id), k.log(task_id), k.output(task_id), k.tree(root)],
            [
                k.prefix,
                task_id,
                fence.attempt,
                fence.token,
                outcome.status.value,
                outcome.cause.value if outcome.cause else "",
                cut_detail(detail),
                output,
                len(output),
                "1" if outcome.partial or cut else "0",
                outcome.structured_text,
                *astuple(outcome.usage),
                first,
                *(await packed(rows)),
            ],
        )
        if answer[0] == b"settled":
            return Settled(Status(answer[1].decode()), int(answer[2]))
        return FencedOff(answer[1].decode())

    def _bounded(self, text: str) -> tuple[bytes, bool]:
        raw = text.encode("utf-8", "replace")
        if len(raw) <= self.settings.output_max_bytes:
            return raw, False
        return cut_text(text, self.settings.output_max_bytes).encode(), True

    async def reserve(
        self,
        task_id: str,
        root: str,
        fence: Fence,
        *,
        call: int,
        tokens: int,
        cost_nanousd: int = 0,
        cost_budget_microusd: int = 0,
    ) -> BudgetSpent | FencedOff | None:
        """Reserve tokens of the tree's budget for one model call, `call` counted from 1 in the attempt.

        `cost_nanousd` is what the attempt has cost so far, `cost_budget_microusd` what its child may cost.
        """
        limits = self.settings
        costs = [cost_nanousd, cost_budget_microusd, limits.tree_cost_budget_microusd]
        return await self._budget(task_id, root, fence, [call, tokens, "", limits.tree_token_budget, *costs])

    async def correct(
        self, task_id: str, root: str, fence: Fence, *, call: int, used: int, cost_nanousd: int = 0
    ) -> BudgetSpent | FencedOff | None:
        """Put what the call really took in place of what was reserved for it; `cost_nanousd` as `reserve`."""
        return await self._budget(task_id, root, fence, [call, 0, used, 0, cost_nanousd, 0, 0])

    async def _budget(
        self, task_id: str, root: str, fence: Fence, args: Sequence[str | int]
    ) -> BudgetSpent | FencedOff | None:
        k = self.keys
        answer = await self.link.script(
            "budget", [k.task(task_id), k.tree(root)], [fence.attempt, fence.token, *args]
        )
        match answer[0]:
            case b"fenced":
                return FencedOff(answer[1].decode())
            case b"refused":
                return BudgetSpent(int(answer[2]), answer[1].decode())
        return None

    async def hand_back(self, task_id: str, fence: Fence) -> bool:
        """Give the attempt back without a loss; True where it is queued again."""
        k = self.keys
        answer = await self.link.script(
            "hand_back",
            [k.task(task_id), k.leases, k.due],
            [k.prefix, task_id, fence.attempt, fence.token, PUBLISH_WITHIN_MS],
        )
        return bool(answer[0] == b"queued")

    async def stall(self, task_id: str, fence: Fence) -> Requeued | LossesSpent | FencedOff:
        """Give a stalled attempt back as a loss; `LossesSpent` where no further one may follow."""
        k, s = self.keys, self.settings
        answer = await self.link.script(
            "stall",
            [k.task(task_id), k.leases, k.due],
            [k.prefix, task_id, fence.attempt, fence.token, s.losses, s.max_attempts, s.first_pause_ms],
        )
        match answer[0]:
            case b"requeued":
                return Requeued(int(answer[1]))
            case b"spent":
                return LossesSpent(int(answer[1]))
        return FencedOff(answer[1].decode())

    # -- from outside ---------------------------------------------------------------------------

    async def kill(
        self,
        task_id: str,
        *,
        caller: str,
        token: str,
        detail: str,
        fence: Fence | None = None,
        only_foreground: bool = False,
    ) -> KillReceipt:
        """Kill a task and all below it. `caller` '' is the operator; the cause follows from who asks.

        `only_foreground`: a task that no call waits for any more stays as it is; then nothing is taken.
        Raises TaskNotFound for ids that are not the caller's or below, OwnerNotRunning.
        """
        taken: dict[str, Status] = {}
        for step in range(1_000):
            answer = await self._kill_step(
                task_id,
                caller=caller,
                token=f"{token}:{step}",
                detail=detail,
                fence=fence,
                only="foreground" if only_foreground else "",
            )
            match answer[0]:
                case b"missing":
                    raise TaskNotFound(task_id)
                case b"not_running":
                    raise OwnerNotRunning(caller, status=answer[1].decode())
                case b"over" | b"kept":
                    status = Status(answer[1].decode())
                    return KillReceipt(task_id, bool(taken), taken.get(task_id, status), tuple(taken.items()))
            parts = [part.decode() for part in answer[2:]]
            for name, status in zip(parts[::2], parts[1::2], strict=True):
                # A later step meets the top again, stopping by now.
                taken.setdefault(name, Status(status))
            if int(answer[1]) == 0:
                break
        return KillReceipt(task_id, True, taken.get(task_id, Status.STOPPING), tuple(taken.items()))

    async def _kill_step(
        self, task_id: str, *, caller: str, token: str, detail: str, fence: Fence | None, only: str = ""
    ) -> Any:
        k = self.keys
        attempt, fence_token = (fence.attempt, fence.token) if fence else NO_FENCE
        return await self.link.script(
            "kill",
            [k.task(task_id), k.answer(token), k.kills, k.killing(task_id)],
            [
                k.prefix,
                task_id,
                caller,
                attempt,
                fence_token,
                cut_detail(detail),
                self.settings.notice_hold_ms,
                self.settings.kill_deadline_ms,
                ANSWER_MS,
                NODES_PER_KILL,
                "",
                only,
            ],
        )

    async def promote(
        self, task_id: str, *, caller: str, fence: Fence | None = None, after_ms: int | None = None
    ) -> Promotion:
        """Turn a wait in the foreground into a background task; asked again it changes nothing.

        `caller` is the owner, '' the operator; `after_ms` is the time that the call had, where that was it.
        Raises TaskNotFound, OwnerNotRunning.
        """
        attempt, token = (fence.attempt, fence.token) if fence else NO_FENCE
        answer = await self.link.script(
            "promote",
            [self.keys.task(task_id)],
            [self.keys.prefix, task_id, caller, attempt, token, "" if after_ms is None else after_ms],
        )
        if answer[0] == b"missing":
            raise TaskNotFound(task_id)
        status = answer[1].decode()
        if answer[0] == b"not_running":
            raise OwnerNotRunning(caller, status=status)
        return Promotion(task_id, answer[0] == b"promoted", answer[0] != b"over", Status(status))

    async def forget(self, task_id: str, *, ended_before_ms: int, notice_before_ms: int) -> str:
        """Remove the record of a task that ended before a time (epoch ms), with its log and output.

        Its seed is counted down; chunks that nothing refers to any more expire. A task with tasks below it
        stays, and so does one whose notice nobody has acknowledged, unless it ended before
        `notice_before_ms`. Returns `forgotten`, `missing`, or why it stays: `young`, `below`, `notice`,
        or its status.
        """
        answer = await self.link.script(
            "forget",
            [self.keys.task(task_id)],
            [self.keys.prefix, task_id, ended_before_ms, notice_before_ms, self.settings.chunk_expiry_ms],
        )
        return str(answer[-1].decode())

    async def prune(self, *, older_than_ms: int) -> Counter[str]:
        """`forget` for all that ended so long ago by the server's clock, leaves before what is above them.

        Returns how many were forgotten, and how many stay for which reason.
        """
        now_ms = await self._now_ms()
        before_ms, notice_ms = now_ms - older_than_ms, now_ms - max(older_than_ms, NOTICE_KEPT_MS)
        forgotten = 0
        while True:
            kept = Counter[str]()
            gone = 0
            while ids := await self._ended(before_ms, sum(kept.values())):
                for task_id in ids:
                    what = await self.forget(task_id, ended_before_ms=before_ms, notice_before_ms=notice_ms)
                    if what == "missing":
                        await self.link.command("ZREM", self.keys.endings, task_id)
                    elif what == "forgotten":
                        gone += 1
                    else:
                        kept[what] += 1
            forgotten += gone
            # What stood above others may go once they are gone.
            if not gone or not kept["below"]:
                return Counter({"forgotten": forgotten}) + kept

    async def usage(self, root: str) -> Usage:
        """What a whole tree has used, lost children left out whose attempt could not say."""
        raw = await self.link.command("HMGET", self.keys.tree(root), *USAGE_FIELDS)
        return Usage(*(int(value or 0) for value in raw))

    async def stats(self) -> dict[str, int]:
        """Counters for operators, kept for 30 days after the last that was counted."""
        found: list[bytes] | dict[bytes, bytes] = await self.link.command("HGETALL", self.keys.stats)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {name.decode(): int(value) for name, value in pairs}

    async def _ended(self, before_ms: int, start: int) -> list[str]:
        found = await self.link.command(
            "ZRANGE", self.keys.endings, "-inf", before_ms, "BYSCORE", "LIMIT", start, PRUNED_AT_ONCE
        )
        return [raw.decode() for raw in found]

    async def _now_ms(self) -> int:
        seconds, micros = await self.link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def read(
        self, task_id: str, *, caller: str, offset: int = 0, length: int = 0, hold: bool = False
    ) -> OutputPage:
        """A record with `length` bytes of its text from `offset`. Raises TaskNotFound."""
        answer = await self.link.script(
            "read",
            [self.keys.task(task_id), self.keys.output(task_id)],
            [
                self.keys.prefix,
                task_id,
                caller,
                offset,
                length,
                self.settings.notice_hold_ms if hold else 0,
            ],
        )
        if answer[0] == b"missing":
            raise TaskNotFound(task_id)
        return OutputPage(record_of(answer[3:], now_ms=int(answer[1])), answer[2])

    async def look(self, ids: Sequence[str], *, caller: str, hold: bool = False) -> list[Status]:
        """The statuses of tasks that are the caller's or below, in one step. Raises TaskNotFound."""
        k = self.keys
        held_ms = self.settings.notice_hold_ms if hold else 0
        answer = await self.link.script(
            "look", [k.task(one) for one in ids], [k.prefix, caller, held_ms, *ids]
        )
        if answer[0] == b"missing":
            raise TaskNotFound(answer[1].decode())
        return [Status(one.decode()) for one in answer[2:]]

    async def statuses(self, ids: Sequence[str]) -> dict[str, Status | None]:
        """The status of each task as it is now; None where there is no record."""
        async with self.link.client.pipeline(transaction=False) as pipe:
            for task_id in ids:
                pipe.hget(self.keys.task(task_id), "status")
            found = await self.link.within(pipe.execute()) if ids else []
        return {
            task_id: Status(status.decode()) if status else None
            for task_id, status in zip(ids, found, strict=True)
        }

    async def policy_of(self, task_id: str) -> str | None:
        """The policy that a task was started with; None where there is no record."""
        policy = await self.link.command("HGET", self.keys.task(task_id), "policy")
        return None if policy is None else policy.decode()

    async def live_of(self, session: str) -> list[str]:
        """Tasks that a session started and that have not ended, in no order."""
        return [one.decode() for one in await self.link.command("SMEMBERS", self.keys.live(session))]

    async def own_rows(self, task_id: str, start: int = 0, most: int | None = None) -> list[bytes]:
        """The child's own rows from place `start`, as JSON."""
        args: list[str | bytes | int | float] = ["XRANGE", self.keys.log(task_id), f"{start + 1}-0", "+"]
        if most is not None:
            args += ["COUNT", most]
        return await unpacked([fields[1] for _, fields in _entries(await self.link.command(*args))])

    async def rows_from(self, task_id: str, place: int, most: int, *, block_ms: int = 0) -> list[bytes]:
        """At most `most` rows from `place` on; where there is none, waits `block_ms` for one.

        A wait holds a connection of the pool, and must be shorter than the deadline of a call.
        """
        waiting: list[str | int] = ["BLOCK", block_ms] if block_ms else []
        found = await self.link.command(
            "XREAD", "COUNT", most, *waiting, "STREAMS", self.keys.log(task_id), f"{place}-0"
        )
        entries = [
            entry for _, page in (found.items() if isinstance(found, dict) else found or ()) for entry in page
        ]
        return await unpacked([fields[1] for _, fields in _entries(entries)])

    async def rows_before(self, task_id: str, place: int | None, most: int) -> list[tuple[int, bytes]]:
        """At most `most` rows before `place` with their places, the last first; from the end for None."""
        until = "+" if place is None else f"({place + 1}-0"
        found = await self.link.command("XREVRANGE", self.keys.log(task_id), until, "-", "COUNT", most)
        entries = list(_entries(found))
        rows = await unpacked([fields[1] for _, fields in entries])
        places = [int(entry_id.split(b"-", 1)[0]) - 1 for entry_id, _ in entries]
        return list(zip(places, rows, strict=True))

    async def started_by(self, sessions: Sequence[str]) -> list[list[str]]:
        """Ids of the tasks that each session started, in order of acceptance."""
        async with self.link.client.pipeline(transaction=False) as pipe:
            for session in sessions:
                pipe.zrange(self.keys.index(session), 0, -1)
            found = await self.link.within(pipe.execute())
        return [[one.decode() for one in ids] for ids in found]

    async def live_foreground(self, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that have not ended and that a call waits for in the foreground."""
        if not ids:
            return []
        async with self.link.client.pipeline(transaction=False) as pipe:
            for task_id in ids:
                pipe.hmget(self.keys.task(task_id), "status", "mode")
            found = await self.link.within(pipe.execute())
        return [
            task_id
            for task_id, (status, mode) in zip(ids, found, strict=True)
            if status and not Status(status.decode()).is_terminal and mode == b"foreground"
        ]

    async def awaited(self, task_id: str) -> Awaited:
        """How a task stands that a call waits for in the foreground."""
        found = await self.link.command("HMGET", self.keys.task(task_id), "status", "mode")
        status, mode = found
        return Awaited(Status(status.decode()) if status else None, is_foreground=mode == b"foreground")

    async def tasks(self, ids: Sequence[str]) -> list[Task]:
        """Records by id; ids without a record are left out."""
        if not ids:
            return []
        async with self.link.client.pipeline(transaction=False) as pipe:
            pipe.time()
            for task_id in ids:
                pipe.hmget(self.keys.task(task_id), LISTED)
            seconds_micros, *found = await self.link.within(pipe.execute())
        now_ms = seconds_micros[0] * 1000 + seconds_micros[1] // 1000
        return [
            task_of({n: v for n, v in zip(LISTED, values, strict=True) if v is not None}, now_ms=now_ms)
            for values in found
            if values[0] is not None
        ]

    async def roots(self) -> list[str]:
        """Sessions that started something: by scanning, for operators only."""
        prefix = self.keys.index("")
        cursor, found = 0, set[bytes]()
        while True:
            # Each page under its own deadline: a large installation takes longer than one call may.
            page = await self.link.command("SCAN", cursor, "MATCH", f"{glob_of(prefix)}*", "COUNT", 1000)
            cursor = int(page[0])
            found.update(page[1])
            if cursor == 0:
                return sorted(key.decode()[len(prefix) :] for key in found)


def _seeds_of(children: Sequence[NewTask]) -> list[Seed]:
    return list({new.seed.digest: new.seed for new in children if new.seed.event_count}.values())


def glob_of(text: str) -> str:
    """A pattern that matches just this text."""
    return "".join(f"\\{sign}" if sign in "*?[]^-\\" else sign for sign in text)


def _entries(raw: Iterable[Any]) -> Iterable[tuple[bytes, list[bytes]]]:
    """Stream entries, whether redis-py parsed them into dicts or not."""
    for entry_id, fields in raw:
        if isinstance(fields, dict):
            yield entry_id, [part for pair in fields.items() for part in pair]
        else:
            yield entry_id, fields
