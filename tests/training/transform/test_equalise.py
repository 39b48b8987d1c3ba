"""Equalised gradients: the formula, its bounds, and that a step of DeMo begins with them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.protocol.params import BLOCK_SIZE, PPM
from assay.protocol.update_rule import Transform
from assay.testing.specs import a_rule
from assay.training.layout import Layout, to_blocks
from assay.training.transform import equalise
from assay.training.transform.blocked_dct import length, transformed_blocks
from assay.training.transform.compress import gradient_blocks
from assay.training.transform.dct import block_spectra
from assay.training.transform.equalise import QUIETEST, equalised, equalising
from tests.training.transform.test_blocked_dct import SHAPES, a_layout

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


def in_order(sums: np.ndarray) -> np.ndarray:
    """Added up from the first on, one after another."""
    return np.add.accumulate(sums, axis=0)[-1]


def sums_by_numpy(matrix: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Of squares, in all, by row and by column: a row's in eight lanes, the others from the top."""
    squares = matrix.astype(np.float64) ** 2
    lanes = np.pad(squares, ((0, 0), (0, -matrix.shape[1] % 8))).reshape(len(matrix), -1, 8)
    rows = in_order(in_order(lanes.swapaxes(0, 1)).T)
    return float(in_order(rows)), rows, in_order(squares)


def by_numpy(layout: Layout, gradient: np.ndarray) -> np.ndarray:
    """The formula of the module in numpy, with every sum in the order that the protocol's vectors have."""
    out = np.zeros(layout.parameters, np.float32)
    parts = {at: gradient[at : at + math.prod(shape)] for at, shape in layout.offsets().values()}
    vectors = [at for at, shape in layout.offsets().values() if len(shape) == 1]
    lengths = [length(parts[at]) for at in vectors]
    counts = [len(parts[at]) for at in vectors]
    whole = math.sqrt(sum(one * one for one in lengths) / sum(counts)) if vectors else 0.0
    for at, factor in zip(vectors, roots(np.array(lengths) / np.sqrt(counts), whole), strict=True):
        out[at : at + len(parts[at])] = parts[at] * factor
    for at, shape in layout.offsets().values():
        if len(shape) == 1:
            continue
        high, wide = shape
        matrix = parts[at].reshape(shape)
        total, rows, columns = sums_by_numpy(matrix)
        whole = math.sqrt(total / (high * wide))
        by_row, by_column = roots(np.sqrt(rows / wide), whole), roots(np.sqrt(columns / high), whole)
        out[at : at + high * wide] = ((matrix * by_row[:, None]) * by_column).reshape(-1)
    return out


def roots(sizes: np.ndarray, whole: float) -> np.ndarray:
    if whole == 0:
        return np.ones(len(sizes), np.float32)
    return np.sqrt(whole / np.maximum(sizes, whole * QUIETEST)).astype(np.float32)


ODD = [((1, 1),), ((1, 200), (200, 1)), ((7, 9), (3,), (9, 7), (8, 8)), ((67, 83), (65, 129)), ((513, 1025),)]


def huge(layout: Layout) -> np.ndarray:
    """As large as float32 has them, of both signs."""
    sign = np.where(a_gradient(layout) < 0, -1, 1)
    return (sign * np.float32(np.finfo(np.float32).max)).astype(np.float32)


def silent_in_places(layout: Layout) -> np.ndarray:
    """A zero of either sign in most places, and whole rows of them."""
    gradient = a_gradient(layout)
    gradient[gradient < np.float32(1)] = 0
    gradient[: len(gradient) // 3] *= np.float32(-0.0)
    return gradient


GRADIENTS = {
    "loud rows": a_gradient,
    "alike": lambda layout: a_gradient(layout, spread=0.0),
    "zeros": lambda layout: np.zeros(layout.parameters, np.float32),
    "zeros in places": silent_in_places,
    "huge": huge,
    "tiny": lambda layout: a_gradient(layout, spread=1.0) * np.float32(1e-40),  # below the normal ones
    "from tiny to huge": lambda layout: np.ldexp(
        a_gradient(layout, spread=0.0), np.arange(layout.parameters) % 250 - 140
    ),
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("shapes", [*SHAPES, *ODD])
def test_every_bit_is_that_of_the_formula_in_numpy(shapes, kind):
    layout = a_layout(shapes)
    gradient = GRADIENTS[kind](layout)
    assert gradient.dtype == np.float32 and np.isfinite(gradient).all()

    found = equalised(layout, gradient)

    assert found.tobytes() == by_numpy(layout, gradient).tobytes()


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize(
    "shape", [shape for shapes in (*SHAPES, *ODD) for shape in shapes if len(shape) == 2]
)
def test_sums_are_added_up_in_their_one_order(shape, kind):
    """In float64: the factors, rounded to float32, would seldom show another order."""
    matrix = GRADIENTS[kind](a_layout((shape,))).reshape(shape)
    rows, columns = np.zeros(shape[0]), np.zeros(shape[1])

    total = equalise._squares(matrix, rows, columns)

    assert all(map(np.array_equal, (total, rows, columns), sums_by_numpy(matrix)))


@pytest.mark.parametrize("kind", ["loud rows", "zeros in places", "tiny"])
@pytest.mark.parametrize("shapes", [*SHAPES, *ODD])
def test_a_transform_that_equalises_as_it_reads_gives_the_bits_of_one_of_the_equalised(shapes, kind):
    layout = a_layout(shapes)
    gradient = GRADIENTS[kind](layout)
    before = gradient.copy()

    found = transformed_blocks(layout, gradient, 3e-4, scales=equalising(layout, gradient))

    assert found.tobytes() == transformed_blocks(layout, by_numpy(layout, gradient), 3e-4).tobytes()
    assert gradient.tobytes() == before.tobytes()


@pytest.mark.parametrize("sizes", [(63, 128), (65, 128), (64, 127), (64, 129), (1, 128), (0, 0)])
def test_factors_that_do_not_fit_are_refused_before_anything_is_written(sizes):
    out = np.zeros((2, 4096), np.float32)
    rows, columns = (np.ones(size, np.float32) for size in sizes)

    with pytest.raises(ValueError, match="factors of"):
        block_spectra(np.ones((64, 128), np.float32), 1.0, out, (rows, columns))

    assert not out.any()


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


@pytest.mark.parametrize("transform", Transform)
@pytest.mark.parametrize("is_equalised", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_what_enters_the_momentum_is_equalised_if_the_rule_says_so(is_equalised, clip, transform):
    layout = a_layout(((100, 70), (10,), (64, 64)))
    gradient = a_gradient(layout)
    rule = a_rule(equalises=is_equalised, clip_micro=round(clip * PPM), transform=transform)

    found = gradient_blocks(rule, layout, gradient, ONE)

    entering = by_numpy(layout, gradient) if is_equalised else gradient
    factor = clip / length(gradient) if clip else 1.0  # the gradient's own norm is clipped
    if transform is Transform.DCT:
        expected = transformed_blocks(layout, entering, factor)
    else:
        expected = to_blocks(layout, entering * np.float32(factor)).reshape(-1, BLOCK_SIZE)
    assert found.tobytes() == expected.tobytes()
