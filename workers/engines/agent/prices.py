"""Prices: what the operator says that a model costs, where genai-prices knows none or another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Self

from pydantic_ai.usage import RequestUsage

from dsh_tasks.config import PriceRow

PER = Decimal(1_000_000)
"""Prices are those of so many tokens."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens of each kind."""

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal

    @classmethod
    def of(cls, row: PriceRow) -> Self:
        """As the settings file names it; what a cache gives or takes is input where it is left out."""

        def exact(given: float | None) -> Decimal:
            return Decimal(str(row.input if given is None else given))

        return cls(exact(row.input), exact(row.output), exact(row.cache_read), exact(row.cache_write))

    def cost(self, used: RequestUsage) -> Decimal:
        """US dollars for what an answer took."""
        plain = max(0, used.input_tokens - used.cache_read_tokens - used.cache_write_tokens)
        kinds = (
            (plain, self.input),
            (used.cache_read_tokens, self.cache_read),
            (used.cache_write_tokens, self.cache_write),
            (used.output_tokens, self.output),
        )
        return sum((tokens * price for tokens, price in kinds), Decimal(0)) / PER


def prices_of(rows: Iterable[PriceRow]) -> Mapping[str, Price]:
    """Prices by the model's name in pydantic-ai's words."""
    return {row.model: Price.of(row) for row in rows}
