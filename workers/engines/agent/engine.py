"""AgentEngine: the built-in engine. Gathers what a child starts from, and lets a Turn play it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai.messages import ModelMessage

from dsh_tasks.config import RESULT_BYTES
from dsh_tasks.errors import DshTasksError
from dsh_tasks.rows import message_of
from dsh_tasks.session import Event
from dsh_tasks.submission import Policy
from dsh_tasks.surface import messages
from dsh_tasks.task import Cause, Outcome, Status
from dsh_tasks.workspace import WorkspaceConfig
from workers.engines.agent.folder import working_folder
from workers.engines.agent.history import ANY, cached_before, history, joined, with_system
from workers.engines.agent.images import Images
from workers.engines.agent.judging import Judge
from workers.engines.agent.mcp_file import McpServer
from workers.engines.agent.mcp_servers import McpServers, check_clashes
from workers.engines.agent.model import Models, ResolvedModel, with_effort
from workers.engines.agent.own_children import AtEnd
from workers.engines.agent.patience import Patience
from workers.engines.agent.structured import INSTRUCTION, Progress, StructuredOutput
from workers.engines.agent.tools import load_tools, narrowed, python_tool
from workers.engines.agent.turn import Given, Turn
from workers.engines.agent.usage import check_price
from workers.engines.agent.workspace.toolbox import Workspace
from workers.engines.base import Child, ChildTool, Run
from workers.engines.open_turn import OpenTurn, Row
from workers.engines.transcript import Inherited, Transcript

BETWEEN = "\n\n"
"""Between a persona and the instruction."""
LARGE_SEED_EVENTS = 500
"""From here on a seed is turned into messages off the loop, so that other children go on."""


class AgentEngine:
    """Runs children with a model and tools.

    `tools` are Python tools that every child gets beside those of its place: callables, or their
    import paths `module:callable`; of their results a model reads `result_bytes` UTF-8 bytes at most.
    Models and converted histories are shared by the children of one engine; it belongs to one event loop.
    `workspace` adds the tools over a working folder, `mcp_servers` those of MCP servers.
    A child that ends without the value that it was asked for is told so `structured_repair_turns` times.
    `children_at_end`: what becomes of its own children that live when a child ends its turn.

    Raises ConfigRefused for a tool that does not import or has no schema.
    """

    def __init__(
        self,
        tools: Sequence[str | Callable[..., Any]] = (),
        *,
        models: Models | None = None,
        patience: Patience | None = None,
        result_bytes: int = RESULT_BYTES,
        structured_repair_turns: int = 1,
        children_at_end: AtEnd = AtEnd.WAIT,
        workspace: WorkspaceConfig | None = None,
        mcp_servers: Sequence[McpServer] = (),
        mcp_call_timeout_ms: int = 300_000,
        judge: Judge | None = None,
    ) -> None:
        paths = [tool for tool in tools if isinstance(tool, str)]
        own = [*load_tools(paths), *(python_tool(tool) for tool in tools if not isinstance(tool, str))]
        self._tools = tuple(replace(tool, result_bytes=result_bytes) for tool in own)
        self._workspace = None if workspace is None else Workspace(workspace, result_bytes=result_bytes)
        self._mcp = McpServers(mcp_servers, result_bytes=result_bytes, call_timeout_ms=mcp_call_timeout_ms)
        self._models = models or Models()
        self._patience = patience or Patience()
        self._histories = Histories()
        self._at_end = children_at_end
        self._repair_turns = structured_repair_turns
        self._judge = judge or Judge()

    async def run(self, run: Run) -> Outcome:
        """See Engine."""
        child = run.child
        async with AsyncExitStack() as until_its_end:
            try:
                model = with_effort(await self._models.ready(child.policy, child.model), child.policy)
                if run.has_cost_budget:
                    check_price(model)
                tools = await self._tools_of(run, until_its_end)
            except DshTasksError as error:
                return refused(run, error)
            inherited, seeded = await until_its_end.enter_async_context(
                self._histories.of(child.seed, model.system, model.images)
            )
            transcript = Transcript(child, inherited.after(child.log), run.now_ms)
            given = self._given(child, model, tools, transcript, inherited, seeded)
            return await Turn(run, transcript, given).play()

    async def _tools_of(self, run: Run, until_its_end: AsyncExitStack) -> Sequence[ChildTool]:
        """All tools of a child, in the same order for every child. What they start ends with `until_its_end`.

        Raises OptionRefused, ConfigRefused, McpServerFailed for what this worker has not got.
        """
        child, workspace = run.child, self._workspace
        folder = await working_folder(child, None if workspace is None else workspace.config)
        in_folder = () if workspace is None or folder is None else workspace.tools(folder)
        of_servers = await until_its_end.enter_async_context(self._mcp.of_child(folder))
        tools = [*self._tools, *in_folder, *of_servers, *run.tools]
        check_clashes(tools)
        return narrowed(tools, child.policy)

    def _structured(self, child: Child) -> StructuredOutput | None:
        schema = child.policy.output_schema
        if schema is None:
            return None
        progress = Progress.of(event.row() for event in child.log)
        return StructuredOutput(schema, repair_turns=self._repair_turns, progress=progress, judge=self._judge)

    def _given(
        self,
        child: Child,
        model: ResolvedModel,
        tools: Sequence[ChildTool],
        transcript: Transcript,
        inherited: Inherited,
        seeded: Sequence[ModelMessage],
    ) -> Given:
        structured = self._structured(child)
        if structured is not None:
            tools = [*tools, structured.tool]
        system = system_text(child.policy, inherited.system_text)
        known = {tool.name: tool for tool in tools}
        left_open = OpenTurn.of(transcript.rows, [name for name, tool in known.items() if tool.idempotent])
        begin = transcript.opening(system=system) if left_open is None else transcript.resumption(left_open)
        options = child.policy.agent_options
        max_tokens = None if options is None else options.max_tokens
        effort = None if options is None else options.effort
        header = transcript.request(begin, model.route, [shown(tool) for tool in tools], max_tokens, effort)

        def conversation(rows: Sequence[Row]) -> list[ModelMessage]:
            own = history(own_messages(rows), provider=model.system, images=model.images)
            if seeded and model.marks_cache:
                own = cached_before(own)
            sent = joined(seeded, own)
            return sent if system is None else with_system(sent, system)

        return Given(
            model=model,
            conversation=conversation,
            opening=[*begin, *header],
            left_open=left_open,
            at_end=self._at_end,
            tools=known,
            structured=structured,
            max_tokens=max_tokens,
            patience=self._patience,
        )


def system_text(policy: Policy, inherited: str) -> str | None:
    """The system text where it differs from the inherited one, else None.

    A persona takes its place. The instruction of a structured output follows either, and only where this
    child is asked for a value: one that its parent had was for the parent.
    """
    own = without_instruction(inherited) if policy.persona is None else policy.persona
    asked = INSTRUCTION if policy.output_schema is not None else ""
    wanted = BETWEEN.join(part for part in (own, asked) if part)
    return None if wanted == inherited else wanted


def without_instruction(text: str) -> str:
    """A system text without the instruction of a structured output at its end."""
    if text.endswith(f"{BETWEEN}{INSTRUCTION}"):
        return text.removesuffix(f"{BETWEEN}{INSTRUCTION}")
    return "" if text == INSTRUCTION else text


def shown(tool: ChildTool) -> Row:
    """A tool as the `request/header` row holds it."""
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def own_messages(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """What the child's own rows add to the messages of its seed.

    An engine's rows only append to the surface, but for a system message, which has its own way.
    """
    return [
        message_of(Event.from_row(row))
        for row in rows
        if "surfaceOp" in row and row["type"] != "system/message"
    ]


def refused(run: Run, error: DshTasksError) -> Outcome:
    """The outcome of a child whose options cannot be honoured here: no model was asked."""
    child = run.child
    transcript = Transcript(child, Inherited.of(child.seed).after(child.log), run.now_ms)
    rows = transcript.border() if OpenTurn.of(transcript.rows) else transcript.opening()
    rows += transcript.end("error", rows, error={"message": error.message, "code": error.code})
    return Outcome(Status.FAILED, Cause.ERROR, error.message, rows=tuple(rows))


@dataclass(slots=True)
class _Shared:
    """A seed as messages, while children that start from it open."""

    users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    made: tuple[Inherited, Sequence[ModelMessage]] | None = None


class Histories:
    """Turns a seed into messages once for all children that open from it at the same time."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str, Images], _Shared] = {}

    @asynccontextmanager
    async def of(
        self, seed: tuple[Event, ...], provider: str, images: Images = ANY
    ) -> AsyncIterator[tuple[Inherited, Sequence[ModelMessage]]]:
        """What a child must know of its seed, and its history. Shared: not to be changed."""
        # By identity: the caller holds the seed for as long as the entry lives.
        key = (id(seed), provider, images)
        shared = self._held.setdefault(key, _Shared())
        shared.users += 1
        try:
            async with shared.lock:
                if shared.made is None:
                    shared.made = await _converted(seed, provider, images)
            yield shared.made
        finally:
            shared.users -= 1
            if not shared.users:
                del self._held[key]


async def _converted(
    seed: tuple[Event, ...], provider: str, images: Images
) -> tuple[Inherited, Sequence[ModelMessage]]:
    if len(seed) < LARGE_SEED_EVENTS:
        return _convert(seed, provider, images)
    return await asyncio.to_thread(_convert, seed, provider, images)


def _convert(
    seed: tuple[Event, ...], provider: str, images: Images
) -> tuple[Inherited, Sequence[ModelMessage]]:
    return Inherited.of(seed), history(messages(seed), provider=provider, images=images)
