"""Start checks: a worker waits for its server, and refuses one that would lose records."""

from __future__ import annotations

import logging
import time
from typing import Any

import redis

from dsh_tasks.errors import ConfigRefused, StoreUnavailable
from dsh_tasks.settings import Settings
from dsh_tasks.store import connect_sync, masked
from dsh_tasks.store.fitness import Finding, Grade, ServerFacts, server_findings

log = logging.getLogger(__name__)

WAIT_FOR_SERVER_S = 60.0
PAUSE_S = 0.2
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
