"""Products: every element is the sum over k, ascending, each operation rounded, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.reference.product import Shape, multiply

SIZES = st.integers(1, 40)


def in_order(a, b, start):
    """The definition, element by element in float32."""
    c = start.copy()
    for k in range(a.shape[2]):
        c = c + a[:, :, k, None] * b[:, None, k, :]
    return c


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(
    products=st.integers(1, 3), rows=SIZES, depth=SIZES, wide=SIZES, adds=st.booleans(),
    is_turned=st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip
def test_a_product_is_the_sum_in_order(products, rows, depth, wide, adds, is_turned):
    a, b, c = drawn(1, products, rows, depth), drawn(2, products, depth, wide), drawn(3, products, rows, wide)
    expected = in_order(a, b, c if adds else np.zeros_like(c))
    a, b = (
        np.ascontiguousarray(one.transpose(0, 2, 1)).transpose(0, 2, 1) if turned else one
        for one, turned in zip((a, b), is_turned, strict=True)
    )

    multiply(a, b, c, adds=adds)

    assert np.array_equal(c, expected)


@pytest.mark.parametrize(("rows", "depth", "wide"), [(7, 600, 1040), (13, 257, 513), (1, 1000, 1)])
def test_blocks_of_a_large_product_continue_the_sums(rows, depth, wide):
    a, b, c = drawn(1, 1, rows, depth), drawn(2, 1, depth, wide), np.empty((1, rows, wide), np.float32)

    multiply(a, b, c)

    assert np.array_equal(c, in_order(a, b, np.zeros_like(c)))


@pytest.mark.parametrize("length", [1, 5, 6, 7, 16, 33, 300])
def test_a_triangular_product_has_the_bits_of_the_whole_one(length):
    square, b = drawn(1, 2, length, length), drawn(2, 2, length, 9)
    lower = np.tril(square)
    upper = np.ascontiguousarray(lower.transpose(0, 2, 1))
    found, whole = np.empty((2, *b.shape), np.float32)
    for factor, shape in ((lower, Shape.LOWER_FACTOR), (upper, Shape.UPPER_FACTOR)):
        multiply(factor, b, found, shape)
        multiply(factor, b, whole)
        assert np.array_equal(found, whole)

    found, whole = np.empty((2, *square.shape), np.float32)
    multiply(square, lower, found, Shape.LOWER_RESULT)
    multiply(square, lower, whole)
    assert np.array_equal(np.tril(found), np.tril(whole))


def test_the_rows_of_a_result_may_lie_apart():
    a, b, room = drawn(1, 2, 8, 5), drawn(2, 2, 5, 20), np.zeros((8, 2, 24), np.float32)
    c = room[:, :, :20].transpose(1, 0, 2)

    multiply(a, b, c)

    assert np.array_equal(c, in_order(a, b, np.zeros(c.shape, np.float32)))
    assert not room[:, :, 20:].any()


@pytest.mark.parametrize(
    ("a", "b", "c", "words"),
    [
        (np.zeros((1, 2, 3)), np.zeros((1, 3, 2)), np.zeros((1, 2, 2)), "expected float32"),
        (*(np.zeros(s, np.float32) for s in ((1, 2, 3), (1, 4, 2), (1, 2, 2))), "product of shapes"),
        (*(np.zeros(s, np.float32) for s in ((2, 2, 3), (1, 3, 2), (2, 2, 2))), "product of shapes"),
        (*(np.zeros(s, np.float32) for s in ((1, 2, 3), (1, 3, 2), (1, 2, 3))), "product of shapes"),
        (
            *(np.zeros(s, np.float32) for s in ((1, 2, 3), (1, 3, 2))),
            np.zeros((1, 2, 4), np.float32)[:, :, ::2],
            "steps of 8 bytes",
        ),
    ],
)
def test_factors_that_do_not_fit_are_refused(a, b, c, words):
    with pytest.raises(ValueError, match=words):
        multiply(a, b, c)
