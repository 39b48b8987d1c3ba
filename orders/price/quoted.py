"""Quoted: a quote as its buyer reads it: costs, shares, audits, time and escrow.

Room: orders (pure). `assay order quote` and the explorer's form show the same value.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.orders.amounts import UNIT
from assay.orders.order import Order
from assay.orders.price.quote import Cost, cost_at_most, cost_expected, quote_of, refusable, verification_ppm

RETURNS = (
    "escrow that no accepted step earned returns when the run is closed: at its deadline, or the close delay "
    "after `assay order cancel`",
    "steps that are late, false, withheld, or cannot be judged are not charged",
    "audits are paid out of the verifiers' share, not on top",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """What a quote says; amounts in token units."""

    quote: str  # its digest
    name: str
    rounds: int
    nodes: int  # that the buyer names
    least_nodes: int  # without which the run does not start,
    start_within_s: int  # for which it waits from when its run file is made; 0: it names them all
    seats: int
    lot: int
    verifiers: int
    reserves: int  # more verifiers, each of which may take over a seat
    unit: str
    price_per_mtoken: int
    at_most: Cost
    expected: Cost
    epochs: int
    epoch_cap: int
    verification_ppm: int
    refusable: int  # of `at_most`, not owed if the model misses every milestone
    milestones: int
    time_s: int  # of training, if every round waits for its slowest node as long as it may
    escrow: int
    escrow_least: int  # below which the order is refused
    returns: tuple[str, ...]


def quoted(order: Order) -> Quoted:
    """The quote of an order."""
    quote = quote_of(order)
    terms = quote.terms
    return Quoted(
        quote=quote.name.hex(),
        name=terms.name,
        rounds=terms.rounds,
        nodes=terms.nodes,
        least_nodes=terms.least_nodes,
        start_within_s=quote.start_within_s,
        seats=terms.seats,
        lot=quote.lot,
        verifiers=terms.verifiers,
        reserves=terms.reserves,
        unit=f"10^-6 {UNIT}",
        price_per_mtoken=terms.money.price_per_mtoken,
        at_most=cost_at_most(terms),
        expected=cost_expected(terms),
        epochs=terms.epochs,
        epoch_cap=quote.epoch_cap,
        verification_ppm=verification_ppm(order),
        refusable=refusable(terms),
        milestones=len(terms.money.accept.milestones),
        time_s=terms.rounds * terms.timing.collect_ms // 1000,
        escrow=quote.budget,
        escrow_least=order.worst_case_units(),
        returns=RETURNS,
    )
