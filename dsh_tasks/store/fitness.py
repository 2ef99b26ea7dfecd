"""Fitness: what a server must be to keep records; each finding tells how it stands and the mend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

OLDEST_REDIS = (7, 0)


class Grade(StrEnum):
    """How a finding stands."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing to mend."""
    WARNING = "warning"
    FAIL = "fail"
    """Work is lost or does not run until it is mended."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw."""

    check: str
    grade: Grade
    seen: str
    mend: str = ""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, Grade.OK, seen)


def fail(check: str, seen: str, mend: str) -> Finding:
    """Not fit, and how to mend it."""
    return Finding(check, Grade.FAIL, seen, mend)


def warning(check: str, seen: str, mend: str) -> Finding:
    """Fit, with a risk, and how to mend it."""
    return Finding(check, Grade.WARNING, seen, mend)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself: INFO, and CONFIG where it may be asked."""

    info: Mapping[str, Any]
    appendfsync: str | None
    """None where CONFIG is refused, as hosted servers do."""


def server_findings(facts: ServerFacts, *, replicas: int = 0) -> Iterator[Finding]:
    """All that can be said from INFO and CONFIG; `replicas` is how many an answer waits for."""
    yield version_finding(facts.info)
    yield topology_finding(facts.info)
    yield eviction_finding(facts.info)
    yield durability_finding(facts.info, facts.appendfsync)
    yield replicas_finding(facts.info, replicas)


def version_finding(info: Mapping[str, Any]) -> Finding:
    """Redis 7.0 or later, or Valkey (which names a Redis version that it is compatible with)."""
    valkey = info.get("valkey_version")
    if valkey is not None:
        return ok("version", f"Valkey {valkey}")
    given = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in given.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_REDIS:
        return fail("version", f"Redis {given}", "run Redis 7.0 or later, or Valkey")
    return ok("version", f"Redis {given}")


def topology_finding(info: Mapping[str, Any]) -> Finding:
    """One primary; no cluster, no replica."""
    if int(info.get("cluster_enabled", 0)):
        return fail("topology", "a Redis Cluster", "use one primary; a cluster is not supported")
    if info.get("role") == "slave":
        return fail("topology", "a replica: it takes no writes", "point DSH_TASKS_REDIS_URL to the primary")
    replicas = int(info.get("connected_slaves", 0))
    return ok("topology", f"one primary, replicas: {replicas}")


def replicas_finding(info: Mapping[str, Any], asked: int) -> Finding:
    """Whether the replicas are there that an answer waits for, and what a failover takes."""
    there = int(info.get("connected_slaves", 0))
    if asked > there:
        mend = f"connect {asked - there} more, or set DSH_TASKS_REPLICAS={there}"
        return fail("replicas", f"answers wait for {asked}, connected are {there}: nothing is accepted", mend)
    if asked:
        return ok("replicas", f"answers wait for {asked} of {there}")
    if there:
        seen = "answers wait for none: a failover takes what was not replicated yet"
        return Finding(
            "replicas", Grade.NOTE, seen, "DSH_TASKS_REPLICAS=1 narrows it, at the cost of latency"
        )
    return ok("replicas", "none, and none is asked for")


def eviction_finding(info: Mapping[str, Any]) -> Finding:
    """An evicted key is a lost record."""
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy != "noeviction":
        mend = "CONFIG SET maxmemory-policy noeviction, and write it into the server's configuration"
        return fail("maxmemory-policy", f"{policy}: a full server deletes records", mend)
    return ok("maxmemory-policy", policy)


_LOSS = {
    "always": "a power loss takes nothing",
    "everysec": "a power loss takes up to two seconds",
    "no": "a power loss takes what the system had not written, often 30 seconds",
}


def durability_finding(info: Mapping[str, Any], appendfsync: str | None) -> Finding:
    """The append-only file, and the window of loss that follows."""
    if not int(info.get("aof_enabled", 0)):
        mend = "CONFIG SET appendonly yes, and write it into the server's configuration"
        return fail("appendonly", "no: a restart of the server may forget every task", mend)
    if appendfsync is None:
        mend = "ask whoever runs the server for its appendfsync"
        return warning("appendonly", "yes; the server does not tell its fsync, the loss is unknown", mend)
    seen = f"yes, fsync {appendfsync}: {_LOSS.get(appendfsync, 'the loss is unknown')}"
    if appendfsync == "no":
        return warning("appendonly", seen, "CONFIG SET appendfsync everysec, or always")
    return ok("appendonly", seen)
