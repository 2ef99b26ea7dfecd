"""What children use and cost: counted from the provider's words, priced where a price is known, and said where not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from genai_prices import calc_price
from pydantic_ai.usage import RequestUsage

from dsh_tasks.cli.render import cost_words, usage_value, usage_words
from dsh_tasks.cli.usage import usage_lines
from dsh_tasks.store.scripts import load
from dsh_tasks.submission import Policy
from dsh_tasks.task import USAGE_FIELDS, Outcome, Usage
from tests.fake_run import FakeRun, a_child, a_tool, next_attempt, run_child, without_settlement
from tests.model_server import ModelServer, Reply
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.model import Models
from workers.engines.agent.patience import Patience
from workers.engines.agent.usage import cost_of, row_usage, usage_of_rows

TOOK = {
    "prompt_tokens": 1_000,
    "completion_tokens": 200,
    "total_tokens": 1_200,
    "prompt_tokens_details": {"cached_tokens": 600},
    "completion_tokens_details": {"reasoning_tokens": 50},
}
PRICED = "openai-chat:gpt-5-mini"


def asked(model: ModelServer, *replies: Reply, name: str = PRICED, **given: Any) -> tuple[Outcome, FakeRun]:
    model.answer = lambda request: replies[min(request.number, len(replies) - 1)]
    patience = Patience(tries=2, first_pause_ms=1)
    return run_child(AgentEngine(patience=patience), a_child(model=name), **given)


def test_all_that_the_provider_says_is_counted_and_priced(model: ModelServer) -> None:
    used = asked(model, Reply(usage=TOOK))[0].usage
    price = calc_price(
        RequestUsage(input_tokens=1_000, cache_read_tokens=600, output_tokens=200),
        "gpt-5-mini",
        provider_id="openai",
    ).total_price
    assert used == Usage(
        input_tokens=1_000,
        output_tokens=200,
        model_calls=1,
        cache_read_tokens=600,
        reasoning_tokens=50,
        cost_nanousd=int(price * 10**9),
        priced_calls=1,
    )
    assert used.cost_usd == price > 0
    assert used.unpriced_calls == 0


def test_rows_hold_the_usage_in_the_words_of_the_harness_and_a_resumed_child_counts_them(
    model: ModelServer,
) -> None:
    replies = [Reply("", tools=[("echo", {})], usage=TOOK), Reply("there", usage=TOOK)]
    outcome, run = asked(model, *replies, tools=[a_tool()])
    assert run.row("assistant/message", 0)["usage"] == {
        "inputTokens": 400,
        "outputTokens": 200,
        "totalTokens": 1_200,
        "cacheReadTokens": 600,
        "reasoningTokens": 50,
    }
    rows = [row for row in run.rows if row["type"] == "assistant/message"]
    resolved = Models().resolve(Policy(), PRICED)
    assert usage_of_rows(rows, resolved) == outcome.usage
    resumed = next_attempt(run.child, without_settlement(run, outcome))
    model.answer = lambda request: Reply("again", usage=TOOK)
    again, _ = run_child(AgentEngine(), resumed, [a_tool()])
    assert again.usage == outcome.usage, "what the first attempt paid is neither lost nor paid twice"


def test_a_model_without_a_known_price_has_no_cost_and_not_a_cost_of_nothing(model: ModelServer) -> None:
    used = asked(model, Reply(usage=TOOK), name="openai-chat:scripted")[0].usage
    assert (used.input_tokens, used.model_calls) == (1_000, 1)
    assert (used.cost_usd, used.unpriced_calls) == (None, 1)


def test_the_model_that_a_router_chose_gives_the_price(model: ModelServer) -> None:
    used = asked(model, Reply(usage=TOOK, model="gpt-5-mini"), name="openai-chat:scripted")[0].usage
    assert used.unpriced_calls == 0
    assert used.cost_usd is not None
    assert used.cost_usd > 0


def test_a_call_that_was_turned_away_cost_nothing_and_one_that_broke_off_an_unknown_sum(
    model: ModelServer,
) -> None:
    used = asked(model, Reply(status=503), Reply(usage=TOOK))[0].usage
    assert (used.model_calls, used.unpriced_calls) == (2, 0)
    model.requests.clear()
    used = asked(model, Reply("half" * 2, is_cut=True), Reply(usage=TOOK))[0].usage
    assert (used.model_calls, used.unpriced_calls) == (2, 1)
    assert cost_words(used).startswith("at least $")


def test_a_provider_that_says_nothing_of_usage_leaves_the_cost_unknown() -> None:
    resolved = Models().resolve(Policy(), "offline")
    assert cost_of(RequestUsage(), resolved) == 0, "the offline model is free"


def test_the_offline_model_is_free(model: ModelServer) -> None:
    used = run_child(AgentEngine(), a_child("!say hi"))[0].usage
    assert (used.cost_usd, used.unpriced_calls) == (Decimal(0), 0)


def test_usage_of_a_row_never_falls_below_nothing() -> None:
    assert row_usage(RequestUsage(input_tokens=5, cache_read_tokens=9))["inputTokens"] == 0


def test_usages_add_up_field_by_field() -> None:
    one = Usage(*range(1, len(USAGE_FIELDS) + 1))
    assert one + one == Usage(*(2 * n for n in range(1, len(USAGE_FIELDS) + 1)))
    assert one + Usage() == one


def test_the_scripts_count_what_usage_has_in_its_order() -> None:
    (line,) = [part for part in load("settle").text.split("local ") if part.startswith("USED = ")]
    listed = line.split("{")[1].split("}")[0].replace("\n", " ").split(",")
    assert tuple(name.strip().strip("'") for name in listed) == USAGE_FIELDS


@pytest.mark.parametrize(
    ("used", "words"),
    [
        (Usage(), ""),
        (Usage(1_000, 200, 1), "1,200 tokens, cost unknown"),
        (Usage(1_000, 200, 1, 0, 0, 0, 4_200_000, 1), "1,200 tokens, $0.0042"),
        (Usage(1_000, 200, 2, 0, 0, 0, 4_200_000, 1), "1,200 tokens, at least $0.0042"),
        (Usage(10, 2, 1, 0, 0, 0, 900, 1), "12 tokens, under $0.0001"),
        (Usage(10, 2, 1, 0, 0, 0, 0, 1), "12 tokens, $0.0000"),
    ],
)
def test_what_a_person_reads_says_what_is_not_known(used: Usage, words: str) -> None:
    assert usage_words(used) == words


def test_the_sums_of_a_tree_in_lines_and_as_json() -> None:
    used = Usage(10_000, 2_000, 3, 9_000, 500, 700, 12_345_678, 2)
    assert usage_lines(used) == [
        "3 model calls",
        "10,000 tokens in (9,000 from a cache, 500 into one)",
        "2,000 tokens out (700 of reasoning)",
        "at least $0.0123; no price is known for 1 call",
    ]
    assert usage_value(used)["cost_usd"] == 0.012345678
    assert usage_value(Usage(1, 1, 1))["cost_usd"] is None
