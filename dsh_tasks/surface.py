"""Surface: the messages of a log that a model sees.

Rows append to the surface or take the place of a run of its live rows; folding is the walk that
leaves the live ones. Everything else in a log is for people and programs and never shown.
Pure: no clock, no I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsh_tasks.errors import SessionRefused
from dsh_tasks.rows import message_of
from dsh_tasks.session import SURFACE_TYPES, Event, Replace

UNKNOWN_OUTCOME = (
    "No result of this tool call was recorded, so its outcome is unknown. It may have had its effects. "
    "Repeat it only if it is read-only or safe to repeat; otherwise look at the state of things first."
)
"""What a model reads where a completed turn holds a call without a result."""


@dataclass(frozen=True, slots=True)
class Node:
    """One live message of the surface."""

    event: Event
    """The row that put it there."""
    message: Mapping[str, Any]
    """The message as logged; images that were taken out since are marked `offloaded`."""
    turn: int
    """Number of the turn in which the row stands; 0 before the first."""

    @property
    def seq(self) -> int:
        """Seq of its row."""
        return self.event.seq


class LiveRows:
    """Numbers of the rows on a surface, in its order.

    A change costs what it changes, however long the log and whatever stands out of order: a log of n
    replacements takes n steps, not n squared. Eight bytes for each row of the log.
    """

    __slots__ = ("_after", "_before", "_last")

    def __init__(self) -> None:
        self._after = array("i")
        """The live row behind each row; _GONE for a row that is not live."""
        self._before = array("i")
        self._last = _NONE

    def __bool__(self) -> bool:
        return self._last != _NONE

    def __contains__(self, seq: int) -> bool:
        return 0 <= seq < len(self._after) and self._after[seq] != _GONE

    def __iter__(self) -> Iterator[int]:
        seqs = []
        seq = self._last
        while seq != _NONE:
            seqs.append(seq)
            seq = self._before[seq]
        return reversed(seqs)

    def append(self, seq: int) -> None:
        """Put row `seq` behind all others; numbers only rise."""
        after, last = self._after, self._last
        missing = seq - len(after)
        if missing > 0:
            after.extend([_GONE] * missing)
            self._before.extend([_GONE] * missing)
        after.append(_NONE)
        self._before.append(last)
        if last != _NONE:
            after[last] = seq
        self._last = seq

    def run(self, first: int, last: int) -> list[int]:
        """The live rows from `first` to `last`; empty where these are not live, or not in this order."""
        if first not in self or last not in self:
            return []
        seqs = [first]
        while seqs[-1] != last:
            following = self._after[seqs[-1]]
            if following == _NONE:
                return []
            seqs.append(following)
        return seqs

    def replace(self, run: Sequence[int], seq: int) -> None:
        """Put row `seq` in the place of a run of live rows."""
        before, after = self._before[run[0]], self._after[run[-1]]
        for gone in run:
            self._after[gone] = _GONE
        self._link(seq, before, after)

    def _link(self, seq: int, before: int, after: int) -> None:
        missing = [_GONE] * (seq + 1 - len(self._after))
        self._after.extend(missing)
        self._before.extend(missing)
        self._before[seq], self._after[seq] = before, after
        if before != _NONE:
            self._after[before] = seq
        if after == _NONE:
            self._last = seq
        else:
            self._before[after] = seq


_NONE, _GONE = -1, -2


def fold(events: Iterable[Event]) -> tuple[Node, ...]:
    """The live nodes in the order in which a model sees them.

    A message with empty content keeps its place here, but `messages` leaves it out.
    Raises SessionRefused where a row replaces what is not on the surface.
    """
    live = LiveRows()
    nodes: dict[int, Node] = {}
    turn = 0
    for event in events:
        if event.type == "turn/start":
            turn = event.data["turn"]
        elif event.type == "image/offload":
            _take_images_out(nodes, event)
        elif event.type in SURFACE_TYPES:
            if isinstance(event.surface_op, Replace):
                gone = _gone(live, event, event.surface_op)
                live.replace(gone, event.seq)
                for seq in gone:
                    del nodes[seq]
            else:
                live.append(event.seq)
            nodes[event.seq] = Node(event, message_of(event), turn)
    return tuple(nodes[seq] for seq in live)


def messages(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What a model is shown: `{role, content, ...}` as logged, in order.

    Roles are system, user, assistant and tool, and developer for text that a plugin gives; a tool's
    message has `toolCallId` and `isError`.
    Every call in a completed turn has a result: one that was never recorded reads UNKNOWN_OUTCOME.
    Calls of a turn still open stay as they are.
    """
    return shown(fold(events), completed_before=_end_of_completed(events))


def shown(nodes: Iterable[Node], *, completed_before: int) -> list[dict[str, Any]]:
    """The messages of nodes, paired as in `paired`."""
    spoken = (_spoken(node) for node in paired(nodes, completed_before=completed_before))
    return [message for message in spoken if message is not None]


def _spoken(node: Node) -> dict[str, Any] | None:
    """The message, without announcements of tools that came or went; None where nothing is left.

    Such announcements go into the list of tools of a request, not among its messages.
    """
    message = dict(node.message)
    if node.event.type == "developer/message":
        message["content"] = [block for block in message["content"] if block["type"] not in _TOOL_CHANGES]
    is_said = message["content"] or node.event.type in ("user/message", "tool/result")
    return message if is_said else None


_TOOL_CHANGES = ("tool-addition", "tool-removal")


def paired(nodes: Iterable[Node], *, completed_before: int) -> tuple[Node, ...]:
    """The nodes as a strict model wants them: right after each answer, one result for each of its calls.

    A result moves up to its call, and is left out where its call is not shown (it was summarised
    away). A call of a row before `completed_before` that has no result gets one: UNKNOWN_OUTCOME.
    Nothing changes in a log of the harness whose turns have all ended.
    """
    groups: list[list[Node]] = []
    """Each node with the results that follow it."""
    waiting: dict[str, list[Node]] = {}
    """Open calls, and the group that their result goes to."""
    for node in nodes:
        if node.event.type == "tool/result":
            group = waiting.pop(node.message["toolCallId"], None)
            if group is not None:
                group.append(node)
            continue
        groups.append([node])
        if node.event.type == "assistant/message":
            _give_up(waiting, completed_before)
            waiting = dict.fromkeys(calls_of(node.message), groups[-1])
    _give_up(waiting, completed_before)
    return tuple(node for group in groups for node in group)


def _give_up(waiting: Mapping[str, list[Node]], completed_before: int) -> None:
    for call, group in waiting.items():
        if group[0].seq < completed_before:
            group.append(_unknown(group[0], call))


def _unknown(asked: Node, call: str) -> Node:
    """The result of a call of which none was recorded; it borrows the row that asks for it."""
    frame = {key: asked.event.data[key] for key in ("turn", "step")}
    message = {
        "role": "tool",
        "toolCallId": call,
        "content": [{"type": "text", "text": UNKNOWN_OUTCOME}],
        "isError": True,
        "id": f"unknown-outcome-{call}",
        "source": {"kind": "tool", "callId": call},
    }
    row = Event("tool/result", asked.seq, asked.event.time, {**frame, "message": message}, None, "append")
    return Node(row, message, asked.turn)


def calls_of(message: Mapping[str, Any]) -> list[str]:
    """Ids of the tool calls that an assistant's message asks for, in order."""
    return [block["id"] for block in message["content"] if block["type"] == "tool-call"]


def _end_of_completed(events: Sequence[Event]) -> int:
    """Seq after the last `turn/end`; 0 without one."""
    return next((event.seq + 1 for event in reversed(events) if event.type == "turn/end"), 0)


def _gone(live: LiveRows, event: Event, operation: Replace) -> list[int]:
    gone = live.run(operation.start_seq, operation.end_seq)
    if not gone:
        raise SessionRefused("the replacement is not of live rows", seq=event.seq, event_type=event.type)
    return gone


def _take_images_out(nodes: dict[int, Node], event: Event) -> None:
    """Mark in the live nodes the images that are not sent to a model any more."""
    for one in event.data["targets"]:
        node = nodes.get(one["seq"])
        if node is not None:
            message = offloaded(node.message, frozenset(one["imageIndexes"]))
            nodes[node.seq] = replace(node, message=message)


def offloaded(message: Mapping[str, Any], images: frozenset[int]) -> dict[str, Any]:
    """The message after the images of these numbers were taken out of what a model is sent."""
    content, image = [], -1
    for block in message["content"]:
        image += block["type"] == "image"
        is_out = block["type"] == "image" and image in images
        content.append({**block, "offloaded": True} if is_out else block)
    return {**message, "content": content}
