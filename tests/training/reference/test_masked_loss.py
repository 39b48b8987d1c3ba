"""Masked loss: both gradients are those of the targets that are not masked, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.protocol.params import ComputeSpec, Precision
from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.data.mask import target_count, visible
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.gpt import gpt_logits
from assay.training.model.loss import loss_and_gradient, mean_loss
from assay.training.reference.gradient import reference_loss_and_gradient

MODEL = a_model()
LAYOUT = layout_of(MODEL)
BOTH = pytest.mark.parametrize("compute", [loss_and_gradient, reference_loss_and_gradient])
PAIRS = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=2)


def a_batch(sequences: int = 5, masked: float = 0.7) -> np.ndarray:
    draw = np.random.default_rng(3)
    tokens = draw.integers(0, MODEL.vocabulary, (sequences, MODEL.context + 1))
    return np.where(draw.random(tokens.shape) < masked, ~tokens, tokens)


def parameters() -> np.ndarray:
    return initial_parameters(4, LAYOUT.names, LAYOUT.shapes) * np.float32(2) + np.float32(0.003)


def plainly(tokens: np.ndarray) -> tuple[float, np.ndarray]:
    """In float64 and word by word: the mean of -log p over the targets that are not masked."""
    flat = torch.from_numpy(parameters().astype(np.float64)).requires_grad_(True)
    parts = {n: flat[at : at + int(np.prod(s))].view(s) for n, (at, s) in LAYOUT.offsets().items()}
    log_p = gpt_logits(MODEL, parts, torch.from_numpy(visible(tokens)[:, :-1])).log_softmax(-1)
    terms = [
        -log_p[row, at - 1, int(tokens[row, at])]
        for row in range(len(tokens))
        for at in range(1, tokens.shape[1])
        if tokens[row, at] >= 0
    ]
    loss = torch.stack(terms).mean()
    loss.backward()
    return float(loss.detach()), flat.grad.numpy()


@BOTH
@pytest.mark.parametrize("groups", [FLOAT32_WHOLE, PAIRS], ids=["whole", "groups"])
def test_loss_and_gradient_are_those_of_the_targets_that_are_not_masked(compute, groups):
    tokens = a_batch()
    tokens[2:4, 1:] = np.where(tokens[2:4, 1:] < 0, tokens[2:4, 1:], ~tokens[2:4, 1:])  # a group without any
    loss, gradient = plainly(tokens)

    found, found_P = compute(MODEL, LAYOUT, parameters(), tokens, compute=groups)

    assert 0 < target_count(tokens) < tokens[:, 1:].size / 2
    assert found == pytest.approx(loss, rel=1e-6)
    assert np.linalg.norm(found_P - gradient) < 1e-5 * np.linalg.norm(gradient)


@BOTH
def test_a_batch_that_is_masked_whole_has_no_loss_and_no_gradient(compute):
    tokens = a_batch(masked=1)

    loss, gradient = compute(MODEL, LAYOUT, parameters(), tokens, compute=PAIRS)

    assert loss == 0 and gradient.tobytes() == bytes(gradient.nbytes)
    assert mean_loss(MODEL, LAYOUT, parameters(), tokens) == 0


def test_whether_the_first_token_is_masked_changes_nothing():
    tokens = a_batch()
    other = tokens.copy()
    other[:, 0] = ~other[:, 0]

    one, two = (reference_loss_and_gradient(MODEL, LAYOUT, parameters(), batch, compute=FLOAT32_WHOLE)
                for batch in (tokens, other))  # fmt: skip

    assert one[0] == two[0] and np.array_equal(one[1], two[1])


def test_the_held_out_loss_counts_each_target_once_whatever_the_groups():
    tokens = a_batch()
    tokens[4, 1:] = visible(tokens[4, 1:])

    losses = [mean_loss(MODEL, LAYOUT, parameters(), tokens, rows=rows) for rows in (1, 2, 5)]

    assert losses == pytest.approx([plainly(tokens)[0]] * 3, rel=1e-6)


@BOTH
def test_a_masked_token_beyond_the_vocabulary_is_refused_as_any(compute):
    tokens = a_batch()
    tokens[1, 3] = ~MODEL.vocabulary

    with pytest.raises((ValueError, IndexError)):
        compute(MODEL, LAYOUT, parameters(), tokens, compute=FLOAT32_WHOLE)
    with pytest.raises(ValueError, match=r"does not|expected"):
        reference_loss_and_gradient(
            replace(MODEL, vocabulary=200), LAYOUT, parameters(), tokens, compute=PAIRS
        )
