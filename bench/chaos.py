"""Chaos: many children over workers, a server and connections that die and freeze all the time.

    python -m bench.chaos [--children 2000] [--workers 3] [--every 1] [--within 900] [--seed N] [--report FILE]

Some children fail, some delegate a grandchild, some are killed by their owner, some inherit a seed. Each second
one of: SIGKILL of a worker, SIGSTOP for half a second to seven, SIGKILL and start of the server, cut connections.
At the end nothing may be lost, nothing doubled, every ending told once, nothing left over; the server's
append-only file is the ledger of all that happened (bench/chaos_ledger.py). Ends with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import chaos_ledger
from bench.chaos_faults import Chaos, Fleet, keep_every_write
from dsh_tasks.client import AsyncClient
from dsh_tasks.errors import LimitReached, SpeakerTaken, StoreUnavailable
from dsh_tasks.session import Session
from dsh_tasks.settings import Settings
from dsh_tasks.store import embedded
from dsh_tasks.task import Status, Task
from tests.factories import a_log
from tests.prompts import delegating, failing, waiting

T = TypeVar("T")

OWNERS = 8
KINDS = ["plain"] * 12 + ["fork"] * 3 + ["fail"] * 2 + ["delegate"] * 3 + ["kill"] * 2

ASKED = {
    "plain": Status.COMPLETED,
    "fork": Status.COMPLETED,
    "delegate": Status.COMPLETED,
    "fail": Status.FAILED,
    "kill": Status.KILLED,
}
"""How each kind ends, whatever dies meanwhile."""


@dataclass(frozen=True)
class Plan:
    """What to run."""

    children: int = 2_000
    workers: int = 3
    every_s: float = 1.0
    within_s: float = 900.0
    """For all to end."""
    chaos_s: float = 600.0
    """The chaos ends when all have ended, or after this."""
    seed: int = 0
    live_per_owner: int = 25


@dataclass
class Report:
    """What was seen."""

    plan: Plan
    facts: dict[str, object] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def check(self, what: str, wrong: list[str]) -> None:
        """Count what is wrong of one sort; the first few are told."""
        self.facts[what] = len(wrong)
        self.faults += [f"{what}: {one}" for one in wrong[:10]]

    def text(self) -> str:
        """As Markdown."""
        p = self.plan
        lines = [
            "# Chaos",
            "",
            f"`python -m bench.chaos --children {p.children} --workers {p.workers} --every {p.every_s:g} "
            f"--seed {p.seed}`, as it was seen last; bench/chaos.py tells what it does.",
            "",
            "| seen | |",
            "| --- | --- |",
            *(f"| {name} | {_cell(value)} |" for name, value in self.facts.items()),
            "",
            f"{len(self.faults)} faults" if self.faults else "Nothing was lost, doubled or left over.",
            *(f"* {fault}" for fault in self.faults),
        ]
        return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return str(value)


async def insisting(call: Callable[[], Awaitable[T]], until_s: float) -> T:
    """Ask until the server answers, as an agent's loop does."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            if time.monotonic() > until_s:
                raise
            await asyncio.sleep(0.2)


class Run:
    """Owners that start, kill and take notices, in one event loop."""

    def __init__(self, settings: Settings, plan: Plan, client: AsyncClient) -> None:
        self.settings = settings
        self.plan = plan
        self.client = client
        self.chance = random.Random(plan.seed)
        self.deadline_s = time.monotonic() + plan.within_s
        self.accepted: dict[str, str] = {}
        """Id -> what kind of child it is."""
        self.told: Counter[str] = Counter()
        """How often an ending was new to its owner: taken, and not in the owner's log yet."""
        self.again = 0
        """Notices that came again before their acknowledgement was answered: at least once."""
        self.doubled: list[str] = []
        """Notices that came again after their acknowledgement had been answered."""
        self.parent: Session = a_log(6)
        self.killing: list[asyncio.Task[None]] = []

    def owner(self, number: int) -> str:
        return f"owner-{number % OWNERS}"

    async def start_all(self) -> None:
        """Start every child; a limit is waited for, a lost answer is asked again under the same key."""
        kinds = [self.chance.choice(KINDS) for _ in range(self.plan.children)]
        lanes = [
            self._lane([(n, kinds[n]) for n in range(lane, len(kinds), 4 * OWNERS)])
            for lane in range(4 * OWNERS)
        ]
        await asyncio.gather(*lanes)

    async def _lane(self, mine: list[tuple[int, str]]) -> None:
        for number, kind in mine:
            # The same draw in every run, whatever order things happen in.
            chance = random.Random(f"{self.plan.seed}-{number}")
            task_id = await self._start(number, kind, chance)
            self.accepted[task_id] = kind
            if kind == "kill":
                self.killing.append(asyncio.create_task(self._kill(number, task_id, chance.uniform(0, 3))))

    async def _start(self, number: int, kind: str, chance: random.Random) -> str:
        prompt = {
            "fail": failing("on purpose"),
            "delegate": delegating(waiting(chance.uniform(0, 1))),
            "kill": waiting(60),
        }.get(kind, waiting(chance.uniform(0, 1.5)))
        while True:
            try:
                run = await insisting(
                    lambda: self.client.start(
                        "fork" if kind == "fork" else "spawn",
                        parent=self.parent if kind == "fork" else None,
                        owner=self.owner(number),
                        prompt=prompt,
                        label=f"{kind} {number}",
                        key=f"child-{number}",
                    ),
                    self.deadline_s,
                )
            except LimitReached:
                await asyncio.sleep(0.1)
                continue
            return run.id

    async def _kill(self, number: int, task_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        owner = self.client.for_owner(self.owner(number))
        await insisting(lambda: owner.kill(task_id, reason="not needed any more"), self.deadline_s)

    async def take_notices(self, number: int) -> None:
        """An owner's loop: take, write into its log, acknowledge; until it is cancelled."""
        inbox = self.client.inbox(self.owner(number))
        token, acknowledged = f"speaker-{number}", set[str]()
        while True:
            with contextlib.suppress(StoreUnavailable, SpeakerTaken):
                found = [notice.task_id for notice in await inbox.take(token=token)]
                for task_id in found:
                    if task_id in acknowledged:
                        self.doubled.append(task_id)
                    elif self.told[task_id]:
                        self.again += 1
                    else:
                        self.told[task_id] += 1
                if found:
                    await inbox.acknowledge(found, token=token)
                    acknowledged.update(found)
            await asyncio.sleep(0.1)

    async def work(self) -> bool:
        """Start all, and wait for all; False where the time is over."""
        await self.start_all()
        await asyncio.gather(*self.killing)
        return await self.all_ended()

    async def all_ended(self) -> bool:
        """Wait until no record is live any more; False where the time is over."""
        while time.monotonic() < self.deadline_s:
            tasks = await insisting(lambda: self.client.list_tasks(all_owners=True), self.deadline_s)
            pending = [one for one in self.accepted if one not in self.told]
            if all(task.is_terminal for task in tasks) and not pending:
                return True
            await asyncio.sleep(0.5)
        return False


async def drive(
    plan: Plan,
    settings: Settings,
    server: embedded.Server,
    binary: str | None,
    folder: Path,
    report: Report,
) -> None:
    """Run the plan and check what came of it."""
    async with AsyncClient.connect(settings) as client:
        before = await client.census()
        run = Run(settings, plan, client)
        started_s = time.monotonic()
        takers = [asyncio.create_task(run.take_notices(number)) for number in range(OWNERS)]
        with Fleet(settings, folder, plan.workers, {"DSH_TASKS_MODEL": "offline"}) as fleet:
            while not fleet.is_ready():
                await asyncio.sleep(0.1)
            chaos = Chaos(server, binary, fleet, plan.every_s, random.Random(plan.seed))
            with chaos:
                working = asyncio.create_task(run.work())
                await asyncio.wait({working}, timeout=plan.chaos_s)
                await asyncio.to_thread(chaos.end)
            chaos_s = time.monotonic() - started_s
            has_ended = await working
            took_s = time.monotonic() - started_s
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)
        report.facts |= {
            "accepted": len(run.accepted),
            "kinds": dict(sorted(Counter(run.accepted.values()).items())),
            "seconds under chaos": round(chaos_s, 1),
            "seconds in all": round(took_s, 1),
            "faults made": dict(sorted(chaos.done.items())),
            "starts of workers": fleet.starts,
        }
        report.check("trouble of the chaos itself", chaos.trouble)
        report.check("not over in time", [] if has_ended else [f"after {took_s:.0f} s"])
        await check_records(run, report)
        await check_what_is_left(run, server, before, report)


async def check_records(run: Run, report: Report) -> None:
    """Every accepted id has ended once and was told once."""
    tasks = {task.id: task for task in await run.client.list_tasks(all_owners=True)}
    report.facts["records"] = len(tasks)
    report.facts["ended"] = dict(sorted(Counter(_ending(task) for task in tasks.values()).items()))
    report.check("lost", [one for one in run.accepted if one not in tasks])
    report.check("live", [f"{one} is {task.status}" for one, task in tasks.items() if not task.is_terminal])
    report.check(
        "ended otherwise than asked",
        [
            f"{one}, a {kind}, is {_ending(tasks[one])}: {tasks[one].detail}"
            for one, kind in run.accepted.items()
            if one in tasks and tasks[one].status is not ASKED[kind]
        ],
    )
    report.check("endings never told", [one for one in run.accepted if not run.told[one]])
    report.check("endings told again after their acknowledgement", run.doubled)
    report.check("told, and never accepted", [one for one in run.told if one not in run.accepted])
    report.facts["notices that came again before their acknowledgement"] = run.again
    report.check("audit", [fault.line for fault in (await run.client.audit()).faults])


def _ending(task: Task) -> str:
    status, cause = task.status.value, task.cause
    return status if cause is None else f"{status} ({cause.value})"


async def check_what_is_left(
    run: Run, server: embedded.Server, before: dict[str, int], report: Report
) -> None:
    """After pruning the server holds what it held before; its append-only file shows no double."""
    lives = chaos_ledger.read(server.folder, run.settings.prefix)
    report.facts["attempts a task took"] = chaos_ledger.attempts_of(lives)
    report.check("ledger", list(chaos_ledger.faults_of(lives)))
    report.check("accepted and not in the ledger", [one for one in run.accepted if one not in lives])
    report.facts["pruned"] = await run.client.prune(older_than_ms=0)
    after = await run.client.census()
    differs = [f"{kind}: {after.get(kind, 0)}, before {before.get(kind, 0)}" for kind in {*before, *after}]
    report.check("left over", differs if after != before else [])
    report.check("audit after pruning", [fault.line for fault in (await run.client.audit()).faults])


def perform(plan: Plan, folder: Path, *, binary: str | None = None) -> Report:
    """A chaos run on a server of its own below `folder`."""
    report = Report(plan)
    server = embedded.start(folder=folder / "server", binary=binary)
    keep_every_write(server)
    settings = Settings(
        redis_url=server.url,
        lease_ms=3_000,
        grace_ms=1_000,
        first_pause_ms=200,
        # A fault each second: what dies again and again is not to be given up.
        losses=50,
        max_attempts=100,
        live_per_owner=plan.live_per_owner,
        republish_ms=2_000,
        notice_hold_ms=1_000,
        kill_deadline_ms=5_000,
        call_timeout_ms=2_000,
    )
    try:
        asyncio.run(drive(plan, settings, server, binary, folder, report))
    finally:
        server.stop()
    return report


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two faults")
    parser.add_argument("--within", type=float, default=900.0, help="seconds for all to end")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    plan = Plan(given.children, given.workers, given.every, given.within, given.within * 2 / 3, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        report = perform(plan, Path(folder))
    print(report.text())
    if given.report is not None:
        given.report.write_text(report.text())
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
