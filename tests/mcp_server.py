"""A real MCP server for tests: `python -m tests.mcp_server LEDGER [http]`. Everything it does it notes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.types import ImageContent, TextContent, ToolAnnotations

ledger = Path(sys.argv[1])
server = MCPServer("notes", log_level="ERROR")
count = 0


def note(line: str) -> None:
    with ledger.open("a") as file:
        file.write(f"{line}\n")


@server.tool()
def counted() -> str:
    """How often this process was asked."""
    global count
    count += 1
    return f"{count} in {os.getpid()}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """The sum."""
    return str(a + b)


@server.tool()
def large(size: int) -> str:
    """So many letters."""
    return "x" * size


@server.tool()
def fails() -> str:
    """Raises."""
    raise ValueError("no such note")


@server.tool()
def picture() -> list[TextContent | ImageContent]:
    """A text and an image."""
    return [
        TextContent(type="text", text="look"),
        ImageContent(type="image", mime_type="image/png", data="aGFsbG8="),
    ]


@server.tool()
def where() -> str:
    """Folder and environment."""
    return f"{os.getcwd()} {sorted(os.environ)}"


@server.tool()
def leaves() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
async def waits() -> str:
    """Starts a process that leaves the group, and waits until it is cancelled."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    note(f"waits {os.getpid()} {child.pid}")
    try:
        await anyio.sleep(1000)
    except anyio.get_cancelled_exc_class():
        note("cancelled")
        raise
    return "never"


if __name__ == "__main__":
    note(f"started {os.getpid()}")
    if sys.argv[2:] == ["http"]:
        import socket

        import uvicorn

        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        note(f"port {sock.getsockname()[1]}")
        uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[sock])
    else:
        server.run("stdio")
