"""A model that answers every request at once and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tools.scripted_model import Reply, stream_of


class RecordingModel(ThreadingHTTPServer):
    """Serves on loopback; `answer` makes the reply from the text of the last prompt."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._answer = answer
        self._asked: list[tuple[set[str], dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(10)

    def asked(self, prompt: str) -> list[dict[str, Any]]:
        """The requests whose last user message holds exactly this text among its blocks."""
        with self._lock:
            return [request for texts, request in self._asked if prompt in texts]

    def reply(self, request: dict[str, Any]) -> Reply:
        texts = last_texts(request["messages"])
        with self._lock:
            self._asked.append((set(texts), request))
        return Reply(self._answer(texts[0] if texts else ""))


def last_texts(messages: list[dict[str, Any]]) -> list[str]:
    """Texts of the last user message, those that are a prompt first."""
    content = next((one["content"] for one in reversed(messages) if one["role"] == "user"), ())
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    return sorted(texts, key=lambda text: not text.startswith("Visit "))


class _Handler(BaseHTTPRequestHandler):
    server: RecordingModel

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            request = json.loads(body)
        except RecursionError:
            # The runtime sends parts of its log along, however deep it is.
            self.send_error(400)
            return
        events = stream_of(self.server.reply(request), len(request["messages"]), request["model"])
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"".join(event.encode() for event in events))

    def log_message(self, *_: object) -> None:
        """Say nothing."""
