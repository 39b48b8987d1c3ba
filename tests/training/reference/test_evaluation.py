"""Evaluation: the loss that verifiers agree on is the reference class's, sequence by sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.messages import LOSS_MICRO_MAX
from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.data.mask import target_count
from assay.training.data.preferences import with_reference
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.loss import mean_loss
from assay.training.reference.evaluation import reference_loss_micro
from assay.training.reference.gradient import reference_loss_and_gradient

MODEL = a_model()
LAYOUT = layout_of(MODEL)


def a_batch(masked: float) -> np.ndarray:
    draw = np.random.default_rng(3)
    tokens = draw.integers(0, MODEL.vocabulary, (5, MODEL.context + 1))
    tokens = np.where(draw.random(tokens.shape) < masked, ~tokens, tokens)
    tokens[2] = ~np.abs(tokens[2])  # a sequence without targets
    return tokens


def parameters() -> np.ndarray:
    return initial_parameters(4, LAYOUT.names, LAYOUT.shapes) * np.float32(2) + np.float32(0.003)


@pytest.mark.parametrize("masked", [0.0, 0.7])
def test_it_is_the_mean_over_all_targets_of_what_the_reference_gradient_says_of_each_sequence(masked):
    tokens, total = a_batch(masked), 0.0
    for row in (tokens[at : at + 1] for at in range(len(tokens)) if target_count(tokens[at : at + 1])):
        loss, _ = reference_loss_and_gradient(MODEL, LAYOUT, parameters(), row, compute=FLOAT32_WHOLE)
        total += loss * target_count(row)

    found = reference_loss_micro(MODEL, parameters(), tokens, compute=FLOAT32_WHOLE)

    assert found == round(total / target_count(tokens) * 10**6)
    assert abs(found - 10**6 * mean_loss(MODEL, LAYOUT, parameters(), tokens)) < 20


def test_without_targets_it_is_nothing_and_without_a_finite_loss_the_most_that_can_be_said():
    assert reference_loss_micro(MODEL, parameters(), ~np.abs(a_batch(0.0)), compute=FLOAT32_WHOLE) == 0
    wild = parameters()
    wild[:] = np.float32(3e38)
    assert reference_loss_micro(MODEL, wild, a_batch(0.0), compute=FLOAT32_WHOLE) == LOSS_MICRO_MAX


def test_tokens_that_do_not_fit_the_model_are_refused():
    with pytest.raises(ValueError, match="expected int64"):
        reference_loss_micro(MODEL, parameters(), a_batch(0.0)[:, 1:], compute=FLOAT32_WHOLE)


def test_with_dpo_it_is_the_mean_over_pairs_of_what_the_reference_gradient_says_of_each():
    compute = replace(FLOAT32_WHOLE, beta_micro=100_000)
    tokens = np.concatenate(
        [with_reference(row, 20.0 + at) for at, row in enumerate(a_batch(0.3)[[0, 1, 3, 4]])]
    )
    tokens = tokens.reshape(4, -1)
    pairs = [
        reference_loss_and_gradient(MODEL, LAYOUT, parameters(), tokens[at : at + 2], compute=compute)[0]
        for at in (0, 2)
    ]

    found = reference_loss_micro(MODEL, parameters(), tokens, compute=compute)

    assert found == round((pairs[0] + pairs[1]) / 2 * 10**6) > 0
