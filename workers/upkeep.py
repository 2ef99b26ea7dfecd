"""Upkeep: what may wait: records whose time has come go, and hints that were lost are put back.

Every worker may do it at once; the reaper's thread calls it, one small step a round.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import NoScriptError

from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys
from dsh_tasks.store.scripts import Arg, load
from dsh_tasks.store.store import NOTICE_KEPT_MS, glob_of
from workers.clock import elapsed_s

log = logging.getLogger(__name__)

FORGET_A_ROUND = 100
LOOK_A_ROUND = 1_000
"""Keys that one page of the sweep looks at."""
LOOK_AGAIN_MS = 600_000
"""A record that must stay (a task below it lives, its notice waits) is looked at again after this."""
SWEEP_FOR_S = 0.05
"""How long the sweep may go on in one round; at least one page."""
SWEEPER_MS = 5_000
"""A sweeper that was silent for so long is followed by another: one killed in mid sweep holds up nobody."""


class Upkeep:
    """Retention and the sweep for lost hints."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._keys = Keys(settings.prefix)
        self._token = secrets.token_hex(8)
        self._cursor = 0
        self._next_sweep_ms = 0
        self.counts: Counter[str] = Counter()

    def round(self, now_ms: int) -> None:
        """One step of each; `now_ms` is the server's clock."""
        if self._settings.retention_ms:
            self._forget(now_ms)
        if now_ms >= self._next_sweep_ms:
            self._sweep(now_ms)

    @property
    def sweeps(self) -> bool:
        """A look at all records has begun and goes on with the next round."""
        return self._cursor != 0

    def _forget(self, now_ms: int) -> None:
        k, s = self._keys, self._settings
        before_ms = now_ms - s.retention_ms
        found: Any = self._client.zrangebyscore(k.endings, "-inf", before_ms, start=0, num=FORGET_A_ROUND)
        for raw in found:
            task_id = raw.decode()
            notice_ms = now_ms - max(s.retention_ms, NOTICE_KEPT_MS)
            answer = run_script(
                self._client,
                "forget",
                [k.task(task_id)],
                [k.prefix, task_id, before_ms, notice_ms, s.chunk_expiry_ms],
            )
            what = answer[-1].decode()
            self.counts[what] += 1
            if what == "missing":
                self._client.zrem(k.endings, task_id)
            elif what != "forgotten":
                self._client.zadd(k.endings, {task_id: before_ms + LOOK_AGAIN_MS}, xx=True)

    def _sweep(self, now_ms: int) -> None:
        """Some pages of records a round; one worker at a time, then a pause."""
        k = self._keys
        holder: Any = self._client.set(k.sweeper, self._token, nx=True, px=SWEEPER_MS, get=True)
        if holder is not None and holder != self._token.encode():
            self._next_sweep_ms = now_ms + self._settings.sweep_ms
            return
        until_s = elapsed_s() + SWEEP_FOR_S
        self._look_at_a_page()
        while self._cursor and elapsed_s() < until_s:
            self._look_at_a_page()
        if self._cursor == 0:
            self._next_sweep_ms = now_ms + self._settings.sweep_ms
            self._client.delete(k.sweeper)
        else:
            self._client.pexpire(k.sweeper, SWEEPER_MS)

    def _look_at_a_page(self) -> None:
        k = self._keys
        prefix = k.task("")
        page: Any = self._client.scan(self._cursor, match=f"{glob_of(prefix)}*", count=LOOK_A_ROUND)
        self._cursor = page[0]
        ids = [key.decode()[len(prefix) :] for key in page[1]]
        if ids:
            lacking = run_script(
                self._client, "hints", [k.due, k.leases, k.stops, k.endings, k.deadlines], [k.prefix, *ids]
            )
            self.counts["hints"] += lacking
            if lacking:
                log.warning("%d lost hints were put back", lacking)


def run_script(client: redis.Redis, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
    """One script on a client of a thread; loaded where the server does not know it."""
    script = load(name)
    try:
        return client.execute_command(*script.call(keys, args))  # type: ignore[no-untyped-call]
    except NoScriptError:
        client.script_load(script.text)
        return client.execute_command(*script.call(keys, args))  # type: ignore[no-untyped-call]
