"""Records: from the fields of a hash to typed values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dsh_tasks.dollars import words_of
from dsh_tasks.errors import LimitReached
from dsh_tasks.store.answers import DueTask, Record
from dsh_tasks.task import USAGE_FIELDS, Cause, Status, Task, Usage

LISTED = [
    "id",
    "owner",
    "root",
    "parent",
    "depth",
    "label",
    "provider",
    "engine",
    "status",
    "attempt",
    "cause",
    "detail",
    "created",
    "started",
    "ended",
    "lease_until",
    "last_activity",
    "losses",
    "worker",
    "activity",
    "seed_turns",
    "seed_events",
    "seed_bytes",
    "output_bytes",
    "partial",
    *USAGE_FIELDS,
    "log_next",
    "answers",
    "streamed",
    "activity_since",
    "stalled_since",
    "mode",
    "promoted",
    "promoted_after",
]


def record_of(flat: Sequence[bytes], *, now_ms: int) -> Record:
    """A record from the flat pairs of HGETALL."""
    raw = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    structured = raw.get("structured")
    return Record(
        task=task_of(raw, now_ms=now_ms),
        prompt=tuple(json.loads(raw["prompt"])),
        policy=raw["policy"].decode(),
        header=json.loads(raw["header"]),
        seed_digest=raw["seed"].decode(),
        log_next=int(raw.get("log_next", 0)),
        structured=json.loads(structured) if structured else None,
        has_structured=structured is not None,
        structured_json=structured.decode() if structured is not None else "",
    )


def task_of(raw: Mapping[str, bytes], *, now_ms: int) -> Task:
    """The public part of a record."""

    def text(name: str) -> str:
        return raw.get(name, b"").decode()

    def number(name: str) -> int:
        try:
            return int(float(raw.get(name, b"0")))
        except (ValueError, OverflowError):
            # A damaged field must not hide the record, nor the others in a list.
            return 0

    def maybe(name: str) -> int | None:
        return number(name) if name in raw else None

    cause = text("cause")
    return Task(
        id=text("id"),
        owner=text("owner"),
        root=text("root"),
        parent=text("parent") or None,
        depth=number("depth"),
        label=text("label"),
        provider=text("provider"),
        engine=text("engine"),
        status=Status(text("status")),
        attempt=number("attempt"),
        cause=Cause(cause) if cause else None,
        detail=text("detail"),
        created_ms=number("created"),
        started_ms=maybe("started"),
        ended_ms=maybe("ended"),
        lease_until_ms=maybe("lease_until"),
        last_activity_ms=number("last_activity"),
        losses=number("losses"),
        worker=text("worker") or None,
        activity=text("activity"),
        seed_turns=number("seed_turns"),
        seed_events=number("seed_events"),
        seed_bytes=number("seed_bytes"),
        output_bytes=number("output_bytes"),
        partial=text("partial") == "1",
        has_output=number("output_bytes") > 0,
        usage=Usage(*map(number, USAGE_FIELDS)),
        now_ms=now_ms,
        log_rows=number("log_next"),
        answers=number("answers"),
        streamed=number("streamed"),
        activity_since_ms=number("activity_since") or None,
        stalled_since_ms=number("stalled_since") or None,
        mode=text("mode"),
        promoted_ms=maybe("promoted"),
        promoted_after_ms=maybe("promoted_after"),
    )


def due_tasks(answer: Sequence[bytes]) -> list[DueTask]:
    """The answer of `due`, typed."""
    parts = [part.decode() for part in answer]
    return [
        DueTask(parts[i], int(parts[i + 1]), parts[i + 2], parts[i + 3], int(parts[i + 4]), parts[i + 5])
        for i in range(0, len(parts), 6)
    ]


def limit_reached(name: str, value: int, cap: int) -> LimitReached:
    """The refusal of `submit` in words."""
    if name == "depth":
        way_out = "this session is at the greatest depth and may not delegate; do the work here"
    elif name == "tree_token_budget":
        way_out = "this tree has spent its tokens; do the work here, or raise the budget"
    elif name == "tree_cost_budget":
        way_out = "US dollars, which this tree has spent; do the work here, or raise the budget"
        return LimitReached(name, value=words_of(value), cap=words_of(cap), way_out=way_out)
    elif name.startswith("total"):
        way_out = "prune tasks that have ended, or raise the limit"
    else:
        way_out = "wait for a child to end or kill one"
    return LimitReached(name, value=value, cap=cap, way_out=way_out)
