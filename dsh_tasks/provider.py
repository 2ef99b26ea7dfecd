"""Provider: a named way to start a child, a seed policy plus capabilities; and the registry of them.

Pure values: no clock, no I/O. What a start fixes beside the provider is `submission.Policy`; this
module reads of it only what needs a capability.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol, assert_never

from dsh_tasks import seed
from dsh_tasks.errors import ConfigRefused, OptionRefused
from dsh_tasks.seed import Seed
from dsh_tasks.session import Session


class Kind(StrEnum):
    """What a provider gives its children to start with."""

    SPAWN = "spawn"
    """Nothing."""
    FORK = "fork"
    """Every event up to and including the parent's last `turn/end`."""
    FORK_LITE = "fork-lite"
    """The last `max_completed_turns` completed turns."""


DEFAULT_WINDOW = 2
"""Completed turns that a fork-lite keeps where its row does not say."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can honour. An option without its capability is refused, never ignored."""

    output_schema: bool = True
    """`outputSchema`: the child can be made to end with a value of a JSON schema."""
    depth_limit: bool = True
    """`depthLimit`: a numeric `maxDepth` is enforced."""
    tool_filter: bool = True
    """`toolFilter`: the child's tools can be narrowed."""
    persona: bool = True
    """`persona`: the child can be given a persona."""
    agent_options: bool = True
    """`agentOptions`: advertised only. Every provider of this library takes them as overrides."""
    prepare_continuable: bool = True
    """`prepareContinuable`: the child can be kept open for more messages."""


CONTRACT_NAMES: Mapping[str, str] = {
    "output_schema": "outputSchema",
    "depth_limit": "depthLimit",
    "tool_filter": "toolFilter",
    "persona": "persona",
    "agent_options": "agentOptions",
    "prepare_continuable": "prepareContinuable",
}
"""The contract's word for each capability; these stand in every message."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One named way to start a child. Several of one kind stand side by side under different names."""

    name: str
    kind: Kind
    max_completed_turns: int | None = None
    """Window of a fork-lite in completed turns; None for the other kinds."""
    capabilities: Capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Refuse what cannot hold, with ConfigRefused that names the provider."""
        if not _NAME.fullmatch(self.name):
            raise ConfigRefused(self.name, "a provider's name is 1 to 64 letters, digits, dots, - or _")
        if self.kind is not Kind.FORK_LITE and self.max_completed_turns is not None:
            raise ConfigRefused(self.name, f"maxCompletedTurns has no meaning for kind {self.kind.value!r}")
        if self.kind is Kind.FORK_LITE and (self.max_completed_turns is None or self.max_completed_turns < 0):
            raise ConfigRefused(self.name, "a fork-lite needs maxCompletedTurns, 0 or more")

    @property
    def inherits_parent_context(self) -> bool:
        """Whether its children see completed turns of their parent. A window of 0 turns shows none."""
        return self.kind is not Kind.SPAWN and self.max_completed_turns != 0

    @property
    def window(self) -> int | None:
        """How many of the last completed turns its children see; None is all."""
        match self.kind:
            case Kind.SPAWN:
                return 0
            case Kind.FORK:
                return None
            case Kind.FORK_LITE:
                return self.max_completed_turns
            case _:
                assert_never(self.kind)

    def seed_of(self, parent: Session | Seeding | None) -> Seed:
        """What a child of `parent` starts with, frozen; without a parent it is empty.

        Raises SeedRefused, which names the event, where the log gives no valid seed.
        """
        if parent is None or not self.inherits_parent_context:
            return seed.empty()
        if not isinstance(parent, Session):
            return parent.seed(self.window)
        return seed.cut(parent) if self.window is None else seed.window(parent, self.window)


class Seeding(Protocol):
    """What makes seeds of a log that it knows: a file that is followed, a log forked before."""

    def seed(self, turns: int | None = None) -> Seed:
        """As `seed.window` of that log, or `seed.cut`."""


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# The reference's spawn and fork do not advertise agentOptions. Its fork-lite alone keeps children
# open; here all three can (DESIGN 10).
_STOCK = Capabilities(agent_options=False)


def spawn(name: str = "spawn") -> Provider:
    """Children that start with nothing of their parent."""
    return Provider(name, Kind.SPAWN, capabilities=_STOCK)


def fork(name: str = "fork") -> Provider:
    """Children that start with all completed turns of their parent."""
    return Provider(name, Kind.FORK, capabilities=_STOCK)


def fork_lite(name: str = "fork-lite", max_completed_turns: int = DEFAULT_WINDOW) -> Provider:
    """Children that start with the last completed turns of their parent."""
    return Provider(name, Kind.FORK_LITE, max_completed_turns)


def of_kind(kind: Kind, name: str, max_completed_turns: int | None = None) -> Provider:
    """A provider of `kind` with the capabilities of its kind, as a settings file names it."""
    match kind:
        case Kind.SPAWN | Kind.FORK:
            return Provider(name, kind, max_completed_turns, _STOCK)
        case Kind.FORK_LITE:
            turns = DEFAULT_WINDOW if max_completed_turns is None else max_completed_turns
            return Provider(name, kind, turns)
        case _:
            assert_never(kind)


class Asked(Protocol):
    """What of a start needs a capability; `submission.Policy` and a tool's config have this shape."""

    @property
    def persona(self) -> str | None: ...
    @property
    def tool_filter(self) -> object | None: ...
    @property
    def output_schema(self) -> dict[str, Any] | None: ...
    @property
    def max_depth(self) -> int | Literal["provider-managed"]: ...


@dataclass(frozen=True, slots=True)
class Lack:
    """An option that a provider cannot honour."""

    option: str
    why: str


def lacks(provider: Provider, asked: Asked, *, continuable: bool = False) -> list[Lack]:
    """Every option of `asked` that `provider` has no capability for, in the contract's order."""
    can = provider.capabilities
    missing = [
        ("outputSchema", "output_schema", asked.output_schema is not None and not can.output_schema),
        ("maxDepth", "depth_limit", asked.max_depth != "provider-managed" and not can.depth_limit),
        ("toolFilter", "tool_filter", asked.tool_filter is not None and not can.tool_filter),
        ("persona", "persona", asked.persona is not None and not can.persona),
        ("backgroundMode", "prepare_continuable", continuable and not can.prepare_continuable),
    ]
    return [Lack(option, _why(provider.name, what)) for option, what, is_missing in missing if is_missing]


def _why(name: str, capability: str) -> str:
    sentence = f"provider {name!r} has no capability {CONTRACT_NAMES[capability]}"
    if capability == "depth_limit":
        return f"{sentence} and cannot enforce a numeric cap; say 'provider-managed'"
    if capability == "prepare_continuable":
        return f"{sentence} and cannot start continuable children; say 'one-shot'"
    return sentence


class Registry:
    """The providers that exist now, by name and in order of registration.

    A provider may be withdrawn and come back while its children run on: what was accepted holds its
    own copy of all that it needs.
    """

    def __init__(self, providers: Iterable[Provider] | None = None) -> None:
        """With `spawn`, `fork` and `fork-lite` (2 turns), or with just the given ones."""
        self._providers: dict[str, Provider] = {}
        for provider in (spawn(), fork(), fork_lite()) if providers is None else providers:
            self.register(provider)

    def register(self, provider: Provider) -> None:
        """Make a provider available; a name that is taken is refused with ConfigRefused."""
        if provider.name in self._providers:
            raise ConfigRefused(provider.name, "two providers have this name")
        self._providers[provider.name] = provider

    def withdraw(self, name: str) -> Provider:
        """Take a provider away and return it; its tools vanish, its running children do not."""
        provider = self.get(name)
        del self._providers[name]
        return provider

    def get(self, name: str) -> Provider:
        """The provider of this name. Raises OptionRefused that tells which names exist."""
        provider = self._providers.get(name)
        if provider is None:
            there = ", ".join(repr(known) for known in self._providers) or "none"
            raise OptionRefused("provider", f"there is no provider {name[:80]!r}; there are: {there}")
        return provider

    def check_start(self, name: str, asked: Asked, *, continuable: bool = False) -> Provider:
        """The provider that will start this child. Raises OptionRefused for the first lack."""
        provider = self.get(name)
        for lack in lacks(provider, asked, continuable=continuable):
            raise OptionRefused(lack.option, lack.why)
        return provider

    def __contains__(self, name: object) -> bool:
        """Whether a provider of this name exists now."""
        return name in self._providers

    def __iter__(self) -> Iterator[Provider]:
        """The providers in order of registration."""
        return iter(tuple(self._providers.values()))
