"""Capping: what a tool returned, within the bytes that its model is shown; the rest is named, not sent."""

from __future__ import annotations

from dataclasses import replace

from dsh_tasks.task import cut_text
from workers.engines.base import ToolAnswer


def capped(answer: ToolAnswer, limit_bytes: int) -> ToolAnswer:
    """The answer within `limit_bytes` of UTF-8, cut on a character boundary; the mark counts too.

    The mark tells what is shown and what there was, both in bytes.
    """
    # A character has four bytes at most: a text that is surely short is not encoded for it.
    if len(answer.text) * 4 <= limit_bytes:
        return answer
    total = len(answer.text.encode("utf-8", "replace"))
    if total <= limit_bytes:
        return answer
    room = max(0, limit_bytes - len(_mark(total, total)))
    text = cut_text(answer.text, room)
    return replace(answer, text=text + _mark(len(text.encode()), total))


def _mark(shown: int, total: int) -> str:
    return f"\n[result cut: {shown} of {total} bytes shown]"
