"""Milestone: what was asked of the model, what verifiers measured and what follows, in one line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from assay.bundle.milestone import milestone_text
from assay.protocol.messages import LOSS_MICRO_MAX, Score
from tests.protocol.test_acceptance import BOTH, a_run, a_score, with_choices

ACC = replace(BOTH, most_loss_micro=LOSS_MICRO_MAX, least_acc_norm_ppm=0)


def told(milestone: Any, score: Score | None) -> str:
    state = a_run(with_choices(milestone))
    table: Any = SimpleNamespace(score=score, tokens_paid=0)
    delivered: Any = SimpleNamespace(
        spec=state.spec, tables={1: table, 2: table}, run_states=[state], calendar=state.calendar
    )
    assert milestone_text(delivered, 2) == ""  # it has none
    return milestone_text(delivered, 1)


@pytest.mark.parametrize(
    ("milestone", "score", "text"),
    [
        (
            BOTH,
            a_score(2_500_000, 5, 3),
            "held-out loss 2.5000, at most 3.0000 asked; acc 0.6250 (5 of 8), at least 0.625 asked; "
            "acc_norm 0.3750 (3 of 8), at least 0.5 asked: missed, 25.0001 % of the price are not owed",
        ),
        (
            ACC,
            a_score(2_500_000, 5, 3),
            "held-out loss 2.5000; acc 0.6250 (5 of 8), at least 0.625 asked; acc_norm 0.3750 (3 of 8): "
            "reached",
        ),
        (ACC, None, "acc, at least 0.625 asked, no score was agreed: all of the price is owed"),
        (
            BOTH,
            None,
            "held-out loss, at most 3.0000 asked; acc, at least 0.625 asked; acc_norm, at least 0.5 asked, "
            "no score was agreed: all of the price is owed",
        ),
    ],
)
def test_every_figure_is_told_with_the_bound_on_it(milestone, score, text):
    assert told(milestone, score) == text
