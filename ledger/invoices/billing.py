"""Billing: a document's amounts in a national currency, beside the token units that moved on chain.

Room: ledger (pure). Amounts are minor units of the currency (cents). Every line is converted at the
rate of its own epoch; the sum of all is rounded once, half up (ledger/invoices/rates.py).

    prices "net"      what left the escrow is the net amount, and the tax on it is still due
    prices "gross"    what left the escrow contains the tax, and nothing is due
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone

from assay.ledger.invoices.rates import BASIS, EpochRate, Rate, converted, epoch_rates, half_up, shared
from assay.ledger.invoices.vat import Customer, Seller, Vat, VatRate, tax_currency, vat_of
from assay.protocol.errors import ConfigError

NET, GROSS = "net", "gross"
_PAID = "Paid from the run's escrow on chain; nothing is due."


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxation:
    """What VAT is decided by."""

    seller: Seller
    customer: Customer
    vat_rates: tuple[VatRate, ...] = ()
    prices: str = ""  # "net" or "gross"; only needed where tax is charged


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a supplier states of the documents that it issues."""

    currency: str
    rates: tuple[Rate, ...]
    taxation: Taxation | None = None  # None: no tax is computed, and the tax note says what applies
    payment_terms: str = ""  # needed where tax is due beside what the escrow paid


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """A document's amounts in minor units of `currency`; a credit note's are positive here too."""

    currency: str
    rates: tuple[EpochRate, ...]
    line_nets: tuple[int, ...]  # one for each line of the document's facts
    vat: Vat | None
    tax: int
    paid: int  # left the escrow
    payment_terms: str

    @property
    def net(self) -> int:
        """Sum of the lines."""
        return sum(self.line_nets)

    @property
    def gross(self) -> int:
        """Net and tax."""
        return self.net + self.tax

    @property
    def due(self) -> int:
        """What the buyer owes beside what left the escrow."""
        return self.gross - self.paid

    @property
    def supplied(self) -> tuple[date, date]:
        """First and last day of supply, in UTC."""
        days = [_day(one.supplied_s) for one in self.rates]
        return min(days), max(days)


def bill(lines: Sequence[tuple[int, int]], supplied: Mapping[int, int], terms: Terms) -> Billed:
    """The amounts of a document's lines.

    Args:
        lines: Epoch and token units of each.
        supplied: When each epoch's result became final, in Unix seconds.
        terms: The supplier's.

    Raises:
        ConfigError: an epoch has no rate, or its tax cannot be decided by what the supplier stated.
    """
    try:
        rates = epoch_rates(terms.rates, terms.currency, supplied)
    except ConfigError as error:
        raise ConfigError(f"the rates file: {error}") from None
    nano = {one.epoch: one.nano for one in rates}
    amounts = [(amount, nano[epoch]) for epoch, amount in lines]
    paid = sum(converted(amounts))
    vat = None if terms.taxation is None else _vat(terms.taxation, supplied)
    nets, tax = converted(amounts), 0
    if vat is not None and vat.rate_bp:
        assert terms.taxation is not None
        nets, tax = _with_tax(amounts, vat, paid, terms.currency, terms.taxation.prices)
    due = sum(nets) + tax - paid
    if due and not terms.payment_terms:
        raise ConfigError("VAT is due beside what the escrow paid: [supplier] payment_terms says until when")
    return Billed(
        currency=terms.currency,
        rates=rates,
        line_nets=nets,
        vat=vat,
        tax=tax,
        paid=paid,
        payment_terms=terms.payment_terms if due else _PAID,
    )


def _vat(taxation: Taxation, supplied: Mapping[int, int]) -> Vat:
    """The treatment that all epochs share.

    Raises:
        ConfigError: it cannot be decided, or it changes between two epochs.
    """
    found: dict[Vat, int] = {}
    for epoch, time_s in sorted(supplied.items()):
        one = vat_of(taxation.seller, taxation.customer, taxation.vat_rates, _day(time_s))
        found.setdefault(one, epoch)
    if len(found) > 1:
        raise ConfigError(
            f"the rate of VAT changes with epoch {max(found.values())}: invoice the epochs apart, by --epoch"
        )
    return next(iter(found))


def _with_tax(
    amounts: Sequence[tuple[int, int]], vat: Vat, paid: int, currency: str, prices: str
) -> tuple[tuple[int, ...], int]:
    """Net amounts of the lines, and the tax on their sum."""
    if currency != tax_currency(vat.country):
        raise ConfigError(
            f"VAT of {vat.country} is stated in {tax_currency(vat.country)} (article 230), not in {currency}"
        )
    if prices not in (NET, GROSS):
        raise ConfigError(
            f'VAT is charged: prices says whether the escrow pays it ("{GROSS}") or not ("{NET}")'
        )
    if prices == NET:
        nets = converted(amounts)
        return nets, half_up(sum(nets) * vat.rate_bp, BASIS)
    # Of what was paid to a cent, so that the tax is within 0.6 of its rate on the stated net.
    nets = shared([line * BASIS for line in converted(amounts)], BASIS + vat.rate_bp)
    return nets, paid - sum(nets)


def _day(time_s: int) -> date:
    return datetime.fromtimestamp(time_s, timezone.utc).date()
