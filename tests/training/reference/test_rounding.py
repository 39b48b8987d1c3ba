"""Rounding: the probe bounds what classes differ by, also where a gradient's terms nearly cancel."""

from __future__ import annotations

import numpy as np
import pytest

from assay.testing.learned import learned_by_heart
from assay.testing.specs import FLOAT32_WHOLE, a_model
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of, to_blocks
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.reference.gradient import reference_loss_and_gradient
from assay.training.reference.rounding import rounding_probe
from assay.verifier.audit.tolerance import cancellation

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
    theta = learned_by_heart(MODEL, parameters(), tokens, loss_at_most=1e-3)

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

    assert (cancellation(LAYOUT, slope, probe) < 1).all()
    assert (cancellation(LAYOUT, slope / np.float32(20), probe) > 1).any()  # as if they cancelled so far
    assert (cancellation(LAYOUT, slope, probe * np.float32(2)) < 1).all()
