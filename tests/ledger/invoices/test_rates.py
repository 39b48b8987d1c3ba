"""Rates: the last one before a supply holds, and what is converted adds up to the cent."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.ledger.invoices.rates import (
    AGE_S_MAX,
    Rate,
    converted,
    epoch_rates,
    half_up,
    minor_text,
    parse_rates,
    rate_at,
    rate_text,
)
from assay.protocol.errors import ConfigError

HEAD = "time,currency,rate,source\n"
NOON = 1_764_072_000  # 2025-11-25T12:00:00Z


def a_rate(time_s: int = NOON, nano: int = 860_000_000, currency: str = "EUR") -> Rate:
    return Rate(time_s=time_s, currency=currency, nano=nano, source="example")


def test_a_file_is_read_in_the_order_of_time_whatever_its_own_is():
    found = parse_rates(
        HEAD
        + "2025-11-25T13:00:00+01:00,EUR,0.86,an exchange\n"
        + '2025-11-25T11:00:00Z,SEK,9.999999999,"one, two"\n'
    )

    assert [(one.time_s, one.currency, one.nano, one.source) for one in found] == [
        (NOON - 3600, "SEK", 9_999_999_999, "one, two"),
        (NOON, "EUR", 860_000_000, "an exchange"),
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2025-11-25T12:00:00,EUR,1,x", "time"),  # in which zone?
        ("yesterday,EUR,1,x", "time 'yesterday'"),
        ("2025-11-25T12:00:00Z,eur,1,x", "currency 'eur'"),
        ("2025-11-25T12:00:00Z,JPY,1,x", "currency 'JPY'"),  # it has no cents
        ("2025-11-25T12:00:00Z,EUR,0.0,x", "a rate of zero"),
        ("2025-11-25T12:00:00Z,EUR,-1,x", "rate '-1'"),
        ("2025-11-25T12:00:00Z,EUR,1e3,x", "rate '1e3'"),
        ("2025-11-25T12:00:00Z,EUR,0.0000000001,x", "rate"),
        ("2025-11-25T12:00:00Z,EUR,\u0661,x", "rate"),  # a digit, of another script
        ("2025-11-25T12:00:00Z,EUR,1, ", "the source"),
        ("2025-11-25T12:00:00Z,EUR,1,a\u202eb", "the source"),
        ("2025-11-25T12:00:00Z,EUR,1", "3 cells"),
    ],
)
def test_a_row_that_is_no_rate_is_refused_by_its_line(row: str, words: str):
    with pytest.raises(ConfigError, match=f"^line 2: .*{words}"):
        parse_rates(HEAD + row + "\n")


def test_two_rates_of_one_time_are_refused():
    row = "2025-11-25T12:00:00Z,EUR,1,x\n"
    with pytest.raises(ConfigError, match="line 3: a second rate"):
        parse_rates(HEAD + row + row)


def test_another_header_is_refused():
    with pytest.raises(ConfigError, match="expected time,currency,rate,source"):
        parse_rates("when,currency,rate,source\n")


@pytest.mark.parametrize(("after_s", "nano"), [(0, 1), (1, 1), (3599, 1), (3600, 2), (3601, 2)])
def test_the_last_rate_at_or_before_the_supply_holds(after_s: int, nano: int):
    rates = (a_rate(NOON + 3600, 2), a_rate(NOON, 1), a_rate(NOON, 3, "SEK"))

    assert rate_at(rates, "EUR", NOON + after_s).nano == nano


def test_a_supply_before_the_first_rate_or_long_after_the_last_has_none():
    assert rate_at((a_rate(),), "EUR", NOON + AGE_S_MAX)
    with pytest.raises(ConfigError, match="no rate of EUR at or before 2025-11-25 11:59:59 UTC"):
        rate_at((a_rate(),), "EUR", NOON - 1)
    with pytest.raises(ConfigError, match="more than 31 days earlier"):
        rate_at((a_rate(),), "EUR", NOON + AGE_S_MAX + 1)


def test_each_epoch_has_the_rate_of_its_own_time():
    rates = (a_rate(NOON, 1), a_rate(NOON + 10, 2))
    found = epoch_rates(rates, "EUR", {1: NOON + 10, 0: NOON + 9})

    assert [(one.epoch, one.supplied_s, one.nano) for one in found] == [(0, NOON + 9, 1), (1, NOON + 10, 2)]


amounts = st.lists(st.tuples(st.integers(0, 10**18), st.integers(1, 10**18)), max_size=30)


@given(amounts)
def test_converted_amounts_are_exact_to_a_cent_and_add_up_to_the_rounded_sum(lines: list[tuple[int, int]]):
    exact = [Fraction(amount * nano * 100, 10**15) for amount, nano in lines]
    made = converted(lines)

    assert sum(made) == (2 * sum(exact) + 1) // 2
    assert all(abs(cents - whole) <= 1 and cents >= 0 for cents, whole in zip(made, exact, strict=True))


@pytest.mark.parametrize(("value", "rounded"), [(0, 0), (4, 0), (5, 1), (14, 1), (15, 2)])
def test_a_half_is_rounded_up(value: int, rounded: int):
    assert half_up(value, 10) == rounded


def test_amounts_and_rates_are_written_as_decimals():
    assert [minor_text(one) for one in (0, 5, -5, 123456, -123456)] == [
        "0.00",
        "0.05",
        "-0.05",
        "1234.56",
        "-1234.56",
    ]
    assert [rate_text(one) for one in (10**9, 861_200_000, 1, 120 * 10**9)] == [
        "1",
        "0.8612",
        "0.000000001",
        "120",
    ]
