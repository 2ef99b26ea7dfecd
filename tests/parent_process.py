"""A parent in a process of its own, led line by line: python -m tests.parent_process LOG SESSION.

Lines in: {"turn": [[act, ..], ..]} a user's turn with these acts in its steps, {"idle": seconds} waits for a
wake. Acts: ["start", prompt], ["wait", id] until the end and keep the result, ["pause", phase] until the
next line, ["border"] pauses between this step and the next, ["compact"] replaces all that the log shows.
Each act, and what came of it, is a line out.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsh_tasks.client import AsyncClient
from dsh_tasks.notice import NOTICE_KIND
from dsh_tasks.parent_loop import ParentLoop, SessionLog
from dsh_tasks.session import Event
from dsh_tasks.settings import Settings
from tests.rig_tools import ROOT, environment


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def next_line() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


@dataclass
class Acts:
    """The steps of one turn; afterwards it only answers."""

    loop: ParentLoop
    steps: list[list[list[Any]]]
    is_held_at_border: bool = False

    async def step(self, loop: ParentLoop) -> str:
        for what, *given in self.steps.pop(0) if self.steps else ():
            await getattr(self, what)(*given)
        return "noted"

    async def start(self, prompt: str) -> None:
        run = await self.loop.client.start("spawn", prompt=prompt, label=prompt, parent=self.loop.session)
        say(started=run.id)

    async def wait(self, task_id: str) -> None:
        output = await self.loop.client.output(task_id, wait=True)
        await self.loop.saw([task_id])
        say(waited=output.task.status.value)

    async def pause(self, phase: str) -> None:
        say(phase=phase)
        await asyncio.to_thread(next_line)

    async def border(self) -> None:
        self.is_held_at_border = True

    async def compact(self) -> None:
        self.loop.log.append(compaction(self.loop.log.events))
        say(phase="compacted")
        await asyncio.to_thread(next_line)


def compaction(events: Sequence[Event]) -> list[dict[str, Any]]:
    """A summary takes the place of everything that the log shows behind its first message."""
    shown = [event.seq for event in events if event.surface_op is not None][1:]
    place = len(events)
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "a summary"}],
        "source": {"kind": "compact-checkpoint", "compactionId": "c1"},
        "id": "compacted",
    }
    span = {"shadowedRange": {"start": shown[0], "end": shown[-1]}, "shadowedSeqs": shown}
    route = {"provider": "parent", "model": "parent"}
    summary = {"compactionId": "c1", "summary": message["content"], **span, "shadowedTokenCount": 9, **route}
    turn = next(event.data["turn"] for event in reversed(events) if event.type == "turn/start")
    return [
        {"type": "compaction/start", "data": {"compactionId": "c1", "turn": turn}},
        {"type": "compaction/summary", "data": summary},
        {
            "type": "user/message",
            "data": message,
            "sourceEventSeqs": [place, place + 1, *shown],
            "surfaceOp": {"op": "replace", "startSeq": shown[0], "endSeq": shown[-1]},
        },
        {"type": "compaction/end", "data": {"compactionId": "c1", "turn": turn}},
    ]


class HeldLog(SessionLog):
    """A log that holds its writer once, after the end of a step."""

    acts: Acts | None = None

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        super().append(rows)
        if self.acts is not None and self.acts.is_held_at_border and rows[-1]["type"] == "step/end":
            self.acts.is_held_at_border = False
            say(phase="between steps")
            next_line()


async def main(path: Path, session: str) -> None:
    log = HeldLog.open(path, session_id=session)
    async with AsyncClient.connect() as client, ParentLoop(client, log) as loop:
        say(ready=True)
        while True:
            line = await asyncio.to_thread(next_line)
            if "turn" in line:
                log.acts = Acts(loop, line["turn"])
                await loop.turn("go", log.acts.step)
                say(turned=True)
            else:
                acts = Acts(loop, [])
                say(woken=await loop.wait_for_wake(acts.step, timeout_s=line["idle"]))


# -- the test's side ----------------------------------------------------------------------------------


@dataclass
class Parent:
    """A running parent."""

    process: subprocess.Popen[str]
    log: Path
    said: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, log: Path, session: str, settings: Settings) -> Parent:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.parent_process", str(log), session],
            env=environment(settings),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        parent = cls(process, log)
        parent.hears("ready")
        return parent

    def tell(self, **words: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def hears(self, name: str) -> Any:
        """The next line, which must be of this name."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the parent ended"
        self.said.append(json.loads(line))
        assert name in self.said[-1], self.said
        return self.said[-1][name]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


def told(log: SessionLog) -> list[list[str]]:
    """The task ids of each message of notices in a log, in its order."""
    return [
        list(event.data["source"]["taskIds"])
        for event in log.events
        if event.type == "user/message" and event.data["source"]["kind"] == NOTICE_KIND
    ]


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
