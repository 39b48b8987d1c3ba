"""Milestone: what verifiers measured of the model after an epoch, and what follows for the price.

Room: bundle (pure).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from assay.bundle.read import Delivered
from assay.bundle.report.training_page import loss_text
from assay.ledger.settlement.payouts import gross_of
from assay.protocol.params import PPM, AcceptSpec


class MilestoneState(str, Enum):
    """What became of a milestone."""

    AHEAD = "ahead"  # the epoch is not settled
    REACHED = "reached"
    MISSED = "missed"
    UNMEASURED = "not measured"  # no loss was agreed
    CUT_SHORT = "cut short"  # the epoch has fewer rounds than were ordered, or none


@dataclass(frozen=True, slots=True, kw_only=True)
class MilestoneFigures:
    """A milestone of an order, and the price that hangs on it, in token units."""

    epoch: int
    most_loss_micro: int
    loss_micro: int | None  # that verifiers agreed on; None: none yet
    state: MilestoneState
    at_stake: int  # of what the epoch costs, or of the most that it can while it is ahead

    @property
    def kept(self) -> int:
        """What the buyer does not owe because it was missed."""
        return self.at_stake if self.state is MilestoneState.MISSED else 0


def milestones_of(delivered: Delivered) -> list[MilestoneFigures]:
    """All milestones of an order, ascending by epoch."""
    return [_figures(delivered, one.epoch, one.most_loss_micro) for one in _accept(delivered).milestones]


def milestone_text(delivered: Delivered, epoch: int) -> str:
    """The milestone of a settled epoch, the agreed loss and its consequence; empty where none was asked."""
    most = _accept(delivered).most_loss_micro(epoch)
    if most is None:
        return ""
    found = _figures(delivered, epoch, most)
    asked = f"at most {loss_text(most)} asked"
    if found.loss_micro is None:
        return f"{asked}, no loss was agreed: all of the price is owed"
    owed = "reached"
    if found.state is MilestoneState.MISSED:
        owed = f"missed, {_accept(delivered).share_ppm / 10_000:g} % of the price are not owed"
    if found.state is MilestoneState.CUT_SHORT:
        owed = "the epoch was cut short, so all of its price is owed"
    return f"held-out loss {loss_text(found.loss_micro)}, {asked}: {owed}"


def _accept(delivered: Delivered) -> AcceptSpec:
    return delivered.spec.money.accept


def _figures(delivered: Delivered, epoch: int, most_loss_micro: int) -> MilestoneFigures:
    spec, table, last = delivered.spec, delivered.tables.get(epoch), delivered.run_states[-1]
    loss = last.held_out_loss(epoch) if table is None else table.loss_micro
    if epoch >= delivered.calendar.epochs or not last.is_whole(epoch):
        state = MilestoneState.CUT_SHORT
    elif table is None:
        state = MilestoneState.AHEAD
    elif loss is None:
        state = MilestoneState.UNMEASURED
    else:
        state = MilestoneState.MISSED if loss > most_loss_micro else MilestoneState.REACHED
    if table is None:
        whole = spec.epoch_price(epoch)
        reduced = whole - whole * spec.money.accept.share_ppm // PPM
    else:
        whole, reduced = (gross_of(spec, table.tokens_paid, falls_short=one) for one in (False, True))
    return MilestoneFigures(
        epoch=epoch,
        most_loss_micro=most_loss_micro,
        loss_micro=loss,
        state=state,
        at_stake=0 if state is MilestoneState.CUT_SHORT else whole - reduced,
    )
