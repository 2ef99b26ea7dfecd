"""Beside: a model and a server side by side: each call goes to both, and all that can be seen must be equal.

Compared apart from that, what no model is needed for: a status changes only as `ALLOWED` says, an ending is never
taken back, a token is never given to two attempts, and asking again answers the same and changes nothing.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dsh_tasks.task import ALLOWED, Status
from tests.model.chances import JUMPS_S, ROOTS, SESSIONS, STRANGER, TIMES, UNKNOWN
from tests.model.machine import Machine
from tests.model.values import TERMINAL, Answer, Proof, Submission, Task
from tests.model.views import differences, in_full, kept, public, seen_in_full, seen_kept, seen_records
from tests.model.worlds import World


def repeated(answer: Answer) -> Answer:
    """A verdict without whether it is a repeated one."""
    return (*answer[:3], True, *answer[4:]) if answer[0] == "accepted" else answer


LOOSE: dict[str, Callable[[Answer], Answer]] = {
    # An acceptance says that it is a repeated one.
    "submit": repeated,
    "submit_many": lambda answer: tuple(repeated(one) for one in answer),
    # How many notices went away by this very call.
    "ack": lambda answer: ("count",) if isinstance(answer[0], int) else answer,
    # What has been done is not there to be done again.
    "reap": lambda _answer: (),
    "forget": lambda _answer: (),
}
"""In which part the answer to a call that is sent again may differ from the lost one. In nothing, elsewhere."""


class Beside(RuleBasedStateMachine):
    """Asks, chooses and compares. Subclasses have the rules; the last of them has world and steps."""

    world: World
    steps: Counter[str]
    """How many calls by name; what begins with # counts something about them."""

    def __init__(self) -> None:
        super().__init__()
        self.world.begin()
        self.machine = Machine(TIMES, self.world.now_ms)
        self.names = 0
        self.ids: list[str] = []
        """All that were ever submitted, also what was refused or forgotten."""
        self.asked: list[tuple[Submission, Proof | None]] = []
        self.proofs: dict[str, list[Proof]] = {}
        """All that were ever given out, oldest first; a server that was put back does not know them all."""
        self.given: dict[str, tuple[str, int]] = {}
        """Token to the attempt that got it."""
        self.killed: list[dict[str, Any]] = []
        self.before: dict[str, str] = {}
        """Statuses and lengths of logs after the last step."""
        self.statuses: dict[str, str] = {}
        """Statuses after the last call."""
        self.differs = False
        """Something was not as it must be: nothing more is asked."""

    # -- asking both --------------------------------------------------------------------------------------

    def ask(self, name: str, *, lost: bool = False, **given: Any) -> Answer:
        """The answer of both, which must be one."""
        self.steps[name] += 1
        self.differs = True
        expected = self.ask_model(name, given)
        if lost:
            self.steps["# lost replies"] += 1
            expected = self.ask_model_again(name, given, expected)
            seen = self.world.ask_with_a_lost_reply(name, **given)
        else:
            seen = self.world.ask(name, **given)
        if expected and isinstance(expected[0], str):
            self.steps[f"# {name}: {expected[0]}"] += 1
        assert seen == expected, f"{name}: the model answers {expected}, the server {seen}"
        self.check_changes()
        self.differs = False
        return expected

    def ask_model(self, name: str, given: dict[str, Any]) -> Answer:
        told = {key: value for key, value in given.items() if key != "root"}
        answer: Answer = getattr(self.machine, name)(**told)
        return answer

    def ask_model_again(self, name: str, given: dict[str, Any], first: Answer) -> Answer:
        state = kept(self.machine, self.sessions), copy.deepcopy(self.machine.tasks)
        again = self.ask_model(name, given)
        assert (kept(self.machine, self.sessions), self.machine.tasks) == state, (
            f"{name} sent again changed something"
        )
        same = LOOSE.get(name, lambda answer: answer)
        assert same(again) == same(first), f"{name}: {first}, and sent again {again}"
        return again

    # -- choosing -----------------------------------------------------------------------------------------

    @property
    def sessions(self) -> list[str]:
        known = dict.fromkeys((*SESSIONS, *self.machine.tasks))
        return list(known | dict.fromkeys(task.owner for task in self.machine.tasks.values()))

    def fresh(self, kind: str) -> str:
        """A name whose order says nothing of when it was made."""
        self.names += 1
        return f"{kind}-{hashlib.sha1(str(self.names).encode()).hexdigest()[:12]}"

    def pick(self, n: int, wanted: Callable[[Task], bool] = lambda _task: True) -> str:
        """An id: mostly one of those that are wanted, at times any, or one that nobody has."""
        fitting = [one for one in self.ids if (task := self.machine.tasks.get(one)) and wanted(task)]
        if n == 11 or not self.ids:
            return UNKNOWN
        if n >= 9 or not fitting:
            return self.ids[-1 - n % len(self.ids)]
        return fitting[-1 - n % len(fitting)]

    def proof(self, task_id: str, kind: str) -> Proof | None:
        """What a caller shows: the right proof, one of an earlier attempt, a guess, or one for the attempt to come."""
        had = self.proofs.get(task_id, [])
        task = self.machine.tasks.get(task_id)
        right = Proof(task.attempt, task.token) if task and task.token else had[-1] if had else None
        match kind:
            case "none":
                return None
            case "old" if had:
                return had[0]
            case "early" if right:
                return Proof(right.attempt + 1, right.token)
            case "right" if right:
                return right
        return Proof(task.attempt if task else 1, "forged")

    def caller(self, who: str, task_id: str) -> str:
        """Operator, owner, the root above, the task itself, one of its children, or a stranger."""
        task = self.machine.tasks.get(task_id)
        below = self.machine.children(task_id)
        match who:
            case "owner" if task:
                return task.owner
            case "ancestor" if task:
                return task.root
            case "itself":
                return task_id
            case "below" if below:
                return below[0]
            case "operator":
                return ""
        return STRANGER

    # -- what rules are made of ---------------------------------------------------------------------------

    def claim_with(self, task_id: str, shown: str, n: int, *, lost: bool) -> None:
        answer = self.ask("claim", task_id=task_id, token=shown, worker=f"w:{n}", lost=lost)
        if answer[0] == "claimed":
            self.note(task_id, Proof(answer[1], shown))

    def note(self, task_id: str, proof: Proof) -> None:
        if proof not in self.proofs.setdefault(task_id, []):
            self.proofs[task_id].append(proof)
        # A worker that asks again may get a later attempt; another worker never gets its token.
        holder, attempt = self.given.setdefault(proof.token, (task_id, proof.attempt))
        assert holder == task_id and proof.attempt >= attempt

    def place(self, task_id: str, past: int) -> int:
        task = self.machine.tasks.get(task_id)
        return max(0, (len(task.rows) if task else 0) + past)

    def rows(self, count: int) -> list[bytes]:
        self.names += 1
        return [b'{"n": "%d.%d"}' % (self.names, at) for at in range(count)]

    def start(
        self,
        owner: str,
        proof: Proof | None,
        *,
        key: str = "",
        seed: str = "",
        depth: int = 0,
        life: int = 0,
        lost: bool = False,
    ) -> None:
        new = self.wish(owner, proof, key, seed, depth, life)
        self.ask("submit", new=new, proof=proof, lost=lost)

    def wish(self, owner: str, proof: Proof | None, key: str, seed: str, depth: int, life: int) -> Submission:
        new = Submission(
            id=self.fresh("subagent"),
            owner=owner,
            header_depth=depth,
            label=f"label {self.names}",
            call_key=key,
            call=f'{{"n": {self.names}}}',
            seed=seed,
            deadline=life,
            mode="foreground" if self.names % 3 == 0 else "background",
        )
        self.ids.append(new.id)
        self.asked.append((new, proof))
        return new

    def finish_kill(self, top: str, most: int = 1_000, cause: str = "") -> None:
        given = {"task_id": top, "token": self.fresh("reaper"), "most": most, "cause": cause}
        self.ask("kill_step", caller="", detail="", proof=None, **given)

    # -- the clock ----------------------------------------------------------------------------------------

    @rule(by_s=st.sampled_from(JUMPS_S))
    def jump(self, by_s: int) -> None:
        self.steps["jump"] += 1
        self.machine.jump(by_s * 1000)
        self.world.jump(by_s * 1000)

    # -- what must hold after each step -------------------------------------------------------------------

    @invariant()
    def all_that_is_visible_is_equal(self) -> None:
        m, calls, world = self.machine, self.world.calls, self.world
        self.differs = True
        ids = sorted(m.tasks.keys() | self.before.keys())
        told = {one: public(task) for one, task in m.tasks.items()}
        seen = world.run(seen_records(calls, ids))
        assert seen == told, differences(told, seen)
        sessions = sorted({*self.sessions, *ids})
        ours = kept(m, sessions)
        theirs = world.run(seen_kept(calls.link, world.keys, sessions, ids))
        assert theirs == ours, differences(ours, theirs)
        for one in self.changed():
            in_the_model = in_full(m.tasks[one])
            on_the_server = world.run(seen_in_full(calls, one))
            assert on_the_server == in_the_model, differences(in_the_model, on_the_server)
        self.differs = False

    def changed(self) -> list[str]:
        """Records whose status or log is not as at the last look."""
        now = {one: f"{task.status} {len(task.rows)}" for one, task in self.machine.tasks.items()}
        found = [one for one, words in now.items() if self.before.get(one) != words]
        self.before = now
        return found

    def check_changes(self) -> None:
        """One call changes a status as the table allows it, and only what has ended is forgotten."""
        now = {one: task.status for one, task in self.machine.tasks.items()}
        for one, status in now.items():
            before = self.statuses.get(one, "queued")
            assert status == before or status in ALLOWED[Status(before)], f"{before} -> {status}"
        for one in self.statuses.keys() - now.keys():
            assert self.statuses[one] in TERMINAL, f"{self.statuses[one]} -> forgotten"
        for task in self.machine.tasks.values():
            assert not task.is_terminal or bool(task.cause) == (task.status != "completed")
        self.statuses = now

    def teardown(self) -> None:
        """What is left when all has ended and was forgotten: nothing."""
        self.steps["# examples"] += 1
        if self.differs:
            return
        self.end_all()
        left = self.world.run(self.world.calls.link.command("KEYS", f"{self.world.prefix}*"))
        kinds = Counter(key.decode().removeprefix(self.world.prefix).split(":")[0] for key in left)
        # What expires by itself: receipts, who speaks, blobs that nothing names, counters.
        for kind in ("answer", "speaker", "seed", "chunk", "stats"):
            kinds.pop(kind, None)
        assert not kinds, f"left behind: {dict(kinds)}"

    def end_all(self) -> None:
        for name in ROOTS:
            for one in self.machine.children(name):
                self.ask("kill", task_id=one, caller="", token=self.fresh("kill"), detail="", proof=None)
        self.jump(-20)
        self.jump(600)
        for one in [one for one, task in self.machine.tasks.items() if not task.is_terminal]:
            # Below what ended before the kill of its root, nothing was taken.
            self.ask("kill", task_id=one, caller="", token=self.fresh("kill"), detail="", proof=None)
        for one in list(self.machine.walks):
            self.finish_kill(one)
        self.jump(600)
        for one in [one for one, task in self.machine.tasks.items() if not task.is_terminal]:
            assert self.ask("reap", task_id=one) == ("killed",)
        self.all_that_is_visible_is_equal()
        while left := [one for one in self.machine.tasks if not self.machine.children(one)]:
            for one in left:
                now = self.machine.now
                answer = self.ask("forget", task_id=one, ended_before=now, notice_before=now)
                assert answer == ("forgotten",)
        assert not self.machine.tasks
        self.all_that_is_visible_is_equal()
