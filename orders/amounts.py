"""Amounts: converts between decimal numbers in order files and the integers that parties sign.

Room: orders (pure). The one place where a decimal number becomes an integer count of its smallest unit,
exactly or not at all, so that the bytes of a spec never depend on how a machine rounds or prints a float.
"""

from __future__ import annotations

from decimal import Decimal

from assay.chain.text.units import DECIMALS as DECIMALS
from assay.chain.text.units import TOKENS_MAX as TOKENS_MAX
from assay.chain.text.units import UNIT as UNIT
from assay.chain.text.units import money_text as money_text
from assay.chain.text.units import parse_money as parse_money
from assay.chain.text.units import token_text as token_text


def scaled(number: float, decimals: int) -> int:
    """`number` times ten to the power of `decimals`, exactly: 0.95 with 6 decimals is 950000.

    Raises:
        ValueError: the number has more decimals than that.
    """
    exact = Decimal(str(number)).scaleb(decimals)
    if exact != exact.to_integral_value():
        raise ValueError(f"expected at most {decimals} decimals")
    return int(exact)


def bytes_text(count: float) -> str:
    """A size for people: 812 B, 24.7 kB, 3.1 MB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.95 or unit == "GB":
            break
    return f"{count:.1f} {unit}"


def accept_text(accept_ppm: int) -> str:
    """What of a price depends on milestones, after the price; empty if nothing does."""
    if not accept_ppm:
        return ""
    return f"; {accept_ppm / 10_000:g} % less in epochs whose milestone the model misses"
