"""Progress: where a child is now, read from its record and from the end of its own log. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dsh_tasks.session import Event
from dsh_tasks.task import Status, Task

TEXT_MOST_BYTES = 4096
"""Of the last text so much is told, from its end."""
BORDER = "dsh-tasks/attempt"
PARTIAL = "dsh-tasks/partial"
_OPENS = frozenset({"step/start", "turn/start"})


@dataclass(frozen=True, slots=True)
class CallAtWork:
    """A tool call that has begun and has no result yet."""

    name: str
    """As the model called it."""
    call_id: str
    since_ms: int
    """Epoch ms by the worker's clock."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a child is. Its text is content: it is told to who asks for it, and stands in no list or log."""

    task: Task
    """The record: activity, since when, rows, answers and characters so far, and whether it stalls."""
    turn: int
    """Number of its last turn; 0 where it has begun none."""
    step: int
    """Number of the last step of that turn; 0 where it has begun none."""
    calls: tuple[CallAtWork, ...]
    """Tool calls at work, in the order in which they began; none where no attempt runs."""
    text: str
    """The end of its last own text, at most 4 KiB; '' where the last 256 rows hold none."""
    text_bytes: int
    """How long that text is in all, UTF-8."""
    said_ms: int | None
    """When it was written, epoch ms by the worker's clock."""


def _said(row: Event) -> str:
    """The text of an answer, or of one that was cut off and is asked for again."""
    if row.type == PARTIAL:
        return str(row.data.get("text", ""))
    if row.type != "assistant/message":
        return ""
    return "".join(block["text"] for block in row.data["message"]["content"] if block.get("type") == "text")


@dataclass(slots=True)
class Reading:
    """The rows of a log as they are read from its end backwards."""

    turn: int | None = None
    step: int | None = None
    text: str = ""
    said_ms: int | None = None
    _calls: list[CallAtWork] = field(default_factory=list)
    _answered: set[str] = field(default_factory=set)
    _is_past_step: bool = False

    @property
    def is_complete(self) -> bool:
        """No earlier row tells more."""
        return self.turn is not None and self.step is not None and self._is_past_step and bool(self.text)

    def take(self, rows: Iterable[Event]) -> None:
        """Take the next rows, the newest first."""
        for row in rows:
            self._place(row)
            if not self._is_past_step:
                self._call(row)
            if not self.text and (text := _said(row)).strip():
                self.text, self.said_ms = text, row.time

    def _place(self, row: Event) -> None:
        if self.turn is None and isinstance(turn := row.data.get("turn"), int):
            self.turn = turn
        if self.step is None and isinstance(step := row.data.get("step"), int):
            self.step = step
        if self.step is None and row.type == "turn/start":
            self.step = 0

    def _call(self, row: Event) -> None:
        if row.type == "tool/result":
            self._answered.add(row.data["message"]["toolCallId"])
        elif row.type == "tool/call" and row.data["callId"] not in self._answered:
            self._calls.append(CallAtWork(str(row.data.get("name")), row.data["callId"], row.time))
        # What an earlier attempt had begun is at work no more.
        self._is_past_step = row.type in _OPENS or row.type == BORDER

    def progress(self, task: Task) -> Progress:
        """What was read, with the record."""
        raw = self.text.encode("utf-8", "replace")
        return Progress(
            task=task,
            turn=self.turn or 0,
            step=self.step or 0,
            calls=tuple(reversed(self._calls)) if task.status in (Status.RUNNING, Status.STOPPING) else (),
            text=raw[-TEXT_MOST_BYTES:].decode("utf-8", "ignore"),
            text_bytes=len(raw),
            said_ms=self.said_ms,
        )
