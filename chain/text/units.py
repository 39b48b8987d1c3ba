"""Units: exact conversion between token units (integers) and decimal token amounts (text).

Room: chain (pure). Every amount in Assay is an integer count of the smallest unit;
this is the only place that writes or parses decimals, and it uses no float.
"""

from __future__ import annotations

import re

from assay.protocol.errors import ConfigError

UNIT = "aUSD"
DECIMALS = 6
TOKENS_MAX = 10**12  # whole tokens; keeps every sum of units inside a uint64
_WRITTEN = re.compile(r"([0-9]{1,13})(?:\.([0-9]{1,40}))?")


def money_text(units: int) -> str:
    """Token units as tokens, to the last unit: 1234567890 is 1,234.567890."""
    whole, part = divmod(abs(units), 10**DECIMALS)
    return f"{'-' if units < 0 else ''}{whole:,}.{part:0{DECIMALS}d}"


def token_text(units: int) -> str:
    """`money_text` with the token's name."""
    return f"{money_text(units)} {UNIT}"


def parse_money(text: str) -> int:
    """Token units from a decimal amount of tokens: "12.5" is 12500000.

    Raises:
        ConfigError: not digits with at most one point, more decimals than a token has, or too much.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        shown = ascii(text if len(text) <= 40 else text[:37] + "...")
        raise ConfigError(
            f"{shown} is not an amount, expected tokens such as 250 or 12.5, digits and one point"
        )
    whole, part = found[1], found[2] or ""
    if len(part) > DECIMALS:
        raise ConfigError(f"{text} has {len(part)} decimals; a token has {DECIMALS}")
    units: int = int(whole) * 10**DECIMALS + int(part.ljust(DECIMALS, "0"))
    if units > TOKENS_MAX * 10**DECIMALS:
        raise ConfigError(f"{text} is too large: at most {TOKENS_MAX:,} tokens")
    return units
