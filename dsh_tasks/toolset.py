"""Toolset: the tools as a pydantic-ai toolset. The only module of the library that imports pydantic-ai."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolReturn
from pydantic_ai.tools import AgentDepsT, RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from dsh_tasks.config import Config
from dsh_tasks.session import Session
from dsh_tasks.tools import Call, SubagentTool, TaskClient, Tool, ToolResult, mount

# The tools check their own arguments, in the same words under every loop.
_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


@dataclass(kw_only=True)
class _Mounted(ToolsetTool[AgentDepsT]):
    """A tool as pydantic-ai holds and copies it, with ours behind it."""

    ours: Tool


class DshTasksToolset(AbstractToolset[AgentDepsT]):
    """Delegation and task tools for one pydantic-ai agent.

    `session(ctx)` gives the caller's log as it is now, or None where the agent keeps none; then
    `client` must be bound to an owner, and forks start fresh. An errored result reaches the model as a
    failed tool call, without a retry; a good one carries its canonical value as metadata.
    """

    def __init__(
        self,
        client: TaskClient,
        config: Config,
        *,
        session: Callable[[RunContext[AgentDepsT]], Session | None] | None = None,
        id: str = "dsh-tasks",  # noqa: A002 - pydantic-ai's word
    ) -> None:
        self._client = client
        self._config = config
        self._session = session
        self._id = id
        self._calling: dict[str, SubagentTool] = {}
        """Delegation tools of the calls that run now, by call id."""

    @property
    def id(self) -> str:
        """Name of this toolset among an agent's toolsets."""
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """The tools that exist at this step: a delegation tool goes and comes with its provider."""
        del ctx
        return {tool.name: self._shown(tool) for tool in mount(self._client, self._config)}

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> ToolReturn:
        """Run one call. Raises ToolFailed with the text of an errored result."""
        del name
        assert isinstance(tool, _Mounted)  # get_tools made it
        result = await self._run(tool.ours, tool_args, ctx)
        if result.is_error:
            raise ToolFailed(result.text)
        return ToolReturn(return_value=result.text, metadata=result.value)

    async def promote(self, tool_call_id: str) -> bool:
        """Turn a delegation that waits now into a background task; see SubagentTool.promote."""
        tool = self._calling.get(tool_call_id)
        return tool is not None and await tool.promote(tool_call_id)

    async def _run(self, tool: Tool, arguments: dict[str, Any], ctx: RunContext[AgentDepsT]) -> ToolResult:
        call_id = ctx.tool_call_id
        if not isinstance(tool, SubagentTool) or call_id is None:
            return await tool.call(arguments, self._call(ctx))
        self._calling[call_id] = tool
        try:
            return await tool.call(arguments, self._call(ctx))
        finally:
            self._calling.pop(call_id, None)

    def _shown(self, tool: Tool) -> _Mounted[AgentDepsT]:
        definition = ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters,
            sequential=tool.exclusive,
        )
        return _Mounted(
            toolset=self, tool_def=definition, max_retries=1, args_validator=_ANY_OBJECT, ours=tool
        )

    def _call(self, ctx: RunContext[AgentDepsT]) -> Call:
        session = self._session(ctx) if self._session is not None else None
        seq = assistant_seq(session, ctx.tool_call_id) if session is not None else None
        if seq is not None:
            return Call(session=session, assistant_seq=seq, call_id=ctx.tool_call_id)
        # Without the message's place in a log: the run and step, which a durable workflow keeps.
        known = ctx.run_id is not None and ctx.tool_call_id is not None
        key = f"run:{ctx.run_id}:{ctx.run_step}:{ctx.tool_call_id}" if known else None
        return Call(session=session, call_id=ctx.tool_call_id, key=key)


def assistant_seq(session: Session, call_id: str | None) -> int | None:
    """`seq` of the last assistant message of the log that holds the call; None where none does."""
    for event in reversed(session.events):
        if event.type != "assistant/message":
            continue
        content = event.data.get("message", {}).get("content", ())
        if any(block.get("type") == "tool-call" and block.get("id") == call_id for block in content):
            return event.seq
    return None
