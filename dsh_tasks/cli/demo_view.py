"""View: what a person sees of the demo. A live tree in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dsh_tasks.cli import render
from dsh_tasks.task import Task

REFRESH_PER_S = 8


class View(Protocol):
    """Where the demo tells what happens."""

    def heading(self, text: str) -> None:
        """A new part begins."""

    def line(self, text: str) -> None:
        """One line."""

    def tree(self, tasks: Sequence[Task]) -> None:
        """The tasks as they stand now."""

    def rows(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A small table."""

    def watching(self) -> AbstractContextManager[object]:
        """While this is entered, the tree is shown as it changes."""


class PlainView:
    """Lines without control characters; the tree again whenever a status changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began_s = time.monotonic()
        self._shown: tuple[tuple[str, str], ...] = ()

    def heading(self, text: str) -> None:
        """See View."""
        self._say("")
        self._say(f"== {text}")

    def line(self, text: str) -> None:
        """See View."""
        self._say(text)

    def tree(self, tasks: Sequence[Task]) -> None:
        """See View."""
        now = tuple((task.id, task.status.value) for task in tasks)
        if now == self._shown:
            return
        self._shown = now
        self._say(f"   tree after {time.monotonic() - self._began_s:.1f} s")
        for level, task in render.levels(tasks):
            self._say(f"   | {render.plain_row(level, task)}")

    def rows(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """See View."""
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        for cells in (columns, *rows):
            padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            self._say("  ".join(padded).rstrip())

    def watching(self) -> AbstractContextManager[object]:
        """See View."""
        return nullcontext()


class LiveView:
    """A terminal: the tree stays at the bottom and is redrawn while the children run."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._tasks: Sequence[Task] = ()
        self._began_s = time.monotonic()

    def heading(self, text: str) -> None:
        """See View."""
        self._console.print(Rule(text, align="left", style="dim"))

    def line(self, text: str) -> None:
        """See View."""
        self._console.print(Text(text))

    def tree(self, tasks: Sequence[Task]) -> None:
        """See View."""
        self._tasks = tasks

    def rows(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """See View."""
        made = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for cells in rows:
            made.add_row(*map(Text, cells))
        self._console.print(made)

    def watching(self) -> AbstractContextManager[object]:
        """See View."""
        return Live(get_renderable=self._drawn, console=self._console, refresh_per_second=REFRESH_PER_S)

    def _drawn(self) -> Group:
        shorten = self._console.width < render.FULL_ID_FROM_COLUMNS
        title = Text(f"tasks, {time.monotonic() - self._began_s:.0f} s", style="bold")
        return Group(Text(), title, render.table(self._tasks, shorten=shorten), Text())
