"""A structured value on its way from an engine to a caller, on a real server."""

from __future__ import annotations

import asyncio
import json

import pytest

from dsh_tasks.cli.tasks import output_lines
from dsh_tasks.client import AsyncClient
from dsh_tasks.settings import Settings
from dsh_tasks.store import Claimed, Fence
from dsh_tasks.task import Outcome, Status
from dsh_tasks.tools import TaskOutputTool
from dsh_tasks.tools.fence import fenced as framed

EXACT = [
    "1.0",
    "123456789012345678901234567890",
    "1E5",
    "-0.0",
    "0.1000000000000000055511151231257827",
    '{"b": 1, "a": {"z": 1.0, "y": [ ]}}',
    '"ä \\u00e4 \\ud83d\\ude00 \\u0000"',
    "[1,\n 2]",
    "null",
    '""',
    "false",
]


@pytest.mark.parametrize("written", EXACT)
def test_a_caller_reads_the_json_that_the_model_wrote(settings: Settings, written: str) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner="s-1") as client:
            run = await client.start("spawn", prompt="go", output_schema={})
            claimed = await client.store.claim(run.id, "token", "here:1")
            assert isinstance(claimed, Claimed)
            outcome = Outcome(
                Status.COMPLETED, structured=json.loads(written), has_structured=True, structured_json=written
            )
            root = claimed.record.task.root
            await client.store.settle(run.id, root, Fence(1, "token"), outcome, 0, [])
            seen = await run.result()
            assert seen.has_structured
            assert seen.structured_json == written
            assert repr(seen.structured) == repr(json.loads(written))
            assert output_lines(seen)[0] == written
            answer = await TaskOutputTool(client).call({"task_id": run.id})
            assert answer.text == f"{written}\n[status: completed]"
            assert repr(answer.value["structured"]) == repr(json.loads(written))

    asyncio.run(main())


@pytest.mark.parametrize("fenced", [True, False])
def test_the_record_says_whether_its_words_are_fenced(settings: Settings, fenced: bool) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner="s-1") as client:
            run = await client.start("spawn", prompt="go", fenced_output=fenced)
            claimed = await client.store.claim(run.id, "token", "here:1")
            assert isinstance(claimed, Claimed)
            outcome = Outcome(Status.COMPLETED, output="said")
            await client.store.settle(run.id, claimed.record.task.root, Fence(1, "token"), outcome, 0, [])
            answer = await TaskOutputTool(client).call({"task_id": run.id})
            words = framed("said", run.id) if fenced else "said"
            assert answer.text == f"{words}\n[status: completed]"

    asyncio.run(main())
