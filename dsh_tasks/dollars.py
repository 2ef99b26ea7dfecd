"""Dollars: sums of money as people write them, and as records hold them. Pure.

US dollars are decimals with at most six places; a record holds whole micro-dollars (10^-6).
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from dsh_tasks.errors import OptionRefused

Dollars = Decimal | float | str
"""What a caller may name as a sum: `Decimal("0.5")`, `0.5`, `"0.50"`."""
MICRO = 6
"""Decimal places that count."""
NANO_PER_MICRO = 1_000
MOST = 1_000_000
"""Largest sum that can be named, in US dollars: whole numbers of Lua hold it in 10^-9."""


def micro_of(option: str, given: object) -> int:
    """A sum of US dollars in whole micro-dollars. Raises OptionRefused for what is none, or not above 0.

    A float counts as what it is written as: 0.1 is a tenth.
    """
    wrong = OptionRefused(option, f"US dollars above 0 and up to {MOST}, with at most {MICRO} decimal places")
    if isinstance(given, bool) or not isinstance(given, int | float | str | Decimal):
        raise wrong
    try:
        amount = Decimal(str(given).strip())
    except InvalidOperation:
        raise wrong from None
    if not amount.is_finite() or not 0 < amount <= MOST or amount != round(amount, MICRO):
        raise wrong
    return int(amount.scaleb(MICRO))


def words_of(nanousd: int) -> str:
    """A sum in 10^-9 US dollars for a person: at least cents, and no zeros behind them."""
    text = f"{Decimal(nanousd).scaleb(-9):.9f}".rstrip("0")
    whole, _, places = text.partition(".")
    return f"{whole}.{places:0<2}"
