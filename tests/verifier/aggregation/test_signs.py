"""Sums over a sign wire's senders are those of the dense matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE
from assay.training import parallel
from assay.training.codec.wire import Update
from assay.verifier.aggregation.names import RULE_NAMES
from assay.verifier.aggregation.registry import rule_of
from assay.verifier.aggregation.signs import gram_of_signs, trimmed_mixtures, trimmed_signs, weighted_signs
from assay.verifier.aggregation.slabs import sign_rows
from tests.verifier.aggregation.test_robust import BLOCKS, an_update, by_peer, groups, rows

seeds_and_spans = given(groups, st.sampled_from([9, 40, 400]))  # from most places shared to few


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    parallel.set_count(1)


def gathered(updates: list[Update]):
    (found,) = [cut() for cut in sign_rows(by_peer(updates), BLOCKS)]
    assert found.first == 0
    return found


def dense(found: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Every coefficient of every block. Places come once and ascend."""
    at_T, sum_T = found
    assert np.all(np.diff(at_T) > 0)
    whole = np.zeros(BLOCKS * BLOCK_SIZE, np.int64)
    whole[at_T] = sum_T
    return whole.reshape(BLOCKS, BLOCK_SIZE)


@settings(max_examples=25, deadline=None)
@seeds_and_spans
def test_inner_products_are_those_of_the_dense_matrix(seeds, span: int):
    updates = [an_update(seed, span=span) for seed in seeds]

    gram_BNN = gram_of_signs(gathered(updates))

    assert np.array_equal(gram_BNN, np.einsum("nbc,mbc->bnm", rows(updates), rows(updates)))


@pytest.mark.parametrize("unit", [1, 6])
@pytest.mark.parametrize("weight_count", [1, BLOCKS])
@settings(max_examples=10, deadline=None)
@seeds_and_spans
def test_weighted_sums_are_those_of_the_dense_matrix(weight_count, unit, seeds, span: int):
    updates = [an_update(seed, span=span) for seed in seeds]
    weight_BN = np.random.default_rng(seeds[0]).integers(0, 1 << 14, (weight_count, len(seeds)))

    found = dense(weighted_signs(gathered(updates), weight_BN, unit))

    weight_BN = np.broadcast_to(weight_BN, (BLOCKS, len(seeds)))
    whole = np.einsum("bn,nbc->bc", weight_BN, rows(updates)).astype(np.int64)
    assert np.array_equal(found, np.sign(whole) * (np.abs(whole) // unit))


@pytest.mark.parametrize("trim", [0, 1, 2, 3])
@pytest.mark.parametrize("mix_count", [1, BLOCKS])
@settings(max_examples=10, deadline=None)
@seeds_and_spans
def test_trimmed_mixtures_are_those_that_sorting_leaves(mix_count, trim, seeds, span: int):
    updates = [an_update(seed, span=span) for seed in seeds]
    mix_BMN = np.random.default_rng(seeds[0]).integers(0, 4, (mix_count, 7, len(seeds)))

    found = dense(trimmed_mixtures(gathered(updates), mix_BMN, trim))

    mix_BMN = np.broadcast_to(mix_BMN, (BLOCKS, 7, len(seeds)))
    mixed_BMC = np.sort(np.einsum("bmn,nbc->bmc", mix_BMN, rows(updates)), axis=1)
    assert np.array_equal(found, mixed_BMC[:, trim : 7 - trim].sum(axis=1))


@pytest.mark.parametrize("is_median", [False, True])
@pytest.mark.parametrize("nodes", [0, 7])
def test_counting_signs_trims_like_sorting_them(nodes, is_median):
    cases = [(plus, minus) for plus in range(8) for minus in range(8 - plus) if plus + minus]
    net_T, sent_T = np.array([(plus - minus, plus + minus) for plus, minus in cases]).T.copy()

    found = trimmed_signs(net_T, sent_T, f=2, nodes=nodes, is_median=is_median)

    for (plus, minus), value in zip(cases, found.tolist(), strict=True):
        ordered = sorted([1] * plus + [-1] * minus + [0] * (nodes and nodes - plus - minus))
        most = (len(ordered) - 1) // 2
        trim = most if is_median else min(2, most)
        left = ordered[trim : len(ordered) - trim]
        assert value == int(sum(left) * (1 << 14) / len(left)), (plus, minus)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_threads_do_not_change_a_bit(name):
    """Of 200 blocks, so that there are several groups."""
    updates = {}
    for peer, seed in zip(by_peer([an_update(0)] * 9), range(9), strict=True):
        rng = np.random.default_rng(seed)
        index = np.sort(rng.permuted(np.tile(np.arange(12), (200, 1)), axis=1)[:, :11], axis=1)
        sign = rng.choice(np.array([-1, 1], np.int8), index.shape)
        updates[peer] = Update(np.arange(200), index, sign)

    def aggregate() -> list[bytes]:
        found = rule_of(name, 2, b"public")(updates, 200)
        return [part.tobytes() for part in (found.count_N, found.index_T, found.value_T)]

    alone = aggregate()
    for count in (2, 4):
        parallel.set_count(count)
        assert aggregate() == alone, count
