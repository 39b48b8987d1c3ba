"""The inverse transform's signs are those of the protocol's whole numbers, also where the estimate is 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.exact import BASIS_BITS, BASIS_SS, VALUE_MAX
from assay.training.transform.dct import FACTORS, IS_SUM, PLACES
from assay.training.transform.inverse import inverse_signs


def values(seed: int, blocks: int, share: float, bound: int = VALUE_MAX) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dense = rng.integers(-bound, bound + 1, (blocks, 64, 64)).astype(np.int32)
    return np.where(rng.random(dense.shape) < share, dense, 0).astype(np.int32)


def in_big_integers(block: np.ndarray) -> np.ndarray:
    """The rule of docs/protocol.md in Python's integers: no float anywhere."""
    basis = np.array([[int(x) for x in row] for row in BASIS_SS], dtype=object)
    first = (block.astype(object) @ basis + (1 << (BASIS_BITS - 1))) >> BASIS_BITS
    both = basis.T @ first
    return np.vectorize(lambda x: (x > 0) - (x < 0))(both).astype(np.int8)


def inverse_of(dense_NSS: np.ndarray) -> np.ndarray:
    """`inverse_signs` of whole blocks."""
    flat = dense_NSS.reshape(-1, 4096)
    block_T, index_T = np.nonzero(flat)
    return inverse_signs(np.count_nonzero(flat, axis=1), index_T.astype(np.int16), flat[block_T, index_T])


@pytest.mark.parametrize("share", [0.001, 0.01, 0.2, 1.0])
def test_the_inverse_transform_is_the_one_in_big_integers(share):
    dense = values(int(share * 1000), 3, share)

    assert np.array_equal(inverse_of(dense), np.stack([in_big_integers(block) for block in dense]))


def test_the_largest_values_of_all_are_still_exact():
    """Every partial sum is below 2^53 where all coefficients are as large as they may be."""
    signs = np.sign(BASIS_SS.T[:, [17]] @ np.ones((1, 64))).astype(np.int32)
    for dense in (np.full((64, 64), VALUE_MAX), -np.full((64, 64), VALUE_MAX), signs * VALUE_MAX):
        block = dense.astype(np.int32)
        assert np.array_equal(inverse_of(block[None])[0], in_big_integers(block))
    assert 64 * VALUE_MAX * int(np.abs(BASIS_SS).max()) < 2**53
    assert 64 * (64 * VALUE_MAX + 1) * int(np.abs(BASIS_SS).max()) < 2**53


def test_a_single_coefficient_gives_the_signs_of_its_wave():
    dense = np.zeros((1, 64, 64), np.int32)
    dense[0, 0, 0] = 5
    assert np.all(inverse_of(dense) == 1)
    dense[0, 0, 0], dense[0, 0, 1] = 0, -VALUE_MAX
    assert np.array_equal(inverse_of(dense)[0], np.tile(np.repeat([-1, 1], 32), (64, 1)))


@pytest.mark.parametrize(("value", "sign"), [(3, 0), (4, 1), (5, 1), (-3, 0), (-4, 0), (-5, -1)])
def test_halves_between_the_two_stages_are_rounded_up(value, sign):
    """The first row of the basis is 2^11 everywhere, so 4 times it is exactly half of 2^14."""
    assert set(BASIS_SS[0].tolist()) == {2048.0}
    dense = np.zeros((1, 64, 64), np.int32)
    dense[0, 0, 0] = value

    assert set(inverse_of(dense).reshape(-1).tolist()) == {sign}


def test_zeros_stay_zeros():
    assert not inverse_of(np.zeros((2, 64, 64), np.int32)).any()
    assert inverse_of(np.zeros((0, 64, 64), np.int32)).shape == (0, 64, 64)


def test_a_value_that_could_lose_exactness_stops_us():
    for value in (VALUE_MAX + 1, -VALUE_MAX - 1):
        dense = np.zeros((1, 64, 64), np.int32)
        dense[0, 3, 3] = value
        with pytest.raises(AssertionError):
            inverse_of(dense)


@pytest.mark.parametrize(
    ("count_N", "index_T"),
    [([2, 1], [0, 0]), ([0, 1], [0, 0]), ([-1, 2], [0]), ([1, 0], [4096]), ([0, 1], [-1])],
)
def test_counts_that_are_not_those_of_the_places_and_places_that_are_not_there_stop_us(count_N, index_T):
    value_T = np.ones(len(index_T), np.int32)
    with pytest.raises(AssertionError):
        inverse_signs(np.array(count_N), np.array(index_T, np.int16), value_T)


def test_the_estimates_rounding_is_under_the_part_of_its_limit_that_is_for_it():
    """The worst of all inputs, by adding up what each float32 operation can lose (u = 2^-24)."""
    unit, worst = 2.0**-24, 0.0
    for row in range(64):
        size, error = np.eye(64)[row], np.zeros(64)
        for (i, k), (a, b, c, d), is_sum in zip(
            PLACES[::-1], np.abs(FACTORS[::-1]), IS_SUM[::-1], strict=True
        ):
            roundings = 1 if is_sum else 3  # of the sum; and of a factor and a product
            for values_S in (size, error):
                values_S[[i, k]] = (
                    a * values_S[i] + c * values_S[k], b * values_S[i] + d * values_S[k]
                )  # fmt: skip
            error[[i, k]] += roundings * unit * (size[[i, k]] + error[[i, k]])
        worst = max(worst, error.max())

    in_units_of_the_table = worst * 2**BASIS_BITS / 8
    assert in_units_of_the_table < 1 / 250
    assert np.abs(BASIS_SS - np.rint(BASIS_SS)).max() == 0  # whole, so nearest to within half a unit


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 63), st.integers(1, 64))
def test_sums_that_nearly_cancel_have_the_sign_of_the_whole_numbers(seed, position, rows):
    """Columns of numbers that are chosen so that the second stage comes out near 0 at one position."""
    rng = np.random.default_rng(seed)
    dense = np.zeros((64, 64), np.int32)
    frequencies = rng.permutation(64)[:rows]
    dense[frequencies, 0] = rng.integers(-VALUE_MAX, VALUE_MAX + 1, rows)  # a constant along each row
    weights = BASIS_SS[:, position]
    for _ in range(3):  # take what is too much from one row after another
        for row in frequencies:
            if abs(weights[row]) > 100:
                rest = weights @ dense[:, 0]
                dense[row, 0] = np.clip(dense[row, 0] - round(rest / weights[row]), -VALUE_MAX, VALUE_MAX)

    assert np.array_equal(inverse_of(dense[None])[0], in_big_integers(dense))
