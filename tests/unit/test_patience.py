"""Patience: which failures of a model call are tried again, and after which pause."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)

from dsh_tasks.submission import Policy
from dsh_tasks.task import Cause, Outcome, Status
from tests.fake_run import FakeRun, a_child, a_tool, play, run_child
from tests.model_server import MODEL, SECRET, ModelServer, Reply
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.model import Models
from workers.engines.agent.patience import Patience, Silence, is_passing
from workers.engines.base import RouteBusy, StopReason

QUICK = Patience(tries=4, first_pause_ms=1, longest_pause_ms=40)


def asked(
    model: ModelServer, *replies: Reply, patience: Patience = QUICK, prompt: str = "hello", **given: Any
) -> tuple[Outcome, FakeRun]:
    """A child whose model does this with its requests, the last for ever."""
    model.answer = lambda request: replies[min(request.number, len(replies) - 1)]
    return run_child(AgentEngine(patience=patience), a_child(prompt, model=MODEL), **given)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ModelConnectionError("m", "x"), True),
        (ModelTimeoutError("m", "x"), True),
        (ModelRateLimitError("m", "x"), True),
        (Silence(5), True),
        (ModelQuotaExceededError("m", "x"), False),
        (ModelContextWindowExceededError("m", "x"), False),
        (ContentFilterError("x"), False),
        (UnexpectedModelBehavior("x"), False),
        (ValueError("x"), False),
        *((ModelHTTPError(status, "m"), True) for status in (408, 409, 429, 500, 502, 503, 504, 529)),
        *((ModelHTTPError(status, "m"), False) for status in (400, 401, 402, 403, 404, 413, 422)),
    ],
)
def test_only_what_may_pass_by_itself_is_tried_again(error: Exception, passes: bool) -> None:
    assert is_passing(error) is passes
    assert (Patience().pause_ms(error, 1) is not None) is passes


def test_pauses_double_up_to_the_longest_and_half_of_each_is_jitter() -> None:
    patience = Patience(tries=9, first_pause_ms=100, longest_pause_ms=500)
    error = Silence(5)
    most = [patience.pause_ms(error, tried, chance=lambda: 1.0) for tried in range(1, 6)]
    least = [patience.pause_ms(error, tried, chance=lambda: 0.0) for tried in range(1, 6)]
    assert most == [100, 200, 400, 500, 500]
    assert least == [50, 100, 200, 250, 250]


def test_the_last_try_has_no_pause_after_it() -> None:
    patience = Patience(tries=2)
    assert patience.pause_ms(Silence(5), 1) is not None
    assert patience.pause_ms(Silence(5), 2) is None
    assert Patience(tries=1).pause_ms(Silence(5), 1) is None
    assert Patience(tries=2_000).pause_ms(Silence(5), 1_900) is not None


def http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("header", "least_ms", "most_ms"),
    [
        ("3", 3_000, 3_100),
        (http_date(3_000), 10_000, 10_100),
        ("7200", 10_000, 10_100),
        ("0", 0, 100),
        (http_date(-50), 0, 100),
        ("soon", 50, 100),
    ],
    ids=["seconds", "date", "more seconds", "now", "past date", "words"],
)
def test_what_the_provider_asks_for_is_waited_for_up_to_the_longest_pause(
    header: str, least_ms: int, most_ms: int
) -> None:
    error = ModelHTTPError(429, "m", headers={"retry-after": header})
    pause_ms = Patience(first_pause_ms=100, longest_pause_ms=10_000).pause_ms(error, 1)
    assert pause_ms is not None
    assert least_ms <= pause_ms <= most_ms


# -- with a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=429),
        Reply(status=429, retry_after="1"),
        Reply(status=500),
        Reply(status=503),
        Reply(status=529),
        Reply(status=408),
        Reply(hangs_up=True),
    ],
)
def test_a_call_whose_failure_passes_is_made_again_and_every_call_is_counted(
    model: ModelServer, reply: Reply
) -> None:
    outcome, run = asked(model, reply, reply, Reply("there"))
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "there")
    assert len(model.requests) == outcome.usage.model_calls == 3
    assert model.requests[0].body == model.requests[2].body
    assert run.kinds().count("assistant/message") == 1
    assert "model: pause before try 2" in run.activities


def test_the_tries_are_bounded_and_nothing_beneath_multiplies_them(model: ModelServer) -> None:
    outcome, _ = asked(model, Reply(status=503))
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.ERROR)
    assert outcome.detail.endswith("(HTTP 503), tried 4 times")
    assert SECRET not in outcome.detail
    assert len(model.requests) == outcome.usage.model_calls == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_request_that_is_refused_is_not_sent_again(model: ModelServer, status: int) -> None:
    outcome, _ = asked(model, Reply(status=status))
    assert (outcome.cause, len(model.requests)) == (Cause.ERROR, 1)


def test_a_refusal_by_the_model_is_not_asked_again(model: ModelServer) -> None:
    outcome, _ = asked(model, Reply("no", finish="content_filter"))
    assert (outcome.cause, len(model.requests)) == (Cause.REFUSAL, 1)


def test_text_that_came_before_a_break_is_not_doubled(model: ModelServer) -> None:
    outcome, run = asked(model, Reply("half" * 2, is_cut=True), Reply("halfhalf"))
    assert (outcome.status, outcome.output) == (Status.COMPLETED, "halfhalf")
    assert run.kinds().count("assistant/message") == 1


def test_the_text_of_a_broken_try_is_kept_where_no_later_one_says_anything(model: ModelServer) -> None:
    outcome, _ = asked(model, Reply("half" * 2, is_cut=True), Reply(status=503))
    assert (outcome.status, outcome.output, outcome.partial) == (Status.FAILED, "half", True)


def test_each_step_has_tries_of_its_own(model: ModelServer) -> None:
    flaky = Reply(status=503)
    replies = [flaky, flaky, flaky, Reply("", tools=[("echo", {})]), flaky, flaky, flaky, Reply("there")]
    outcome, _ = asked(model, *replies, tools=[a_tool()])
    assert (outcome.status, outcome.usage.model_calls) == (Status.COMPLETED, 8)


@pytest.mark.parametrize("silent", [Reply(is_silent=True), Reply("hi", blocks=True)])
def test_a_model_that_gives_no_byte_is_asked_again(model: ModelServer, silent: Reply) -> None:
    patience = Patience(tries=2, first_pause_ms=1, silence_ms=300)
    outcome, _ = asked(model, silent, Reply("there"), patience=patience)
    assert (outcome.status, outcome.output, len(model.requests)) == (Status.COMPLETED, "there", 2)


def test_a_model_that_stays_silent_fails_its_child_as_stalled(model: ModelServer) -> None:
    patience = Patience(tries=2, first_pause_ms=1, silence_ms=200)
    outcome, run = asked(model, Reply(is_silent=True), patience=patience)
    assert (outcome.status, outcome.cause) == (Status.FAILED, Cause.STALLED)
    assert outcome.detail == f"the model {MODEL} gave no byte for 0.2 s, tried 2 times"
    assert run.row("turn/end")["reason"]["error"]["code"] == "MODEL_STALLED"


def test_a_slow_model_is_not_silent(model: ModelServer) -> None:
    patience = Patience(tries=1, silence_ms=600)
    outcome, _ = asked(model, Reply("x" * 10, chunks=10, seconds=1.5), patience=patience)
    assert outcome.status is Status.COMPLETED


def test_a_kill_in_the_pause_ends_the_child_at_once_and_keeps_its_text(model: ModelServer) -> None:
    model.answer = lambda request: Reply("half" * 2, is_cut=True)
    run = FakeRun(a_child(model=MODEL))

    def kill(words: str) -> None:
        if words.startswith("model: pause"):
            asyncio.get_running_loop().call_soon(run.stop, StopReason.KILL)

    run.on_activity = kill
    patience = Patience(first_pause_ms=600_000, longest_pause_ms=600_000)
    outcome = asyncio.run(play(AgentEngine(patience=patience), run))
    assert (outcome.status, outcome.output, len(model.requests)) == (Status.KILLED, "half", 1)


class Budgeted(FakeRun):
    """Keeps what was reserved."""

    has_budget = True

    async def reserve(self, tokens: int, cost_nanousd: int) -> None:
        self.activities.append("reserve")


@pytest.mark.parametrize(("reply", "reserved"), [(Reply(status=503), 1), (Reply("half" * 2, is_cut=True), 2)])
def test_a_try_that_was_turned_away_took_nothing_of_the_budget(
    model: ModelServer, reply: Reply, reserved: int
) -> None:
    model.answer = lambda request: reply if request.number == 0 else Reply("there")
    run = Budgeted(a_child(model=MODEL))
    outcome = asyncio.run(play(AgentEngine(patience=QUICK), run))
    assert (outcome.status, run.activities.count("reserve")) == (Status.COMPLETED, reserved)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("deepseek:deepseek-chat", "DEEPSEEK_API_KEY"),
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("openrouter:anthropic/claude-sonnet-4-5", "OPENROUTER_API_KEY"),
        ("moonshotai:kimi-k2", "MOONSHOTAI_API_KEY"),
    ],
)
def test_no_client_of_a_provider_retries_by_itself(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    monkeypatch.setenv(key, "test-key")
    resolved = Models().resolve(Policy(), name)
    assert resolved.model.client.max_retries == 0  # type: ignore[attr-defined]
    assert "max_retries" not in resolved.settings


# -- what the route is told -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cools_ms"),
    [
        (ModelHTTPError(429, "m", headers={"retry-after": "3"}), 3_000),
        (ModelRateLimitError("m", "x"), 400),
        (ModelHTTPError(503, "m", headers={"retry-after": "3"}), 3_000),
        (ModelHTTPError(503, "m"), None),
        (ModelConnectionError("m", "x"), None),
        (Silence(5), None),
        (ModelHTTPError(400, "m", headers={"retry-after": "3"}), None),
    ],
)
def test_a_limited_rate_or_an_asked_pause_concerns_the_whole_route(
    error: Exception, cools_ms: int | None
) -> None:
    assert Patience(first_pause_ms=100).cool_ms(error, 3) == cools_ms


def test_a_permit_is_held_around_each_try_and_never_around_a_tool(model: ModelServer) -> None:
    held: list[bool] = []
    run = FakeRun(a_child(model=MODEL))
    run.tools = [a_tool(call=lambda _: held.append(any(one.is_held for one in run.permits)))]
    replies = [Reply(status=429, retry_after="0"), Reply("", tools=[("echo", {})]), Reply("there")]
    model.answer = lambda request: replies[request.number]
    asyncio.run(play(AgentEngine(patience=QUICK), run))
    assert held == [False]
    assert [(one.route, one.told, one.is_held) for one in run.permits] == [
        (MODEL, [0], False),
        (MODEL, ["accepted"], False),
        (MODEL, ["accepted"], False),
    ]


def test_a_child_whose_route_has_no_room_fails_with_the_reason(model: ModelServer) -> None:
    class Full(FakeRun):
        def permit(self, route: str) -> Any:
            raise RouteBusy(waited_ms=500, why="as many calls as the bound allows go on")

    run = Full(a_child(model=MODEL))
    outcome = asyncio.run(play(AgentEngine(), run))
    assert (outcome.cause, model.requests) == (Cause.ERROR, [])
    assert outcome.detail == (
        f"the model {MODEL} could not be called, no call was possible for 0.5 s: "
        "as many calls as the bound allows go on"
    )
