"""Output: what a read or a wait saw, and how a final text is cut into pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsh_tasks.errors import OptionRefused
from dsh_tasks.store import Record
from dsh_tasks.submission import NAME_MAX_BYTES, checked_text
from dsh_tasks.task import Task

COUNT_MOST = 2**40
UTF8_MASK, UTF8_CONTINUES = 0xC0, 0x80


@dataclass(frozen=True, slots=True)
class Output:
    """What a read or wait saw."""

    task: Task
    text: str
    """This page of the child's final text."""
    offset: int
    """Where the page starts, UTF-8 bytes."""
    total_bytes: int
    next_offset: int | None
    """Where the next page starts; None where this is the last."""
    timed_out: bool
    """A wait was asked for and the task had not ended by then; it goes on."""
    waited_ms: int
    wait_capped: bool
    """The wait asked for was longer than the cap."""
    structured: Any
    has_structured: bool
    structured_json: str
    """The structured value as the child wrote it, to the letter; '' where there is none."""
    fenced: bool
    """Whoever shows the text to a model names it as the child's words (`fencedOutput`)."""


@dataclass(frozen=True, slots=True)
class Page:
    record: Record
    task: Task
    text: str
    offset: int
    next_offset: int | None

    @classmethod
    def cut(cls, record: Record, raw: bytes, offset: int, limit: int) -> Page:
        """The page on character boundaries: `raw` holds up to 4 bytes more than `limit`."""
        skipped = 0
        while skipped < len(raw) and raw[skipped] & UTF8_MASK == UTF8_CONTINUES:
            skipped += 1
        start = offset + skipped
        page = raw[skipped:][:limit]
        text = page.decode("utf-8", "ignore")
        if not text and page:
            # A limit below one character: give that character rather than nothing for ever.
            text = raw[skipped:].decode("utf-8", "ignore")[:1]
        end = start + len(text.encode())
        total = record.task.output_bytes
        return cls(record, record.task, text, start, end if text and end < total else None)


def check_page(task_id: str, timeout_ms: float | None, offset: int, limit_bytes: int | None) -> None:
    """Refuse what no read can honour, before any look-up. Raises OptionRefused."""
    checked_text("task_id", task_id, NAME_MAX_BYTES)
    check_timeout(timeout_ms)
    if not is_count(offset):
        raise OptionRefused("offset", "a whole number of bytes from 0")
    if limit_bytes is not None and not (is_count(limit_bytes) and limit_bytes > 0):
        raise OptionRefused("limit_bytes", "a whole number of bytes from 1")


def check_timeout(timeout_ms: float | None) -> None:
    """Raises OptionRefused for a time that no wait can honour."""
    if timeout_ms is not None and (isinstance(timeout_ms, bool) or not (0 < timeout_ms < float("inf"))):
        raise OptionRefused("timeout_ms", "a positive number of milliseconds")


def is_count(value: Any) -> bool:
    """A whole number that the server can count with."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MOST
