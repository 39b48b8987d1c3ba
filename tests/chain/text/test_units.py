"""Money: what a person writes is exactly what moves, or it is refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.chain.text.units import DECIMALS, TOKENS_MAX, money_text, parse_money
from assay.protocol.errors import ConfigError


@given(st.integers(0, TOKENS_MAX * 10**DECIMALS))
def test_what_is_shown_can_be_written_back(units: int):
    assert parse_money(money_text(units).replace(",", "")) == units


@pytest.mark.parametrize(
    ("text", "units"),
    [("0", 0), ("250", 250_000_000), ("12.5", 12_500_000), ("0.000001", 1), ("007", 7_000_000)],
)
def test_decimals_are_exact(text: str, units: int):
    assert parse_money(text) == units


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1e400", "is not an amount"),
        ("-1", "is not an amount"),
        ("+1", "is not an amount"),
        ("nan", "is not an amount"),
        ("", "is not an amount"),
        (".5", "is not an amount"),
        ("1.", "is not an amount"),
        ("1,000", "is not an amount"),
        ("1 ", "is not an amount"),
        ("1\n", "is not an amount"),
        ("1_0", "is not an amount"),
        ("٣", "is not an amount"),  # an Arabic digit, which int() would take
        ("9" * 100_000, "is not an amount"),
        ("\x1b[2J", "is not an amount"),
        ("1.0000001", "7 decimals; a token has 6"),
        ("1.0000000000000000001", "19 decimals"),
        ("1000000000000.000001", "is too large"),
        ("9999999999999", "is too large"),
    ],
)
def test_what_is_no_exact_amount_is_refused_in_words(text: str, words: str):
    with pytest.raises(ConfigError, match=words) as refused:
        parse_money(text)

    assert str(refused.value).isprintable() and len(str(refused.value)) < 150
