"""Estimates of a request, and the refusal of one that the model's context does not hold."""

from __future__ import annotations


import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from dsh_tasks.config import read_config
from dsh_tasks.errors import ConfigRefused
from dsh_tasks.submission import AgentOptions, Policy
from dsh_tasks.task import Cause, Status
from tests.fake_run import a_child, a_tool, run_child
from tests.model_server import MODEL, ModelServer, Reply
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.estimate import IMAGE_TOKENS, Estimate, OverWindow, check_window
from workers.engines.agent.model import Models


def said(text: str) -> ModelMessage:
    return ModelRequest([UserPromptPart(text)])


def an_estimate(*tools: ToolDefinition) -> Estimate:
    return Estimate(ModelRequestParameters(function_tools=list(tools)))


def test_an_estimate_follows_the_text_and_not_its_frame() -> None:
    short, long = an_estimate().of([said("x")]), an_estimate().of([said("x" * 40_000)])
    assert short < 20
    assert 10_000 <= long < 10_050
    many = an_estimate().of([said("hello there") for _ in range(100)])
    assert many < 1_000


def test_calls_tools_and_images_count() -> None:
    call = ModelResponse([TextPart("a" * 400), ToolCallPart("read", "b" * 400, "c1")])
    assert 200 <= an_estimate().of([call]) < 230
    tool = ToolDefinition(name="read", description="d" * 4_000, parameters_json_schema={"type": "object"})
    assert 1_000 <= an_estimate(tool).of([said("x")]) < 1_050
    image = BinaryContent(b"x" * 5_000_000, media_type="image/png")
    assert an_estimate().of([ModelRequest([UserPromptPart(["look", image])])]) < IMAGE_TOKENS + 50


def test_what_the_provider_counted_is_not_estimated_again() -> None:
    estimate = an_estimate()
    messages = [said("x" * 40_000)]
    estimate.counted(messages, 0)
    assert estimate.of(messages) > 10_000
    estimate.counted(messages, 5_000)
    assert estimate.of(messages) == 5_000
    assert 6_000 <= estimate.of([*messages, said("y" * 4_000)]) < 6_010


def test_input_and_greatest_output_must_fit_together() -> None:
    check_window(900, max_output=100, window=1_000)
    check_window(10**9, max_output=0, window=None)
    check_window(10**9, max_output=0, window=0)
    with pytest.raises(OverWindow):
        check_window(901, max_output=100, window=1_000)


def test_a_request_over_the_window_is_refused_before_it_is_sent(model: ModelServer) -> None:
    engine = AgentEngine(models=Models(context_window=1_000))
    outcome, run = run_child(engine, a_child("a secret " * 500, model=MODEL))
    assert (outcome.status, outcome.cause, model.requests) == (Status.FAILED, Cause.ERROR, [])
    assert outcome.usage.model_calls == 0
    assert "some 11" in outcome.detail
    assert "holds 1000; nothing was sent" in outcome.detail
    assert "secret" not in outcome.detail
    assert run.row("turn/end")["reason"]["error"]["code"] == "CONTEXT_WINDOW"


def test_room_for_the_greatest_answer_is_kept(model: ModelServer) -> None:
    engine = AgentEngine(models=Models(context_window=1_000))
    fits = a_child("hello", model=MODEL, agent_options=AgentOptions(max_tokens=900))
    assert run_child(engine, fits)[0].status is Status.COMPLETED
    wide = a_child("hello", model=MODEL, agent_options=AgentOptions(max_tokens=1_000))
    outcome, _ = run_child(engine, wide)
    assert "its answer may take 1000" in outcome.detail


def test_a_conversation_that_grows_over_the_window_ends_there_and_keeps_its_text(model: ModelServer) -> None:
    usage = {"prompt_tokens": 990, "completion_tokens": 5, "total_tokens": 995}
    model.answer = lambda request: Reply("so far", tools=[("echo", {"text": "x" * 400})], usage=usage)
    engine = AgentEngine(models=Models(context_window=1_000))
    outcome, _ = run_child(engine, a_child(model=MODEL), [a_tool()])
    assert (outcome.status, outcome.output, len(model.requests)) == (Status.FAILED, "so far", 1)
    assert "CONTEXT_WINDOW" not in outcome.detail
    assert "holds 1000" in outcome.detail


def test_the_window_is_that_of_the_model_and_the_operator_s_word_is_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.setenv(key, "test-key")

    def window(name: str, configured: int | None = None) -> int | None:
        return Models(context_window=configured).resolve(Policy(), name).window

    assert window("anthropic:claude-sonnet-4-5") == 200_000
    assert window("deepseek:deepseek-chat") == 131_072
    assert window("openai:nobody-knows-it") is None
    assert window("openai:nobody-knows-it", 5_000) == 5_000
    assert window("anthropic:claude-sonnet-4-5", 5_000) == 5_000
    assert window("anthropic:claude-sonnet-4-5", 0) is None


def test_the_settings_file_names_the_window() -> None:
    assert read_config({"agent": {"contextWindow": 5_000}}).agent.context_window == 5_000
    assert read_config({}).agent.context_window is None
    with pytest.raises(ConfigRefused, match=r"agent.contextWindow"):
        read_config({"agent": {"contextWindow": -1}})
