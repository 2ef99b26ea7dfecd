"""Start checks: a worker waits for its server, and refuses one that would lose records."""

from __future__ import annotations

import logging
import time
from typing import Any

import redis
from celery import Celery

from dsh_tasks.errors import ConfigRefused, StoreUnavailable
from dsh_tasks.queue import VISIBILITY_TIMEOUT_S
from dsh_tasks.settings import Settings
from dsh_tasks.store import connect_sync, masked
from dsh_tasks.store.fitness import Finding, Grade, ServerFacts, fail, ok, server_findings

log = logging.getLogger(__name__)

WAIT_FOR_SERVER_S = 60.0
PAUSE_S = 0.2
KOMBUS_S = 3_600
"""kombu's visibility timeout where none is given."""
TOLD = ("appendonly", "replicas")
"""What a worker starts with all the same."""


def check_server(settings: Settings, *, wait_s: float = WAIT_FOR_SERVER_S) -> None:
    """Wait until the server answers; log what is weak about it.

    Raises StoreUnavailable where it stays silent, ConfigRefused for what makes records vanish: eviction,
    an old version, a cluster or a replica.
    """
    assert settings.redis_url is not None
    client = connect_sync(settings.redis_url, timeout_ms=settings.call_timeout_ms)
    try:
        facts = _facts(client, masked(settings.redis_url), wait_s)
        judge(list(server_findings(facts, replicas=settings.replicas)))
    finally:
        client.close()


def check_queue(app: Celery) -> None:
    """Raises ConfigRefused where a message could come again while the child that it woke still runs."""
    judge([redelivery_finding(app.conf.broker_transport_options.get("visibility_timeout", KOMBUS_S))])


def redelivery_finding(visibility_s: float) -> Finding:
    """What is not acknowledged comes again after this: a run must not be longer."""
    if visibility_s < VISIBILITY_TIMEOUT_S:
        seen = f"{visibility_s:g} s: below the longest run, its message would come again meanwhile"
        return fail("visibility_timeout", seen, f"leave it at {VISIBILITY_TIMEOUT_S} s")
    return ok("visibility_timeout", f"{visibility_s:g} s")


def judge(findings: list[Finding]) -> None:
    """Log each weak finding; raise ConfigRefused for the first that loses records while all runs well."""
    for finding in findings:
        if finding.grade is Grade.FAIL and finding.check not in TOLD:
            raise ConfigRefused(f"server {finding.check}", f"{finding.seen}; {finding.mend}")
        if finding.grade in (Grade.FAIL, Grade.WARNING):
            # A restart forgets without an append-only file, a replica may come yet: allowed, never silent.
            log.warning("server %s: %s; %s", finding.check, finding.seen, finding.mend)


def _facts(client: redis.Redis, where: str, wait_s: float) -> ServerFacts:
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        try:
            info: Any = client.info("everything")
            break
        except redis.AuthenticationError:
            msg = f"{where} refused the credentials"
            raise StoreUnavailable(msg) from None
        except (redis.RedisError, OSError):
            if time.monotonic() > deadline:
                msg = f"{where} did not answer for {wait_s:.0f} s"
                raise StoreUnavailable(msg) from None
            if not told:
                told = True
                log.warning("waiting for the server at %s", where)
            time.sleep(PAUSE_S)
    try:
        fsync: Any = client.config_get("appendfsync")
    except redis.RedisError:
        # Hosted servers keep CONFIG for themselves.
        return ServerFacts(info, None)
    return ServerFacts(info, fsync.get("appendfsync"))
