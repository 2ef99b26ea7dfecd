"""The transport of model calls: connections are used again, hung up and counted as they should be."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from tests.model_server import ModelServer, Reply
from tests.waiting import wait_until
from workers.engines.agent.completions import Chunk
from workers.engines.agent.model import Models
from workers.engines.agent.streams import StreamTransport, has_proxy

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Peer:
    """A server that answers each request with the next of `answers`, and counts connections and hang-ups."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.gone = 0
        self.bodies: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                self.bodies.append(await reader.readexactly(int(size or 0)))
                writer.write(self.answers.pop(0))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            writer.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


def with_peer(
    peer: Peer,
    ask: Callable[[httpx2.AsyncClient, str], Awaitable[None]],
    *,
    kept_idle_s: float = 60,
    context: ssl.SSLContext | None = None,
) -> None:
    async def main() -> None:
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        transport = StreamTransport(kept_idle_s=kept_idle_s)
        async with httpx2.AsyncClient(transport=transport, timeout=5) as client:
            scheme = "http" if context is None else "https"
            await ask(client, f"{scheme}://localhost:{port}/v1" if context else f"http://127.0.0.1:{port}/v1")
        server.close()

    asyncio.run(main())


def test_a_connection_is_used_again_after_a_whole_answer() -> None:
    peer = Peer(ANSWER, ANSWER)

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        for body in ("one", "two"):
            assert (await client.post(url, content=body)).text == "hi"

    with_peer(peer, ask)
    assert (peer.connections, peer.bodies) == (1, [b"one", b"two"])


def test_requests_at_once_have_a_connection_each() -> None:
    peer = Peer(*[ANSWER] * 30)

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        answers = await asyncio.gather(*(client.get(url) for _ in range(30)))
        assert {answer.text for answer in answers} == {"hi"}

    with_peer(peer, ask)
    assert peer.connections == 30


def test_pieces_are_read_as_they_come() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
    peer = Peer(chunked)

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        async with client.stream("GET", url) as answer:
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b"one"
            peer.writers[0].write(b"3\r\ntwo\r\n0\r\n\r\n")
            assert [piece async for piece in pieces] == [b"two"]

    with_peer(peer, ask)


def test_an_answer_that_is_left_unread_is_hung_up() -> None:
    peer = Peer(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhi", ANSWER)

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        async with client.stream("GET", url):
            pass
        await until(lambda: peer.gone == 1, "the server sees the hang-up")
        assert (await client.get(url)).text == "hi"

    with_peer(peer, ask)
    assert peer.connections == 2


def test_a_call_that_is_cancelled_is_hung_up() -> None:
    peer = Peer(b"")

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        asking = asyncio.create_task(client.get(url))
        await until(lambda: len(peer.bodies) == 1, "the request came")
        asking.cancel()
        await until(lambda: peer.gone == 1, "the server sees the hang-up")

    with_peer(peer, ask)


def test_a_connection_that_its_server_closed_while_idle_is_not_used() -> None:
    peer = Peer(ANSWER, ANSWER)

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        await client.get(url)
        peer.writers[0].close()
        await peer.writers[0].wait_closed()
        assert (await client.get(url)).text == "hi"

    with_peer(peer, ask)
    assert peer.connections == 2


def test_an_idle_connection_is_closed_after_its_time() -> None:
    peer = Peer(ANSWER)

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        await client.get(url)
        await until(lambda: peer.gone == 1, "the server sees the hang-up")

    with_peer(peer, ask, kept_idle_s=0.01)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", httpx2.RemoteProtocolError),
        (b"", httpx2.RemoteProtocolError),
        (b"SSH-2.0-OpenSSH\r\n\r\n", httpx2.RemoteProtocolError),
    ],
    ids=["cut off", "no answer", "no HTTP"],
)
def test_an_answer_that_is_none_is_a_failure_of_the_remote_side(
    answer: bytes, failure: type[Exception]
) -> None:
    peer = Peer(answer)

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        asking = asyncio.create_task(client.get(url))
        await until(lambda: len(peer.bodies) == 1, "the request came")
        peer.writers[0].close()
        with pytest.raises(failure):
            await asking

    with_peer(peer, ask)


def test_silence_and_refusal_are_told_apart() -> None:
    peer = Peer(b"")

    async def ask(client: httpx2.AsyncClient, url: str) -> None:
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(url, timeout=0.05)
        with pytest.raises(httpx2.ConnectError):
            await client.get("http://127.0.0.1:1/")

    with_peer(peer, ask)


def test_it_speaks_tls_and_believes_only_whom_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "
        f"subjectAltName=DNS:localhost -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def believe(client: httpx2.AsyncClient, url: str) -> None:
        assert (await client.get(url)).text == "hi"

    async def refuse(client: httpx2.AsyncClient, url: str) -> None:
        with pytest.raises(httpx2.ConnectError, match="certificate"):
            await client.get(url)

    with_peer(Peer(ANSWER), refuse, context=context)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with_peer(Peer(ANSWER), believe, context=context)


def test_where_the_environment_names_a_proxy_the_provider_keeps_its_own_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "test-key")
    assert not has_proxy()
    assert isinstance(transport_of("deepseek"), StreamTransport)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert has_proxy()
    assert not isinstance(transport_of("deepseek"), StreamTransport)


def transport_of(provider: str) -> object:
    return Models()._provider(provider).client._client._transport


def test_a_chunk_that_deviates_from_the_schema_is_read_all_the_same() -> None:
    delta = {"role": "assistant", "content": "hi", "reasoning_content": "hm"}
    usual = {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
    }
    odd = {**usual, "object": "", "choices": [{"index": 0, "delta": delta, "finish_reason": "end_of_words"}]}
    for data in (usual, odd, {"id": "1", "choices": None}):
        chunk = Chunk.build(response=None, data=data)
        assert chunk.id == "1"
        for choice in chunk.choices or ():
            assert choice.delta.content == "hi"
            assert choice.delta.reasoning_content == "hm"  # type: ignore[attr-defined]


def test_a_provider_is_asked_as_its_client_would_ask_but_for_the_walk_through_the_body() -> None:
    """The same request, header by header and byte by byte of the body's JSON, from both ways."""
    from openai import AsyncOpenAI

    from workers.engines.agent.completions import ask_plainly

    async def asked(url: str, *, plainly: bool) -> None:
        client = AsyncOpenAI(base_url=url, api_key="test-key", max_retries=0)
        if plainly:
            ask_plainly(client)
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
            tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}],
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=9,
            extra_headers={"x-own": "1"},
            extra_body={"extra": {"a": 1}},
            timeout=7,
        )
        texts = [choice.delta.content async for chunk in stream for choice in chunk.choices]
        assert "".join(text or "" for text in texts) == "done"
        await client.close()

    with ModelServer(lambda _: Reply("done")) as model:
        for plainly in (False, True):
            asyncio.run(asked(model.url, plainly=plainly))
    by_client, ours = model.requests
    assert ours.body == by_client.body
    assert ours.headers == by_client.headers
    assert not model.faults
