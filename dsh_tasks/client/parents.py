"""Parents: the logs that this client forked before, so that forking again costs what was added."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dsh_tasks.seed import Seed, SeedMaker, taken
from dsh_tasks.session import Event, Session

MOST = 8
"""Logs that are remembered."""
MOST_BYTES = 64 << 20
"""And the bytes of their rows, as canonical JSON."""


class KnownLog:
    """One parent's log as it was when it was last forked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size = 0
        self._events: tuple[Event, ...] = ()
        self._maker = SeedMaker()

    def grown_to(self, session: Session) -> int:
        """How many events of `session` are new; all, where it is another log than before."""
        had = len(self._events)
        # Events are values: the same objects are the same log, and comparing those costs next to nothing.
        return len(session.events) - had if session.events[:had] == self._events else len(session.events)

    def seed(self, session: Session, turns: int | None) -> Seed:
        """As `seed.window` or `seed.cut` of `session`. Raises SeedRefused."""
        if session.events[: len(self._events)] != self._events:
            self._events, self._maker = (), SeedMaker()
        had, end = len(self._events), session.end_of_completed()
        # Where a row is refused, the maker is of no more use.
        events, self._events, maker, self._maker = self._events, (), self._maker, SeedMaker()
        if end > had:
            taken(session, maker, since=had)
            events = session.events[:end]
        seed = maker.seed(turns)
        self._events, self._maker, self.size = events, maker, maker.raw_bytes
        return seed


class Parents:
    """Known logs by their sessions, bounded in number and bytes. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, KnownLog] = OrderedDict()

    def of(self, session: Session) -> KnownLog:
        """What is known of this session's log; its `lock` is to be held while it is asked."""
        with self._lock:
            known = self._known.pop(session.header.id, None) or KnownLog()
            self._known[session.header.id] = known
            sizes = [(name, one.size) for name, one in self._known.items()]
            total = sum(size for _, size in sizes)
            for name, size in sizes[:-1]:
                if len(self._known) > MOST or total > MOST_BYTES:
                    del self._known[name]
                    total -= size
            return known


class Forked:
    """A session and what is known of it: makes the seeds of one start."""

    def __init__(self, known: KnownLog, session: Session) -> None:
        self._known = known
        self._session = session

    def seed(self, turns: int | None = None) -> Seed:
        """As `seed.window` or `seed.cut` of the session. Raises SeedRefused."""
        with self._known.lock:
            return self._known.seed(self._session, turns)

    def is_slow(self, events: int) -> bool:
        """Whether more than `events` rows are new, or another thread works on this log."""
        return self._known.lock.locked() or self._known.grown_to(self._session) > events
