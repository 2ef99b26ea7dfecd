"""An MCP server by hand: `python -m tests.raw_mcp_server`. Before each answer to a call it writes no text."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOOL = {"name": "noise", "description": "Answers behind noise.", "inputSchema": {"type": "object"}}


def answer_to(asked: dict[str, Any]) -> dict[str, Any]:
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            about = {"name": "raw", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            os.write(1, b"\xff\xfe\n")
            return {"content": [{"type": "text", "text": "after the noise"}], "isError": False}
    return {}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            said = {"jsonrpc": "2.0", "id": asked["id"], "result": answer_to(asked)}
            os.write(1, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main()
