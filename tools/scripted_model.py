"""A model server that follows a script: enough of the Anthropic streaming protocol for the harness.

    python tools/scripted_model.py SCRIPT.json --port 8900

The script is a list of replies, one for each model call of a conversation. A reply has `text`, and
may have `tool`, a pair of tool name and arguments. Which reply comes is decided by the request alone:
a request that already holds n assistant messages gets reply n. So calls may be repeated.
"""
# ruff: noqa: INP001 -- a script beside the package, not a part of it

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer of the model."""

    text: str
    tool: tuple[str, dict[str, Any]] | None = None


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event: its name and the rest of its JSON object."""

    name: str
    body: dict[str, Any]

    def encode(self) -> bytes:
        """The event as it stands on the wire."""
        return f"event: {self.name}\ndata: {json.dumps({'type': self.name, **self.body})}\n\n".encode()


def stream_of(reply: Reply, number: int, model: str) -> list[StreamEvent]:
    """The events that tell `reply`, the answer number `number` of its conversation."""
    usage = {"input_tokens": 0, "output_tokens": 0}
    message = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": model}
    ending = {"stop_reason": None, "stop_sequence": None}
    events = [StreamEvent("message_start", {"message": {**message, "content": [], **ending, "usage": usage}})]
    events += block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": reply.text})
    if reply.tool is not None:
        name, arguments = reply.tool
        opened = {"type": "tool_use", "id": f"toolu_{number:04}", "name": name, "input": {}}
        events += block(1, opened, {"type": "input_json_delta", "partial_json": json.dumps(arguments)})
    reason = "end_turn" if reply.tool is None else "tool_use"
    words = len(reply.text.split())
    delta = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": words}}
    return [*events, StreamEvent("message_delta", delta), StreamEvent("message_stop", {})]


def block(index: int, opened: dict[str, Any], delta: dict[str, Any]) -> list[StreamEvent]:
    """One content block, told in one piece."""
    return [
        StreamEvent("content_block_start", {"index": index, "content_block": opened}),
        StreamEvent("content_block_delta", {"index": index, "delta": delta}),
        StreamEvent("content_block_stop", {"index": index}),
    ]


class ScriptedModel(ThreadingHTTPServer):
    """Serves `replies` on loopback; `requests` keeps what the model was asked."""

    daemon_threads = True

    def __init__(self, replies: list[Reply], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.replies = replies
        self.requests: list[dict[str, Any]] = []

    @property
    def base_url(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, request: dict[str, Any]) -> list[StreamEvent]:
        """The scripted reply to `request`."""
        self.requests.append(request)
        number = sum(message["role"] == "assistant" for message in request["messages"])
        reply = self.replies[number] if number < len(self.replies) else Reply("The script has ended.")
        return stream_of(reply, number, request["model"])


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedModel

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in self.server.answer(request):
            self.wfile.write(event.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing: requests hold prompts."""


def main() -> None:
    """Serve a script until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    model = ScriptedModel([Reply(**reply) for reply in json.loads(options.script.read_text())], options.port)
    print(model.base_url, flush=True)  # noqa: T201 -- the caller needs the port
    model.serve_forever()


if __name__ == "__main__":
    main()
