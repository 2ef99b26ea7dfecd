"""Tools of a child: Python callables of the settings file, tools of the place, and the filter over both."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import ValidationError
from pydantic_ai import ModelRetry, Tool
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from dsh_tasks.config import AgentConfig
from dsh_tasks.errors import ConfigRefused, OptionRefused
from dsh_tasks.submission import ToolFilter
from workers.engines.base import ChildTool, Fenced, ToolAnswer

THREADS = 64
"""Synchronous tools that run at once in one process."""

call_key: contextvars.ContextVar[str] = contextvars.ContextVar("call_key", default="")
"""Inside a tool: `<task>/<call>`, equal whenever the same call runs, to deduplicate outside effects by."""

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tool")


def load_tools(paths: Sequence[str]) -> tuple[ChildTool, ...]:
    """The Python tools behind `module:callable` paths. Raises ConfigRefused that names what does not hold."""
    return tuple(python_tool(function) for function in AgentConfig(tools=tuple(paths)).load_tools())


def python_tool(function: Callable[..., Any]) -> ChildTool:
    """A callable as a tool: schema and description from its signature and docstring.

    A synchronous one runs in a thread, which a kill cannot stop. `idempotent` and `exclusive` are read
    from attributes of these names on the callable.
    """
    try:
        made: Tool[None] = Tool(function, takes_ctx=False)
        schema = made.function_schema
    except Exception as error:  # noqa: BLE001 - whatever a foreign signature does, the load names it
        name = getattr(function, "__name__", repr(function))
        why = f"{name!r} gives no tool schema ({type(error).__name__})"
        raise ConfigRefused("agent.tools", why) from None

    async def call(arguments: Mapping[str, Any], _call_id: str) -> ToolAnswer:
        try:
            checked = schema.validator.validate_python(dict(arguments))
        except ValidationError as error:
            return ToolAnswer(f"Error: {faults_of(error)}", is_error=True)
        args, kwargs = schema._call_args(checked, None)  # type: ignore[arg-type]  # noqa: SLF001 - its only way
        return ToolAnswer(text_of(await _called(function, args, kwargs, is_async=schema.is_async)))

    return ChildTool(
        name=made.name,
        description=made.description or "",
        parameters=schema.json_schema,
        call=call,
        exclusive=getattr(function, "exclusive", False) is True,
        idempotent=getattr(function, "idempotent", False) is True,
    )


async def _called(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, is_async: bool
) -> Any:
    if is_async:
        return await function(*args, **kwargs)
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    value = await loop.run_in_executor(_threads, lambda: context.run(function, *args, **kwargs))
    return await value if inspect.isawaitable(value) else value


def faults_of(error: ValidationError) -> str:
    """What is wrong with arguments, a line each."""
    faults = error.errors(include_url=False, include_input=False)
    places = [".".join(str(part) for part in one["loc"]) or "arguments" for one in faults]
    return "\n".join(f"{place}: {one['msg']}" for place, one in zip(places, faults, strict=True))


def text_of(value: Any) -> str:
    """What a tool returned, as the model reads it: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    return "done" if value is None else to_json(value, fallback=str).decode()


def narrowed(tools: Sequence[ChildTool], tool_filter: ToolFilter | None) -> tuple[ChildTool, ...]:
    """The tools that a filter leaves. Raises OptionRefused for a name that no tool has."""
    if tool_filter is None:
        return tuple(tools)
    known = {tool.name for tool in tools}
    for option, names in (("allow", tool_filter.allow), ("deny", tool_filter.deny)):
        for name in names or ():
            if name not in known:
                raise OptionRefused(f"toolFilter.{option}", f"no tool is called {name!r}")
    return tuple(tool for tool in tools if tool_filter.admits(tool.name))


def definition(tool: ChildTool) -> ToolDefinition:
    """A tool as pydantic-ai's models take it."""
    return ToolDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
    )


async def dispatch(
    tools: Mapping[str, ChildTool], name: str, arguments: str, call_id: str, *, task_id: str
) -> ToolAnswer:
    """Run one call. What goes wrong inside a tool is an errored answer; only cancellation and Fenced leave.

    A filtered tool and one that never was look the same.
    """
    tool = tools.get(name)
    if tool is None:
        return ToolAnswer(f"Error: unknown tool {name!r}", is_error=True)
    decoded = _decoded(arguments)
    if decoded is None:
        return ToolAnswer("Error: the arguments are not a JSON object", is_error=True)
    call_key.set(f"{task_id}/{call_id}")
    return await _guarded(tool.call(decoded, call_id))


async def _guarded(call: Awaitable[ToolAnswer]) -> ToolAnswer:
    try:
        return await call
    except Fenced:
        raise
    except ModelRetry as error:
        return ToolAnswer(f"Error: {error.message}", is_error=True)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return ToolAnswer("Error: the tool cancelled itself", is_error=True)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - sys.exit of a tool is an answer too
        return ToolAnswer(f"Error: {type(error).__name__}: {error}", is_error=True)


def _decoded(arguments: str) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
