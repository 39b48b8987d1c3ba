"""Billing: a document's amounts in a national currency, beside the token units that moved on chain.

Room: ledger (pure). Amounts are minor units of the currency (cents). Every line is converted at the
rate of its own epoch; the sum of all is rounded once, half up (ledger/invoices/rates.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.ledger.invoices.rates import EpochRate, Rate, converted, epoch_rates
from assay.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a supplier states of the documents that it issues."""

    currency: str
    rates: tuple[Rate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """A document's amounts in minor units of `currency`; a credit note's are positive here too."""

    currency: str
    rates: tuple[EpochRate, ...]
    line_nets: tuple[int, ...]  # one for each line of the document's facts

    @property
    def net(self) -> int:
        """Sum of the lines."""
        return sum(self.line_nets)


def bill(lines: Sequence[tuple[int, int]], supplied: Mapping[int, int], terms: Terms) -> Billed:
    """The amounts of a document's lines.

    Args:
        lines: Epoch and token units of each.
        supplied: When each epoch's result became final, in Unix seconds.
        terms: The supplier's.

    Raises:
        ConfigError: an epoch has no rate.
    """
    try:
        rates = epoch_rates(terms.rates, terms.currency, supplied)
    except ConfigError as error:
        raise ConfigError(f"the rates file: {error}") from None
    nano = {one.epoch: one.nano for one in rates}
    nets = converted([(amount, nano[epoch]) for epoch, amount in lines])
    return Billed(currency=terms.currency, rates=rates, line_nets=nets)
