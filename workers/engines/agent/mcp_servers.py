"""MCP servers: their tools as tools of children.

A server runs once per child, from the child's first call of it to the child's end: what one child leaves
in it no other child sees, and a killed child takes it along. Which tools it has is asked once per worker
process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from dsh_tasks.errors import ConfigRefused, McpServerFailed
from workers.engines.agent import tool_process
from workers.engines.agent.mcp_file import McpServer
from workers.engines.agent.tool_pool import whole
from workers.engines.base import ChildTool, ToolAnswer

START_WITHIN_S = 30.0
"""From the start of a server to its answer to the handshake, and to the list of its tools."""
TOOLS_MOST = 1_000
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class McpServers:
    """All servers of one engine. Belongs to one event loop.

    Raises ConfigRefused where the client library is not installed.
    """

    def __init__(self, servers: Sequence[McpServer], *, result_bytes: int, call_timeout_ms: int) -> None:
        self._servers = servers
        self._result_bytes = result_bytes
        self._call_timeout_ms = call_timeout_ms
        self._listed: dict[str, tuple[Any, ...]] = {}
        self._listing = {server.name: asyncio.Lock() for server in servers}
        if servers:
            check_library()

    @asynccontextmanager
    async def of_child(self, folder: str | None) -> AsyncIterator[Sequence[ChildTool]]:
        """The tools for one child, in the same order for each; what it started of them ends with the block.

        `folder` is where commands run. Raises McpServerFailed for a server that cannot be asked.
        """
        connections = [Connection(server, folder) for server in self._servers]
        try:
            listing = [self._list(server, folder) for server in self._servers]
            for failed in await asyncio.gather(*listing, return_exceptions=True):
                if failed is not None:
                    raise failed
            yield [
                self._tool(connection, tool)
                for connection in connections
                for tool in self._listed[connection.server.name]
            ]
        finally:
            await whole(_end_all(connections))

    async def _list(self, server: McpServer, folder: str | None) -> None:
        async with self._listing[server.name]:
            if server.name in self._listed:
                return
            connection = Connection(server, folder)
            try:
                async with asyncio.timeout(START_WITHIN_S):
                    self._listed[server.name] = await tools_of(await connection.client(), server)
            except McpServerFailed:
                raise
            except TimeoutError:
                raise McpServerFailed(server.name, f"no answer within {START_WITHIN_S:.0f} s") from None
            except Exception as error:  # noqa: BLE001 - whatever a foreign server does, it is named
                raise McpServerFailed(server.name, kind_of(error)) from None
            finally:
                await whole(connection.end())

    def _tool(self, connection: Connection, tool: Any) -> ChildTool:
        hints = tool.annotations
        is_idempotent = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)

        async def call(arguments: Mapping[str, Any], _call_id: str) -> ToolAnswer:
            return await connection.call(tool.name, dict(arguments), self._call_timeout_ms)

        return ChildTool(
            name=f"{connection.server.name}_{tool.name}",
            description=tool.description or "",
            parameters=tool.input_schema,
            call=call,
            idempotent=is_idempotent,
            result_bytes=self._result_bytes,
        )


class Connection:
    """One server for one child; started when it is first asked. Its task alone opens and closes it."""

    def __init__(self, server: McpServer, folder: str | None) -> None:
        self.server = server
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._wanted = asyncio.Event()

    async def call(self, tool: str, arguments: dict[str, Any], timeout_ms: int) -> ToolAnswer:
        """Call a tool of the server; what it says of a failure is an errored answer.

        The client library tells the server of a call that is cancelled, by us or by its time.
        """
        from mcp import MCPError, types  # noqa: PLC0415 - only where servers are configured

        try:
            client = await self.client()
        except McpServerFailed as error:
            return ToolAnswer(f"Error: {error.message}", is_error=True)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return answer_of(await client.call_tool(tool, arguments))
        except TimeoutError:
            why = f"took longer than {timeout_ms} ms and was cancelled"
            return ToolAnswer(f"Error: {tool} {why}", is_error=True)
        except MCPError as error:
            if error.error.code == types.CONNECTION_CLOSED:
                # The next call starts it again.
                await whole(self.end())
                return ToolAnswer(f"Error: the MCP server {self.server.name!r} has ended", is_error=True)
            return ToolAnswer(f"Error: {error.error.message}", is_error=True)

    async def client(self) -> Any:
        """The client of the started server. Raises McpServerFailed."""
        if self._ready is None:
            self._wanted = asyncio.Event()
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._keep(self._ready, self._wanted))
        try:
            # Another call may wait for the same start.
            async with asyncio.timeout(START_WITHIN_S):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            await whole(self.end())
            raise McpServerFailed(self.server.name, f"no answer within {START_WITHIN_S:.0f} s") from None

    async def _keep(self, ready: asyncio.Future[Any], wanted: asyncio.Event) -> None:
        try:
            async with opened(self.server, self._folder) as client:
                ready.set_result(client)
                await wanted.wait()
        except asyncio.CancelledError:
            ready.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 - groups of foreign errors too
            if not ready.done():
                self._ready = None
                ready.set_exception(McpServerFailed(self.server.name, kind_of(error)))
                # Nobody may wait for it any more.
                ready.exception()

    async def end(self) -> None:
        """Close it and return when it is gone."""
        task, ready, self._task, self._ready = self._task, self._ready, None, None
        if task is None:
            return
        self._wanted.set()
        if ready is not None and not ready.done():
            task.cancel()
        await asyncio.wait({task})


async def _end_all(connections: Sequence[Connection]) -> None:
    await asyncio.gather(*(connection.end() for connection in connections))


@asynccontextmanager
async def opened(server: McpServer, folder: str | None) -> AsyncIterator[Any]:
    """A client of the server, which a guard ends with all that it started."""
    from mcp import Client, StdioServerParameters, stdio_client  # noqa: PLC0415
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415
    from mcp.shared._httpx_utils import create_mcp_http_client  # noqa: PLC0415 - the timeouts of its own client

    async with AsyncExitStack() as stack:
        if server.url:
            http = create_mcp_http_client(headers=dict(server.headers))
            await stack.enter_async_context(http)
            transport = streamable_http_client(server.url, http_client=http)
        else:
            # What a server says on its standard error may hold content.
            nowhere = stack.enter_context(Path(os.devnull).open("w"))  # noqa: SIM115, ASYNC230 - the stack closes it
            guarded = StdioServerParameters(
                command=sys.executable,
                args=["-P", str(Path(tool_process.__file__)), server.command, *server.args],
                env=dict(server.env),
                cwd=folder,
                # Bytes that are no text must not end the reading of what follows them.
                encoding_error_handler="replace",
            )
            transport = stdio_client(guarded, errlog=nowhere)
        yield await stack.enter_async_context(Client(transport))


async def tools_of(client: Any, server: McpServer) -> tuple[Any, ...]:
    """All tools of a server, sorted by name. Raises McpServerFailed for names that no model takes."""
    tools: dict[str, Any] = {}
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            full = f"{server.name}_{tool.name}"
            if tool.name in tools or not _TOOL_NAME.fullmatch(full):
                raise McpServerFailed(server.name, f"the name {full[:80]!r} of a tool cannot be used")
            tools[tool.name] = tool
        if len(tools) > TOOLS_MOST:
            raise McpServerFailed(server.name, f"it has more than {TOOLS_MOST} tools")
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools[name] for name in sorted(tools))


def answer_of(result: Any) -> ToolAnswer:
    """A result as text; what is no text is named in its place."""
    texts = [_text_of(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ToolAnswer("\n".join(texts) or "done", is_error=bool(result.is_error))


def _text_of(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes, is not shown here]"
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    resource = getattr(block, "resource", None)
    text = getattr(resource, "text", None)
    if text is not None:
        return str(text)
    blob = getattr(resource, "blob", "")
    return f"[resource {getattr(resource, 'uri', '')}, {len(blob) * 3 // 4} bytes, is not shown here]"


def kind_of(error: BaseException) -> str:
    """What went wrong without its words: these may hold content or a key."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return "its command or folder is not there"
    return f"it did not start ({type(error).__name__})"


def check_library() -> None:
    """Raises ConfigRefused where the extra is not installed."""
    try:
        import mcp  # noqa: F401, PLC0415 - a second of import, only where it is wanted
    except ImportError:
        raise ConfigRefused("agent.mcpServers", "needs the extra: pip install 'dsh-tasks[mcp]'") from None
    # It quotes what servers say.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


def check_clashes(tools: Sequence[ChildTool]) -> None:
    """Raises ConfigRefused where two tools of a child have one name."""
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise ConfigRefused(
                tool.name, "two tools have this name; rename the MCP server or the other tool"
            )
        seen.add(tool.name)
