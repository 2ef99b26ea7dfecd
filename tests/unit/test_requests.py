"""Requests that a strict provider accepts, and whose prefix its cache finds again from fork to fork."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, ThinkingPart, UserPromptPart

from dsh_tasks.session import Event
from dsh_tasks.submission import AgentOptions, Policy
from dsh_tasks.surface import messages
from dsh_tasks.task import Status
from tests.fake_run import a_child, a_tool, run_child
from tests.model_server import MODEL, ModelServer, Reply, Request
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.history import history
from workers.engines.agent.images import Images
from workers.engines.agent.model import Models
from workers.engines.agent.patience import Patience


def a_seed() -> tuple[Event, ...]:
    """Two turns with a system message, tool calls and an error among their results."""
    calls = json.dumps([{"tool": "echo", "arguments": {"text": "ä \u2028 b"}}, {"tool": "nope"}])
    first = run_child(
        AgentEngine(), a_child(f"!say looking\n!calls {calls}", persona="You are P."), [a_tool()]
    )[1]
    second = run_child(AgentEngine(), a_child("The word is B.", log=first.own, attempt=2), [a_tool()])[1]
    return second.session.events


def asked(name: str = MODEL, prompt: str = "hello", **given: Any) -> None:
    engine = AgentEngine(patience=Patience(tries=1))
    run_child(engine, a_child(prompt, model=name, **given), [a_tool(), a_tool("read")])


def share_of_the_seed(one: Request, other: Request, seed_messages: int) -> float:
    """What share of the seed's bytes the second request repeats from its start."""
    common = len(os.path.commonprefix([one.raw, other.raw]))
    raw = one.raw.decode()
    begin, end = raw.index('"messages":[') + len('"messages":['), 0
    for at in range(begin, len(raw)):
        if raw[at] == "}" and len(_whole(raw[begin : at + 1])) == seed_messages:
            end = at + 1
            break
    return min(1.0, max(0, common - begin) / (end - begin))


def _whole(text: str) -> list[Any]:
    try:
        found: list[Any] = json.loads(f"[{text}]")
    except ValueError:
        return []
    return found


def test_two_forks_of_one_seed_repeat_all_of_it_to_the_byte(model: ModelServer) -> None:
    seed = a_seed()
    asked(prompt="one thing", seed=seed)
    asked(prompt="quite another", seed=seed)
    one, other = model.requests
    assert one.raw != other.raw
    assert share_of_the_seed(one, other, len(one.messages) - 1) == 1.0
    assert one.body["tools"] == other.body["tools"]
    assert {**one.body, "messages": []} == {**other.body, "messages": []}


def test_a_persona_that_equals_the_parent_s_changes_nothing_of_the_seed(model: ModelServer) -> None:
    seed = a_seed()
    asked(prompt="one thing", seed=seed)
    asked(prompt="quite another", seed=seed, persona="You are P.")
    one, other = model.requests
    assert share_of_the_seed(one, other, len(one.messages) - 1) == 1.0


def test_another_persona_is_seen_to_break_the_prefix(model: ModelServer) -> None:
    """The measure itself: it is no constant."""
    seed = a_seed()
    asked(prompt="one thing", seed=seed)
    asked(prompt="one thing", seed=seed, persona="You are Q.")
    one, other = model.requests
    assert share_of_the_seed(one, other, len(one.messages) - 1) < 0.3


def test_each_step_of_a_child_repeats_all_of_the_step_before(model: ModelServer) -> None:
    replies = [Reply("a", tools=[("echo", {"text": "x"})]), Reply("b", tools=[("read", {})]), Reply("c")]
    model.answer = lambda request: replies[request.number]
    asked(seed=a_seed())
    for one, other in zip(model.requests, model.requests[1:], strict=False):
        assert share_of_the_seed(one, other, len(one.messages)) == 1.0


def test_what_a_child_sends_of_its_seed_is_what_its_parent_sent(model: ModelServer) -> None:
    asked(prompt="one thing")
    log = run_child(AgentEngine(), a_child("one thing", model=MODEL), [a_tool(), a_tool("read")])[1]
    asked(prompt="more", seed=log.session.events)
    parent, child = model.requests[0], model.requests[2]
    assert share_of_the_seed(parent, child, len(parent.messages)) == 1.0


# -- where a provider caches only what is marked --------------------------------------------------


def marked(value: Any, path: str = "") -> list[str]:
    """Paths of all cache marks in a request."""
    found = []
    if isinstance(value, Mapping):
        found += [path] if "cache_control" in value else []
        for name, one in value.items():
            found += marked(one, f"{path}.{name}")
    elif isinstance(value, list):
        for place, one in enumerate(value):
            found += marked(one, f"{path}[{place}]")
    return found


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Records what it is sent; it answers none of it."""
    with ModelServer() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
        yield server


def test_anthropic_is_told_to_cache_tools_system_seed_and_conversation(anthropic: ModelServer) -> None:
    seed = a_seed()
    for prompt in ("one thing", "quite another"):
        asked("anthropic:claude-sonnet-4-5", prompt=prompt, seed=seed)
    one, other = (request.body for request in anthropic.requests)
    last = len(one["messages"]) - 1
    assert one["messages"][last]["content"][0]["text"] == "one thing"
    assert marked(one) == marked(other)
    assert any(path.startswith(".tools") for path in marked(one))
    assert any(path.startswith(".system") for path in marked(one))
    seeds_end = len(one["messages"][last - 1]["content"]) - 1
    assert f".messages[{last - 1}].content[{seeds_end}]" in marked(one), "the seed ends at a mark"
    assert "cache_control" in one or f".messages[{last}].content[0]" in marked(one)
    assert len(marked(one)) <= 4, "more than four are refused"
    assert one["messages"][:last] == other["messages"][:last]


def test_a_child_without_a_seed_has_nothing_to_mark_before_its_prompt(anthropic: ModelServer) -> None:
    asked("anthropic:claude-sonnet-4-5")
    (request,) = anthropic.requests
    assert [message["role"] for message in request.body["messages"]] == ["user"]


# -- images ---------------------------------------------------------------------------------------

PNG = base64.b64encode(b"an image").decode()


def image(data: str = PNG, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def sent(blocks: Sequence[Mapping[str, Any]], images: Images) -> list[Any]:
    (request,) = history([{"role": "user", "content": blocks}], provider="p", images=images)
    assert isinstance(request, ModelRequest)
    (part,) = request.parts
    assert isinstance(part, UserPromptPart)
    return [part.content] if isinstance(part.content, str) else list(part.content)


MARK = "[image is not shown here]"


@pytest.mark.parametrize(
    "block",
    [
        image(media_type="image/tiff"),
        image(media_type="application/pdf"),
        image("A" * 104),
        image("no base64!"),
        image(""),
        {"type": "image", "source": {"type": "url", "url": "http://plain.example/x.png"}},
        {"type": "image", "source": {"type": "url", "url": "file:///x.png"}},
        {"type": "image", "source": {"type": "url", "url": "data:image/svg+xml;base64,aGk="}},
        {"type": "image", "attachment": {"id": "elsewhere"}},
        {**image(), "offloaded": True},
    ],
)
def test_an_image_beyond_the_limits_is_a_mark(block: dict[str, Any]) -> None:
    assert sent([block], Images(most_bytes=100)) == [MARK]


def test_an_image_within_the_limits_is_sent() -> None:
    url = {"type": "image", "source": {"type": "url", "url": "https://there.example/x.png"}}
    data = {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{PNG}"}}
    first, second, third = sent([image(), url, data], Images())
    assert isinstance(first, BinaryContent)
    assert isinstance(second, ImageUrl)
    assert isinstance(third, BinaryContent)
    assert third.data == b"an image"


def test_of_too_many_images_the_last_are_sent() -> None:
    assert [one == MARK for one in sent([image()] * 5, Images(most=2))] == [True, True, True, False, False]
    broken = image("no base64!")
    assert [one == MARK for one in sent([image(), broken, image()], Images(most=2))] == [False, True, False]


def test_a_model_that_reads_no_images_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "test-key")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
    assert Models().resolve(Policy(), "deepseek:deepseek-chat").images == Images(most=0)
    assert Models().resolve(Policy(), "anthropic:claude-sonnet-4-5").images == Images()
    assert sent([image()], Images(most=0)) == [MARK]


# -- reasoning ------------------------------------------------------------------------------------


def test_reasoning_goes_back_bit_exact_or_not_at_all(model: ModelServer) -> None:
    thought = " so…\n\n  ä\u2028 "
    model.answer = lambda request: Reply("yes", reasoning=thought)
    log = run_child(AgentEngine(), a_child("think", model=MODEL))[1].session.events
    kept = history(messages(log), provider="openai")
    (thinking,) = [part for one in kept for part in one.parts if isinstance(part, ThinkingPart)]
    assert thinking.content == thought
    asked(seed=log)
    assert model.requests[-1].messages[1]["reasoning_content"] == thought
    lost = [dict(message) for message in messages(log)]
    lost[1]["content"] = lost[1]["content"][1:]
    parts = [part for one in history(lost, provider="openai") for part in one.parts]
    assert not any(isinstance(part, ThinkingPart) for part in parts), "blocks and state do not fit any more"


# -- effort ---------------------------------------------------------------------------------------


def test_the_effort_of_the_start_reaches_the_model_and_the_log(model: ModelServer) -> None:
    options = AgentOptions(model="openai-chat:gpt-5-mini", effort="low")
    run = run_child(AgentEngine(), a_child(model=MODEL, agent_options=options))[1]
    assert model.requests[0].body["reasoning_effort"] == "low"
    assert run.row("request/header")["header"]["config"]["reasoningEffort"] == "low"
    run_child(AgentEngine(), a_child(model="openai-chat:gpt-5-mini"))
    assert "reasoning_effort" not in model.requests[1].body


@pytest.mark.parametrize("name", [MODEL, "offline"])
def test_a_model_that_cannot_be_told_refuses_the_effort_before_it_is_asked(
    model: ModelServer, name: str
) -> None:
    outcome, _ = run_child(AgentEngine(), a_child(model=name, agent_options=AgentOptions(effort="high")))
    assert (outcome.status, model.requests) == (Status.FAILED, [])
    assert "agentOptions.effort" in outcome.detail


def test_an_effort_that_nobody_knows_is_refused_at_the_start() -> None:
    with pytest.raises(ValidationError):
        AgentOptions.model_validate({"effort": "enormous"})
