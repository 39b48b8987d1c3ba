"""Milestone: what verifiers measured of the model after an epoch, and what follows for the price, as text.

Room: bundle (pure).
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.bundle.read import Delivered
from assay.bundle.report.training_page import loss_text, share_text
from assay.protocol.messages import Score
from assay.protocol.params import PPM, Milestone


def milestone_text(delivered: Delivered, epoch: int) -> str:
    """The milestone of a settled epoch, the agreed score and its consequence; empty where none was asked."""
    accept, score = delivered.spec.money.accept, delivered.tables[epoch].score
    asked = accept.milestone(epoch)
    if asked is None:
        return ""
    items = delivered.spec.choices.items
    parts = "; ".join(_parts(asked, score, items))
    if score is None:
        return f"{parts}, no score was agreed: all of the price is owed"
    is_missed = not asked.is_reached(score, items) and delivered.run_states[-1].is_whole(epoch)
    owed = f"missed, {accept.share_ppm / 10_000:g} % of the price are not owed" if is_missed else "reached"
    return f"{parts}: {owed}"


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
