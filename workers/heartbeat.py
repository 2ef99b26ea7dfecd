"""Heartbeat: a second thread with its own connection that keeps the leases of this process' attempts.

It tells how far each has come, and stops those that have stalled (workers/watchdog.py).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.exceptions import NoScriptError

from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys
from dsh_tasks.store.scripts import load
from workers.attempt import Attempt
from workers.clock import elapsed_s
from workers.engines.base import StopReason
from workers.loop import EventLoop
from workers.runner import Runner
from workers.watchdog import borne_ms, shown_ms, stall_of

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 5
LONGEST_PAUSE_S = 1.0
"""A kill whose push was lost is seen by the next heartbeat."""
EXIT_FROZEN = 70


def _exit_now() -> None:
    os._exit(EXIT_FROZEN)


class Heartbeat:
    """Beats while the event loop turns; a loop that is stuck loses its leases, and past that its process."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        runner: Runner,
        loop: EventLoop,
        *,
        end_process: Callable[[], None] = _exit_now,
    ) -> None:
        self._client = client
        self._settings = settings
        self._keys = Keys(settings.prefix)
        self._runner = runner
        self._loop = loop
        self._end_process = end_process
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsh-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        lease_s = self._settings.lease_ms / 1000
        pause_s = min(lease_s / BEATS_PER_LEASE, LONGEST_PAUSE_S)
        while not self._stopped.wait(pause_s):
            silent_s = self._loop.silent_s
            if silent_s > lease_s * 2 / 3 and self._runner.active:
                # Nothing on this loop can act in time any more: others take over from the leases.
                log.error("the event loop has not turned for %.1f s; this process ends", silent_s)
                self._end_process()
                return
            if silent_s > lease_s / 3:
                log.warning("the event loop has not turned for %.1f s; no heartbeat", silent_s)
                continue
            try:
                self.beat()
            except (redis.RedisError, OSError) as error:
                log.warning("heartbeat failed: %s", type(error).__name__)

    def beat(self) -> None:
        """One heartbeat for all attempts, in one pipeline."""
        attempts = tuple(self._runner.active.values())
        if not attempts:
            return
        sent_s = elapsed_s()
        silent = [
            attempt.pulse.look(sent_s, waits=attempt.waits > 0, gap_s=self._settings.lease_ms / 1000)
            for attempt in attempts
        ]
        try:
            answers = self._send(attempts, silent)
        except (redis.RedisError, OSError):
            for attempt in attempts:
                attempt.pulse.missed()
            raise
        for attempt, answer, silent_s in zip(attempts, answers, silent, strict=True):
            self._apply(attempt, answer, sent_s, silent_s)

    def _send(self, attempts: Sequence[Attempt], silent: Sequence[float]) -> list[Any]:
        script = load("heartbeat")
        try:
            return self._pipeline(attempts, silent)
        except NoScriptError:
            self._client.script_load(script.text)
            return self._pipeline(attempts, silent)

    def _pipeline(self, attempts: Sequence[Attempt], silent: Sequence[float]) -> list[Any]:
        script, now_s = load("heartbeat"), elapsed_s()
        with self._client.pipeline(transaction=False) as pipe:
            for attempt, silent_s in zip(attempts, silent, strict=True):
                pipe.execute_command(  # type: ignore[no-untyped-call]
                    *script.call(
                        [self._keys.task(attempt.child.task_id), self._keys.leases],
                        [
                            attempt.child.task_id,
                            attempt.fence.attempt,
                            attempt.fence.token,
                            self._settings.lease_ms,
                            *progress(attempt, now_s),
                            shown_ms(silent_s, borne_ms(attempt.doing, self._settings)),
                        ],
                    )
                )
            return list(pipe.execute())

    def _apply(self, attempt: Attempt, answer: Any, sent_s: float, silent_s: float) -> None:
        match answer[0]:
            case b"fenced":
                # An attempt that has just settled is no longer active: stopping it changes nothing.
                self._tell(attempt, StopReason.FENCED)
            case b"stop":
                attempt.lease_until_s = sent_s + self._settings.lease_ms / 1000
                self._tell(attempt, StopReason.KILL)
            case _:
                attempt.lease_until_s = sent_s + self._settings.lease_ms / 1000
                if words := stall_of(attempt, silent_s, self._settings):
                    self._loop.loop.call_soon_threadsafe(attempt.stalled, words)

    def _tell(self, attempt: Attempt, reason: StopReason) -> None:
        self._loop.loop.call_soon_threadsafe(attempt.stop, reason)


def progress(attempt: Attempt, now_s: float) -> tuple[str, int, int, int, int]:
    """How far an attempt is, as the script takes it: activity, its age and idle time (ms), counts."""
    pulse = attempt.pulse
    return (
        attempt.doing,
        max(round((now_s - pulse.began_s) * 1000), 0),
        max(round((now_s - pulse.moved_s) * 1000), 0),
        pulse.streamed,
        pulse.answers,
    )
