"""What sessions, operators and strangers do: start, kill, read, forget, and the inbox."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.model.beside import Beside
from tests.model.chances import (
    ROOTS,
    UNKNOWN,
    any_is,
    askers,
    ended,
    keys,
    lives,
    lost,
    number,
    proofs,
    seeds,
)


class OwnerRules(Beside):
    """Starts, kills, looks and acknowledgements."""

    # -- accept -------------------------------------------------------------------------------------------

    @initialize(owner=st.sampled_from(ROOTS), seed=seeds)
    def first(self, owner: str, seed: str) -> None:
        self.begin_one(owner, 0, seed, 0, False)

    @rule(
        owner=st.sampled_from(ROOTS),
        key=keys,
        seed=seeds,
        depth=st.sampled_from((0, 0, 0, 2, 3)),
        life=lives,
        lost=lost,
    )
    def submit(self, owner: str, key: str, seed: str, depth: int, life: int, lost: bool) -> None:
        self.start(owner, None, key=key, seed=seed, depth=depth, life=life, lost=lost)

    @precondition(any_is("running"))
    @rule(n=number, kind=proofs, key=keys, seed=seeds, depth=st.sampled_from((0, 5)), lost=lost)
    def submit_below(self, n: int, kind: str, key: str, seed: str, depth: int, lost: bool) -> None:
        owner = self.pick(n, lambda task: task.status == "running")
        self.start(owner, self.proof(owner, kind), key=key, seed=seed, depth=depth, lost=lost)

    @rule(
        owner=st.sampled_from((*ROOTS, "below", "below", "below")),
        n=number,
        seed=seeds,
        life=lives,
        lost=lost,
    )
    def begin_one(self, owner: str, n: int, seed: str, life: int, lost: bool) -> None:
        """Accepted and claimed at once: most of what can happen begins with this."""
        at = owner if owner in ROOTS else self.pick(n % 9, lambda task: task.status == "running")
        self.start(at, self.proof(at, "right") if at in self.ids else None, seed=seed, life=life)
        self.claim_with(self.ids[-1], self.fresh("token"), n, lost=lost)

    @precondition(lambda self: self.asked)
    @rule(n=number, lost=lost)
    def submit_again(self, n: int, lost: bool) -> None:
        """Whatever has come of it meanwhile."""
        new, proof = self.asked[-1 - n % len(self.asked)]
        self.ask("submit", new=new, proof=proof, lost=lost)

    @rule(
        n=number,
        kind=proofs,
        many=st.lists(st.tuples(keys, seeds, lives), min_size=1, max_size=5),
        is_root=st.booleans(),
        lost=lost,
    )
    def submit_many(
        self, n: int, kind: str, many: list[tuple[str, str, int]], is_root: bool, lost: bool
    ) -> None:
        """One call, a verdict each; the limits count within it."""
        owner = ROOTS[n % 2] if is_root else self.pick(n, lambda task: task.status == "running")
        proof = None if is_root else self.proof(owner, kind)
        children = [self.wish(owner, proof, key, seed, 0, life) for key, seed, life in many]
        self.ask("submit_many", children=children, proof=proof, lost=lost)

    @rule(n=number, what=st.sampled_from(("take", "take", "mark", "missed")), lost=lost)
    def publish(self, n: int, what: str, lost: bool) -> None:
        """A lost answer to `due` costs these tasks one pause, as a lost message does: it is not sent again."""
        if what == "take":
            for one, *_ in self.ask("take_due", most=1 + n % 3):
                assert self.machine.tasks[one].status == "queued"
        elif what == "mark":
            self.ask("mark", task_id=self.pick(n, lambda task: task.status == "queued"), lost=lost)
        else:
            one = self.pick(n, lambda task: task.status == "queued" and task.published > 0)
            if (task := self.machine.tasks.get(one)) and task.published > 0:
                self.ask("mark", task_id=one, missed=True)

    # -- from outside -------------------------------------------------------------------------------------

    @rule(
        n=number,
        who=askers,
        kind=proofs,
        detail=st.sampled_from(("", "enough")),
        only=st.sampled_from((False, False, True)),
        lost=lost,
    )
    def kill(self, n: int, who: str, kind: str, detail: str, only: bool, lost: bool) -> None:
        task_id = self.pick(n, lambda task: not task.is_terminal)
        caller = self.caller(who, task_id)
        proof = self.proof(caller, kind) if caller in self.ids else None
        given = {
            "task_id": task_id,
            "caller": caller,
            "token": self.fresh("kill"),
            "detail": detail,
            "proof": proof,
            "only_foreground": only,
        }
        self.killed.append(given)
        is_first = task_id not in self.machine.walks
        answer = self.ask("kill", lost=lost, **given)
        if answer[0] == "receipt":
            took = [one for one, _ in answer[3]]
            assert len(set(took)) == len(took)
            assert not took or not is_first or took[0] == task_id, "the top stands first"

    @precondition(lambda self: self.machine.tasks)
    @rule(n=number, who=askers, kind=proofs, after=st.sampled_from((None, 5_000)), lost=lost)
    def promote(self, n: int, who: str, kind: str, after: int | None, lost: bool) -> None:
        """A call that waits is let go, by its owner, an operator, or somebody who may not."""
        task_id = self.pick(n, lambda task: task.mode == "foreground" and not task.is_terminal)
        caller = self.caller(who, task_id)
        proof = self.proof(caller, kind) if caller in self.ids else None
        before = self.machine.tasks.get(task_id)
        was_waited_for = before is not None and before.mode == "foreground"
        answer = self.ask("promote", task_id=task_id, caller=caller, proof=proof, after=after, lost=lost)
        if answer[0] is True and was_waited_for:
            self.steps["# promote: let go"] += 1
            assert not self.machine.tasks[task_id].is_terminal, "what has ended is told by its call"

    @rule(n=number, who=st.sampled_from(("owner", "ancestor", "operator")), most=st.integers(1, 3), lost=lost)
    def kill_in_steps(self, n: int, who: str, most: int, lost: bool) -> None:
        """One step of a kill, begun here or by another; the rest is marked and waits."""
        m = self.machine
        tops = [one for one in m.tasks if any(not m.tasks[below].is_terminal for below in m.children(one))]
        task_id = tops[n % len(tops)] if tops and n < 9 else self.pick(n, lambda task: not task.is_terminal)
        caller = self.caller(who, task_id)
        self.ask(
            "kill_step",
            task_id=task_id,
            caller=caller,
            token=self.fresh("kill"),
            detail="step",
            proof=self.proof(caller, "right") if caller in self.ids else None,
            most=most,
            lost=lost,
        )

    @precondition(lambda self: self.machine.walks)
    @rule(n=number, most=st.integers(1, 3))
    def go_on_with_a_kill(self, n: int, most: int) -> None:
        """As a reaper does."""
        tops = list(self.machine.walks)
        self.finish_kill(tops[n % len(tops)], most)

    @rule()
    def end_late_ones(self) -> None:
        """As a reaper does with those whose deadline is over."""
        late = [
            one.id for one in self.machine.tasks.values() if one.deadline and one.deadline <= self.machine.now
        ]
        for one in late:
            if not self.machine.tasks[one].is_terminal:
                self.finish_kill(one, cause="deadline")

    @precondition(lambda self: self.machine.tasks)
    @rule(n=number)
    def lose_hints(self, n: int) -> None:
        """Hints of one task, or of all, are lost; a sweep finds them again from the records."""
        ids = list(self.machine.tasks)
        self.ask("lose_hints", ids=ids if n > 8 else [ids[n % len(ids)]])

    @precondition(lambda self: self.killed)
    @rule(n=number)
    def kill_again(self, n: int) -> None:
        """The same token, whatever has happened since: within a minute the same answer."""
        self.ask("kill", **self.killed[-1 - n % len(self.killed)])

    @precondition(lambda self: self.machine.tasks)
    @rule(
        n=number,
        who=askers,
        hold=st.booleans(),
        offset=st.integers(0, 6),
        length=st.sampled_from((0, 3, 100)),
        lost=lost,
    )
    def read(self, n: int, who: str, hold: bool, offset: int, length: int, lost: bool) -> None:
        task_id = self.pick(n, lambda task: task.is_terminal)
        caller = self.caller(who, task_id)
        self.ask("read", task_id=task_id, caller=caller, offset=offset, length=length, hold=hold, lost=lost)

    @ended
    @rule(n=number, who=askers, after_s=st.sampled_from((50, 60, 70)))
    def look_at_an_ending(self, n: int, who: str, after_s: int) -> None:
        """Its owner's look holds the notice back, for as long as told; anybody else's does not."""
        task_id = self.pick(n % 9, lambda task: task.notice == "pending")
        caller, task = self.caller(who, task_id), self.machine.tasks.get(task_id)
        self.ask("read", task_id=task_id, caller=caller, offset=0, length=9, hold=True)
        if task is not None:
            self.ask("take", session=task.owner, token="", most=100)
            self.jump(after_s)
            self.ask("take", session=task.owner, token="", most=100)

    @precondition(lambda self: self.machine.tasks)
    @rule(n=number, who=askers, hold=st.booleans(), lost=lost)
    def look(self, n: int, who: str, hold: bool, lost: bool) -> None:
        """At several at once; one that is not the caller's, and nothing is told."""
        first = self.pick(n, lambda task: task.is_terminal)
        caller = self.caller(who, first)
        ids = [first, *[one for one in self.machine.tasks if self.machine.may_touch(one, caller)][: n % 4]]
        if n > 8:
            ids.append(next(iter(self.machine.tasks)))
        self.ask("look", ids=ids, caller=caller, hold=hold, lost=lost)

    @ended
    @rule(n=number, age_s=st.sampled_from((0, 0, 0, 60)), heed_s=st.sampled_from((0, 0, 600)), lost=lost)
    def forget(self, n: int, age_s: int, heed_s: int, lost: bool) -> None:
        now = self.machine.now
        self.ask(
            "forget",
            task_id=self.pick(n, lambda task: task.is_terminal),
            ended_before=now - age_s * 1000,
            notice_before=now - heed_s * 1000,
            lost=lost,
        )

    # -- inbox --------------------------------------------------------------------------------------------

    def session(self, n: int) -> str:
        """Mostly one with something in its inbox."""
        told = [name for name in self.sessions if self.machine.inbox.get(name)]
        return told[n % len(told)] if told and n < 9 else self.sessions[n % len(self.sessions)]

    @rule(n=number, token=st.sampled_from(("", "p1", "p1", "p2")), most=st.sampled_from((1, 100)), lost=lost)
    def take(self, n: int, token: str, most: int, lost: bool) -> None:
        self.ask("take", session=self.session(n), token=token, most=most, lost=lost)

    @rule(n=number, many=st.booleans(), token=st.sampled_from(("", "p1", "p1", "p2")), kind=proofs, lost=lost)
    def ack(self, n: int, many: bool, token: str, kind: str, lost: bool) -> None:
        """One's own endings, and such as are another's, unknown, or no endings yet."""
        session = self.session(n)
        told = list(self.machine.inbox.get(session, ()))
        ids = told if many else told[:1]
        if n >= 8:
            ids = [*ids, *self.ids[-3:], UNKNOWN, *ids]
        proof = self.proof(session, kind) if session in self.ids else None
        self.ask("ack", session=session, ids=ids, token=token, proof=proof, lost=lost and bool(ids))

    @rule(n=number, token=st.sampled_from(("p1", "p1", "p2")), silent=st.booleans(), lost=lost)
    def speak(self, n: int, token: str, silent: bool, lost: bool) -> None:
        self.ask("fall_silent" if silent else "speak", session=self.session(n), token=token, lost=lost)
