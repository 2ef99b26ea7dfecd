"""A budget of costs: looked at before each call, by what providers say, by prices of the operator's, or by a guess."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai.usage import RequestUsage

from dsh_tasks.config import PriceRow
from dsh_tasks.dollars import micro_of, words_of
from dsh_tasks.task import Cause, Outcome, Status
from tests.fake_run import FakeRun, a_child, a_tool, play
from tests.model_server import MODEL, ModelServer, Reply
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.model import Models
from workers.engines.agent.patience import Patience
from workers.engines.agent.prices import Price, prices_of
from workers.engines.base import BudgetExceeded

PRICES = prices_of([PriceRow(model=MODEL, input=1.0, output=2.0)])
TOOK = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
SILENT = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
COST = 1_000 * 1_000 + 100 * 2_000
"""Of one such answer, in 10^-9 US dollars."""


@dataclass
class Budgeted(FakeRun):
    """Allows calls while what it was told is below its budget."""

    told: list[int] = field(default_factory=list)

    has_budget = True
    has_cost_budget = True
    budget_nanousd = 2 * COST

    async def reserve(self, tokens: int, cost_nanousd: int) -> None:
        if cost_nanousd >= self.budget_nanousd:
            raise BudgetExceeded("cost_budget: all of it is spent")

    async def correct(self, tokens: int, cost_nanousd: int) -> None:
        self.told.append(cost_nanousd)


def asked(
    model: ModelServer, *replies: Reply, prices: Any = PRICES, **child: Any
) -> tuple[Outcome, Budgeted]:
    model.answer = lambda request: replies[min(request.number, len(replies) - 1)]
    engine = AgentEngine(models=Models(prices=prices), patience=Patience(tries=2, first_pause_ms=1))
    run = Budgeted(a_child(**{"model": MODEL, **child}), [a_tool()])
    return asyncio.run(play(engine, run)), run


def test_the_call_over_the_budget_is_not_made_and_what_was_said_is_kept(model: ModelServer) -> None:
    outcome, run = asked(model, Reply("so far", tools=[("echo", {})], usage=TOOK))
    assert (outcome.status, outcome.cause, outcome.output) == (Status.FAILED, Cause.BUDGET, "so far")
    assert outcome.partial
    assert outcome.detail == "cost_budget: all of it is spent"
    assert run.row("turn/end")["reason"]["error"]["code"] == "BUDGET"
    assert (len(model.requests), run.told) == (2, [COST, 2 * COST])
    assert outcome.usage.cost_nanousd == 2 * COST, "the operator's price"


def test_a_resumed_attempt_tells_what_it_cost_itself(model: ModelServer) -> None:
    outcome, run = asked(model, Reply("", tools=[("echo", {})], usage=TOOK), Reply("there", usage=TOOK))
    assert outcome.status is Status.COMPLETED
    first = [event for event in run.own if event.seq < run.rows[-1]["seq"] - len(outcome.rows) + 1]
    again, later = asked(model, Reply("again", usage=TOOK), log=first, attempt=2)
    assert later.told == [COST]
    assert again.usage.cost_nanousd == 2 * COST


@pytest.mark.parametrize("reply", [Reply("x" * 400, usage=SILENT), Reply("x" * 400, is_cut=True)])
def test_what_nobody_says_is_guessed_and_not_taken_for_nothing(model: ModelServer, reply: Reply) -> None:
    outcome, run = asked(model, reply, Reply("there", usage=TOOK), prompt="p" * 4_000)
    assert outcome.status is Status.COMPLETED
    guess = run.told[-1] - outcome.usage.cost_nanousd
    assert 1_000_000 < guess < 1_400_000, "1,000 tokens of prompt at $1 a million, some of answer"
    assert outcome.usage.cost_nanousd in (0, COST), "what is shown is what is known"


def test_a_model_without_a_price_is_refused_before_its_first_call(model: ModelServer) -> None:
    outcome, run = asked(model, Reply(), prices={})
    assert (outcome.status, outcome.cause, model.requests) == (Status.FAILED, Cause.ERROR, [])
    assert f"no price of {MODEL!r} is known" in outcome.detail
    assert "[[agent.prices]]" in outcome.detail
    assert run.kinds()[-1] == "turn/end"


def test_the_offline_model_is_free_under_every_budget() -> None:
    run = Budgeted(a_child("!say hi"))
    assert asyncio.run(play(AgentEngine(), run)).status is Status.COMPLETED
    assert run.told == [0]


def test_what_a_cache_gave_has_its_own_price() -> None:
    used = RequestUsage(input_tokens=1_000, cache_read_tokens=600, cache_write_tokens=100, output_tokens=10)
    price = Price.of(PriceRow(model="x:y", input=1.0, output=2.0, cache_read=0.1))
    assert price.cost(used) * 1_000_000 == 300 * 1 + 600 * Decimal("0.1") + 100 * 1 + 10 * 2


def test_sums_are_read_exactly_and_told_without_zeros() -> None:
    assert [micro_of("x", one) for one in (0.1, "0.10", Decimal("1e-6"), 3)] == [
        100_000,
        100_000,
        1,
        3_000_000,
    ]
    assert [words_of(one) for one in (0, 1, 500_000_000, 1_234_567_890)] == [
        "0.00",
        "0.000000001",
        "0.50",
        "1.23456789",
    ]
