"""Equalised gradients: the formula, its bounds, and that a step of DeMo begins with them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.params import PPM
from tests.specs import a_rule
from tests.training.test_forward import SHAPES, a_layout
from training.compress import gradient_blocks
from training.equalise import QUIETEST, equalised
from training.forward import transformed_blocks
from training.layout import Layout

ONE = np.float32(1)


def a_gradient(layout: Layout, spread: float = 3.0) -> np.ndarray:
    """Entries whose sizes differ by row, as those of an embedding do."""
    rng = np.random.default_rng(1)
    loud = np.exp(spread * rng.standard_normal(layout.parameters))
    return (rng.standard_normal(layout.parameters) * np.sort(loud)).astype(np.float32)


def by_hand(layout: Layout, gradient: np.ndarray) -> np.ndarray:
    """The formula of the module, entry by entry, in float64."""
    out = np.zeros(layout.parameters)
    wide = gradient.astype(np.float64)

    def size(part: np.ndarray) -> float:
        return math.sqrt(float(np.mean(part**2))) if part.size else 0.0

    vectors = [at for at, shape in layout.offsets().values() if len(shape) == 1]
    ends = {at: at + math.prod(shape) for at, shape in layout.offsets().values()}
    of_vectors = size(np.concatenate([wide[at : ends[at]] for at in vectors])) if vectors else 0.0
    for at, shape in layout.offsets().values():
        part = wide[at : ends[at]]
        if len(shape) == 1:
            out[at : ends[at]] = part * math.sqrt(of_vectors / max(size(part), of_vectors * QUIETEST))
            continue
        matrix = part.reshape(shape)
        whole = size(matrix)
        rows = np.array([max(size(row), whole * QUIETEST) for row in matrix])
        columns = np.array([max(size(column), whole * QUIETEST) for column in matrix.T])
        out[at : ends[at]] = (matrix * whole / np.sqrt(np.outer(rows, columns))).reshape(-1)
    return out


@pytest.mark.parametrize("shapes", [*SHAPES, ((2000, 300), (5,))])  # the last: rows in more than one group
def test_every_entry_is_divided_by_the_roots_of_its_rows_and_its_columns_size(shapes):
    layout = a_layout(shapes)
    gradient = a_gradient(layout)
    before = gradient.copy()

    found = equalised(layout, gradient)

    assert found.dtype == np.float32 and found.shape == gradient.shape
    assert np.allclose(found, by_hand(layout, gradient), rtol=1e-6, atol=0)
    assert np.array_equal(np.sign(found), np.sign(gradient))
    assert np.array_equal(gradient, before)


def test_twice_the_gradient_gives_twice_the_result():
    layout = a_layout(((100, 70), (10,), (64, 64)))
    gradient = a_gradient(layout)

    assert np.array_equal(equalised(layout, 2 * gradient), 2 * equalised(layout, gradient))


def test_rows_and_columns_come_nearer_to_one_size():
    layout = a_layout(((128, 192),))
    gradient = a_gradient(layout, spread=1.0)

    def spread(flat: np.ndarray, axis: int) -> float:
        sizes = np.sqrt(np.mean(flat.reshape(128, 192) ** 2, axis=axis))
        return float(sizes.max() / sizes.min())

    found = equalised(layout, gradient)

    for axis in (0, 1):
        assert spread(found, axis) < 1.1 * math.sqrt(spread(gradient, axis))


def test_a_quiet_entry_grows_by_no_more_than_a_factor_of_1024():
    layout = a_layout(((64, 64),))
    gradient = np.full((64, 64), 1.0, np.float32)
    gradient[3] = gradient[:, 5] = 1e-12
    gradient[7] = gradient[:, 7] = 0

    found = equalised(layout, gradient.reshape(-1)).reshape(64, 64)

    assert found[3, 5] == pytest.approx(1e-12 * 1024, rel=1e-5)
    assert np.max(np.abs(found / np.where(gradient, gradient, 1))) <= 1024 * (1 + 1e-6)
    assert not found[7].any() and not found[:, 7].any()


@pytest.mark.parametrize("shapes", [((64, 64), (10,)), ((64, 64),), ((10,), (3,))])
def test_zeros_stay_zeros(shapes):
    layout = a_layout(shapes)

    assert not equalised(layout, np.zeros(layout.parameters, np.float32)).any()


def test_a_silent_tensor_leaves_the_others_as_they_are():
    layout = a_layout(((64, 64), (64, 64), (7,), (9,)))
    gradient = a_gradient(layout)
    alone = equalised(layout, gradient)
    gradient[:4096] = 0

    found = equalised(layout, gradient)

    assert not found[:4096].any() and np.array_equal(found[4096:], alone[4096:])


@pytest.mark.parametrize("is_equalised", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_what_enters_the_momentum_is_equalised_if_the_rule_says_so(is_equalised, clip):
    layout = a_layout(((100, 70), (10,), (64, 64)))
    gradient = a_gradient(layout)
    rule = a_rule(equalises=is_equalised, clip_micro=round(clip * PPM))

    found = gradient_blocks(rule, layout, gradient, ONE)

    entering = equalised(layout, gradient) if is_equalised else gradient
    factor = clip / float(np.linalg.norm(gradient)) if clip else 1.0  # the gradient's own norm is clipped
    expected = transformed_blocks(layout, entering, factor)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
