"""Robust rules: exact, equal to their textbook form, and deaf to as many liars as they say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Aggregate, Update, decode_aggregate, encode_aggregate
from assay.training.exact import BASIS_SS, VALUE_MAX
from assay.verifier.aggregation.decoded import decoded, median_signs, trimmed_mean_signs, vote_signs
from assay.verifier.aggregation.gram import (
    GRAM_BITS,
    ONE,
    POWER_STEPS,
    STEPS,
    buckets,
    caf_weights,
    clip_weights,
    krum_weights,
    monna_weights,
    nearest_neighbours,
    whole_root,
)
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.aggregation.robust import (
    caf,
    centered_clip,
    geometric_median,
    krum,
    median,
    monna,
    multi_krum,
    trimmed_mean,
)
from assay.verifier.aggregation.slabs import gram_of, slabs
from tests.training.test_inverse import inverse_of

BLOCKS, K = 3, 8
COEFFICIENT_RULES = {
    "trimmed mean": trimmed_mean,
    "median": median,
    "centered clip": centered_clip,
    "centered clip, all": partial(centered_clip, scope="all"),
    "centered clip, nnm": partial(centered_clip, mixing=partial(nearest_neighbours, f=2)),
    "geometric median": geometric_median,
    "krum": krum,
    "multi-krum per block": partial(multi_krum, scope="block"),
    "multi-krum": multi_krum,
    "monna": monna,
    "caf": caf,
}
DECODED_RULES = {"trimmed mean": trimmed_mean_signs, "median": median_signs, "vote": vote_signs}
every_rule = pytest.mark.parametrize("rule", COEFFICIENT_RULES.values(), ids=COEFFICIENT_RULES.keys())
every_decoded_rule = pytest.mark.parametrize("rule", DECODED_RULES.values(), ids=DECODED_RULES.keys())
groups = st.lists(st.integers(0, 2**32), min_size=7, max_size=10, unique=True)

Rule = Callable[..., Aggregate]


def a_peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def an_update(seed: int, *, span: int = 40, live: float = 0.8) -> Update:
    """Indices close together, so that nodes often send the same ones."""
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(rng.random(BLOCKS) < live)
    index = np.array([np.sort(rng.choice(span, K, replace=False)) for _ in blocks], np.int64).reshape(-1, K)
    return Update(blocks, index, rng.choice(np.array([-1, 1], np.int8), index.shape))


def says(*signed: int) -> Update:
    """One block: 5 sends + at index 5, -5 sends - there."""
    ordered = sorted(signed, key=abs)
    index, sign = np.abs([ordered]).astype(np.int64), np.sign([ordered]).astype(np.int8)
    return Update(np.array([0]), index, sign)


def by_peer(updates: list[Update]) -> dict[PeerId, Update]:
    return {a_peer(n): update for n, update in enumerate(updates)}


def rows(updates: list[Update]) -> np.ndarray:
    """Dense messages. Shape (nodes, blocks, 4096), float64."""
    dense = np.zeros((len(updates), BLOCKS, BLOCK_SIZE))
    for node, update in enumerate(updates):
        dense[node, update.blocks_B[:, None], update.index_BK] = update.value_BK
    return dense


def values(aggregate: Aggregate) -> np.ndarray:
    """Dense aggregate in units of one sign."""
    return np.concatenate([value_NC for _, value_NC in aggregate.dense()]) / VALUE_MAX


def _parts(aggregate: Aggregate):
    return aggregate.blocks, aggregate.index_T, aggregate.value_T


@every_rule
@settings(max_examples=25, deadline=None)
@given(groups, st.randoms(use_true_random=False))
def test_arrival_order_does_not_matter(rule: Rule, seeds, shuffler: random.Random):
    items = list(by_peer([an_update(seed) for seed in seeds]).items())
    first = rule(dict(items), BLOCKS, f=2)
    shuffler.shuffle(items)

    again = rule(dict(items), BLOCKS, f=2)

    assert encode_aggregate(first, BLOCKS) == encode_aggregate(again, BLOCKS)


@every_rule
@settings(max_examples=25, deadline=None)
@given(groups)
def test_an_aggregate_is_legal_on_the_wire(rule: Rule, seeds):
    aggregate = rule(by_peer([an_update(seed) for seed in seeds]), BLOCKS, f=2)

    assert np.abs(aggregate.value_T).max(initial=0) <= VALUE_MAX
    assert np.all(aggregate.value_T != 0)
    raw = encode_aggregate(aggregate, BLOCKS)
    assert encode_aggregate(decode_aggregate(raw, BLOCKS), BLOCKS) == raw


@every_rule
def test_a_rule_refuses_two_liars_of_four(rule: Rule):
    updates = by_peer([an_update(n) for n in range(4)])

    with pytest.raises(ValueError, match="no honest majority"):
        rule(updates, BLOCKS, f=2)


@every_decoded_rule
def test_a_decoded_rule_refuses_two_liars_of_four(rule):
    with pytest.raises(ValueError, match="no honest majority"):
        rule(by_peer([an_update(n) for n in range(4)]), BLOCKS, f=2)


@every_rule
def test_a_negative_number_of_liars_is_refused(rule: Rule):
    with pytest.raises(ValueError, match="at least 0"):
        rule(by_peer([an_update(n) for n in range(9)]), BLOCKS, f=-1)


def test_krum_refuses_less_than_two_f_plus_three():
    updates = by_peer([an_update(n) for n in range(7)])

    krum(updates, BLOCKS, f=2)
    with pytest.raises(ValueError, match="needs 9 rows"):
        krum({**updates, a_peer(7): an_update(7)}, BLOCKS, f=3)


@every_rule
def test_when_all_say_the_same_that_is_the_result(rule: Rule):
    one = an_update(3, live=1.1)
    found = values(rule(by_peer([one] * 7), BLOCKS, f=2))

    expected = rows([one])[0]
    assert np.array_equal(np.sign(found), expected)
    assert np.ptp(np.abs(found[expected != 0])) == 0


@every_rule
def test_two_liars_cannot_turn_what_five_agree_on(rule: Rule):
    updates = by_peer([says(3, 9, -20)] * 5 + [says(-3, -9, 20)] * 2)

    found = values(rule(updates, BLOCKS, f=2))

    assert np.sign(found[0, [3, 9, 20]]).tolist() == [1, 1, -1]


@settings(max_examples=40, deadline=None)
@given(groups, st.integers(0, 2), st.sampled_from(["senders", "implied"]))
def test_the_trimmed_mean_is_the_textbooks(seeds, f: int, zeros):
    updates = [an_update(seed, span=10) for seed in seeds]
    dense = rows(updates)
    expected = np.zeros((BLOCKS, BLOCK_SIZE))
    for at in np.argwhere(np.any(dense != 0, axis=0)):
        column = dense[(slice(None), *at)]
        column = np.sort(column if zeros == "implied" else column[column != 0])
        trim = min(f, (len(column) - 1) // 2)
        expected[tuple(at)] = column[trim : len(column) - trim].mean()
    sent, places = np.count_nonzero(dense), np.count_nonzero(np.any(dense != 0, axis=0))

    if zeros == "implied" and sent < (2 * f + 1) * places:
        with pytest.raises(ValueError, match="senders per coefficient"):
            trimmed_mean(by_peer(updates), BLOCKS, f=f, zeros=zeros)
        return
    found = values(trimmed_mean(by_peer(updates), BLOCKS, f=f, zeros=zeros))
    assert np.abs(found - expected).max() <= 1 / VALUE_MAX


def test_implied_zeros_are_refused_just_below_two_f_plus_one_senders():
    silent = Update(np.zeros(0, np.int64), np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int8))

    with pytest.raises(ValueError, match=r"4\.00 senders per coefficient"):
        trimmed_mean(by_peer([says(2)] * 4 + [silent] * 3), BLOCKS, f=2, zeros="implied")
    kept = trimmed_mean(by_peer([says(2)] * 5 + [silent] * 2), BLOCKS, f=2, zeros="implied")

    assert kept.value_T.tolist() == [VALUE_MAX]  # two of the five and both zeros are gone


def test_trimming_nobody_is_the_mean_over_senders():
    updates = by_peer([an_update(n) for n in range(7)])

    trimmed, mean = trimmed_mean(updates, BLOCKS, f=0), mean_over_senders(updates, BLOCKS)

    assert encode_aggregate(trimmed, BLOCKS) == encode_aggregate(mean, BLOCKS)


@settings(max_examples=25, deadline=None)
@given(groups)
def test_centered_clip_is_the_dense_one_in_float64(seeds):
    updates = [an_update(seed) for seed in seeds]
    expected = np.zeros((BLOCKS, BLOCK_SIZE))
    for block, dense in enumerate(rows(updates).transpose(1, 0, 2)):
        for _ in range(3):
            offset = dense - expected[block]
            length = np.linalg.norm(offset, axis=1)
            radius = np.sort(length)[(len(updates) - 1) // 2]
            scale = np.where(length > radius, radius / np.maximum(length, 1e-12), 1.0)
            expected[block] += (offset * scale[:, None]).mean(axis=0)

    assert np.abs(values(centered_clip(by_peer(updates), BLOCKS, f=2)) - expected).max() < 1e-2


@settings(max_examples=25, deadline=None)
@given(groups)
def test_the_geometric_median_is_the_dense_one_in_float64(seeds):
    updates = [an_update(seed) for seed in seeds]
    expected = rows(updates).mean(axis=0)
    for block, dense in enumerate(rows(updates).transpose(1, 0, 2)):
        for _ in range(3):
            near = 1 / np.maximum(np.linalg.norm(dense - expected[block], axis=1), 0.1)
            expected[block] = near @ dense / near.sum()

    assert np.abs(values(geometric_median(by_peer(updates), BLOCKS, f=2)) - expected).max() < 1e-2


@settings(max_examples=25, deadline=None)
@given(groups)
def test_multi_krum_is_the_dense_one(seeds):
    updates = [an_update(seed) for seed in seeds]
    flat = rows(updates).reshape(len(updates), -1)
    squared = ((flat[:, None] - flat[None]) ** 2).sum(axis=2)
    scores = [sorted(np.delete(row, i))[: len(flat) - 4] for i, row in enumerate(squared)]
    best = sorted(range(len(flat)), key=lambda i: (sum(scores[i]), i))[: len(flat) - 2]

    found = values(multi_krum(by_peer(updates), BLOCKS, f=2))

    assert np.abs(found.reshape(-1) - flat[best].mean(axis=0)).max() < 1e-2


def test_krum_counts_n_minus_f_minus_two_neighbours():
    points = np.array([7, 6, 9, -8, -10, 9, -12])  # with one neighbour less or more, another would win

    weight = krum_weights(np.outer(points, points)[None], f=2, kept=1)[0]

    assert np.flatnonzero(weight).tolist() == [0]


def test_krum_gives_a_tie_to_the_lower_peer():
    updates = {a_peer(n): says(n + 1) for n in (9, 3, 5, 1, 7, 2, 4)}  # all at the same distance

    assert krum(updates, BLOCKS, f=2).index_T.tolist() == [2]


@settings(max_examples=25, deadline=None)
@given(groups)
def test_monna_is_the_dense_one_about_the_row_with_the_tightest_neighbourhood(seeds):
    updates = [an_update(seed) for seed in seeds]
    flat, kept = rows(updates).reshape(len(updates), -1), len(updates) - 2
    squared = ((flat[:, None] - flat[None]) ** 2).sum(axis=2)
    reference = min(range(len(flat)), key=lambda i: (sum(sorted(squared[i])[:kept]), i))
    near = np.argsort(squared[reference], kind="stable")[:kept]

    found = values(monna(by_peer(updates), BLOCKS, f=2))

    assert np.abs(found.reshape(-1) - flat[near].mean(axis=0)).max() < 1e-2


def test_monna_takes_the_tightest_neighbourhood_of_n_minus_f():
    # About -1: of one neighbour less it would be 2, of one more 5.
    points = np.array([11, -4, 2, -8, 5, 12, -1])

    weight = monna_weights(np.outer(points, points)[None], f=2)[0]

    assert np.flatnonzero(weight).tolist() == [1, 2, 3, 4, 6]
    assert set(weight.tolist()) == {0, ONE // 5}


def _caf(rows_ND: np.ndarray, left: float) -> list[np.ndarray]:
    """CAF until so much weight is left, in float64; of two means that vary alike, both."""
    kept_N, found = np.ones(len(rows_ND)), []
    while kept_N.sum() > left:
        mean_D = kept_N @ rows_ND / kept_N.sum()
        around_ND = rows_ND - mean_D
        way_D = around_ND[np.where(kept_N > 0, (around_ND**2).sum(axis=1), -1).argmax()]
        for _ in range(POWER_STEPS):
            way_D = (kept_N * (around_ND @ way_D)) @ around_ND
            way_D = way_D / max(np.linalg.norm(way_D), 1e-300)
        offset_N = around_ND @ way_D
        found.append((kept_N @ offset_N**2 / kept_N.sum(), mean_D))
        largest = max((offset_N[kept_N > 0] ** 2).max(), 1e-300)
        kept_N = kept_N * (1 - np.minimum(offset_N**2 / largest, 1))
    least = min(variance for variance, _ in found)
    return [mean_D for variance, mean_D in found if variance <= 1.001 * least + 1e-3]


@pytest.mark.parametrize("size", [1, 1000, 10_000])
@settings(max_examples=25, deadline=None)
@given(groups)
def test_caf_is_the_dense_one_in_float64(size: int, seeds):
    rng = np.random.default_rng(seeds)
    rows_ND = rng.integers(-20, 21, (len(seeds), 12)) + rng.integers(-20, 21, 12)
    rows_ND[:2] = size * rng.integers(-1, 2, 12) + rng.integers(0, 2, (2, 12))
    left = len(seeds) - 4  # where that is nearly left, rounding decides whether a step more is made
    means = [mean_D for slack in (-1e-2, 1e-2) for mean_D in _caf(rows_ND.astype(float), left + slack)]

    weight_N = caf_weights((rows_ND @ rows_ND.T)[None], f=2)[0]

    found_D = weight_N @ rows_ND / ONE
    assert min(np.abs(found_D - mean_D).max() for mean_D in means) < 0.1 + size / 1000


def test_caf_leaves_out_the_direction_in_which_liars_stand_together():
    points = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0], [90, 5], [90, -5]])

    weight = caf_weights((points @ points.T)[None], f=2)[0]

    assert weight[5:].max() < ONE // 100
    assert np.ptp(weight[:5]) < ONE // 20


def test_caf_against_nobody_is_the_mean():
    points = np.array([[3], [5], [90]])

    assert caf_weights((points @ points.T)[None], f=0).tolist() == [[ONE // 3] * 3]


@settings(max_examples=25, deadline=None)
@given(groups, st.integers(1, 4))
def test_no_node_weighs_more_in_a_centered_clip_than_steps_over_n(seeds, steps: int):
    updates = by_peer([an_update(seed) for seed in seeds])

    for slab in slabs(updates, BLOCKS):
        weight_BN = clip_weights(gram_of(slab.value_BNU), steps=steps)

        assert weight_BN.min() >= 0
        assert weight_BN.max() <= steps * ONE / len(seeds)
        assert weight_BN.sum(axis=1).max() <= ONE


def whole_clip(gram_NN: list[list[int]]) -> list[int]:
    """One block's weights in Python's own numbers."""
    count, weight = len(gram_NN), [0] * len(gram_NN)
    every = range(count)
    for _ in range(STEPS):
        inner = [sum(gram_NN[n][m] * weight[m] for m in every) for n in every]
        center = sum(inner[n] * weight[n] for n in every)
        root = [math.isqrt(max(gram_NN[n][n] * ONE**2 - 2 * ONE * inner[n] + center, 0)) for n in every]
        radius = sorted(root)[(count - 1) // 2]
        factor = [min(ONE, radius * ONE // max(root[n], 1)) for n in every]
        kept = count * ONE - sum(factor)
        weight = [(weight[n] * kept + ONE * factor[n]) // (count * ONE) for n in every]
    return weight


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 8, 16, 128]), st.sampled_from([1, 40, 6000]))
def test_the_weights_of_a_clip_are_those_of_whole_numbers(seed: int, count: int, most: int):
    """Up to the longest rows that there may be, and with rows that are alike."""
    rng = np.random.default_rng(seed)
    points = rng.integers(-most, most + 1, (count, 50)) * rng.integers(0, 2, (count, 1))
    points[0] = points[-1]
    gram = points @ points.T
    assert gram.max() < 1 << GRAM_BITS

    assert clip_weights(gram[None])[0].tolist() == whole_clip(gram.tolist())


def test_one_far_row_is_cut_to_the_median_distance():
    gram = np.diag([100, 100, 100, 100, 10_000])[None]

    weight = clip_weights(gram, steps=1)[0]

    assert weight.tolist() == [ONE // 5] * 4 + [ONE // 50]


def test_a_row_at_the_centre_keeps_its_whole_weight():
    gram = np.array([[0, 0, 0], [0, 100, 100], [0, 100, 100]])[None]

    assert clip_weights(gram, steps=1)[0].tolist() == [ONE // 3] * 3


@settings(max_examples=25, deadline=None)
@given(groups)
def test_the_size_of_a_slab_changes_nothing(seeds):
    updates = by_peer([an_update(seed) for seed in seeds])

    def values(slab_blocks: int) -> np.ndarray:
        parts = slabs(updates, BLOCKS, slab_blocks)
        return np.concatenate([slab.value_BNU[slab.block_T, :, slab.rank_T] for slab in parts])

    whole, one_by_one = values(64), values(1)

    assert np.array_equal(whole, one_by_one)
    assert np.count_nonzero(whole) == sum(update.value_BK.size for update in updates.values())


def test_mixing_sums_the_nearest_and_itself():
    updates = by_peer([says(1, 2), says(1, 2), says(1, 3), says(8, 9), says(-8, -9)])
    gram = gram_of(next(slabs(updates, 1)).value_BNU)

    mix = nearest_neighbours(gram, f=2)

    assert mix[0].tolist()[:3] == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]


def test_buckets_hold_everybody_once_and_weigh_the_same():
    mix = buckets(np.zeros((1, 7, 7), np.int64), size=3, seed=b"public")

    assert mix.sum(axis=2).tolist() == [[3, 3, 3]]  # lcm(3, 3, 1)
    assert np.count_nonzero(mix, axis=1).tolist() == [[1] * 7]
    assert not np.array_equal(mix, buckets(np.zeros((1, 7, 7), np.int64), size=3, seed=b"other"))


@pytest.mark.parametrize("rule", [centered_clip, geometric_median, trimmed_mean, median])
def test_buckets_that_liars_can_outnumber_are_refused(rule):
    updates = by_peer([an_update(n) for n in range(8)])

    rule(updates, BLOCKS, f=1, mixing=partial(buckets, size=2, seed=b"s"))
    with pytest.raises(ValueError, match="f = 2 of 4 rows"):
        rule(updates, BLOCKS, f=2, mixing=partial(buckets, size=2, seed=b"s"))


@given(st.integers(0, 2**62))
def test_roots_are_the_largest_whole_ones(number: int):
    root = int(whole_root(np.array([number]))[0])

    assert root * root <= number < (root + 1) * (root + 1)


@every_decoded_rule
@settings(max_examples=10, deadline=None)
@given(groups, st.randoms(use_true_random=False))
def test_decoded_rules_do_not_depend_on_arrival_order(rule, seeds, shuffler: random.Random):
    items = list(by_peer([an_update(seed) for seed in seeds]).items())
    first = rule(dict(items), BLOCKS, f=2)
    shuffler.shuffle(items)

    assert np.array_equal(first, rule(dict(items), BLOCKS, f=2))


@every_decoded_rule
def test_one_nodes_decoded_message_is_what_the_exact_transform_says(rule):
    one = an_update(4, live=1.1)
    dense = (rows([one])[0] * VALUE_MAX).astype(np.int32).reshape(BLOCKS, 64, 64)

    assert np.array_equal(rule({a_peer(0): one}, BLOCKS, f=0), inverse_of(dense))


def test_decoded_values_are_the_exact_transforms_integers():
    one = an_update(4, live=1.1)
    dense = (rows([one])[0] * VALUE_MAX).astype(np.int64).reshape(BLOCKS, 64, 64)
    basis = BASIS_SS.astype(np.int64)
    expected = basis.T @ ((dense @ basis + (1 << 13)) >> 14)

    ((blocks_B, values),) = decoded({a_peer(0): one}, BLOCKS)

    assert blocks_B.tolist() == list(range(BLOCKS))
    assert np.array_equal(values.reshape(BLOCKS, 64, 64), expected)


@settings(max_examples=10, deadline=None)
@given(groups, st.integers(0, 3))
def test_the_decoded_trimmed_mean_is_the_textbooks(seeds, f: int):
    updates = [an_update(seed) for seed in seeds]
    frequency, position = np.arange(64)[:, None], np.arange(64)[None]
    basis = np.sqrt(2 / 64) * np.cos(np.pi * (2 * position + 1) * frequency / 128)
    basis[0] = np.sqrt(1 / 64)
    decoded = basis.T @ rows(updates).reshape(-1, BLOCKS, 64, 64) @ basis
    expected = np.sort(decoded, axis=0)[f : len(seeds) - f].sum(axis=0)

    found = trimmed_mean_signs(by_peer(updates), BLOCKS, f=f)

    is_clear = np.abs(expected) > 1e-3  # nearer to zero the 14-bit basis may say otherwise
    assert np.array_equal(found[is_clear], np.sign(expected)[is_clear])


@every_decoded_rule
def test_two_liars_cannot_turn_a_position_that_five_agree_on(rule):
    honest, liar = says(0, 3, 65), says(0, 64, 130)
    liar = Update(liar.blocks_B, liar.index_BK, -np.ones((1, 3), np.int8))
    honest = Update(honest.blocks_B, honest.index_BK, np.ones((1, 3), np.int8))
    agreed = rule({a_peer(0): honest}, BLOCKS, f=0)

    found = rule(by_peer([honest] * 5 + [liar] * 2), BLOCKS, f=2)

    assert np.array_equal(found, agreed)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_mixing_then_trimming_is_the_dense_one(seed):
    updates = [an_update(seed + n) for n in range(7)]
    gram = np.einsum("nbc,mbc->bnm", rows(updates), rows(updates))
    mix = nearest_neighbours(gram.astype(np.int64), f=2)
    mixed = np.einsum("bmn,nbc->mbc", mix, rows(updates)) / 5
    expected = np.sort(mixed, axis=0)[2:5].mean(axis=0)

    found = trimmed_mean(by_peer(updates), BLOCKS, f=2, mixing=partial(nearest_neighbours, f=2))

    assert np.abs(values(found) - expected).max() < 1 / ONE + 1e-12
