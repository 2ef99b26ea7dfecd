"""What workers and reapers do, and who pretends to be one."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.beside import Beside
from tests.model.chances import (
    STRANGER,
    TIMES,
    any_is,
    ended,
    endings,
    held,
    lost,
    number,
    proofs,
    under_a_kill,
)
from tests.model.values import Ending

NOTHING_TOLD = (0, 0, 0, 0, 0)


class AttemptRules(Beside):
    """Claims, writes, endings and losses of attempts."""

    def pick_held(self, n: int) -> str:
        return self.pick(n, lambda task: task.is_held)

    @rule(n=number, token=st.sampled_from(("new", "new", "new", "own", "taken")), lost=lost)
    def claim(self, n: int, token: str, lost: bool) -> None:
        """By a new worker, by one that asks again, or by one that guesses the holder's token of another task."""
        task_id = self.pick(n, lambda task: task.status == "queued" or token != "new")
        had = self.proofs.get(task_id, [])
        shown = self.fresh("token")
        if token == "own" and had:
            shown = had[-1].token
        self.claim_with(task_id, shown, n, lost=lost)

    @held
    @rule(n=number, kind=proofs, idle=st.sampled_from((0, 10_000)), stalls=st.booleans(), lost=lost)
    def heartbeat(self, n: int, kind: str, idle: int, stalls: bool, lost: bool) -> None:
        task_id = self.pick_held(n)
        if proof := self.proof(task_id, kind):
            told = (idle, idle, n, 1, idle if stalls else 0)
            self.ask("heartbeat", task_id=task_id, proof=proof, activity="model", told=told, lost=lost)

    @held
    @rule(
        n=number,
        kind=proofs,
        place=st.sampled_from((0, 0, 0, 1, -1, -2)),
        count=st.integers(0, 3),
        ended_steps=st.integers(0, 1),
        lost=lost,
    )
    def append(self, n: int, kind: str, place: int, count: int, ended_steps: int, lost: bool) -> None:
        """At the end, past it, or over rows that are there already."""
        task_id = self.pick_held(n)
        if proof := self.proof(task_id, kind):
            self.ask(
                "append",
                task_id=task_id,
                proof=proof,
                first=self.place(task_id, place),
                rows=self.rows(count),
                ended_steps=ended_steps,
                activity="tool:read",
                # Asked again, no row at all is a gap or not as before; what was written is there.
                lost=lost,
            )

    @held
    @rule(
        n=number,
        kind=proofs,
        said=endings,
        place=st.sampled_from((0, 0, 1, -1)),
        count=st.integers(0, 2),
        lost=lost,
    )
    def settle(self, n: int, kind: str, said: Ending, place: int, count: int, lost: bool) -> None:
        task_id = self.pick_held(n)
        if proof := self.proof(task_id, kind):
            task = self.machine.tasks.get(task_id)
            self.ask(
                "settle",
                task_id=task_id,
                root=task.root if task else STRANGER,
                proof=proof,
                said=said,
                first=self.place(task_id, place),
                rows=self.rows(count),
                lost=lost,
            )

    @ended
    @rule(n=number, kind=proofs, said=endings)
    def settle_late(self, n: int, kind: str, said: Ending) -> None:
        """What has ended is ended again, by its own attempt or by an older one: the first ending stays."""
        task_id = self.pick(n, lambda task: task.is_terminal)
        proof = self.proof(task_id, kind)
        if proof and (task := self.machine.tasks.get(task_id)):
            self.ask("settle", task_id=task_id, root=task.root, proof=proof, said=said, first=0, rows=[])

    @held
    @rule(n=number, kind=proofs, lost=lost)
    def stall(self, n: int, kind: str, lost: bool) -> None:
        task_id = self.pick_held(n)
        if proof := self.proof(task_id, kind):
            self.ask("stall", task_id=task_id, proof=proof, lost=lost)

    @held
    @rule(n=number, kind=proofs, call=st.integers(1, 3), tokens=st.sampled_from((0, 10, 60)), lost=lost)
    def reserve(self, n: int, kind: str, call: int, tokens: int, lost: bool) -> None:
        task_id = self.pick_held(n)
        if (proof := self.proof(task_id, kind)) and (task := self.machine.tasks.get(task_id)):
            given = {"task_id": task_id, "root": task.root, "proof": proof, "call": call}
            self.ask("reserve", tokens=tokens, lost=lost, **given)

    @held
    @rule(n=number, kind=proofs, call=st.integers(1, 3), used=st.sampled_from((0, 10, 70)), lost=lost)
    def correct(self, n: int, kind: str, call: int, used: int, lost: bool) -> None:
        task_id = self.pick(n, lambda task: task.is_held and task.reserved is not None)
        if (proof := self.proof(task_id, kind)) and (task := self.machine.tasks.get(task_id)):
            given = {"task_id": task_id, "root": task.root, "proof": proof, "call": call}
            self.ask("correct", used=used, lost=lost, **given)

    @held
    @rule(n=number, kind=proofs, lost=lost)
    def hand_back(self, n: int, kind: str, lost: bool) -> None:
        task_id = self.pick_held(n)
        if proof := self.proof(task_id, kind):
            self.ask("hand_back", task_id=task_id, proof=proof, lost=lost)

    @held
    @rule(n=number, lost=lost)
    def reap(self, n: int, lost: bool) -> None:
        self.ask("reap", task_id=self.pick_held(n), lost=lost)

    @held
    @rule()
    def reap_all(self) -> None:
        """As a reaper does: all whose lease or kill is over."""
        m = self.machine
        held = [task for task in m.tasks.values() if task.is_held]
        late = [task.id for task in held if (task.lease_until or 0) <= m.now - TIMES.grace]
        late += [task.id for task in held if task.stop and task.stop.until <= m.now]
        for one in late:
            self.ask("reap", task_id=one)

    @held
    @rule(n=number, kind=st.sampled_from(("forged", "early", "old")), said=endings)
    def pretend(self, n: int, kind: str, said: Ending) -> None:
        """Everything that an attempt may write, by somebody who is not the attempt (or, at times, is)."""
        task_id = self.pick(n % 9, lambda task: task.is_held)
        proof, task = self.proof(task_id, kind), self.machine.tasks[task_id]
        given = {"task_id": task_id, "proof": proof}
        rows = {"first": len(task.rows), "rows": self.rows(1)}
        self.ask("heartbeat", activity="pretends", told=NOTHING_TOLD, **given)
        self.ask("append", ended_steps=1, activity="pretends", **rows, **given)
        self.ask("reserve", root=task.root, call=1, tokens=1, **given)
        self.ask("correct", root=task.root, call=1, used=7, **given)
        self.ask("submit", new=self.wish(task_id, proof, "", "", 0, 0), proof=proof)
        self.ask("kill", task_id=task_id, caller=task_id, token=self.fresh("kill"), detail="", proof=proof)
        self.ask("ack", session=task_id, ids=[task_id], token="", proof=proof)
        self.ask("settle", root=task.root, said=said, **rows, **given)
        self.ask("hand_back", **given)

    @held
    @rule(n=number, after_s=st.sampled_from((30, 40, 50, 50, 50)))
    def lose_a_worker(self, n: int, after_s: int) -> None:
        """Its lease passes, or the grace too; where it was not the last loss, another begins after the pause."""
        task_id = self.pick(n % 9, lambda task: task.is_held)
        proof = self.proof(task_id, "right")
        self.ask("heartbeat", task_id=task_id, proof=proof, activity="last", told=NOTHING_TOLD)
        self.jump(after_s)
        if self.ask("reap", task_id=task_id)[0] == "requeued":
            self.jump(20)
            self.claim_with(task_id, self.fresh("token"), n, lost=False)

    @precondition(any_is("running"))
    @rule(n=number, steps=st.lists(st.booleans(), min_size=2, max_size=5))
    def lose_many_workers(self, n: int, steps: list[bool]) -> None:
        """One after the other; some have finished a step before."""
        task_id = self.pick(n % 9, lambda task: task.status == "running")
        for worked in steps:
            task = self.machine.tasks[task_id]
            if task.status != "running":
                return
            if worked:
                rows = {"first": len(task.rows), "rows": self.rows(1)}
                proof = self.proof(task_id, "right")
                self.ask("append", task_id=task_id, proof=proof, ended_steps=1, activity="model", **rows)
            self.jump(50)
            self.ask("reap", task_id=task_id)
            self.jump(300)
            self.claim_with(task_id, self.fresh("token"), n, lost=False)

    @precondition(any_is("running"))
    @rule(n=number, said=endings, kind=st.sampled_from(("ack", "forget", "both")))
    def end_a_family(self, n: int, said: Ending, kind: str) -> None:
        """A child ends, then its owner, which has not acknowledged: it still may, and nobody waits for it."""
        owner = self.pick(n % 9, lambda task: task.status == "running")
        self.start(owner, self.proof(owner, "right"))
        child, proof = self.ids[-1], self.proof(owner, "right")
        self.claim_with(child, self.fresh("token"), n, lost=False)
        for one in (child, owner):
            task = self.machine.tasks.get(one)
            if task is not None and (shown := self.proof(one, "right")):
                self.ask("settle", task_id=one, root=task.root, proof=shown, said=said, first=0, rows=[])
        if kind != "forget":
            self.ask("ack", session=owner, ids=[child], token="", proof=proof)
        if kind != "ack":
            now = self.machine.now
            self.ask("forget", task_id=child, ended_before=now, notice_before=now - 600_000)

    @precondition(any_is("running"))
    @rule(n=number, whats=st.lists(under_a_kill, min_size=1, max_size=3), said=endings)
    def half_a_kill(self, n: int, whats: list[str], said: Ending) -> None:
        """A kill in steps stops behind its top; what is below goes on, and so may the kill."""
        top = self.pick(n % 9, lambda task: task.status == "running")
        for _ in range(2):
            self.start(top, self.proof(top, "right"))
            self.claim_with(self.ids[-1], self.fresh("token"), n, lost=False)
        self.start(top, self.proof(top, "right"))
        self.finish_kill(top, most=1)
        for what in whats:
            self.go_on_under_a_kill(n, what, said)

    @precondition(lambda self: self.machine.walks)
    @rule(n=number, what=under_a_kill, said=endings)
    def go_on_under_a_kill(self, n: int, what: str, said: Ending) -> None:
        """What a kill in steps has marked but not reached does not go on as if nothing was."""
        m = self.machine
        wanted = ("queued",) if what == "claim" else ("running", "stopping")
        below = [one for one, task in m.tasks.items() if task.status in wanted and m.dying_with(one)]
        if not below:
            return
        task_id = below[-1 - n % len(below)]
        proof, root = self.proof(task_id, "right"), m.tasks[task_id].root
        given = {"task_id": task_id, "proof": proof}
        rows = {"first": self.place(task_id, 0), "rows": self.rows(1)}
        match what:
            case "claim":
                self.claim_with(task_id, self.fresh("token"), n, lost=False)
            case "append":
                self.ask("append", ended_steps=1, activity="model", **rows, **given)
            case "settle":
                self.ask("settle", root=root, said=said, **rows, **given)
            case "hand_back":
                self.ask("hand_back", **given)
            case "submit":
                self.ask("submit", new=self.wish(task_id, proof, "", "", 0, 0), proof=proof)

    @precondition(any_is("running"))
    @rule(
        n=number,
        count=st.integers(1, 3),
        ended_steps=st.integers(0, 1),
        tokens=st.sampled_from((0, 10, 60)),
        lost=lost,
    )
    def work(self, n: int, count: int, ended_steps: int, tokens: int, lost: bool) -> None:
        """A model call and its rows, as a worker that nobody disturbs."""
        task_id = self.pick(n % 9, lambda task: task.status == "running")
        proof, root = self.proof(task_id, "right"), self.machine.tasks[task_id].root
        self.names += 1
        call = {"task_id": task_id, "root": root, "proof": proof, "call": self.names}
        if self.ask("reserve", tokens=tokens, **call) == ():
            self.ask("correct", used=tokens // 2, **call)
        rows = {"first": self.place(task_id, 0), "rows": self.rows(count)}
        told = {"ended_steps": ended_steps, "activity": "tool:read"}
        self.ask("append", task_id=task_id, proof=proof, lost=lost, **rows, **told)
