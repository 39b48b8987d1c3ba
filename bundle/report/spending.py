"""Spending: what a run's buyer has spent of its budget, epoch by epoch.

Room: bundle (pure). Amounts are token units. The budget is what the order can cost at most: every step of all
seats accepted. Of an epoch that is not settled, what is counted is its payout table as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.bundle.read import Delivered
from assay.ledger.settlement.payouts import Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCost:
    """One ordered epoch."""

    epoch: int
    first_round: int
    last_round: int
    budget: int
    spent: int  # 0 before it begins
    tokens: int  # that this pays for
    steps_unpaid: int  # accepted, and not charged
    is_settled: bool


def costs_of(delivered: Delivered, drafts: Mapping[int, Settlement]) -> list[EpochCost]:
    """What each ordered epoch costs, in order.

    Args:
        delivered: The run, delivered or as far as it has got.
        drafts: Tables of epochs that have begun and are not settled (`bundle/report/progress.py`).
    """
    spec, tables = delivered.spec, {**drafts, **delivered.tables}
    ordered = spec.ordered
    found = []
    for epoch in range(ordered.epochs):
        table = tables.get(epoch)
        found.append(
            EpochCost(
                epoch=epoch,
                first_round=epoch * ordered.epoch_rounds,
                last_round=ordered.epoch_end(epoch) - 1,
                budget=spec.epoch_price(epoch),
                spent=0 if table is None else table.total,
                tokens=0 if table is None else table.tokens_paid,
                steps_unpaid=0 if table is None else len(table.unpaid),
                is_settled=epoch in delivered.tables,
            )
        )
    return found
