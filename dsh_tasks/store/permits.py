"""Permits: which model calls of a route may go on, over all workers of an installation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsh_tasks.settings import Settings
from dsh_tasks.store.connection import Link
from dsh_tasks.store.keys import Keys

KEPT_MS = 60_000
"""How long a cool-down that is over still wants a probe."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The call may go on."""

    is_probe: bool
    """It is the one call after a cool-down for which all others wait."""
    is_leased: bool
    """It takes a place that must be kept and given back."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The call may not go on yet."""

    why: Literal["cools", "probed", "full"]
    for_ms: int
    """How long the cool-down or the probe's lease still lasts; 0 where nobody can say."""


class Permits:
    """The routes of one installation. Every call may raise StoreUnavailable."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self._link = link
        self._settings = settings
        self._keys = Keys(settings.prefix)

    async def ask(self, route: str, token: str) -> Granted | Waits:
        """A permit for one call; asked again with the same token it is the same one."""
        s = self._settings
        answer = await self._link.script("permit", self._pair(route), [token, s.route_calls, s.lease_ms])
        match answer[0]:
            case b"granted":
                return Granted(bool(answer[1]), bool(answer[1]) or s.route_calls > 0)
            case b"cools":
                return Waits("cools", int(answer[1]))
            case b"probed":
                return Waits("probed", int(answer[1]))
        return Waits("full", 0)

    async def keep(self, route: str, tokens: Sequence[str]) -> int:
        """Keep permits for another lease; how many of them still held."""
        key = self._keys.permits(digest_of(route))
        answer = await self._link.script("permit_keep", [key], [self._settings.lease_ms, *tokens])
        return int(answer[1])

    async def accepted(self, route: str, token: str) -> None:
        """The provider took the call: a cool-down whose probe it was is over."""
        await self._link.script("permit_end", self._pair(route), [token, "accepted", 0, 0])

    async def cools(self, route: str, token: str, pause_ms: int) -> int:
        """The provider wants a pause; gives the permit back. How long (ms) the route rests now."""
        answer = await self._link.script("permit_end", self._pair(route), [token, "cools", pause_ms, KEPT_MS])
        return int(answer[1])

    async def end(self, route: str, token: str) -> None:
        """Give a permit back; twice is the same as once."""
        await self._link.script("permit_end", self._pair(route), [token, "ended", 0, 0])

    def _pair(self, route: str) -> list[str]:
        digest = digest_of(route)
        return [self._keys.route(digest), self._keys.permits(digest)]


def digest_of(route: str) -> str:
    """How keys name a route: whatever a model's name is made of, none of it is to be read there."""
    return hashlib.sha256(route.encode("utf-8", "replace")).hexdigest()[:32]
