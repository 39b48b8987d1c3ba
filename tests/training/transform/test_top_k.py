"""The k largest of every block: those of a full sort, ties to the lower index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE
from assay.training.transform.top_k import add_and_choose, largest

KS = [1, 2, 3, 31, 32, 33, 64, 500, 1000, 2048, BLOCK_SIZE]


def sizes(seed: int, blocks: int, distinct: int) -> np.ndarray:
    """Heavy tails; with few distinct values there are ties everywhere, and zeros."""
    rng = np.random.default_rng(seed)
    values = np.abs(rng.standard_normal((blocks, BLOCK_SIZE))) * np.exp(
        rng.standard_normal((blocks, BLOCK_SIZE))
    )
    if distinct:
        values = np.floor(values * distinct) / distinct
    return values.astype(np.float32)


def by_sorting(size: np.ndarray, k: int) -> tuple[list[int], list[list[int]]]:
    live = [row for row in range(len(size)) if np.count_nonzero(size[row]) >= k]
    return live, [sorted(np.argsort(-size[row], kind="stable")[:k].tolist()) for row in live]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from(KS), st.sampled_from([0, 1, 3, 50]))
def test_the_chosen_are_those_of_a_stable_sort(seed, blocks, k, distinct):
    size = sizes(seed, blocks, distinct)

    live, index = largest(size, k)

    assert (live.tolist(), index.tolist()) == by_sorting(size, k)


@pytest.mark.parametrize("k", KS)
def test_neither_where_the_large_ones_lie_nor_how_many_are_equal_matters(k):
    rows = np.zeros((8, BLOCK_SIZE), np.float32)
    rows[0] = 0.5  # all equal
    rows[1, :k] = 1  # just enough, in one place
    rows[2, : k - 1] = 1  # one too few
    rows[3, ::256] = 2  # all in one group
    rows[3] += np.float32(1e-3)
    rows[4, -k:] = np.arange(1, k + 1)
    rows[5] = np.arange(BLOCK_SIZE)
    rows[6, :k] = 1e-45  # as small as sizes get
    size, before = rows, rows.copy()

    live, index = largest(size, k)

    assert (live.tolist(), index.tolist()) == by_sorting(size, k)
    assert 2 not in live and 7 not in live and 6 in live
    assert np.array_equal(size, before)


@pytest.mark.parametrize("k", [1, 32])
def test_what_is_not_finite_is_never_an_error(k):
    size = sizes(3, 4, 0)
    size[0, 5], size[1, :], size[2, :100] = np.nan, np.nan, np.inf

    live, index = largest(size, k)

    assert 1 not in live and {2, 3} <= set(live.tolist())
    assert index[live.tolist().index(2)].tolist() == list(range(k))
    assert index.min() >= 0 and index.max() < BLOCK_SIZE


def test_any_subset_of_blocks_gives_the_same():
    size = sizes(4, 9, 20)
    size[3] = 0
    live, index = largest(size, 32)
    every = dict(zip(live.tolist(), index.tolist(), strict=True))

    for chosen in ([0], [3], [8, 3, 1], [7, 6, 5, 4, 2]):
        live, index = largest(size[chosen], 32)
        assert live.tolist() == [i for i, row in enumerate(chosen) if row in every]
        assert index.tolist() == [every[row] for row in chosen if row in every]


def test_no_block_at_all_is_no_choice():
    live, index = largest(np.zeros((0, BLOCK_SIZE), np.float32), 32)

    assert live.shape == (0,) and index.shape == (0, 32)


def test_signs_do_not_matter_for_size():
    size = sizes(5, 3, 20)
    signed = np.where(np.arange(BLOCK_SIZE) % 3, size, -size).astype(np.float32)

    for found, expected in zip(largest(signed, 32), largest(size, 32), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("k", [1, 32, 2048])
@pytest.mark.parametrize("in_place", [False, True])
def test_adding_and_choosing_at_once_is_both_one_after_the_other(k, in_place):
    before, x = (
        np.random.default_rng(seed).standard_normal((7, BLOCK_SIZE)).astype(np.float32) for seed in (1, 2)
    )
    x[3], before[3] = 0, 0
    expected = before * np.float32(0.95) + x
    after = before if in_place else np.empty_like(x)

    chosen = add_and_choose(before, x, np.float32(0.95), k, after)

    assert np.array_equal(after, expected)
    for found, wanted in zip(chosen, largest(expected, k), strict=True):
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("before", "x", "after"), [(2, 3, 3), (3, 2, 3), (3, 3, 2), (3, 3, 4)])
def test_blocks_that_do_not_belong_together_are_refused(before, x, after):
    rows = [np.zeros((count, BLOCK_SIZE), np.float32) for count in (before, x, after)]

    with pytest.raises(ValueError, match="blocks of shapes"):
        add_and_choose(rows[0], rows[1], np.float32(1), 32, rows[2])


@pytest.mark.parametrize(
    ("width", "k"), [(BLOCK_SIZE, 0), (BLOCK_SIZE, BLOCK_SIZE + 1), (4095, 32), (64, 65)]
)
def test_a_choice_that_does_not_exist_is_refused(width, k):
    with pytest.raises(ValueError, match="coefficients"):
        largest(np.ones((2, width), np.float32), k)
