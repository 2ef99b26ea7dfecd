"""Calls: each operation of the model as a call of the real Store, with its answer in the model's words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from dsh_tasks import seed
from dsh_tasks.errors import (
    DshTasksError,
    LimitReached,
    OwnerNotRunning,
    SpeakerTaken,
    StoreUnavailable,
    TaskNotFound,
)
from dsh_tasks.settings import Settings
from dsh_tasks.store import (
    Accepted,
    BudgetSpent,
    Claimed,
    Fence,
    FencedOff,
    Inbox,
    Link,
    LossesSpent,
    NewTask,
    Requeued,
    Settled,
    Store,
)
from dsh_tasks.store.store import ANSWER_MS, PUBLISH_WITHIN_MS
from dsh_tasks.task import Cause, Outcome, Status, Usage
from tests.factories import a_log
from tests.model.values import Answer, Ending, Proof, Submission, Times

GRID_MS = 10_000
"""Jumps and lives of keys are multiples of this; what a real server has left of a life is rounded up to it."""

SEEDS = ("one", "two", "window")


@cache
def seed_named(name: str) -> seed.Seed:
    """Three seeds that share chunks; '' is none."""
    match name:
        case "one":
            return seed.cut(a_log(1))
        case "two":
            return seed.cut(a_log(2))
        case "window":
            return seed.window(a_log(2), 1)
    return seed.empty()


def settings_of(times: Times, prefix: str) -> Settings:
    return Settings(
        prefix=prefix,
        lease_ms=times.lease,
        grace_ms=times.grace,
        losses=times.losses,
        max_attempts=times.max_lost,
        first_pause_ms=times.first_pause,
        kill_deadline_ms=times.kill_deadline,
        live_per_owner=times.live_per_owner,
        total_per_owner=times.total_per_owner,
        live_per_tree=times.live_per_tree,
        total_per_tree=times.total_per_tree,
        tree_token_budget=times.budget,
        notice_hold_ms=times.notice_hold,
        speaker_lease_ms=times.speaker_lease,
        republish_ms=times.republish,
        chunk_expiry_ms=times.chunk_expiry,
    )


def fence_of(proof: Proof | None) -> Fence | None:
    return Fence(proof.attempt, proof.token) if proof else None


def refused(error: DshTasksError) -> Answer:
    """A refusal as an answer."""
    match error:
        case TaskNotFound():
            return ("missing",)
        case OwnerNotRunning():
            return "not_running", error.facts["status"]
        case LimitReached():
            return "limit", *(error.facts[name] for name in ("limit", "value", "cap"))
        case SpeakerTaken():
            return "speaker", -(-error.facts["for_ms"] // GRID_MS) * GRID_MS
    raise error


def asked(new: Submission) -> NewTask:
    """What the store is asked to accept."""
    return NewTask(
        id=new.id,
        owner=new.owner,
        header_depth=new.header_depth,
        label=new.label,
        provider="spawn",
        engine="agent",
        prompt="[]",
        policy="{}",
        header="{}",
        depth_cap=new.depth_cap,
        seed=seed_named(new.seed),
        call_key=new.call_key,
        call=new.call,
        deadline_ms=new.deadline,
        mode=new.mode,
    )


def accepted(given: Accepted) -> Answer:
    return "accepted", given.task_id, given.depth, given.repeated, given.call


def budgeted(answer: BudgetSpent | FencedOff | None) -> Answer:
    match answer:
        case None:
            return ()
        case BudgetSpent():
            return "refused", answer.limit, answer.committed
    return "fenced", answer.status


class Calls:
    """The same names and arguments as the model's; answers are comparable with its answers."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self.link = link
        self.settings = settings
        self.store = Store(link, settings)

    async def ask(self, name: str, **given: Any) -> Answer:
        """One operation, its refusals as answers."""
        try:
            answer: Answer = await getattr(self, name)(**given)
        except (TaskNotFound, OwnerNotRunning, LimitReached, SpeakerTaken) as error:
            return refused(error)
        return answer

    async def submit(self, new: Submission, proof: Proof | None) -> Answer:
        return accepted(await self.store.submit(asked(new), fence=fence_of(proof)))

    async def submit_many(self, children: Sequence[Submission], proof: Proof | None) -> Answer:
        verdicts = await self.store.submit_many([asked(new) for new in children], fence=fence_of(proof))
        return tuple(refused(one) if isinstance(one, DshTasksError) else accepted(one) for one in verdicts)

    async def mark(self, task_id: str, *, missed: bool = False) -> Answer:
        if not missed:
            await self.store.mark_published(task_id)
            return ()
        k = self.store.keys
        await self.link.script("mark", [k.due], [k.prefix, task_id, PUBLISH_WITHIN_MS, 1])
        return ()

    async def take_due(self, most: int) -> Answer:
        found = await self.store.due(most)
        return tuple((one.task_id, one.attempt, one.label, one.depth, one.owner) for one in found)

    async def claim(self, task_id: str, token: str, worker: str) -> Answer:
        answer = await self.store.claim(task_id, token, worker)
        if isinstance(answer, Claimed):
            assert answer.record.task.attempt == answer.attempt
            return "claimed", answer.attempt, answer.lease_until_ms
        match answer.why:
            case "over":
                return "over", answer.status, answer.worker
            case "taken":
                return "taken", answer.worker
            case "paused":
                return "paused", answer.until_ms
        return (answer.why,)

    async def heartbeat(
        self, task_id: str, proof: Proof, activity: str, told: tuple[int, int, int, int, int]
    ) -> Answer:
        k = self.store.keys
        word, value = await self.link.script(
            "heartbeat",
            [k.task(task_id), k.leases],
            [task_id, proof.attempt, proof.token, self.settings.lease_ms, activity, *told],
        )
        return word.decode(), value.decode() if isinstance(value, bytes) else value

    async def append(
        self, task_id: str, proof: Proof, first: int, rows: Sequence[bytes], ended_steps: int, activity: str
    ) -> Answer:
        fence = Fence(proof.attempt, proof.token)
        try:
            answer = await self.store.append(
                task_id, fence, first, rows, ended_steps=ended_steps, activity=activity
            )
        except StoreUnavailable as refused:
            words = str(refused)
            assert "does not continue the log" in words, words
            return "gap", int(words.rsplit(" ", 1)[1])
        return ("fenced", answer.status) if isinstance(answer, FencedOff) else ("ok", answer)

    async def settle(
        self, task_id: str, root: str, proof: Proof, said: Ending, first: int, rows: Sequence[bytes]
    ) -> Answer:
        outcome = Outcome(
            Status(said.status),
            Cause(said.cause) if said.cause else None,
            detail=said.detail,
            output=said.output,
            structured=said.structured,
            has_structured=said.has_structured,
            usage=Usage(*said.usage),
        )
        fence = Fence(proof.attempt, proof.token)
        answer = await self.store.settle(task_id, root, fence, outcome, first, rows)
        if isinstance(answer, Settled):
            return "settled", answer.status.value, answer.at_ms
        return "fenced", answer.status

    async def reserve(self, task_id: str, root: str, proof: Proof, call: int, tokens: int) -> Answer:
        fence = Fence(proof.attempt, proof.token)
        return budgeted(await self.store.reserve(task_id, root, fence, call=call, tokens=tokens))

    async def correct(self, task_id: str, root: str, proof: Proof, call: int, used: int) -> Answer:
        fence = Fence(proof.attempt, proof.token)
        return budgeted(await self.store.correct(task_id, root, fence, call=call, used=used))

    async def hand_back(self, task_id: str, proof: Proof) -> Answer:
        return (await self.store.hand_back(task_id, Fence(proof.attempt, proof.token)),)

    async def stall(self, task_id: str, proof: Proof) -> Answer:
        match await self.store.stall(task_id, Fence(proof.attempt, proof.token)):
            case Requeued(not_before):
                return "requeued", not_before
            case LossesSpent(lost):
                return "spent", lost
            case FencedOff(status):
                return "fenced", status
        raise AssertionError

    async def reap(self, task_id: str) -> Answer:
        k, s = self.store.keys, self.settings
        word, *rest = await self.link.script(
            "reap",
            [k.task(task_id), k.leases, k.stops, k.due],
            [k.prefix, task_id, s.grace_ms, s.losses, s.max_attempts, s.first_pause_ms],
        )
        return word.decode(), *rest

    async def promote(self, task_id: str, caller: str, proof: Proof | None, after: int | None) -> Answer:
        told = await self.store.promote(task_id, caller=caller, fence=fence_of(proof), after_ms=after)
        return told.accepted, told.in_background, told.status.value

    async def kill(
        self,
        task_id: str,
        caller: str,
        token: str,
        detail: str,
        proof: Proof | None,
        only_foreground: bool = False,
    ) -> Answer:
        receipt = await self.store.kill(
            task_id,
            caller=caller,
            token=token,
            detail=detail,
            fence=fence_of(proof),
            only_foreground=only_foreground,
        )
        took = tuple((name, status.value) for name, status in receipt.took)
        return "receipt", receipt.accepted, receipt.status.value, took

    async def kill_step(
        self,
        task_id: str,
        caller: str,
        token: str,
        detail: str,
        proof: Proof | None,
        most: int,
        cause: str = "",
    ) -> Answer:
        """One step by itself: as of a very large kill, or as a reaper makes it."""
        k, s = self.store.keys, self.settings
        attempt, fence_token = (proof.attempt, proof.token) if proof else ("", "")
        word, *rest = await self.link.script(
            "kill",
            [k.task(task_id), k.answer(token), k.kills, k.killing(task_id)],
            [
                *(k.prefix, task_id, caller, attempt, fence_token, detail),
                *(s.notice_hold_ms, s.kill_deadline_ms, ANSWER_MS, most, cause),
            ],
        )
        if word != b"killed":
            return word.decode(), *(one.decode() for one in rest)
        more, *took = rest
        words = [one.decode() for one in took]
        return "killed", bool(more), tuple(zip(words[::2], words[1::2], strict=True))

    async def lose_hints(self, ids: Sequence[str]) -> Answer:
        """Take what is a hint from all of them, and look at their records."""
        k = self.store.keys
        hints = [k.due, k.leases, k.stops, k.endings, k.deadlines]
        owners = [(task.id, task.owner) for task in await self.store.tasks(ids)]
        for key in hints:
            await self.link.command("ZREM", key, *ids)
        for one, owner in owners:
            await self.link.command("SREM", k.live(owner), one)
        return (await self.link.script("hints", hints, [k.prefix, *ids]),)

    async def read(self, task_id: str, caller: str, offset: int, length: int, *, hold: bool) -> Answer:
        found = await self.store.read(task_id, caller=caller, offset=offset, length=length, hold=hold)
        return "task", found.record.task.now_ms, found.page

    async def look(self, ids: Sequence[str], caller: str, *, hold: bool) -> Answer:
        return tuple(one.value for one in await self.store.look(ids, caller=caller, hold=hold))

    async def forget(self, task_id: str, ended_before: int, notice_before: int) -> Answer:
        return (
            await self.store.forget(task_id, ended_before_ms=ended_before, notice_before_ms=notice_before),
        )

    async def speak(self, session: str, token: str) -> Answer:
        await self._inbox(session).speak(token)
        return ()

    async def fall_silent(self, session: str, token: str) -> Answer:
        await self._inbox(session).fall_silent(token)
        return ()

    async def take(self, session: str, token: str, most: int) -> Answer:
        found = await self._inbox(session).take(token=token, most=most)
        return tuple(
            (
                one.id,
                one.task_id,
                one.label,
                one.status.value,
                one.cause.value if one.cause else "",
                one.at_ms,
            )
            for one in found
        )

    async def ack(self, session: str, ids: Sequence[str], token: str, proof: Proof | None) -> Answer:
        return (await self._inbox(session).acknowledge(ids, token=token, fence=fence_of(proof)),)

    def _inbox(self, session: str) -> Inbox:
        return Inbox(self.link, self.settings, session)
