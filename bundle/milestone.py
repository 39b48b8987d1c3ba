"""Milestone: what verifiers measured of the model after an epoch, and what follows for the price.

Room: bundle (pure).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from assay.bundle.read import Delivered
from assay.bundle.report.training_page import loss_text, share_text
from assay.ledger.settlement.payouts import gross_of
from assay.protocol.messages import Score
from assay.protocol.params import PPM, Milestone


class MilestoneState(str, Enum):
    """What became of a milestone."""

    AHEAD = "ahead"  # the epoch is not settled
    REACHED = "reached"
    MISSED = "missed"
    UNMEASURED = "not measured"  # no score was agreed
    CUT_SHORT = "cut short"  # the epoch has fewer rounds than were ordered, or none


@dataclass(frozen=True, slots=True, kw_only=True)
class MilestoneFigures:
    """A milestone of an order, and the price that hangs on it, in token units."""

    epoch: int
    score: Score | None  # that verifiers agreed on; None: none yet
    text: str  # every figure that was agreed, and the bound on it
    state: MilestoneState
    at_stake: int  # of what the epoch costs, or of the most that it can while it is ahead

    @property
    def kept(self) -> int:
        """What the buyer does not owe because it was missed."""
        return self.at_stake if self.state is MilestoneState.MISSED else 0


def milestones_of(delivered: Delivered) -> list[MilestoneFigures]:
    """All milestones of an order, ascending by epoch."""
    return [_figures(delivered, asked) for asked in delivered.spec.money.accept.milestones]


def milestone_text(delivered: Delivered, epoch: int) -> str:
    """The milestone of a settled epoch, the agreed score and its consequence; empty where none was asked."""
    asked = delivered.spec.money.accept.milestone(epoch)
    if asked is None:
        return ""
    found = _figures(delivered, asked)
    if found.score is None:
        return f"{found.text}, no score was agreed: all of the price is owed"
    owed = "reached"
    if found.state is MilestoneState.MISSED:
        owed = f"missed, {delivered.spec.money.accept.share_ppm / 10_000:g} % of the price are not owed"
    if found.state is MilestoneState.CUT_SHORT:
        owed = "the epoch was cut short, so all of its price is owed"
    return f"{found.text}: {owed}"


def _figures(delivered: Delivered, asked: Milestone) -> MilestoneFigures:
    spec, table, last = delivered.spec, delivered.tables.get(asked.epoch), delivered.run_states[-1]
    score = last.score(asked.epoch) if table is None else table.score
    if asked.epoch >= delivered.calendar.epochs or not last.is_whole(asked.epoch):
        state = MilestoneState.CUT_SHORT
    elif table is None:
        state = MilestoneState.AHEAD
    elif score is None:
        state = MilestoneState.UNMEASURED
    else:
        is_reached = asked.is_reached(score, spec.choices.items)
        state = MilestoneState.REACHED if is_reached else MilestoneState.MISSED
    if table is None:
        whole = spec.epoch_price(asked.epoch)
        reduced = whole - whole * spec.money.accept.share_ppm // PPM
    else:
        whole, reduced = (gross_of(spec, table.tokens_paid, falls_short=one) for one in (False, True))
    return MilestoneFigures(
        epoch=asked.epoch,
        score=score,
        text="; ".join(_parts(asked, score, spec.choices.items)),
        state=state,
        at_stake=0 if state is MilestoneState.CUT_SHORT else whole - reduced,
    )


def _parts(asked: Milestone, score: Score | None, items: int) -> Iterator[str]:
    """Every figure that was agreed, and the bound on it if one was asked."""
    if score is not None or asked.asks_loss:
        found = "" if score is None else f" {loss_text(score.loss_micro)}"
        yield f"held-out loss{found}" + (
            f", at most {loss_text(asked.most_loss_micro)} asked" if asked.asks_loss else ""
        )
    for name, count, least in (
        ("acc", None if score is None else score.acc_count, asked.least_acc_ppm),
        ("acc_norm", None if score is None else score.acc_norm_count, asked.least_acc_norm_ppm),
    ):
        if items and (count is not None or least):
            found = "" if count is None else f" {share_text(count, items)}"
            yield f"{name}{found}" + (f", at least {least / PPM:g} asked" if least else "")
