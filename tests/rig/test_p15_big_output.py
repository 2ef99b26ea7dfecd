"""P15. Big output is honest (subagents-pydantic-ai#55, letta#585, claude-code#26012, pi-subagents#538)."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_tasks.client import Client
from dsh_tasks.settings import Settings
from dsh_tasks.task import Status
from tests.celery_events import events_of
from tests.census import Census, census_of
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import Rig, by_tool, config_with_tools
from tests.waiting import wait_until

pytestmark = pytest.mark.rig

READ_BYTES = 4_096
"""Cap of one answer, status line included."""
STATUS = "\n[status: completed]"
CAP = READ_BYTES - len(STATUS)
"""Bytes of text that fit beside the status line: what is longer is cut."""
MIB = 2**20


def mixed(size: int) -> str:
    """Characters of 3 and 4 bytes that do not repeat, `size` bytes of them and up to three of ASCII."""
    chance = random.Random(15)
    parts = [
        chance.choice((chr(chance.randrange(0x4E00, 0x9FFF)), chr(chance.randrange(0x1F300, 0x1FAFF))))
        for _ in range(size // 3)
    ]
    text = "".join(parts).encode()[: size - 3].decode("utf-8", "ignore")
    return text + "x" * (size - len(text.encode()))


TEXTS = {
    "nothing": "",
    "below": "b" * (CAP - 1),
    "cap": "c" * CAP,
    "above": "a" * (CAP + 1),
    "mixed": mixed(3 * MIB),
    "lines": "".join(f"{n}\n" for n in range(200_000)),
    "tooled": "after the tool",
}
IMAGE = base64.b64encode(random.Random(6).randbytes(6 * MIB * 3 // 4)).decode()


def answer(request: Request) -> Reply:
    if request.prompt == "tooled" and not request.results:
        return Reply(tools=[("image", {})])
    return Reply(TEXTS[request.prompt], chunks=64)


def pages_of(client: Client, task_id: str) -> list[dict[str, Any]]:
    """Every page of the tool, in order; each is checked on the way."""
    pages, offset = [], 0
    while offset is not None:
        result = by_tool(client, "task_output", task_id=task_id, offset=offset)
        raw = result.text.encode()
        assert len(raw) <= READ_BYTES
        assert raw.decode() == result.text, "valid UTF-8"
        assert "\ufffd" not in result.text, "no split character"
        assert result.text.splitlines()[-1] == "[status: completed]"
        value = result.value
        mark = re.search(
            r"^\[output: bytes (\d+) to (\d+) of (\d+); continue with offset (\d+)\]$", result.text, re.M
        )
        if value["nextOffset"] is None:
            assert mark is None, "the last page is not marked as cut"
        else:
            assert mark is not None
            assert [int(number) for number in mark.groups()] == [
                offset,
                value["nextOffset"],
                value["totalBytes"],
                value["nextOffset"],
            ]
        pages.append(value)
        offset = value["nextOffset"]
    return pages


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_answers_of_every_size_are_read_whole_page_by_page(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
    tmp_path: Path,
) -> None:
    (tmp_path / "image").write_text(IMAGE)
    config = config_with_tools(tmp_path, "tests.held_tools:image", toolResultBytes=16 * MIB)
    settings = make_settings(output_read_bytes=READ_BYTES, config=config)
    client = make_client(settings, owner="s")
    with ModelServer(answer) as model, census_of(settings) as census, events_of(settings) as events:
        runs = {name: client.start("spawn", prompt=name, label=name) for name in TEXTS}
        check_messages(census, settings, len(runs))
        make_rig(settings).worker(**model.environment, IMAGE=str(tmp_path / "image"))
        for name, run in runs.items():
            wait_until(lambda run=run: client.task(run.id).is_terminal, f"{name} ended", within_s=60)
            assert client.task(run.id).status is Status.COMPLETED, client.task(run.id).detail
        wait_until(
            lambda: len([e for e in events if e["type"] == "task-succeeded"]) >= len(runs), "events have come"
        )

        for name, run in runs.items():
            text = TEXTS[name]
            if len(text.encode()) > MIB:
                # By the client, in its largest pages: the tool's smallest ones would take hundreds of reads.
                assert digest(read_whole(client, run.id)) == digest(text)
                check_ends(client, run.id)
            else:
                pages = pages_of(client, run.id)
                assert digest("".join(page["output"] for page in pages)) == digest(text)
                assert (len(pages) > 1) is (len(text.encode()) > CAP), name
            check_growth(census, run.id, text, name)
        assert (
            by_tool(client, "task_output", task_id=runs["nothing"].id).text
            == "No output.\n[status: completed]"
        )
        listed = by_tool(client, "task_list").text
        assert len(listed.encode()) <= READ_BYTES
        assert all(run.id in listed for run in runs.values())
        check_transcript(client, runs["tooled"].id)

    sizes = [len(json.dumps(event)) for event in events if event["type"].startswith("task-")]
    assert len(sizes) >= 3 * len(runs)
    assert max(sizes) < 2_048


def check_messages(census: Census, settings: Settings, count: int) -> None:
    queued = census.raw.lrange(f"{settings.prefix}celery:{settings.queue}", 0, -1)
    assert len(queued) == count
    assert max(len(message) for message in queued) < 2_048


def read_whole(client: Client, task_id: str) -> str:
    parts: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = client.output(task_id, offset=offset, limit_bytes=100_001)
        assert len(page.text.encode()) <= 100_001
        parts.append(page.text)
        offset = page.next_offset
    return "".join(parts)


def check_ends(client: Client, task_id: str) -> None:
    """First and last pages of the tool over a text of millions of bytes."""
    first = by_tool(client, "task_output", task_id=task_id)
    assert len(first.text.encode()) <= READ_BYTES
    assert f"of {client.task(task_id).output_bytes}; continue with offset" in first.text
    # From within a character: the page starts with the next whole one.
    last = by_tool(client, "task_output", task_id=task_id, offset=client.task(task_id).output_bytes - 2_000)
    assert "\ufffd" not in last.text
    assert last.value["nextOffset"] is None
    assert last.text.splitlines()[-1] == "[status: completed]"


def check_growth(census: Census, task_id: str, text: str, name: str) -> None:
    """Redis holds less than twice the text that the child made (with its tool's result)."""
    stored = len(text.encode()) + (len(IMAGE) if name == "tooled" else 0)
    keys = census.keys
    grown = sum(census.bytes_of(key) for key in (keys.task(task_id), keys.log(task_id), keys.output(task_id)))
    if stored > MIB:
        assert grown < 2 * stored, f"{name}: {grown} for {stored}"


def check_transcript(client: Client, task_id: str) -> None:
    """The log page by page, with the whole tool result in its middle."""
    store = client._client.store
    rows: list[bytes] = []
    while page := client.call(store.own_rows(task_id, len(rows), most=2)):
        assert len(page) <= 2
        rows += page
    events = client.session(task_id).events
    assert [json.loads(row)["seq"] for row in rows] == [event.seq for event in events]
    (result,) = [event for event in events if event.type == "tool/result"]
    assert digest(result.data["message"]["content"][0]["text"]) == digest(IMAGE)
