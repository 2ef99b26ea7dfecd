"""Tools of a child: Python callables of the settings file, tools of the place, and the filter over both."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_ai import Tool
from pydantic_ai.tools import ToolDefinition

from dsh_tasks.config import AgentConfig
from dsh_tasks.errors import ConfigRefused
from dsh_tasks.submission import Policy
from workers.engines.agent.call_key import call_key
from workers.engines.agent.capping import capped
from workers.engines.agent.fault import words_of
from workers.engines.agent.tool_pool import ToolPool
from workers.engines.agent.tool_process import text_of
from workers.engines.base import ChildTool, Fenced, ToolAnswer

THREADS = 64
"""Synchronous callables, handed in without an import path, that run at once in one process."""

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tool")


def load_tools(paths: Sequence[str]) -> tuple[ChildTool, ...]:
    """The Python tools behind `module:callable` paths. Raises ConfigRefused that names what does not hold.

    Synchronous ones run in helper processes, which share one pool and end with it.
    """
    pool = ToolPool()
    functions = AgentConfig(tools=tuple(paths)).load_tools()
    return tuple(
        python_tool(function, path=path, pool=pool) for path, function in zip(paths, functions, strict=True)
    )


def python_tool(
    function: Callable[..., Any], *, path: str | None = None, pool: ToolPool | None = None
) -> ChildTool:
    """A callable as a tool: schema and description from its signature and docstring.

    An asynchronous one runs on the loop. A synchronous one runs in a helper process of `pool`, which
    imports it by `path`; without the two it runs in a thread, which a kill cannot stop. `idempotent` and
    `exclusive` are read from attributes of these names on the callable.
    """
    try:
        # Under the name in its path: that is what the settings file, and so a filter, can know.
        name = None if path is None else path.partition(":")[2]
        made: Tool[None] = Tool(function, takes_ctx=False, name=name)
        schema = made.function_schema
    except Exception as error:  # noqa: BLE001 - whatever a foreign signature does, the load names it
        name = getattr(function, "__name__", repr(function))
        why = f"{name!r} gives no tool schema ({type(error).__name__})"
        raise ConfigRefused("agent.tools", why) from None

    async def call(arguments: Mapping[str, Any], _call_id: str) -> ToolAnswer:
        try:
            checked = schema.validator.validate_python(dict(arguments))
            checked = {name: _read(value) for name, value in checked.items()}
        except ValidationError as error:
            return ToolAnswer(f"Error: {faults_of(error)}", is_error=True)
        args, kwargs = schema._call_args(checked, None)  # type: ignore[arg-type]  # noqa: SLF001 - its only way
        if schema.is_async:
            return ToolAnswer(text_of(await function(*args, **kwargs)))
        if path is not None and pool is not None:
            return await pool.call(path, args, kwargs, key=call_key.get())
        return await _in_thread(partial(function, *args, **kwargs))

    return ChildTool(
        name=made.name,
        description=made.description or "",
        parameters=schema.json_schema,
        call=call,
        exclusive=getattr(function, "exclusive", False) is True,
        idempotent=getattr(function, "idempotent", False) is True,
    )


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a tool raised in its thread: a Future would take a StopIteration for its own and never end."""

    error: BaseException


async def _in_thread(function: Callable[[], Any]) -> ToolAnswer:
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    value = await loop.run_in_executor(_threads, context.run, _kept, function)
    if isinstance(value, _Raised):
        return ToolAnswer(words_of(value.error), is_error=True)
    return ToolAnswer(text_of(await value if inspect.isawaitable(value) else value))


def _kept(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except BaseException as error:  # noqa: BLE001 - it is the tool's, and not the thread's
        return _Raised(error)


def _read(value: Any) -> Any:
    """An argument with its items: pydantic checks an Iterable as it is read, and that does not pickle."""
    return iter(list(value)) if type(value).__name__ == "ValidatorIterator" else value


def faults_of(error: ValidationError) -> str:
    """What is wrong with arguments, a line each."""
    faults = error.errors(include_url=False, include_input=False)
    places = [".".join(str(part) for part in one["loc"]) or "arguments" for one in faults]
    return "\n".join(f"{place}: {one['msg']}" for place, one in zip(places, faults, strict=True))


def narrowed(tools: Sequence[ChildTool], policy: Policy) -> tuple[ChildTool, ...]:
    """The tools that a child has: its own filter, and under a ceiling those above it, leave them.

    Raises OptionRefused for a name in its filter that no tool has.
    """
    if policy.tool_filter is not None:
        policy.tool_filter.check_names([tool.name for tool in tools])
    return tuple(tool for tool in tools if policy.admits(tool.name))


def definition(tool: ChildTool) -> ToolDefinition:
    """A tool as pydantic-ai's models take it."""
    return ToolDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
    )


async def dispatch(
    tools: Mapping[str, ChildTool], name: str, arguments: str, call_id: str, *, task_id: str
) -> ToolAnswer:
    """Run one call. What goes wrong inside a tool is an errored answer; only cancellation and Fenced leave.

    A filtered tool and one that never was look the same. Each call has an asyncio task of its own: a tool
    that cancels its task cancels nothing else.
    """
    calling = asyncio.create_task(_guarded(tools.get(name), name, arguments, call_id, task_id))
    try:
        return await calling
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return ToolAnswer("Error: the tool cancelled itself", is_error=True)


async def _guarded(
    tool: ChildTool | None, name: str, arguments: str, call_id: str, task_id: str
) -> ToolAnswer:
    if tool is None:
        return ToolAnswer(f"Error: unknown tool {name!r}", is_error=True)
    decoded = _decoded(arguments)
    if decoded is None:
        return ToolAnswer("Error: the arguments are not a JSON object", is_error=True)
    answer = await _called(tool, decoded, call_id, task_id)
    return answer if tool.result_bytes is None else capped(answer, tool.result_bytes)


async def _called(tool: ChildTool, arguments: dict[str, Any], call_id: str, task_id: str) -> ToolAnswer:
    me = asyncio.current_task()
    call_key.set(f"{task_id}/{call_id}")
    try:
        return await tool.call(arguments, call_id)
    except (Fenced, asyncio.CancelledError):
        raise
    except GeneratorExit as error:
        if not _is_running(me):
            # The coroutine is thrown away: no tool raised this.
            raise
        return ToolAnswer(words_of(error), is_error=True)
    except BaseException as error:  # noqa: BLE001 - sys.exit of a tool is an answer too
        return ToolAnswer(words_of(error), is_error=True)


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


def _decoded(arguments: str) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
