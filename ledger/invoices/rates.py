"""Rates: what one token is worth in a national currency, by the hour, as its supplier states it.

Room: ledger (pure). A rates file is CSV with a header; times have an offset from UTC:

    time,currency,rate,source
    2026-11-25T14:00:00Z,EUR,0.8612,example exchange

The rate of a supply is the last one at or before the time of the block in which the supply became
final. Amounts are integers: a token is 10**6 units, a rate counts billionths of the currency for
one token, and a currency has 100 minor units (cents).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from assay.chain.text.times import time_text
from assay.chain.text.units import DECIMALS
from assay.protocol.errors import ConfigError

COLUMNS = ["time", "currency", "rate", "source"]
RATE_UNIT = 10**9  # a rate of 1
MINOR = 100  # minor units of a currency
BASIS = 10_000  # basis points of one: 19 % are 1900
ROWS_MAX, SOURCE_CHARS_MAX = 1_000_000, 200
AGE_S_MAX = 31 * 86_400  # an older rate is a file that nobody keeps up, not the rate of a supply
# Currencies of two decimal places, which ISO 4217 gives most and EN 16931 assumes of all amounts.
CURRENCIES = frozenset(
    {"AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EUR", "GBP", "HKD", "HUF", "ILS", "INR"}
    | {"MXN", "NOK", "NZD", "PLN", "RON", "RSD", "SEK", "SGD", "TRY", "UAH", "USD", "ZAR"}
)
_RATE = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The price of one token from a time on."""

    time_s: int  # Unix seconds
    currency: str
    nano: int  # billionths of the currency for one token
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRate:
    """The rate by which an epoch was converted."""

    epoch: int
    supplied_s: int  # Unix seconds: the block in which the epoch's result became final
    nano: int
    time_s: int  # from when the rate held
    source: str


def parse_rates(text: str) -> tuple[Rate, ...]:
    """The rates of a file, ascending by time.

    Raises:
        ConfigError: the header, a row or the order of the rows is another; the line is named.
    """
    rows = csv.reader(io.StringIO(text), strict=True)
    found: dict[tuple[int, str], Rate] = {}
    try:
        header = next(rows, [])
        if header != COLUMNS:
            raise ConfigError(f"line 1: the columns are {ascii(header)[:80]}, expected {','.join(COLUMNS)}")
        for row in rows:
            if rows.line_num > ROWS_MAX:
                raise ConfigError(f"more than {ROWS_MAX:,} lines")
            try:
                one = _rate(row)
            except ConfigError as error:
                raise ConfigError(f"line {rows.line_num}: {error}") from None
            if (one.time_s, one.currency) in found:
                raise ConfigError(f"line {rows.line_num}: a second rate of {one.currency} at this time")
            found[one.time_s, one.currency] = one
    except csv.Error as error:
        raise ConfigError(f"line {rows.line_num}: is not CSV ({error})") from None
    return tuple(found[place] for place in sorted(found))


def rate_at(rates: Iterable[Rate], currency: str, time_s: int) -> Rate:
    """The last rate of the currency at or before this time.

    Raises:
        ConfigError: there is none, or it is older than 31 days.
    """
    held = [one for one in rates if one.currency == currency and one.time_s <= time_s]
    if not held:
        raise ConfigError(f"no rate of {currency} at or before {time_text(time_s)}")
    last = max(held, key=lambda one: one.time_s)
    if time_s - last.time_s > AGE_S_MAX:
        raise ConfigError(
            f"the last rate of {currency} before {time_text(time_s)} is of {time_text(last.time_s)}, "
            f"more than {AGE_S_MAX // 86_400} days earlier"
        )
    return last


def epoch_rates(rates: Sequence[Rate], currency: str, supplied: Mapping[int, int]) -> tuple[EpochRate, ...]:
    """The rate of every epoch.

    Args:
        rates: All that are known.
        currency: An ISO 4217 code.
        supplied: When each epoch's result became final, in Unix seconds.

    Raises:
        ConfigError: an epoch has no rate.
    """
    made = []
    for epoch, time_s in sorted(supplied.items()):
        one = rate_at(rates, currency, time_s)
        made.append(
            EpochRate(epoch=epoch, supplied_s=time_s, nano=one.nano, time_s=one.time_s, source=one.source)
        )
    return tuple(made)


def converted(amounts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Amounts of token units in minor units of a currency; their sum is rounded half up, once.

    Args:
        amounts: Token units, and the rate's billionths; neither is negative.
    """
    return shared([amount * nano * MINOR for amount, nano in amounts], 10**DECIMALS * RATE_UNIT)


def shared(amounts: Sequence[int], divisor: int) -> tuple[int, ...]:
    """Quotients of amounts, none of them negative, whose sum is the rounded quotient of the sum.

    Each result is the difference of two rounded running sums, so it is within one of its exact value, and
    none is negative.
    """
    exact, before, made = 0, 0, []
    for amount in amounts:
        exact += amount
        after = half_up(exact, divisor)
        made.append(after - before)
        before = after
    return tuple(made)


def half_up_sum(amounts: Iterable[tuple[int, int]]) -> int:
    """The sum of token units, each with its rate's billionths, in minor units, rounded once."""
    exact = sum(amount * nano * MINOR for amount, nano in amounts)
    rounded = half_up(abs(exact), 10**DECIMALS * RATE_UNIT)
    return rounded if exact >= 0 else -rounded


def half_up(value: int, divisor: int) -> int:
    """The quotient of two integers that are not negative, rounded to the nearest; a half goes up."""
    return (2 * value + divisor) // (2 * divisor)


def minor_text(minor: int) -> str:
    """Minor units as a decimal amount without separators: -1234 is -12.34."""
    whole, part = divmod(abs(minor), MINOR)
    return f"{'-' if minor < 0 else ''}{whole}.{part:02d}"


def rate_text(nano: int) -> str:
    """A rate as a decimal: 861200000 is 0.8612."""
    whole, part = divmod(nano, RATE_UNIT)
    return f"{whole}.{part:09d}".rstrip("0").rstrip(".")


def currency_of(text: str) -> str:
    """The text, if it is a currency that documents may state.

    Raises:
        ConfigError: it is not.
    """
    if text not in CURRENCIES:
        raise ConfigError(f"currency {ascii(text)[:20]}, expected one of {' '.join(sorted(CURRENCIES))}")
    return text


def _rate(row: Sequence[str]) -> Rate:
    if len(row) != len(COLUMNS):
        raise ConfigError(f"{len(row)} cells, expected {len(COLUMNS)}: {','.join(COLUMNS)}")
    time, currency, rate, source = row
    found = _RATE.fullmatch(rate)
    if found is None:
        raise ConfigError(f"rate {ascii(rate)[:40]}, expected digits with at most 9 decimals such as 0.8612")
    nano = int(found[1]) * RATE_UNIT + int((found[2] or "").ljust(9, "0"))
    if nano == 0:
        raise ConfigError("a rate of zero")
    if not source.strip() or not source.isprintable() or len(source) > SOURCE_CHARS_MAX:
        raise ConfigError(f"the source of the rate, expected 1 to {SOURCE_CHARS_MAX} printable characters")
    return Rate(time_s=_seconds(time), currency=currency_of(currency), nano=nano, source=source)


def _seconds(text: str) -> int:
    try:
        # Python 3.10 does not know the Z of RFC 3339.
        found = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ConfigError(f"time {ascii(text)[:40]}, expected such as 2026-11-25T14:00:00Z")
    return int(found.timestamp())
