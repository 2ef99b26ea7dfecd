"""Usage: what a model's answer took and cost, for records and for rows.

Prices are those of genai-prices, which pydantic-ai loads as a model is made, off the loop. What has no
price there has no cost, which is not the same as a cost of 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from genai_prices import calc_price
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from dsh_tasks.errors import OptionRefused
from dsh_tasks.task import Usage
from workers.engines.agent.model import ResolvedModel
from workers.engines.open_turn import Row

NANO = 9
"""Costs are counted in 10^-9 US dollars."""
ASKED = Usage(model_calls=1)
"""A call of which nothing more is known."""
TURNED_AWAY = Usage(priced_calls=1)
"""A call that the provider refused took nothing."""


def usage_of(response: ModelResponse, model: ResolvedModel, *, is_whole: bool = True) -> Usage:
    """What an answer took; its call itself is counted as it is made. Of one cut off it is the least."""
    used = response.usage
    cost = cost_of(used, model, response.model_name) if used.cost is None else used.cost
    return _usage(used, cost, is_whole=is_whole)


def usage_of_rows(rows: Sequence[Row], model: ResolvedModel) -> Usage:
    """What earlier attempts' answers took, as their rows say."""
    total = Usage()
    for row in rows:
        if row["type"] != "assistant/message":
            continue
        used = _from_row(row["data"].get("usage") or {})
        total += ASKED + _usage(used, cost_of(used, model), is_whole=True)
    return total


def row_usage(used: RequestUsage) -> dict[str, int]:
    """The `usage` of an `assistant/message` as the harness writes it: input is what no cache gave or took."""
    cached = {
        "cacheReadTokens": used.cache_read_tokens,
        "cacheWriteTokens": used.cache_write_tokens,
        "reasoningTokens": reasoning_of(used),
    }
    return {
        "inputTokens": max(0, used.input_tokens - used.cache_read_tokens - used.cache_write_tokens),
        "outputTokens": used.output_tokens,
        "totalTokens": used.input_tokens + used.output_tokens,
        **{name: tokens for name, tokens in cached.items() if tokens},
    }


def cost_of(used: RequestUsage, model: ResolvedModel, answered_by: str | None = None) -> Decimal | None:
    """US dollars; None where nobody knows. `answered_by` is the model that a router chose."""
    if model.is_offline:
        return Decimal(0)
    if used.unmeasured_requests or not used.has_values():
        return None
    if model.price is not None:
        return model.price.cost(used)
    try:
        url = model.model.base_url
    except (AttributeError, UserError):
        url = None
    for reference in ({"provider_api_url": url}, {"provider_id": model.system}):
        for name in filter(None, (answered_by, model.model.model_name)):
            try:
                return calc_price(used, name, **reference).total_price
            except (LookupError, ValueError):
                continue
    return None


def check_price(model: ResolvedModel) -> None:
    """Raises OptionRefused where calls of this model could not be counted for a budget of costs."""
    if cost_of(RequestUsage(input_tokens=1, output_tokens=1), model) is None:
        why = (
            f"no price of {model.name!r} is known, so nothing would be counted; name it under "
            "[[agent.prices]] in the settings file, or start the child without a budget of costs"
        )
        raise OptionRefused("cost_budget", why)


def guessed(input_tokens: int, output_tokens: int, model: ResolvedModel) -> int:
    """About what a call cost of which the provider said nothing, in 10^-9 US dollars."""
    cost = cost_of(RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens), model)
    return 0 if cost is None else int(cost.scaleb(NANO))


def reasoning_of(used: RequestUsage) -> int:
    """Tokens of reasoning, which count as output too."""
    return used.output_reasoning_tokens or used.details.get("reasoning_tokens", 0)


def _usage(used: RequestUsage, cost: Decimal | None, *, is_whole: bool) -> Usage:
    made = Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        reasoning_tokens=reasoning_of(used),
    )
    if cost is None:
        return made
    return replace(made, cost_nanousd=int(cost.scaleb(NANO)), priced_calls=int(is_whole))


def _from_row(usage: Mapping[str, int]) -> RequestUsage:
    read, written = usage.get("cacheReadTokens", 0), usage.get("cacheWriteTokens", 0)
    return RequestUsage(
        input_tokens=usage.get("inputTokens", 0) + read + written,
        output_tokens=usage.get("outputTokens", 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_reasoning_tokens=usage.get("reasoningTokens", 0),
    )
