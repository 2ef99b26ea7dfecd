"""A scripted model behind OpenAI's chat completions, streamed: what real HTTP models look like to a worker.

    with ModelServer(lambda request: Reply("hi", seconds=1)) as server:
        rig.worker(**server.environment)

It runs on one thread of its own, holds hundreds of streams at once, records every request, answers a
request that breaks the provider's rules with 400 and lists it in `faults`, and knows who hung up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MODEL = "openai-chat:scripted"


@dataclass(frozen=True)
class Reply:
    """What the model does with one request."""

    text: str = "done"
    seconds: float = 0.0
    """How long the stream takes; its text comes in `chunks` pieces, the first at once."""
    chunks: int = 2
    tools: Sequence[tuple[str, Any]] = ()
    """Calls (name, arguments); arguments that are text are sent as they are."""
    call_ids: Sequence[str] | None = None
    reasoning: str = ""
    finish: str | None = None
    """Finish reason; else `tool_calls` or `stop`."""
    usage: dict[str, Any] | None = None
    """In the provider's words, in place of USAGE."""
    model: str = "scripted"
    """Name of the model that answers."""
    status: int | None = None
    """An HTTP error in place of an answer; its body holds SECRET."""
    retry_after: str = ""
    """The header of that name beside `status`."""
    hangs_up: bool = False
    """The connection ends before a byte of an answer."""
    is_cut: bool = False
    """The connection breaks after the first piece."""
    blocks: bool = False
    """Say the first piece, then nothing until `release` or until the client hangs up."""
    is_silent: bool = False
    """Take the request and never say a byte, until the client hangs up."""


SECRET = "a secret of the provider"


@dataclass
class Request:
    """One call of the model."""

    number: int
    body: dict[str, Any]
    headers: dict[str, str]
    asked_s: float = 0.0
    """When it came, by time.monotonic, which all processes of a machine share."""
    began_s: float | None = None
    """When the first byte of an answer went out, likewise."""
    raw: bytes = b""
    is_answered: bool = False
    has_hung_up: bool = False
    """The client closed the connection before the answer was complete."""
    hung_up_s: float | None = None
    """When that was seen, likewise."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]

    @property
    def prompt(self) -> str:
        """Text of the last user message: names the child where each has a prompt of its own."""
        users = [message for message in self.messages if message["role"] == "user"]
        return text_of(users[-1]["content"]) if users else ""

    @property
    def results(self) -> list[str]:
        """Texts of the tool results since the last user message."""
        after = itertools.takewhile(lambda message: message["role"] != "user", reversed(self.messages))
        return [text_of(message["content"]) for message in after if message["role"] == "tool"][::-1]

    @property
    def tool_names(self) -> list[str]:
        return [tool.get("function", tool)["name"] for tool in self.body.get("tools", ())]


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


@dataclass
class ModelServer:
    """Start it with `with`, or `start` and `close`."""

    answer: Callable[[Request], Reply] = lambda request: Reply()
    requests: list[Request] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Requests that a provider would have refused."""
    port: int = 0
    active: int = 0
    peak: int = 0

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> ModelServer:
        self._loop = asyncio.new_event_loop()
        self._released: dict[str, asyncio.Event] = {}
        self._all_released = False
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """What a worker needs to use this model."""
        return {"DSH_TASKS_MODEL": MODEL, "OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "test-key"}

    @property
    def calls(self) -> Counter[str]:
        """Requests by prompt."""
        return Counter(request.prompt for request in self.requests)

    def release(self, *prompts: str) -> None:
        """Let requests of these prompts that block go on, and later ones too; without a prompt, every one."""
        self._loop.call_soon_threadsafe(self._release, prompts)

    def _release(self, prompts: Sequence[str]) -> None:
        self._all_released = self._all_released or not prompts
        for prompt in prompts or tuple(self._released):
            self._gate(prompt).set()

    def _gate(self, prompt: str) -> asyncio.Event:
        gate = self._released.setdefault(prompt, asyncio.Event())
        if self._all_released:
            gate.set()
        return gate

    # -- the thread -------------------------------------------------------------------------------

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main(started))
        self._loop.close()

    async def _main(self, started: threading.Event) -> None:
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._closed.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request of a connection; whether another may follow."""
        head = await reader.readuntil(b"\r\n\r\n")
        headers = dict(
            (name.strip().lower(), value.strip())
            for name, _, value in (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
            if name
        )
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(len(self.requests), json.loads(raw), headers, time.monotonic(), raw=raw)
        self.requests.append(request)
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            return await self._reply(request, reader, writer)
        finally:
            self.active -= 1

    async def _reply(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        fault = next(faults_of(request), None)
        if fault is not None:
            self.faults.append(f"request {request.number}: {fault}")
            return await _error(writer, 400, fault)
        reply = self.answer(request)
        if reply.is_silent:
            request.has_hung_up = not await reader.read(1)
            return False
        request.began_s = time.monotonic()
        if reply.status is not None:
            request.is_answered = True
            return await _error(writer, reply.status, SECRET, retry_after=reply.retry_after)
        if reply.hangs_up:
            writer.transport.abort()
            return False
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        # Reads nothing but the end of the connection: the client sends no second request meanwhile.
        gone = asyncio.ensure_future(reader.read(1))
        try:
            return await self._stream(request, reply, writer, gone)
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _stream(
        self, request: Request, reply: Reply, writer: asyncio.StreamWriter, gone: asyncio.Future[bytes]
    ) -> bool:
        pieces = list(_deltas(reply))
        pause_s = reply.seconds / max(1, len(pieces) - 1)
        for place, piece in enumerate(pieces):
            if place and pause_s:
                await asyncio.wait({gone}, timeout=pause_s)
            if place == 1 and reply.blocks:
                released = asyncio.ensure_future(self._gate(request.prompt).wait())
                await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
                released.cancel()
            if gone.done():
                request.hung_up_s = time.monotonic()
                request.has_hung_up = True
                return False
            if place == 1 and reply.is_cut:
                writer.transport.abort()
                return False
            _send(writer, _chunk(request, piece, reply.model))
            await writer.drain()
        _send(writer, {**_chunk(request, {}, reply.model), "choices": [], "usage": reply.usage or USAGE})
        writer.write(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
        request.is_answered = True
        return True


USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    """The choices of a stream, one each chunk; at least two, the last with the finish reason."""
    first = {"role": "assistant", "content": ""}
    if reply.reasoning:
        yield {"delta": {**first, "reasoning_content": reply.reasoning}}
    size = max(1, -(-len(reply.text) // max(1, reply.chunks)))
    for start in range(0, len(reply.text), size):
        yield {"delta": {**first, "content": reply.text[start : start + size]}}
    for place, (name, arguments) in enumerate(reply.tools):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = f"call-{name}-{place}" if reply.call_ids is None else reply.call_ids[place]
        call = {
            "index": place,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": text},
        }
        yield {"delta": {**first, "tool_calls": [call]}}
    yield {"delta": {}, "finish_reason": reply.finish or ("tool_calls" if reply.tools else "stop")}


def _chunk(request: Request, choice: dict[str, Any], model: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.number}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "finish_reason": None, **choice}],
    }


def _send(writer: asyncio.StreamWriter, chunk: dict[str, Any]) -> None:
    writer.write(_framed(b"data: " + json.dumps(chunk).encode() + b"\n\n"))


def _framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _error(writer: asyncio.StreamWriter, status: int, message: str, *, retry_after: str = "") -> bool:
    body = json.dumps({"error": {"message": message, "type": "scripted"}}).encode()
    head = f"HTTP/1.1 {status} Error\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    head += f"retry-after: {retry_after}\r\n\r\n" if retry_after else "\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


# -- what a provider refuses ------------------------------------------------------------------------


def faults_of(request: Request) -> Iterator[str]:
    """What a strict provider would refuse about a request."""
    body = request.body
    if request.headers.get("authorization") != "Bearer test-key":
        yield "no key"
    if body.get("stream") is not True:
        yield "not streamed"
    messages = body.get("messages")
    if not messages:
        yield "no messages"
        return
    if messages[-1]["role"] not in ("user", "tool"):
        yield f"ends with a message of the role {messages[-1]['role']}"
    names = request.tool_names
    if len(set(names)) != len(names):
        yield "two tools of one name"
    yield from _unpaired(messages)


def _unpaired(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"message {place} is a result without a call"
                return
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"message {place} follows calls without results"
            return
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or []
            waiting = [call["id"] for call in calls]
            if len(set(waiting)) != len(waiting):
                yield f"message {place} has two calls of one id"
            if not calls and not message.get("content"):
                yield f"message {place} is an empty answer"
        elif not message.get("content"):
            yield f"message {place} is empty"
    if waiting:
        yield "the last calls have no results"
