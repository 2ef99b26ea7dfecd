"""Census: what stands on the server, looked at past every client: keys, slots, queue, inbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys


class Census:
    """One installation's keys."""

    def __init__(self, raw: redis.Redis, settings: Settings) -> None:
        self.raw: Any = raw
        self.keys = Keys(settings.prefix)
        self._prefix, self._queue = settings.prefix, settings.queue

    def field(self, task_id: str, name: str) -> str:
        """A field of a record, '' where there is none."""
        return (self.raw.hget(self.keys.task(task_id), name) or b"").decode()

    def live(self, session: str) -> int:
        """Tasks of a session that hold a place."""
        return int(self.raw.scard(self.keys.live(session)))

    def live_in_tree(self, root: str) -> int:
        return int(self.raw.hget(self.keys.tree(root), "live") or 0)

    def pending_notices(self, session: str) -> int:
        """Notices in the inbox, held back or not."""
        return int(self.raw.xlen(self.keys.inbox(session)))

    def queued_messages(self) -> int:
        """Messages that wait in the queue, and those that no consumer has acknowledged."""
        celery = f"{self._prefix}celery:"
        return int(self.raw.llen(celery + self._queue)) + int(self.raw.hlen(f"{celery}unacked"))

    def hints(self) -> int:
        """Tasks in the reaper's hints."""
        k = self.keys
        return sum(int(self.raw.zcard(key)) for key in (k.leases, k.stops, k.due))

    def all(self) -> set[str]:
        """Every key of the installation."""
        return {key.decode() for key in self.raw.scan_iter(f"{self._prefix}*", count=1000)}

    def lasting(self) -> set[str]:
        """Keys without an expiry."""
        return {key for key in self.all() if self.raw.pttl(key) == -1}

    def bytes_of(self, key: str) -> int:
        """Memory of one key, every element counted."""
        return int(self.raw.memory_usage(key, samples=0) or 0)


@contextmanager
def census_of(settings: Settings) -> Iterator[Census]:
    with redis.Redis.from_url(settings.redis_url or "") as raw:
        yield Census(raw, settings)
