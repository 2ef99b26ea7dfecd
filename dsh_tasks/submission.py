"""Submission: a validated request to start one child, with every default decided."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from dsh_tasks.dollars import Dollars, micro_of
from dsh_tasks.errors import LimitReached, OptionRefused
from dsh_tasks.schema import check_schema
from dsh_tasks.session import ParentLog
from dsh_tasks.settings import Settings

V = TypeVar("V", bound=BaseModel)

MaxDepth = int | Literal["provider-managed"]
Prompt = str | Sequence[Mapping[str, Any]]
Mode = Literal["foreground", "background"]
MODES: tuple[Mode, Mode] = ("foreground", "background")

NAME_MAX_BYTES = 1_024
"""Owners, keys, engines, task ids."""
LABEL_MAX_BYTES = 4_096
PERSONA_MAX_BYTES = 64 * 1024
FILTER_NAMES_MOST = 1_000
"""Names in `allow`, and in `deny`."""
MAX_TOKENS_MOST = 2**31 - 1
LONGEST_LIFE_MS = 365 * 24 * 3_600_000
FOLDER_MAX_BYTES = 4_096
DEPTH_MOST = 1_000


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# No white space: what cannot name a route anywhere is refused here, not by a provider on a worker.
_PROVIDER = r"^[^\s:]+$"
_MODEL = r"^[^\s:](\S*[^\s:])?$"


Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]


class AgentOptions(_Value):
    """What a start may override of the model route. An option left out is inherited, never emptied."""

    provider: Annotated[str, Field(pattern=_PROVIDER, max_length=200)] | None = None
    """As the harness or pydantic-ai names it."""
    model: Annotated[str, Field(pattern=_MODEL, max_length=500)] | None = None
    """Of that provider, or with it: `provider:model`."""
    max_tokens: int | None = Field(None, gt=0, le=MAX_TOKENS_MOST, alias="maxTokens")
    effort: Effort | None = None
    """How much the model is to reason; a model that cannot be told refuses its child."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


_ToolName = Annotated[str, Field(min_length=1, max_length=200, strict=True)]


class ToolFilter(_Value):
    """Which of the global tools a child sees. A filter with only `deny` is no allow-list of nothing."""

    allow: tuple[_ToolName, ...] | None = Field(None, strict=False, max_length=FILTER_NAMES_MOST)
    deny: tuple[_ToolName, ...] | None = Field(None, strict=False, max_length=FILTER_NAMES_MOST)

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.allow is None and self.deny is None:
            msg = "a tool filter must name allow or deny"
            raise ValueError(msg)
        return self

    def admits(self, name: str) -> bool:
        """Whether a tool of this name stays."""
        allowed = self.allow is None or name in self.allow
        return allowed and (self.deny is None or name not in self.deny)

    def check_names(self, known: Collection[str]) -> None:
        """Raises OptionRefused for the first name that no tool of `known` has."""
        for option, names in (("allow", self.allow), ("deny", self.deny)):
            for name in names or ():
                if name not in known:
                    raise OptionRefused(f"toolFilter.{option}", f"no tool is called {name!r}")


class Route(_Value):
    """A model route as a log names it."""

    provider: str
    model: str


class Policy(_Value):
    """All that a start fixes for its child; stored in the record as JSON."""

    agent_options: AgentOptions | None = None
    tool_filter: ToolFilter | None = None
    persona: str | None = None
    output_schema: dict[str, Any] | None = None
    max_depth: MaxDepth = 3
    fenced_output: bool | None = None
    """Tools show the child's words to a model in a fence; None is no."""
    working_folder: str | None = None
    """Absolute path on the workers; None is what the parent's log records, else the operator's."""
    tool_ceiling: Annotated[tuple[ToolFilter, ...], Field(strict=False)] | None = None
    """The filters of all above the child, where the operator made them a ceiling; its own narrows them."""
    parent_route: Route | None = None
    """The route of the parent's log; used where nothing else names a model."""
    cost_budget_microusd: Annotated[int, Field(gt=0)] | None = None
    """What the child's own model calls may cost, in 10^-6 US dollars; None is no bound of its own."""

    def admits(self, name: str) -> bool:
        """Whether the child has a tool of this name: by its own filter, and by each above it."""
        filters = (*(self.tool_ceiling or ()), *([self.tool_filter] if self.tool_filter is not None else ()))
        return all(one.admits(name) for one in filters)

    @property
    def ceiling_below(self) -> tuple[ToolFilter, ...] | None:
        """What is recorded as `tool_ceiling` of a child of this child; None where nothing narrows it."""
        own = () if self.tool_filter is None else (self.tool_filter,)
        return (*(self.tool_ceiling or ()), *own) or None

    def to_json(self) -> str:
        """The policy as the record holds it; what was left out stays out."""
        return self.model_dump_json(exclude_none=True, by_alias=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Policy:
        """Read what `to_json` wrote."""
        return cls.model_validate_json(text)


def checked(model: type[V], option: str, given: Any) -> V:
    """`given` as `model`; raises OptionRefused that names the option and the first fault."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in (option, *first["loc"]))
        raise OptionRefused(path, first["msg"]) from None


def resolve_policy(
    *,
    parent: ParentLog | None,
    agent_options: AgentOptions | Mapping[str, Any] | None,
    tool_filter: ToolFilter | Mapping[str, Any] | None,
    persona: str | None,
    output_schema: Mapping[str, Any] | None,
    max_depth: MaxDepth,
    fenced_output: bool = False,
    working_folder: str | None = None,
    cost_budget: Dollars | None = None,
) -> Policy:
    """The policy of one start, checked. What was left out stays out. Raises OptionRefused, SchemaRefused."""
    if isinstance(max_depth, bool) or (isinstance(max_depth, int) and max_depth < 0):
        raise OptionRefused("max_depth", "a whole number from 0, or 'provider-managed'")
    if not isinstance(fenced_output, bool):
        raise OptionRefused("fenced_output", "true or false")
    if output_schema is not None:
        check_schema(output_schema)
    if persona is not None:
        checked_text("persona", persona, PERSONA_MAX_BYTES)
    route = parent.model_route() if parent is not None else None
    given: dict[str, Any] = {
        "persona": persona,
        "output_schema": dict(output_schema) if output_schema is not None else None,
        "max_depth": max_depth,
        "fenced_output": fenced_output or None,
        "working_folder": checked_folder(working_folder),
        "cost_budget_microusd": None if cost_budget is None else micro_of("cost_budget", cost_budget),
        "parent_route": Route(provider=route[0], model=route[1]) if route else None,
    }
    if agent_options is not None:
        given["agent_options"] = (
            agent_options
            if isinstance(agent_options, AgentOptions)
            else checked(AgentOptions, "agent_options", _table("agent_options", agent_options))
        )
    if tool_filter is not None:
        given["tool_filter"] = (
            tool_filter
            if isinstance(tool_filter, ToolFilter)
            else checked(ToolFilter, "tool_filter", _table("tool_filter", tool_filter))
        )
    return checked(Policy, "policy", given)


def checked_folder(given: Any) -> str | None:
    """The working folder that a start names, if any. Raises OptionRefused where it is no absolute path."""
    if given is None:
        return None
    folder = checked_text("working_folder", given, FOLDER_MAX_BYTES)
    if not PurePosixPath(folder).is_absolute() or "\0" in folder:
        raise OptionRefused("working_folder", "an absolute path on the workers")
    return folder


def _table(option: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise OptionRefused(option, "it must be a table of options")
    return dict(given)


def checked_mode(given: Any) -> Mode:
    """Raises OptionRefused for what is no mode."""
    for mode in MODES:
        if given == mode:
            return mode
    raise OptionRefused("mode", "'foreground' or 'background'")


def policy_text(policy: Policy) -> str:
    """The policy as the record holds it. Raises OptionRefused where a text in it is no UTF-8."""
    try:
        return policy.to_json()
    except PydanticSerializationError:
        raise OptionRefused("policy", "a text in it holds half a character (a lone surrogate)") from None


def depth_of(parent: ParentLog | None) -> int:
    """The depth that a log's header states. Raises OptionRefused for what is none."""
    depth = 0 if parent is None else parent.header.delegation_depth
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= DEPTH_MOST:
        raise OptionRefused(
            "parent", f"its header's delegationDepth is no whole number from 0 to {DEPTH_MOST}"
        )
    return depth


def checked_text(option: str, given: Any, most_bytes: int, *, may_be_empty: bool = False) -> str:
    """`given` where it is a text in UTF-8 of at most `most_bytes`. Raises OptionRefused."""
    if not isinstance(given, str):
        raise OptionRefused(option, "it must be a text")
    if not given.strip() and not may_be_empty:
        raise OptionRefused(option, "it is empty")
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise OptionRefused(option, "it holds half a character (a lone surrogate)") from None
    if size > most_bytes:
        raise OptionRefused(option, f"{size} bytes of UTF-8, at most {most_bytes}")
    return given


def depth_cap(policy: Policy, settings: Settings) -> int:
    """The smaller of the instance's cap and the operator's, also under `provider-managed`."""
    if policy.max_depth == "provider-managed":
        return settings.max_depth_ceiling
    return min(policy.max_depth, settings.max_depth_ceiling)


def prompt_blocks(prompt: Prompt, limit_bytes: int) -> list[dict[str, Any]]:
    """The prompt as content blocks, verbatim. Raises OptionRefused, LimitReached."""
    blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else _blocks(prompt)
    texts = [block.get("text") for block in blocks if block["type"] == "text"]
    if any(not isinstance(text, str) for text in texts):
        raise OptionRefused("prompt", "a text block holds a text")
    if len(texts) == len(blocks) and not any(str(text).strip() for text in texts):
        raise OptionRefused("prompt", "it is empty")
    try:
        size = len(json.dumps(blocks, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise OptionRefused("prompt", "its blocks are not plain JSON in UTF-8") from None
    if size > limit_bytes:
        raise LimitReached(
            "prompt_max_bytes", value=size, cap=limit_bytes, way_out="put the material into a file or the log"
        )
    return blocks


def _blocks(prompt: Any) -> list[dict[str, Any]]:
    wrong = OptionRefused("prompt", "a text, or a list of content blocks with a type each")
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        raise wrong
    if any(not isinstance(block, Mapping) or not isinstance(block.get("type"), str) for block in prompt):
        raise wrong
    return [dict(block) for block in prompt]


def call_of(blocks: Sequence[Mapping[str, Any]], *, label: str, mode: str, instance: str) -> str:
    """What a repeated call must equal: prompt, description, mode and instance, not the seed."""

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]

    parts = {"prompt": digest(list(blocks)), "description": digest(label), "mode": mode, "instance": instance}
    return json.dumps(parts, sort_keys=True)
