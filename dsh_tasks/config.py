"""Config: the settings file (TOML) with providers, tools and the agent engine's own tools.

Everything that cannot hold is refused here, at load, with a ConfigRefused that names it; nothing is
left to be found by the first call. Keys are the contract's words (`toolName`, `maxCompletedTurns`).
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from dsh_tasks.dollars import micro_of
from dsh_tasks.errors import ConfigRefused, OptionRefused, SchemaRefused
from dsh_tasks.provider import Kind, Provider, Registry, fork, fork_lite, lacks, of_kind, spawn
from dsh_tasks.settings import Settings
from dsh_tasks.submission import LONGEST_LIFE_MS, AgentOptions, Policy, ToolFilter, resolve_policy
from dsh_tasks.workspace import WorkspaceOption

BackgroundMode = Literal["one-shot", "continuable"]

TASK_TOOLS = ("task_output", "task_list", "task_kill")
"""Names of the task tools; no delegation tool may take them."""
STRUCTURED_OUTPUT = "structured_output"
"""The tool that a child with an output schema ends by; no other tool may take its name."""

RESULT_BYTES = 64 * 1024


class _Row(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True
    )


class ProviderRow(_Row):
    """One `[[providers]]`: a named instance. The name of a stock provider replaces that one."""

    name: str
    kind: Annotated[Kind, Field(strict=False)]
    max_completed_turns: Annotated[int, Field(ge=0)] | None = None
    """Window of a fork-lite (2 where left out); refused for the other kinds."""

    def provider(self) -> Provider:
        """The provider that this row names."""
        return of_kind(self.kind, self.name, self.max_completed_turns)


class SubagentToolConfig(_Row):
    """One `[[tools]]`: a delegation tool over one provider. Its policy is fixed for all its calls."""

    provider: str
    """Name of the provider that starts the children."""
    tool_name: str = "subagent"
    """Name that the model sees; one tool per name."""
    description: Annotated[str, Field(min_length=1)] | None = None
    """Replaces the generated description of the tool; the texts of its arguments stay generated."""
    enable_run_in_background: bool = True
    """Off: the parameter is gone and a forced background call is refused."""
    background_mode: BackgroundMode = "one-shot"
    """What a background call starts."""
    agent_options: AgentOptions | None = None
    """Overrides of the parent's model route: `provider`, `model`, `maxTokens`, `effort`."""
    persona: Annotated[str, Field(min_length=1)] | None = None
    """Persona of each child."""
    tool_filter: ToolFilter | None = None
    """Which of the global tools each child sees."""
    max_depth: Annotated[int, Field(ge=0)] | Literal["provider-managed"] = 3
    """Absolute cap on delegation depth; 0 forbids; `provider-managed` sends none."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of the value that each child must end with."""
    deadline_ms: Annotated[int, Field(ge=1, le=LONGEST_LIFE_MS)] | None = None
    """Longest life of each child from its acceptance, waiting included."""
    partial_output_in_errors: bool = False
    """Bends the contract: a failed foreground call shows the child's partial output, marked as such."""
    overlapping_calls: bool = False
    """Bends the contract: a parent loop may run calls of this tool beside each other."""
    fenced_output: bool = False
    """Bends the contract: what a child says is shown in a fence that names it as the child's words."""
    working_folder: str | None = None
    """Absolute path on the workers where each child works; left out, its parent's."""
    cost_budget: float | str | None = None
    """US dollars that each child's own model calls may cost; a text keeps all its places."""
    promote_foreground_after_ms: Annotated[int, Field(ge=1)] | None = None
    """Bends the contract: a foreground call whose child has not ended by then lets it go on in background."""

    @property
    def is_continuable(self) -> bool:
        """A background call would start a child that stays open."""
        return self.enable_run_in_background and self.background_mode == "continuable"

    def policy(self) -> Policy:
        """What every start of this tool fixes for its child; the parent's route is added by the client."""
        return Policy(
            agent_options=self.agent_options,
            tool_filter=self.tool_filter,
            persona=self.persona,
            output_schema=self.output_schema,
            max_depth=self.max_depth,
            fenced_output=self.fenced_output or None,
            working_folder=self.working_folder,
            cost_budget_microusd=(
                None if self.cost_budget is None else micro_of("costBudget", self.cost_budget)
            ),
        )


class PriceRow(_Row):
    """One `[[agent.prices]]`: what a model costs, in US dollars for a million tokens."""

    model: Annotated[str, Field(min_length=1)]
    """In pydantic-ai's words: `provider:model`."""
    input: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
    """Of the request."""
    output: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
    """Of the answer, reasoning included."""
    cache_read: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Of what the provider's cache gave; left out, as `input`."""
    cache_write: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Of what it took; left out, as `input`."""


class AgentConfig(_Row):
    """`[agent]`: what the built-in engine gives every child beside the delegation tools."""

    tools: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Python tools of the workers as `module:callable`; imported by workers only."""
    tool_result_bytes: Annotated[int, Field(ge=1_024, le=16 * 1024 * 1024)] = RESULT_BYTES
    """Most UTF-8 bytes of a tool's result that a child's model reads; more is cut and marked."""
    children_at_end: Literal["wait", "kill", "leave"] = "wait"
    """What becomes of a child's own children that live when it ends its turn: it waits for them and goes on
    with the news, or they are killed, or they go on alone. A child that fails or is killed never waits."""
    structured_repair_turns: Annotated[int, Field(ge=0, le=10)] = 1
    """How often a child that ends without the value of its output schema is told so and goes on."""
    context_window: Annotated[int, Field(ge=0)] | None = None
    """Tokens that a request and its answer may take together, whatever the model; 0 sends it in any case."""
    mcp_servers: Annotated[str, Field(min_length=1)] | None = None
    """Path of an `mcpServers` file on the workers, relative to this one; tools are `<server>_<tool>`."""
    mcp_call_timeout_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 300_000
    """Longest call of a tool of an MCP server."""
    prices: Annotated[tuple[PriceRow, ...], Field(strict=False)] = ()
    """Prices of models, before those that genai-prices knows."""
    workspace: WorkspaceOption = None
    """The tools over a working folder; `true`, or a table of bounds."""

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the tools that this table gives, as models see them."""
        paths = [path.partition(":")[2] for path in self.tools]
        return (*paths, *(self.workspace.tools if self.workspace is not None else ()))

    def load_tools(self) -> list[Callable[..., Any]]:
        """The callables behind `tools`. Raises ConfigRefused that names what does not import."""
        return [_imported(name) for name in self.tools]


class _File(_Row):
    """The whole settings file."""

    providers: Annotated[tuple[ProviderRow, ...], Field(strict=False)] = ()
    tools: Annotated[tuple[SubagentToolConfig, ...], Field(strict=False)] | None = None
    agent: AgentConfig = AgentConfig()


@dataclass(frozen=True)
class Config:
    """Providers, delegation tools and agent tools that hold together; one that does not is never made."""

    registry: Registry
    tools: tuple[SubagentToolConfig, ...]
    agent: AgentConfig = field(default_factory=AgentConfig)

    @property
    def tool_names(self) -> frozenset[str] | None:
        """Names of all tools that a child of the built-in engine may have.

        None where MCP servers are configured: only a worker knows what these have.
        """
        if self.agent.mcp_servers is not None:
            return None
        return frozenset((*(tool.tool_name for tool in self.tools), *TASK_TOOLS, *self.agent.own_names))

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, with ConfigRefused that names the tool."""
        for path in self.agent.tools:
            if not _TOOL_PATH.fullmatch(path):
                raise ConfigRefused("agent.tools", f"{path!r} is not of the form 'module:callable'")
        priced = [row.model for row in self.agent.prices]
        if len(set(priced)) < len(priced):
            raise ConfigRefused("agent.prices", f"{_repeated(priced)!r} has two prices")
        own = self.agent.own_names
        _check_names([*(tool.tool_name for tool in self.tools), *own])
        for tool in self.tools:
            _check_tool(self.registry, tool)


def load_config(path: str | Path | None = None, *, settings: Settings) -> Config:
    """The settings file at `path`, else at `settings.config`, else the defaults.

    The defaults are the stock providers with one tool each: `subagent` (spawn), `subagent_fork`,
    `subagent_fork_lite`. Raises ConfigRefused for everything that cannot hold.
    """
    given = path if path is not None else settings.config
    return read_config({} if given is None else _beside(Path(given), _parsed(Path(given))))


def _beside(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The values with the path that they name relative to their own file."""
    agent = values.get("agent")
    named = agent.get("mcpServers") if isinstance(agent, dict) else None
    if not isinstance(agent, dict) or not isinstance(named, str) or not named:
        return values
    return {**values, "agent": {**agent, "mcpServers": str(path.parent / named)}}


def read_config(values: Mapping[str, Any]) -> Config:
    """What `load_config` makes of the file's decoded content."""
    _check_later(values)
    try:
        file = _File.model_validate(dict(values), by_alias=True, by_name=False)
    except ValidationError as error:
        raise _refused(error) from None
    registry = Registry(_providers(file.providers))
    tools = default_tools(registry) if file.tools is None else file.tools
    return Config(registry, tools, file.agent)


def default_tools(registry: Registry) -> tuple[SubagentToolConfig, ...]:
    """One tool for each provider: `subagent` for `spawn`, `subagent_<name>` for the others."""
    return tuple(
        SubagentToolConfig(
            provider=provider.name,
            tool_name=_default_name(provider.name),
            max_depth=3 if provider.capabilities.depth_limit else "provider-managed",
        )
        for provider in registry
    )


def _default_name(provider: str) -> str:
    return "subagent" if provider == "spawn" else "subagent_" + re.sub(r"[^A-Za-z0-9]", "_", provider)


def _providers(rows: Sequence[ProviderRow]) -> list[Provider]:
    """The stock providers, each replaced by a row of its name, then the other rows in their order."""
    own = [row.provider() for row in rows]
    by_name = {provider.name: provider for provider in own}
    if len(by_name) < len(own):
        raise ConfigRefused(_repeated([provider.name for provider in own]), "two providers have this name")
    stock = (spawn(), fork(), fork_lite())
    names = {provider.name for provider in stock}
    return [
        *(by_name.get(provider.name, provider) for provider in stock),
        *(provider for provider in own if provider.name not in names),
    ]


# What a tool's name may be with every model provider that we know.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOOL_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not _TOOL_NAME.fullmatch(name):
            raise ConfigRefused(name, "a tool's name is 1 to 64 letters, digits, - or _")
        if name in TASK_TOOLS:
            raise ConfigRefused(name, "a task tool has this name; choose another")
        if name == STRUCTURED_OUTPUT:
            raise ConfigRefused(name, "children end by the tool of this name; choose another")
    if len(set(names)) < len(names):
        raise ConfigRefused(_repeated(names), "two tools have this name; give each one of its own")


def _repeated(names: Sequence[str]) -> str:
    return next(name for name in names if names.count(name) > 1)


def _check_tool(registry: Registry, tool: SubagentToolConfig) -> None:
    if tool.provider not in registry:
        there = ", ".join(repr(provider.name) for provider in registry) or "none"
        raise ConfigRefused(
            f"{tool.tool_name}.provider", f"there is no provider {tool.provider!r}; there are: {there}"
        )
    provider = registry.get(tool.provider)
    for lack in lacks(provider, tool, continuable=tool.background_mode == "continuable"):
        raise ConfigRefused(f"{tool.tool_name}.{lack.option}", lack.why)
    if tool.background_mode == "continuable":
        raise ConfigRefused(
            f"{tool.tool_name}.backgroundMode", "continuable children are not built yet; say 'one-shot'"
        )
    if tool.promote_foreground_after_ms is not None and not tool.enable_run_in_background:
        raise ConfigRefused(
            f"{tool.tool_name}.promoteForegroundAfterMs",
            "it makes background tasks, and enableRunInBackground is false; leave out one of the two",
        )
    _check_policy(tool)


def _check_policy(tool: SubagentToolConfig) -> None:
    """What a start of this tool would refuse is refused here."""
    try:
        resolve_policy(
            parent=None,
            agent_options=tool.agent_options,
            tool_filter=tool.tool_filter,
            persona=tool.persona,
            output_schema=tool.output_schema,
            max_depth=tool.max_depth,
            fenced_output=tool.fenced_output,
            working_folder=tool.working_folder,
            cost_budget=tool.cost_budget,
        )
    except SchemaRefused as error:
        raise ConfigRefused(f"{tool.tool_name}.outputSchema", error.message) from None
    except OptionRefused as error:
        option = to_camel(str(error.facts["option"]))
        raise ConfigRefused(f"{tool.tool_name}.{option}", str(error.facts["why"])) from None


_CONTINUABLE = "comes with continuable children, which are not built yet"
_LATER: Mapping[str, str] = {
    "continuableNotices": _CONTINUABLE,
    "forkTurns": "a window that the model chooses is not built yet; name one provider for each window",
}
"""Options that DESIGN 10 allows and that come later: known, and refused with the reason."""


def _check_later(values: Mapping[str, Any]) -> None:
    rows = values.get("tools")
    for place, row in enumerate(rows if isinstance(rows, list) else []):
        for option in row if isinstance(row, dict) else ():
            if option in _LATER:
                raise ConfigRefused(f"tools[{place}].{option}", _LATER[option])


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "is not UTF-8"
        raise ConfigRefused(str(path), f"the settings file cannot be read: {why}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigRefused(str(path), f"no valid TOML: {error}") from None


def _refused(error: ValidationError) -> ConfigRefused:
    """The first fault, under the path that the file uses: `tools[0].agentOptions.maxTokens`."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return ConfigRefused(_without_branch(path) or "settings file", _plain(first))


def _without_branch(path: str) -> str:
    """pydantic names the branch of a union in the path: `maxDepth.constrained-int`."""
    return re.sub(r"\.(constrained-int|literal\[[^\]]*\])$", "", path)


_WORDS: Mapping[str, str] = {
    "extra_forbidden": "there is no such option",
    "missing": "is required",
    "tuple_type": "should be a list",
    "model_type": "should be a table",
    "dict_type": "should be a table",
    "string_too_short": "is empty",
}
"""What we say for pydantic's faults where its own words speak of Python, not of TOML."""


def _plain(fault: Mapping[str, Any]) -> str:
    if fault["loc"][-1:] == ("constrained-int",):
        return "should be a whole number from 0, or 'provider-managed'"
    words = _WORDS.get(fault["type"], str(fault["msg"]).removeprefix("Value error, "))
    return words[:1].lower() + words[1:]


def _imported(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
    except ImportError as error:
        raise ConfigRefused("agent.tools", f"{name!r} does not import: {error}") from None
    if not callable(found):
        raise ConfigRefused("agent.tools", f"{name!r} is not a callable")
    return found  # type: ignore[no-any-return]
