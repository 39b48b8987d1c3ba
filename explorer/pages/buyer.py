"""Buyer pages: all orders of one account, and one order: spend, time left, loss, milestones, and what to run.

Room: explorer (pure).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.bundle.finished import HeldOut
from assay.bundle.milestone import MilestoneFigures, MilestoneState
from assay.bundle.report.charts import Chart
from assay.bundle.report.progress import PACE_ROUNDS, left_s, phase_of
from assay.bundle.report.spending import EpochCost
from assay.chain.commit_statement import evm_address
from assay.explorer.explored import Explored
from assay.explorer.pages.paging import Head, NoSuchPage, Paging, cut, head_of
from assay.ledger.settlement.ending import Ending, ending_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderLine:
    """One order among those of its buyer. Amounts are token units."""

    head: Head
    phase: str
    rounds: int  # of training that are final
    rounds_ordered: int
    left_s: int | None  # until training is over; None: it is, or nothing is known
    loss_micro: int | None  # median of the last round
    spent: int
    budget: int
    missed: int
    milestones: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuyerPage:
    """A buyer's home: its orders, one page of them."""

    TEMPLATE: ClassVar[str] = "buyer.html"
    account: str
    orders: Sequence[OrderLine]
    paging: Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPage:
    """One order as its buyer follows it, with one page of its epochs. Amounts are token units."""

    TEMPLATE: ClassVar[str] = "order.html"
    head: Head
    buyer: str
    order: OrderLine
    ending: Ending
    awaits_funding: bool
    manifests: int
    files: int  # that a reader may fetch
    settled: int  # spent in settled epochs
    chart: Chart | None  # of the loss
    held_out: HeldOut | None
    samples: tuple[str, ...]  # text that the delivered model makes up
    share_ppm: int  # of the price of an epoch with a milestone
    milestones: Sequence[MilestoneFigures]
    price_per_mtoken: int
    tokens: int  # that settled epochs charge for
    uncharged: Mapping[str, int]  # accepted steps of settled epochs that earned nothing, by reason
    kept: int  # for missed milestones
    epochs: Sequence[EpochCost]
    paging: Paging


def buyer_page(runs: Sequence[Explored], account: bytes, page: int) -> BuyerPage:
    """The page of an account.

    Args:
        runs: All that are served.
        account: 20 bytes.
        page: From 1.

    Raises:
        NoSuchPage: it ordered none of them, or fewer than lead to this page.
    """
    mine = [run for run in runs if run.delivered.spec.buyer == account]
    if not mine:
        raise NoSuchPage(f"a run that {evm_address(account)} ordered among those that are served here")
    rows, paging = cut(sorted(mine, key=lambda run: not run.is_live), page)
    return BuyerPage(account=evm_address(account), orders=[_order_line(run) for run in rows], paging=paging)


def order_page(run: Explored, page: int) -> OrderPage:
    """The page of one order. Raises NoSuchPage."""
    delivered = run.delivered
    last, money = delivered.run_states[-1], delivered.spec.money
    epochs, paging = cut(run.costs, page)
    return OrderPage(
        head=head_of(run),
        buyer=evm_address(delivered.spec.buyer),
        order=_order_line(run),
        ending=ending_of(last),
        awaits_funding=last.awaits_funding,
        manifests=len(delivered.links),
        files=len(run.files),
        settled=sum(table.total for table in delivered.tables.values()),
        chart=next(iter(run.charts), None),
        held_out=run.report.held_out,
        samples=run.report.samples,
        share_ppm=money.accept.share_ppm,
        milestones=run.milestones,
        price_per_mtoken=money.price_per_mtoken,
        tokens=sum(table.tokens_paid for table in delivered.tables.values()),
        uncharged=Counter(reason.text for reason in run.unpaid.values()),
        kept=sum(one.kept for one in run.milestones),
        epochs=epochs,
        paging=paging,
    )


def _order_line(run: Explored) -> OrderLine:
    delivered = run.delivered
    last = delivered.run_states[-1]
    newest = [link.manifest.time_s for link in delivered.links[-PACE_ROUNDS - 1 :]]
    loss = run.report.totals.loss_micro
    return OrderLine(
        head=head_of(run),
        phase=phase_of(last),
        rounds=min(len(delivered.links), delivered.calendar.rounds),
        rounds_ordered=delivered.spec.rounds,
        left_s=left_s(last, newest),
        loss_micro=None if loss is None else loss[1],
        spent=sum(one.spent for one in run.costs),
        budget=sum(one.budget for one in run.costs),
        missed=sum(one.state is MilestoneState.MISSED for one in run.milestones),
        milestones=len(run.milestones),
    )
