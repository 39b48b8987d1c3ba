"""Rounding: the probe bounds what classes differ by, also where a gradient's terms nearly cancel."""

from __future__ import annotations

import numpy as np
import pytest

from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of, to_blocks
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.reference.rounding import rounding_probe
from assay.verifier.audit.tolerance import is_cancelled

MODEL = a_model()
LAYOUT = layout_of(MODEL)
EPSILON = 2.0**-24


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


def a_batch(sequences: int = 2) -> np.ndarray:
    return np.random.default_rng(3).integers(0, MODEL.vocabulary, (sequences, MODEL.context + 1))


def parameters() -> np.ndarray:
    return initial_parameters(4, LAYOUT.names, LAYOUT.shapes)


def by_heart(tokens: np.ndarray, loss_at_most: float) -> np.ndarray:
    """Parameters that know this batch so well."""
    theta, mean, square = parameters().copy(), 0.0, 0.0
    for step in range(1, 2000):
        loss, slope = loss_and_gradient(MODEL, LAYOUT, theta, tokens, compute=FLOAT32_WHOLE)
        if loss < loss_at_most:
            return theta
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
        move = 3e-3 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-9)
        theta = (theta - move).astype(np.float32)
    raise AssertionError("not learned")


def compared(theta: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By block: how far this class is from the reference class, the gradient's norm and the probe's."""
    _, native = loss_and_gradient(MODEL, LAYOUT, theta, tokens, compute=FLOAT32_WHOLE)
    _, there = reference_loss_and_gradient(MODEL, LAYOUT, theta, tokens, compute=FLOAT32_WHOLE)
    probe = rounding_probe(MODEL, LAYOUT, theta, tokens, compute=FLOAT32_WHOLE)
    blocks = [
        to_blocks(LAYOUT, one).reshape(LAYOUT.blocks, -1).astype(np.float64) for one in (native, there, probe)
    ]
    return tuple(np.linalg.norm(one, axis=1) for one in (blocks[0] - blocks[1], blocks[1], blocks[2]))


def test_on_data_that_are_news_nothing_cancels():
    distance, slope, probe = compared(parameters(), a_batch())

    assert (distance < 64 * EPSILON * probe).all()
    assert (probe < 4 * slope).all()


def test_of_a_batch_known_by_heart_rounding_exceeds_the_limits_and_the_probe_tells():
    tokens = a_batch()
    theta = by_heart(tokens, 1e-3)

    distance, slope, probe = compared(theta, tokens)

    assert np.median(distance / slope) > 1.4e-5 * 5  # beyond the shipped limit and its band
    assert (distance < 64 * EPSILON * probe).all()
    assert (probe > 100 * slope).all()


def test_of_two_sequences_that_contradict_each_other_little_is_left():
    tokens = a_batch(1)
    other = tokens.copy()
    other[0, -1] = (tokens[0, -1] + 1) % MODEL.vocabulary
    pair = np.concatenate([tokens, other])
    _, slope = reference_loss_and_gradient(MODEL, LAYOUT, parameters(), pair, compute=FLOAT32_WHOLE)
    probe = rounding_probe(MODEL, LAYOUT, parameters(), pair, compute=FLOAT32_WHOLE)
    blocks = range(LAYOUT.blocks)

    assert not is_cancelled(LAYOUT, blocks, slope, probe)
    assert is_cancelled(LAYOUT, blocks, slope / np.float32(20), probe)  # as if they cancelled so far
    assert not is_cancelled(LAYOUT, blocks, slope, probe * np.float32(2))
