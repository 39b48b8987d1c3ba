"""Milestone: what verifiers measured of the model after an epoch, and what follows for the price, as text.

Room: bundle (pure).
"""

from __future__ import annotations

from assay.bundle.read import Delivered
from assay.bundle.report.training_page import loss_text


def milestone_text(delivered: Delivered, epoch: int) -> str:
    """The milestone of a settled epoch, the agreed loss and its consequence; empty where none was asked."""
    accept, table = delivered.spec.money.accept, delivered.tables[epoch]
    most = accept.most_loss_micro(epoch)
    if most is None:
        return ""
    asked = f"at most {loss_text(most)} asked"
    if table.loss_micro is None:
        return f"{asked}, no loss was agreed: all of the price is owed"
    is_missed = table.loss_micro > most and delivered.run_states[-1].is_whole(epoch)
    owed = f"missed, {accept.share_ppm / 10_000:g} % of the price are not owed" if is_missed else "reached"
    return f"held-out loss {loss_text(table.loss_micro)}, {asked}: {owed}"
