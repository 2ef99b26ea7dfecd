"""Machine: the state machine of tasks as DESIGN tells it, without I/O: what each call answers and what it leaves.

It is written from the rules and shares no code with the Lua scripts. The clock is a number that `jump` moves.
What a server keeps twice (live sets, leases, stops) is derived here; what it may lose (`due`) is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tests.model.values import (
    NOTHING_USED,
    Answer,
    Ending,
    Proof,
    Stop,
    Submission,
    Task,
    Times,
    Used,
    plus,
)


class Machine:
    """All records of one installation, and the calls that change them."""

    def __init__(self, times: Times, now: int) -> None:
        self.times = times
        self.now = now
        self.tasks: dict[str, Task] = {}
        self.calls: dict[tuple[str, str], str] = {}
        self.inbox: dict[str, list[str]] = defaultdict(list)
        """Session to ids of endings that nobody acknowledged, in order of the endings."""
        self.holds: dict[tuple[str, str], int] = {}
        """(session, task) to until when the notice is held back."""
        self.speakers: dict[str, tuple[str, int]] = {}
        """Session to token and its end."""
        self.receipts: dict[str, tuple[Answer, int]] = {}
        """Token of a kill to its answer and until when it is repeated."""
        self.due: dict[str, int] = {}
        self.spent: dict[str, Used] = defaultdict(lambda: NOTHING_USED)
        """Root to usage."""
        self.pruned: dict[str, Used] = defaultdict(lambda: NOTHING_USED)
        """The part of it that no record has any more."""
        self.committed: dict[str, int] = defaultdict(int)
        """Root to tokens that are reserved or spent."""
        self.walks: dict[str, list[str]] = {}
        """Top of a kill that goes on in steps to what its walk has yet to look at, the next first."""

    # -- hints -----------------------------------------------------------------------------------------

    def lose_hints(self, ids: Sequence[str]) -> Answer:
        """Whatever the hints knew of these tasks is lost and found again from the records: how many there were."""
        found = 0
        for one in ids:
            task = self.tasks.get(one)
            if task is None:
                continue
            if task.status == "queued":
                self.due[one] = max(task.not_before or 0, self.now)
            has_deadline = bool(task.deadline) and task.status in ("queued", "running")
            # A queued task is due and live, a running one has a lease, a stopping one a time to end by as well.
            found += 1 if task.is_terminal else 2 + (task.status == "stopping") + has_deadline
        return (found,)

    # -- reading --------------------------------------------------------------------------------------

    def children(self, session: str) -> list[str]:
        """What a session started, in order of acceptance."""
        return [task.id for task in self.tasks.values() if task.owner == session]

    def live(self, session: str) -> list[str]:
        return [one for one in self.children(session) if not self.tasks[one].is_terminal]

    def tree(self, root: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.root == root]

    def dying_with(self, task_id: str) -> str | None:
        """The nearest top of a kill in steps that this task stands below, or is."""
        at = task_id
        while at in self.tasks and at not in self.walks:
            at = self.tasks[at].owner
        return at if at in self.walks else None

    def may_touch(self, task_id: str, caller: str) -> bool:
        """The operator, the owner, and whoever is above the owner."""
        at = task_id
        while caller and at in self.tasks:
            at = self.tasks[at].owner
            if at == caller:
                return True
        return not caller

    def refusal(self, session: str, proof: Proof | None) -> str | None:
        """Why a session may not act: the status of its record. None where it may."""
        task = self.tasks.get(session)
        if task is None:
            # Who shows a proof is a child, and a child has a record.
            return "missing" if proof else None
        if task.status == "running" and proof and task.is_proved_by(proof):
            return None
        return task.status

    # -- the clock ------------------------------------------------------------------------------------

    def jump(self, by: int) -> None:
        self.now += by
        self.speakers = {name: one for name, one in self.speakers.items() if one[1] > self.now}
        self.receipts = {name: one for name, one in self.receipts.items() if one[1] > self.now}

    # -- accept ---------------------------------------------------------------------------------------

    def submit(self, new: Submission, proof: Proof | None) -> Answer:
        known = self.calls.get((new.owner, new.call_key), new.id) if new.call_key else new.id
        if known in self.tasks:
            first = self.tasks[known]
            return "accepted", known, first.depth, True, first.asked.call
        if why := self.refusal(new.owner, proof):
            return "not_running", why
        above = self.tasks.get(new.owner)
        if above and self.dying_with(above.id):
            return "not_running", "stopping"
        depth = (above.depth if above else new.header_depth) + 1
        root = above.root if above else new.owner
        tree = self.tree(root)
        for name, value, cap in (
            ("depth", depth - 1, new.depth_cap),
            ("live_per_owner", len(self.live(new.owner)), self.times.live_per_owner),
            ("total_per_owner", len(self.children(new.owner)), self.times.total_per_owner),
            ("live_per_tree", sum(not task.is_terminal for task in tree), self.times.live_per_tree),
            ("total_per_tree", len(tree), self.times.total_per_tree),
            ("tree_token_budget", self.committed.get(root, 0), self.times.budget),
        ):
            if value >= cap:
                return "limit", name, value, cap
        # Where the clock was set back, nobody is accepted before those that are there already.
        created = max([self.now, *(self.tasks[one].created for one in self.children(new.owner)[-1:])])
        task = Task(new, root, above.id if above else "", depth, created, last_activity=self.now)
        task.deadline = self.now + new.deadline if new.deadline else None
        self.tasks[new.id] = task
        if new.call_key:
            self.calls[new.owner, new.call_key] = new.id
        self.due[new.id] = self.now + self.times.publish_within
        return "accepted", new.id, depth, False, new.call

    def submit_many(self, children: Sequence[Submission], proof: Proof | None) -> Answer:
        return tuple(self.submit(new, proof) for new in children)

    def mark(self, task_id: str, *, missed: bool = False) -> Answer:
        if task_id in self.due:
            after = self.times.publish_within if missed else self.times.republish
            self.due[task_id] = self.now + after
            self.tasks[task_id].published -= missed
        return ()

    def take_due(self, most: int) -> Answer:
        ripe = sorted((at, one) for one, at in self.due.items() if at <= self.now)[:most]
        found = []
        for _, one in ripe:
            task = self.tasks[one]
            task.published += 1
            pause = min(self.times.republish * 2 ** (task.published - 1), self.times.longest_republish)
            self.due[one] = self.now + int(pause)
            found.append((one, task.attempt, task.asked.label, task.depth, task.owner))
        return tuple(found)

    # -- one attempt ----------------------------------------------------------------------------------

    def claim(self, task_id: str, token: str, worker: str) -> Answer:
        task = self.tasks.get(task_id)
        if task is None:
            return ("missing",)
        if task.is_terminal:
            return "over", task.status, task.worker or ""
        repeated = task.status == "running" and task.token == token
        if task.status != "queued" and not repeated:
            return "taken", task.worker or ""
        if task.status == "queued" and (top := self.dying_with(task_id)):
            self._taken_along(task, top)
            return "over", "killed", ""
        if task.status == "queued":
            if (task.not_before or 0) > self.now:
                return "paused", task.not_before
            task.status, task.token, task.worker = "running", token, worker
            task.attempt += 1
            task.started = self.now if task.started is None else task.started
            task.activity, task.last_activity, task.not_before = "starting", self.now, None
            task.activity_since, task.streamed, task.stalled_since = self.now, 0, None
            del self.due[task_id]
        task.lease_until = self.now + self.times.lease
        return "claimed", task.attempt, task.lease_until

    def heartbeat(
        self, task_id: str, proof: Proof, activity: str, told: tuple[int, int, int, int, int]
    ) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or not (task.is_held and task.is_proved_by(proof)):
            return "fenced", task.status if task else "missing"
        task.lease_until = self.now + self.times.lease
        since, idle, task.streamed, task.answers, stalled = told
        task.activity, task.activity_since = activity, self.now - since
        # What it did last is never taken back.
        task.last_activity = max(task.last_activity, self.now - idle)
        task.stalled_since = self.now - stalled if stalled else None
        return "stop" if task.status == "stopping" else "ok", task.lease_until

    def append(
        self, task_id: str, proof: Proof, first: int, rows: Sequence[bytes], ended_steps: int, activity: str
    ) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or task.status != "running" or not task.is_proved_by(proof):
            return "fenced", task.status if task else "missing"
        expected = len(task.rows)
        if rows and first + len(rows) <= expected:
            return "ok", expected
        if first != expected:
            return "gap", expected
        if top := self.dying_with(task_id):
            self._taken_along(task, top)
            return "fenced", "stopping"
        task.rows += rows
        task.activity, task.last_activity = activity, self.now
        if ended_steps:
            task.losses = 0
        return "ok", len(task.rows)

    def settle(self, task_id: str, proof: Proof, said: Ending, first: int, rows: Sequence[bytes]) -> Answer:
        task = self.tasks.get(task_id)
        if task is not None and task.is_terminal and task.settled_by == proof.token:
            return "settled", task.status, task.ended
        if task is None or not (task.is_held and task.is_proved_by(proof)):
            return "fenced", task.status if task else "missing"
        if first == len(task.rows):
            task.rows += rows
        task.output, task.partial = said.output.encode(), said.partial
        task.usage = plus(task.usage, said.usage)
        self.spent[task.root] = plus(self.spent[task.root], said.usage)
        task.settled_by = proof.token
        top = self.dying_with(task_id)
        if task.stop or top:
            task.partial = task.partial or bool(said.output)
        if task.stop:
            self._stopped(task)
        elif top:
            self._taken_along(task, top, ends=True)
        else:
            if said.has_structured and said.status == "completed":
                task.structured, task.has_structured = said.structured, True
            self._end(task, said.status, said.cause, said.detail)
        return "settled", task.status, task.ended

    def reserve(self, task_id: str, proof: Proof, call: int, tokens: int) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or not (task.is_held and task.is_proved_by(proof)):
            return "fenced", task.status if task else "missing"
        name, committed = f"{proof.token}:{call}", self.committed[task.root]
        if task.reserved_for == name:
            return ()
        if task.status != "running":
            return "fenced", task.status
        if committed + tokens > self.times.budget:
            return "refused", "tree_token_budget", committed
        task.reserved_for, task.reserved = name, tokens
        self.committed[task.root] += tokens
        return ()

    def correct(self, task_id: str, proof: Proof, call: int, used: int) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or not (task.is_held and task.is_proved_by(proof)):
            return "fenced", task.status if task else "missing"
        if task.reserved_for == f"{proof.token}:{call}" and task.reserved is not None:
            self.committed[task.root] += used - task.reserved
            task.reserved = None
        return ()

    def hand_back(self, task_id: str, proof: Proof) -> Answer:
        task = self.tasks.get(task_id)
        if task is None:
            return (False,)
        if task.status == "queued" and task.handed_by == proof.token:
            return (True,)
        if not (task.is_held and task.is_proved_by(proof)):
            return (False,)
        if task.stop:
            self._stopped(task)
            return (False,)
        if top := self.dying_with(task_id):
            self._taken_along(task, top, ends=True)
            return (False,)
        self._requeue(task)
        task.handed_by = proof.token
        self.due[task_id] = self.now + self.times.publish_within
        return (True,)

    def reap(self, task_id: str) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or not task.is_held:
            return ("over",)
        expired = (task.lease_until or 0) + self.times.grace < self.now
        if task.stop and (expired or task.stop.until <= self.now):
            said = [task.stop.detail] if task.stop.detail else []
            task.stop.detail = "; ".join([*said, "worker did not confirm"])
            self._stopped(task)
            return ("killed",)
        if task.stop or not expired:
            return ("alive",)
        task.losses += 1
        task.lost += 1
        if task.losses >= self.times.losses or task.lost >= self.times.max_lost:
            words = f"the worker was lost {task.lost} times, {task.losses} since the last finished step"
            words += f", {task.stalls} of them by a stall" if task.stalls else ""
            self._end(task, "failed", "worker-lost", words)
            return "failed", task.lost
        pause = min(self.times.first_pause * 2 ** (task.lost - 1), self.times.longest_pause)
        self._requeue(task)
        task.not_before = self.due[task_id] = self.now + pause
        return "requeued", task.not_before

    def stall(self, task_id: str, proof: Proof) -> Answer:
        """A loss like another where one more may follow; else its attempt settles."""
        task = self.tasks.get(task_id)
        if task is None:
            return "fenced", "missing"
        if task.status == "queued" and task.handed_by == proof.token:
            return "requeued", task.not_before or 0
        if task.status != "running" or not task.is_proved_by(proof):
            return "fenced", task.status
        if self.dying_with(task_id):
            return "fenced", "stopping"
        if task.losses + 1 >= self.times.losses or task.lost + 1 >= self.times.max_lost:
            return "spent", task.lost + 1
        task.losses, task.lost, task.stalls = task.losses + 1, task.lost + 1, task.stalls + 1
        self._requeue(task)
        task.handed_by = proof.token
        pause = min(self.times.first_pause * 2 ** (task.lost - 1), self.times.longest_pause)
        task.not_before = self.due[task_id] = self.now + pause
        return "requeued", task.not_before

    # -- from outside ---------------------------------------------------------------------------------

    def kill(
        self,
        task_id: str,
        caller: str,
        token: str,
        detail: str,
        proof: Proof | None,
        most: int = 1_000,
        only_foreground: bool = False,
    ) -> Answer:
        """All steps of a kill."""
        taken: dict[str, str] = {}
        for step in range(1_000):
            answer = self.kill_step(
                task_id, caller, f"{token}:{step}", detail, proof, most, only_foreground=only_foreground
            )
            if answer[0] in ("over", "kept"):
                return "receipt", bool(taken), taken.get(task_id, answer[1]), tuple(taken.items())
            if answer[0] != "killed":
                return answer
            taken = dict(answer[2]) | taken
            if not answer[1]:
                break
        return "receipt", True, taken.get(task_id, "stopping"), tuple(taken.items())

    def kill_step(
        self,
        task_id: str,
        caller: str,
        token: str,
        detail: str,
        proof: Proof | None,
        most: int,
        cause: str = "",
        only_foreground: bool = False,
    ) -> Answer:
        """One step: it looks at `most` tasks, and marks the top while more are to follow."""
        if token in self.receipts:
            return self.receipts[token][0]
        if caller and (why := self.refusal(caller, proof)):
            return "not_running", why
        top = self.tasks.get(task_id)
        if top is None or not self.may_touch(task_id, caller):
            return ("missing",)
        resumed = task_id in self.walks
        if top.is_terminal and not resumed:
            return "over", top.status
        if only_foreground and top.mode != "foreground" and not resumed:
            return "kept", top.status
        is_late = cause == "deadline"
        if is_late and not resumed and (top.stop or not top.deadline or top.deadline > self.now):
            return "over", top.status
        is_owner = caller == top.owner
        why = cause or ("owner" if is_owner else "ancestor" if caller else "operator")
        hold = self.now + self.times.notice_hold if is_owner else 0
        until = self.now + self.times.kill_deadline
        asked = Stop(why, detail, hold, False, until)
        took = []
        ahead = self.walks.pop(task_id, [task_id])
        for _ in range(most):
            if not ahead:
                break
            name = ahead.pop(0)
            ahead = self.children(name) + ahead
            if name not in self.tasks:
                continue
            task = self.tasks[name]
            before = task.status
            if task.taken and task.taken[0] == task_id:
                before, task.taken = task.taken[1], None
            elif before in ("queued", "running"):
                task.stop = (
                    asked if task is top else Stop("ancestor", f"killed with {top.id}", 0, True, until)
                )
                ending = "failed" if is_late and task is top else "killed"
                self._stop(task, ending)
            elif not (before == "stopping" and task is top):
                continue
            took.append((name, before))
        if ahead:
            self.walks[task_id] = ahead
        answer: Answer = ("killed", bool(ahead), tuple(took))
        self.receipts[token] = answer, self.now + self.times.answer
        return answer

    def promote(self, task_id: str, caller: str, proof: Proof | None, after: int | None) -> Answer:
        """A call that waits is let go; what has ended, or is to end, is told where it was waited for."""
        if caller and (why := self.refusal(caller, proof)):
            return "not_running", why
        task = self.tasks.get(task_id)
        if task is None or caller not in ("", task.owner):
            return ("missing",)
        if task.promoted is None and task.mode == "foreground":
            if task.is_terminal or task.status == "stopping":
                return False, False, task.status
            if self.dying_with(task_id):
                return False, False, "stopping"
            task.promoted, task.promoted_after = self.now, after
        return task.promoted is not None, True, task.status

    def _stop(self, task: Task, ending: str = "killed") -> None:
        """What is queued ends; what runs is told."""
        if task.status == "queued":
            self._stopped(task, ending)
        else:
            task.status = "stopping"

    def _taken_along(self, task: Task, top: str, *, ends: bool = False) -> None:
        """It meets the mark of a kill in steps before its walk has come to it."""
        task.taken = top, task.status
        task.stop = Stop("ancestor", f"killed with {top}", 0, True, self.now + self.times.kill_deadline)
        if ends:
            self._stopped(task)
        else:
            self._stop(task)

    def read(self, task_id: str, caller: str, offset: int, length: int, *, hold: bool) -> Answer:
        task = self.tasks.get(task_id)
        if task is None or not self.may_touch(task_id, caller):
            return ("missing",)
        if hold and task.is_terminal and task.notice == "pending" and caller == task.owner:
            self.holds[caller, task_id] = self.now + self.times.notice_hold
        return "task", self.now, task.output[offset : offset + length]

    def look(self, ids: Sequence[str], caller: str, *, hold: bool) -> Answer:
        if not all(one in self.tasks and self.may_touch(one, caller) for one in ids):
            return ("missing",)
        for one in ids:
            self.read(one, caller, 0, 0, hold=hold)
        return tuple(self.tasks[one].status for one in ids)

    def forget(self, task_id: str, ended_before: int, notice_before: int) -> Answer:
        task = self.tasks.get(task_id)
        if task is None:
            return ("missing",)
        if not task.is_terminal or task.ended is None:
            return (task.status,)
        if task.ended > ended_before:
            return ("young",)
        if self.children(task_id):
            return ("below",)
        owner = self.tasks.get(task.owner)
        is_heard = owner is None or not owner.is_terminal
        if task.notice == "pending" and is_heard and task.ended > notice_before:
            return ("notice",)
        self._remove(task)
        return ("forgotten",)

    # -- the owner's inbox ----------------------------------------------------------------------------

    def _silenced(self, session: str, token: str) -> Answer | None:
        speaker = self.speakers.get(session)
        if speaker is None or speaker[0] == token:
            return None
        return "speaker", speaker[1] - self.now

    def _speaks(self, session: str, token: str) -> None:
        if token:
            self.speakers[session] = token, self.now + self.times.speaker_lease

    def speak(self, session: str, token: str) -> Answer:
        if taken := self._silenced(session, token):
            return taken
        self._speaks(session, token)
        return ()

    def fall_silent(self, session: str, token: str) -> Answer:
        if self.speakers.get(session, ("",))[0] == token:
            del self.speakers[session]
        return ()

    def take(self, session: str, token: str, most: int) -> Answer:
        if token and (taken := self._silenced(session, token)):
            return taken
        self._speaks(session, token)
        heard = [one for one in self.inbox[session] if self.holds.get((session, one), 0) <= self.now]
        return tuple(self._notice(self.tasks[one]) for one in heard[:most])

    def ack(self, session: str, ids: Sequence[str], token: str, proof: Proof | None) -> Answer:
        if not ids:
            return (0,)
        if taken := self._silenced(session, token):
            return taken
        why = self.refusal(session, proof)
        if why and why not in ("completed", "failed", "killed"):
            return "not_running", why
        self._speaks(session, token)
        count = 0
        for one in ids:
            if one in self.inbox[session]:
                self._unnotify(session, one)
                self.tasks[one].notice = "acked"
                count += 1
        return (count,)

    @staticmethod
    def _notice(task: Task) -> Answer:
        return f"notice-{task.id}", task.id, task.asked.label, task.status, task.cause, task.ended

    # -- what several calls share ---------------------------------------------------------------------

    def _requeue(self, task: Task) -> None:
        task.status, task.token, task.lease_until, task.activity = "queued", None, None, ""

    def _stopped(self, task: Task, ending: str = "killed") -> None:
        """The end that a kill asked for."""
        stop = task.stop
        assert stop is not None
        self._end(task, ending, stop.cause, stop.detail, hold_until=stop.hold_until, silent=stop.silent)

    def _end(
        self, task: Task, status: str, cause: str, detail: str, *, hold_until: int = 0, silent: bool = False
    ) -> None:
        task.status, task.cause, task.detail = status, cause, detail
        task.ended = task.last_activity = self.now
        task.activity, task.token, task.lease_until, task.not_before = "", None, None, None
        self.due.pop(task.id, None)
        if silent:
            return
        task.notice = "pending"
        self.inbox[task.owner].append(task.id)
        if task.mode == "foreground" and not hold_until:
            hold_until = self.now + self.times.notice_hold
        if hold_until:
            self.holds[task.owner, task.id] = hold_until

    def _unnotify(self, session: str, task_id: str) -> None:
        if task_id in self.inbox[session]:
            self.inbox[session].remove(task_id)
        self.holds.pop((session, task_id), None)

    def _remove(self, task: Task) -> None:
        self._unnotify(task.owner, task.id)
        del self.tasks[task.id]
        self.calls.pop((task.owner, task.asked.call_key), None)
        self.speakers.pop(task.id, None)
        self.walks.pop(task.id, None)
        self.pruned[task.root] = plus(self.pruned[task.root], task.usage)
        if not self.tree(task.root):
            del self.pruned[task.root]
            self.spent.pop(task.root, None)
            self.committed.pop(task.root, None)
