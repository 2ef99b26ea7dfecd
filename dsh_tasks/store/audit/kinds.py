"""Kinds: what a key under the prefix is, by its name alone (store/keys.py says what each holds)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dsh_tasks.store.keys import Keys


class Life(Enum):
    """Whether a key of a kind has an expiry."""

    STAYS = "none"
    EXPIRES = "an expiry"
    COUNTED = "an expiry while nothing refers to it, and none else"
    FOREIGN = "whatever the queue gives it"


@dataclass(frozen=True, slots=True)
class Kind:
    """One line of `keys.py`: the server's type, and how long such a key lives."""

    name: str
    type: str
    life: Life = Life.STAYS


CELERY = Kind("celery", "", Life.FOREIGN)
"""kombu's own keys: they come and go with workers, in its own layout."""

NAMED = {
    kind.name: kind
    for kind in (
        Kind("task", "hash"),
        Kind("log", "stream"),
        Kind("output", "string"),
        Kind("index", "zset"),
        Kind("live", "set"),
        Kind("calls", "hash"),
        Kind("inbox", "stream"),
        Kind("holds", "hash"),
        Kind("speaker", "string", Life.EXPIRES),
        Kind("tree", "hash"),
        Kind("seed", "hash", Life.COUNTED),
        Kind("chunk", "hash", Life.COUNTED),
        Kind("answer", "string", Life.EXPIRES),
        Kind("route", "hash", Life.EXPIRES),
        Kind("permits", "zset", Life.EXPIRES),
        Kind("killing", "list"),
        CELERY,
    )
}
"""Kinds whose keys are `<kind>:<name>`."""

SINGLE = {
    kind.name: kind
    for kind in (
        *(Kind(name, "zset") for name in ("leases", "stops", "due", "kills", "deadlines", "endings")),
        Kind("stats", "hash", Life.EXPIRES),
        Kind("sweeper", "string", Life.EXPIRES),
        Kind("hook", "string", Life.EXPIRES),
        Kind("hooks", "zset", Life.EXPIRES),
        Kind("hookstats", "hash"),
    )
}
"""Kinds of one key each."""


def kind_of(keys: Keys, key: str) -> tuple[Kind, str] | None:
    """The kind of a key and the name in it; None for one that nobody knows."""
    rest = key.removeprefix(keys.prefix)
    if rest in SINGLE:
        return SINGLE[rest], ""
    kind, colon, name = rest.partition(":")
    if not colon or not name or kind not in NAMED:
        return None
    return NAMED[kind], name
