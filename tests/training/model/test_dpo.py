"""DPO: loss and gradient of preference pairs, in torch and in the reference class, are those of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from assay.protocol.params import ComputeSpec, Precision
from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.data.mask import visible
from assay.training.data.preferences import REFERENCE_TOKENS, reference_nats, with_reference
from assay.training.exact import initial_parameters
from assay.training.execution.execution_class import execution_class
from assay.training.layout import layout_of
from assay.training.model.gpt import gpt_logits
from assay.training.model.loss import loss_and_gradient, mean_loss, use_one_thread, use_threads
from assay.training.reference.gradient import reference_loss, reference_loss_and_gradient

MODEL = a_model()
LAYOUT = layout_of(MODEL)
BETA = 0.3
WHOLE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0, beta_micro=300_000)
GROUPS = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=4, beta_micro=300_000)
BOTH = pytest.mark.parametrize("compute", [loss_and_gradient, reference_loss_and_gradient])


def theta(scale: float = 2) -> np.ndarray:
    drawn = initial_parameters(4, LAYOUT.names, LAYOUT.shapes)
    return drawn * np.float32(scale) + np.float32(0.003)


def pairs(count: int = 3, nats: tuple[float, ...] = (40.25, 38.5, 31, 44, 52.125, 39)) -> np.ndarray:
    draw = np.random.default_rng(5)
    tokens = draw.integers(0, MODEL.vocabulary, (2 * count, MODEL.context + 1))
    tokens[:, :4], tokens[:, -REFERENCE_TOKENS - 1 :] = ~tokens[:, :4], ~0
    return np.stack([with_reference(row, one) for row, one in zip(tokens, nats, strict=False)])


def plainly(tokens: np.ndarray, nats=(40.25, 38.5, 31, 44, 52.125, 39)) -> tuple[float, np.ndarray]:
    """In float64, word by word: equation 7 of the paper, as the mean over pairs."""
    flat = torch.from_numpy(theta().astype(np.float64)).requires_grad_(True)
    parts = {n: flat[at : at + int(np.prod(s))].view(s) for n, (at, s) in LAYOUT.offsets().items()}
    log_p = gpt_logits(MODEL, parts, torch.from_numpy(visible(tokens)[:, :-1])).log_softmax(-1)
    policy = [
        sum(log_p[row, at - 1, int(t)] for at, t in enumerate(tokens[row]) if at and t >= 0)
        for row in range(len(tokens))
    ]
    losses = [
        torch.log1p(torch.exp(-BETA * ((policy[c] + nats[c]) - (policy[c + 1] + nats[c + 1]))))
        for c in range(0, len(tokens), 2)
    ]
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach()), flat.grad.numpy()


@BOTH
@pytest.mark.parametrize("groups", [WHOLE, GROUPS], ids=["whole", "groups"])
def test_loss_and_gradient_are_those_of_the_paper(compute, groups):
    loss, gradient = plainly(pairs())

    found, found_P = compute(MODEL, LAYOUT, theta(), pairs(), compute=groups)

    assert found == pytest.approx(loss, rel=1e-5)
    assert np.linalg.norm(found_P - gradient) < 1e-4 * np.linalg.norm(gradient)


@BOTH
def test_a_model_that_is_its_own_reference_has_a_loss_of_log_2_and_still_learns(compute):
    own = [reference_loss(MODEL, theta(), row[None]) for row in pairs()]
    tokens = np.stack([with_reference(row, nats) for row, nats in zip(pairs(), own, strict=True)])

    found, gradient = compute(MODEL, LAYOUT, theta(), tokens, compute=WHOLE)

    assert found == pytest.approx(math.log(2), abs=1e-5)
    assert np.linalg.norm(gradient) > 1e-3


@pytest.mark.parametrize(
    ("margin", "loss"), [(0.0, 0.693147), (1.0, 0.313262), (-2.0, 2.126928), (40.0, 0.0)]
)
@BOTH
def test_the_loss_of_a_margin_is_minus_log_sigmoid_of_it(compute, margin, loss):
    """The figures of TRL's "sigmoid" loss: -logsigmoid(beta * (logratio chosen - logratio rejected))."""
    chosen, rejected = (reference_loss(MODEL, theta(), row[None]) for row in pairs(1))
    nats = (chosen + max(margin, 0) / BETA, rejected + max(-margin, 0) / BETA)
    tokens = np.stack([with_reference(row, one) for row, one in zip(pairs(1), nats, strict=True)])

    found, _ = compute(MODEL, LAYOUT, theta(), tokens, compute=WHOLE)

    assert found == pytest.approx(loss, abs=1e-4)


@BOTH
def test_what_a_pair_says_of_the_reference_changes_nothing_that_the_model_reads(compute):
    """Nothing behind a completion reaches it, so embeddings of the digits have no slope of their own."""
    tokens = pairs(1)
    other = tokens.copy()
    other[:, -REFERENCE_TOKENS:] = ~((visible(tokens)[:, -REFERENCE_TOKENS:]) % MODEL.vocabulary)

    first, second = (compute(MODEL, LAYOUT, theta(), t, compute=FLOAT32_WHOLE)[1] for t in (tokens, other))

    assert np.array_equal(first, second)


def test_both_ways_agree_and_the_reference_class_has_the_same_bits_on_any_number_of_threads():
    loss, ordinary = loss_and_gradient(MODEL, LAYOUT, theta(), pairs(), compute=GROUPS)
    found = [reference_loss_and_gradient(MODEL, LAYOUT, theta(), pairs(), compute=GROUPS)]
    try:
        use_threads(2)
        found.append(reference_loss_and_gradient(MODEL, LAYOUT, theta(), pairs(), compute=GROUPS))
    finally:
        use_one_thread()

    assert found[0][0] == found[1][0]
    assert found[0][1].tobytes() == found[1][1].tobytes()
    assert found[0][0] == pytest.approx(loss, rel=1e-5)
    assert np.linalg.norm(found[0][1] - ordinary) < 1e-4 * np.linalg.norm(ordinary)


@BOTH
def test_a_margin_beyond_all_bounds_has_a_finite_loss_and_gradient(compute):
    for nats in ((65_000.0, 0.0), (0.0, 65_000.0)):
        tokens = np.stack([with_reference(row, one) for row, one in zip(pairs(1), nats, strict=True)])
        most = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0, beta_micro=10_000_000)

        loss, gradient = compute(MODEL, LAYOUT, theta(), tokens, compute=most)

        assert math.isfinite(loss) and np.isfinite(gradient).all()
        assert (loss > 100_000) == (nats[1] > 0)


def test_the_held_out_loss_of_pairs_is_that_of_training_whatever_is_computed_at_a_time():
    loss, _ = plainly(pairs())

    found = [mean_loss(MODEL, LAYOUT, theta(), pairs(), rows=rows, beta_micro=300_000) for rows in (2, 4, 8)]

    assert found == pytest.approx([loss] * 3, rel=1e-5)


def test_the_reference_class_refuses_groups_that_tear_a_pair():
    torn = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=3, beta_micro=300_000)

    with pytest.raises(ValueError, match="whole preference pairs"):
        reference_loss_and_gradient(MODEL, LAYOUT, theta(), pairs(), compute=torn)


def test_an_execution_class_is_of_precision_and_groups_whatever_the_loss():
    assert execution_class(WHOLE) == execution_class(FLOAT32_WHOLE)


@pytest.mark.parametrize("nats", [0.0, 2**-16, 12.345, 65_534.9])
def test_the_figure_of_the_reference_model_is_read_as_it_was_written(nats):
    tokens = with_reference(pairs(1)[0], nats)[None]

    assert reference_nats(tokens)[0] == pytest.approx(nats, abs=2**-17)


@pytest.mark.parametrize("nats", [-0.1, 65_535.0, math.nan, math.inf])
def test_a_figure_that_four_digits_do_not_hold_is_refused(nats):
    with pytest.raises(ValueError, match="nats, expected 0 to under"):
        with_reference(pairs(1)[0], nats)
