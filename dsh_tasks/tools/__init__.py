"""Tools: what a parent's model calls, for any agent loop to mount."""

from __future__ import annotations

from dsh_tasks.config import Config
from dsh_tasks.tools.base import Call, TaskClient, Tool, ToolResult
from dsh_tasks.tools.subagent import SubagentTool
from dsh_tasks.tools.tasks import TaskKillTool, TaskListTool, TaskOutputTool

__all__ = [
    "Call",
    "SubagentTool",
    "TaskClient",
    "TaskKillTool",
    "TaskListTool",
    "TaskOutputTool",
    "Tool",
    "ToolResult",
    "mount",
]


def mount(client: TaskClient, config: Config) -> list[Tool]:
    """The tools that exist now, delegation first, in the order of the config.

    Ask again before each model request: a delegation tool goes and comes with its provider. `client`
    is bound to the calling session, or each call brings the caller's log.
    """
    tools: list[Tool] = [SubagentTool(client, tool) for tool in config.tools]
    tools += [TaskOutputTool(client), TaskListTool(client), TaskKillTool(client)]
    return [tool for tool in tools if tool.is_available]
