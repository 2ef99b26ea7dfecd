"""Reaper: takes over lost leases, settles kills that nobody confirmed, publishes what has no message.

It may run in every worker at once: each step reads the truth again inside its script.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.queue import Message
from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys
from dsh_tasks.store.records import due_tasks
from dsh_tasks.store.scripts import Arg
from dsh_tasks.store.store import ANSWER_MS, NODES_PER_KILL, PUBLISH_WITHIN_MS
from workers.clock import elapsed_s
from workers.upkeep import Upkeep, run_script

log = logging.getLogger(__name__)

PERIOD_S = 0.5
MOST = 200
KILL_ALONE_MS = 3_000
"""A kill in steps that nobody has taken further for so long is finished here."""


class Watch:
    """How long this reaper has itself seen the server answer without a gap: the living are not taken over."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._since_s: float | None = None
        self._last_s = 0.0

    def answered(self, now_s: float) -> None:
        """The server answered now."""
        if self._since_s is None or now_s - self._last_s > self._gap_s:
            self._since_s = now_s
        self._last_s = now_s

    def failed(self) -> None:
        """It did not: the watch begins anew."""
        self._since_s = None

    def seen_for_s(self, now_s: float) -> float:
        """Seconds of answers without a gap."""
        return 0.0 if self._since_s is None else now_s - self._since_s


class Reaper:
    """A thread with its own connection."""

    def __init__(self, client: redis.Redis, settings: Settings, publish: Callable[[Message], None]) -> None:
        self._client = client
        self._settings = settings
        self._keys = Keys(settings.prefix)
        self._publish = publish
        lease_s = settings.lease_ms / 1000
        self._patience_s = lease_s + settings.grace_ms / 1000
        self._period_s = min(PERIOD_S, lease_s / 4)
        self._watch = Watch(gap_s=max(lease_s / 2, 4 * self._period_s))
        self.upkeep = Upkeep(client, settings)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsh-reaper", daemon=True)
        self.counts = {
            "requeued": 0,
            "failed": 0,
            "killed": 0,
            "published": 0,
            "expired": 0,
            "kills_finished": 0,
        }

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            try:
                self.round(elapsed_s())
            except (redis.RedisError, OSError) as error:
                self._watch.failed()
                log.warning("reaper: the server does not answer (%s)", type(error).__name__)
            except StoreUnavailable as error:
                log.warning("reaper: %s", error)

    def round(self, now_s: float) -> None:
        """One look: lost leases (only after a watch of lease plus grace), unconfirmed kills, due messages."""
        seconds, micros = self._client.time()
        now_ms = seconds * 1000 + micros // 1000
        self._watch.answered(now_s)
        watched = self._watch.seen_for_s(now_s) >= self._patience_s
        if watched:
            self._reap(self._expired(self._keys.leases, now_ms - self._settings.grace_ms))
        self._reap(self._expired(self._keys.stops, now_ms))
        self._kill(self._expired(self._keys.deadlines, now_ms), cause="deadline", detail="its time was over")
        # A kill whose caller has gone on without it; the caller itself has the receipt.
        self._kill(self._expired(self._keys.kills, now_ms - KILL_ALONE_MS), cause="", detail="")
        self._publish_due()
        self.upkeep.round(now_ms)

    def _expired(self, key: str, until_ms: int) -> list[str]:
        found: Any = self._client.zrangebyscore(key, "-inf", until_ms, start=0, num=MOST)
        return [task_id.decode() for task_id in found]

    def _reap(self, task_ids: Sequence[str]) -> None:
        k, s = self._keys, self._settings
        for task_id in task_ids:
            answer = self._script(
                "reap",
                [k.task(task_id), k.leases, k.stops, k.due],
                [k.prefix, task_id, s.grace_ms, s.losses, s.max_attempts, s.first_pause_ms],
            )
            what = answer[0].decode()
            if what in self.counts:
                self.counts[what] += 1
                log.warning("task %s: lease lost, %s", task_id, what)

    def _kill(self, task_ids: Sequence[str], *, cause: str, detail: str) -> None:
        k, s = self._keys, self._settings
        for task_id in task_ids:
            token = f"reaper:{secrets.token_hex(8)}"
            self._script(
                "kill",
                [k.task(task_id), k.answer(token), k.kills, k.killing(task_id)],
                [
                    k.prefix,
                    task_id,
                    "",
                    "",
                    "",
                    detail,
                    s.notice_hold_ms,
                    s.kill_deadline_ms,
                    ANSWER_MS,
                    NODES_PER_KILL,
                    cause,
                ],
            )
        self.counts["expired" if cause else "kills_finished"] += len(task_ids)

    def _publish_due(self) -> None:
        answer = self._script("due", [self._keys.due], [self._keys.prefix, MOST, self._settings.republish_ms])
        missed: StoreUnavailable | None = None
        for due in due_tasks(answer):
            try:
                if missed is None:
                    self._publish(
                        Message(due.task_id, due.attempt, due.label, due.provider, due.depth, due.owner)
                    )
                    self.counts["published"] += 1
                    continue
            except StoreUnavailable as error:
                missed = error
            # A queue that does not answer: ask again soon, and do not count these as published.
            self._script("mark", [self._keys.due], [self._keys.prefix, due.task_id, PUBLISH_WITHIN_MS, 1])
        if missed is not None:
            raise missed

    def _script(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        return run_script(self._client, name, keys, args)
