"""What a log says of its session's inbox, and which of these rows a child must not inherit.

Messages wait in the inbox until a turn or step takes them out; both are rows. The harness works the
inbox out anew when it resumes a log, refuses a removal of what is not there, and **runs what is left**:
a message that the parent's user typed while a turn ran would become the child's first prompt
(seen with runtime 0.2.1rc2). So a seed keeps only what begins and ends with an empty inbox inside it.
Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsh_tasks.session import Event

TYPE = "agent/inbox/spliced"


def loose(events: Iterable[Event], first: int) -> frozenset[int]:
    """Seqs from `first` on of inbox rows that belong to messages which wait at `first` or at the end.

    `events` is the whole log up to the end of what is kept: what waits at `first` came before it.
    """
    inbox: dict[str, list[str]] = {"next-turn": [], "next-step": []}
    since_empty: list[int] = []
    """The rows since the inbox was last empty."""
    left_out: set[int] = set()
    is_broken = False
    for event in events:
        if event.type != TYPE:
            continue
        since_empty.append(event.seq)
        is_broken = is_broken or not _splice(inbox, event)
        if not is_broken and not any(inbox.values()):
            if since_empty[0] < first:
                left_out.update(since_empty)
            since_empty.clear()
    left_out.update(since_empty)
    return frozenset(seq for seq in left_out if seq >= first)


def _splice(inbox: dict[str, list[str]], event: Event) -> bool:
    """Apply one row; False where it takes out what is not there, or puts in what waits already."""
    data = event.data
    waiting = inbox.get(data["target"]) if isinstance(data.get("target"), str) else None
    if waiting is None:
        return False
    start, count = data["start"], data.get("removedCount", 0)
    if start + count > len(waiting):
        return False
    waiting[start : start + count] = [str(message.get("id")) for message in data["inserted"]]
    ids = [name for names in inbox.values() for name in names]
    return len(ids) == len(set(ids))
