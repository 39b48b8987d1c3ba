"""Rules on amplitudes: each is its dense form in float64, and no node counts more than its scale lets it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import (
    AGGREGATE_EXPONENTS,
    Aggregate,
    Update,
    decode_aggregate,
    encode_aggregate,
)
from assay.training.exact import VALUE_MAX
from assay.verifier.aggregation import scales
from assay.verifier.aggregation.gram import nearest_neighbours
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.aggregation.names import RULE_NAMES
from assay.verifier.aggregation.registry import rule_of, uses_reputation
from assay.verifier.aggregation.robust import (
    centered_clip,
    geometric_median,
    krum,
    median,
    multi_krum,
    trimmed_mean,
)
from assay.verifier.aggregation.scales import raw
from assay.verifier.aggregation.slabs import bit_lengths

BLOCKS = 3
LEAST, MOST = -51, -20
SCALES = {
    "raw": raw, "unit": scales.unit, "clipped": scales.clipped, "arc": partial(scales.adaptive, f=2),
}  # fmt: skip
every_scale = pytest.mark.parametrize("name", SCALES)
Rows = np.ndarray


def a_peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def an_update(seed: int, *, k: int = 12, span: int = 40, live: float = 0.9, exponents: int = 6) -> Update:
    """Values of up to 23 bits, some of them zero, and scales up to 2^exponents apart."""
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(rng.random(BLOCKS) < live)
    index = np.array([np.sort(rng.choice(span, k, replace=False)) for _ in blocks], np.int64).reshape(-1, k)
    value = (rng.standard_normal(index.shape) * 2**20).astype(np.int32) * rng.integers(
        0, 5, index.shape
    ).clip(0, 1)
    exponent = rng.integers(-44, -44 + exponents + 1, len(blocks))
    return Update(blocks, index, value.astype(np.int32), exponent, np.full(len(blocks), 128))


def by_peer(updates: list[Update]) -> dict[PeerId, Update]:
    return {a_peer(n): update for n, update in enumerate(updates)}


def rows(updates: list[Update]) -> tuple[Rows, Rows]:
    """Every node's coefficients, and which it sent. Both (n, blocks, 4096)."""
    values = np.zeros((len(updates), BLOCKS, BLOCK_SIZE))
    is_sent = np.zeros(values.shape, bool)
    for row, update in enumerate(updates):
        at = update.blocks_B[:, None], update.index_BK
        values[row][at] = update.value_BK * 2.0 ** update.exponent_B[:, None]
        is_sent[row][at] = True
    return values, is_sent


def dense(aggregate: Aggregate) -> Rows:
    values = np.zeros((BLOCKS, BLOCK_SIZE))
    scale = 2.0 ** aggregate.exponent_N[aggregate.blocks]
    values[aggregate.blocks, aggregate.index_T] = aggregate.value_T * scale
    return values


def scaled_rows(name: str, values: Rows) -> Rows:
    """What the scale makes of the rows, in float64."""
    norm = np.sqrt((values**2).sum(axis=2, keepdims=True))
    safe = np.where(norm > 0, norm, 1)
    if name == "raw":
        return values
    if name == "unit":
        return values / safe
    count = len(values)
    rank = (count - 1) // 2 if name.startswith("clipped") else count - 2 * 2 * (count - 2) // count - 1
    return values * np.minimum(1, np.sort(norm, axis=0)[rank] / safe)


def assert_same(aggregate: Aggregate, expected: Rows, tolerance: float = 2.0**-12) -> None:
    """Within the 14 bits that a block's values are cut to."""
    largest = np.abs(expected).max(axis=1, keepdims=True)
    assert np.all(np.abs(dense(aggregate) - expected) <= tolerance * largest + 2.0**-50)


groups = st.lists(st.integers(0, 2**32), min_size=5, max_size=9, unique=True)


@every_scale
@settings(deadline=None, max_examples=20)
@given(groups)
def test_the_mean_is_the_dense_one_of_the_scaled_rows(name, seeds):
    updates = [an_update(seed) for seed in seeds]
    values, is_sent = rows(updates)
    expected = scaled_rows(name, values).sum(axis=0) / np.maximum(is_sent.sum(axis=0), 1)

    aggregate = mean_over_senders(by_peer(updates), BLOCKS, scale=SCALES[name])

    assert_same(aggregate, expected)


@every_scale
@pytest.mark.parametrize("zeros", ["senders", "median"])
@settings(deadline=None, max_examples=15)
@given(groups)
def test_trimmed_mean_and_median_are_the_dense_ones(name, zeros, seeds):
    updates, f = [an_update(seed, span=16) for seed in seeds], 2
    values, is_sent = rows(updates)
    kept = np.ma.masked_array(scaled_rows(name, values), ~is_sent)
    expected = np.zeros(values.shape[1:])
    for block, index in zip(*np.nonzero(is_sent.any(axis=0)), strict=True):
        ranked = np.sort(kept[:, block, index].compressed())
        most = (len(ranked) - 1) // 2
        trim = most if zeros == "median" else min(f, most)
        expected[block, index] = ranked[trim : len(ranked) - trim].mean()
    rule = median if zeros == "median" else trimmed_mean

    aggregate = rule(by_peer(updates), BLOCKS, f=f, scale=SCALES[name])

    assert_same(aggregate, expected)


def test_an_implied_zero_is_trimmed_like_one_that_was_sent():
    updates = [an_update(seed, k=16, span=16, live=1.1) for seed in range(5)]
    values, _ = rows(updates)

    aggregate = trimmed_mean(by_peer(updates), BLOCKS, f=2, zeros="implied", scale=raw)

    assert_same(aggregate, np.sort(values, axis=0)[2:3].mean(axis=0))


@every_scale
@settings(deadline=None, max_examples=15)
@example([0, 1, 10, 179, 943, 9466, 251956, 10265419])  # 2^-8.95 off after three steps on the grid
@given(groups)
def test_centered_clip_is_the_dense_one(name, seeds):
    updates = [an_update(seed, exponents=1) for seed in seeds]
    values = scaled_rows(name, rows(updates)[0])
    center = np.zeros(values.shape[1:])
    for _ in range(3):
        offset = values - center
        norm = np.sqrt((offset**2).sum(axis=2, keepdims=True))
        radius = np.sort(norm, axis=0)[(len(values) - 1) // 2]
        center = center + (offset * np.minimum(1, radius / np.maximum(norm, 1e-30))).mean(axis=0)

    aggregate = centered_clip(by_peer(updates), BLOCKS, f=2, scale=SCALES[name])

    assert_same(aggregate, center, 2.0**-8)


@settings(deadline=None, max_examples=15)
@given(groups)
def test_the_geometric_median_is_the_dense_one(seeds):
    # At unit norm, where the smoothing of 1 / 10 means what it does in the paper's code.
    updates = [an_update(seed, live=1.1) for seed in seeds]
    unit = {peer: scales.unit(by_peer(updates), BLOCKS)[peer] for peer in by_peer(updates)}
    assert all(scaled.grid == scales.UNIT_GRID for scaled in unit.values())
    values = scaled_rows("unit", rows(updates)[0])
    center = values.mean(axis=0)
    for _ in range(3):
        norm = np.sqrt(((values - center) ** 2).sum(axis=2, keepdims=True))
        weight = 1 / np.maximum(norm, 1e-9)
        center = (values * weight).sum(axis=0) / weight.sum(axis=0)

    aggregate = geometric_median(by_peer(updates), BLOCKS, f=2, scale=scales.unit)

    assert_same(aggregate, center, 2.0**-9)


@pytest.mark.parametrize("scope", ["block", "all"])
@pytest.mark.parametrize("kept", [1, 5])
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32))
def test_krum_and_multi_krum_are_the_dense_ones(scope, kept, seed):
    updates = [an_update(seed + n, live=1.1, exponents=1) for n in range(7)]
    values, _ = rows(updates)
    axes = (2, 3) if scope == "all" else 3
    distance = ((values[:, None] - values[None]) ** 2).sum(axis=axes).reshape(7, 7, -1)
    score = np.sort(distance, axis=1)[:, : 7 - 2 - 1].sum(axis=1)
    order = np.argsort(score, axis=0, kind="stable")[:kept]
    chosen = np.stack([values[order[:, b % order.shape[1]], b].mean(axis=0) for b in range(BLOCKS)])
    rule = krum if kept == 1 else multi_krum

    aggregate = rule(by_peer(updates), BLOCKS, f=2, scope=scope)

    assert_same(aggregate, chosen, 2.0**-9)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32))
def test_mixing_then_trimming_is_the_dense_one(seed):
    # Not clipped: norms that are cut to one length make ties, which float64 breaks as it likes.
    updates = [an_update(seed + n, live=1.1, exponents=1) for n in range(7)]
    values, _ = rows(updates)
    distance = ((values[:, None] - values[None]) ** 2).sum(axis=3)
    order = np.argsort(distance, axis=1, kind="stable")[:, :5]  # (7, 5, blocks)
    mixed = np.stack(
        [np.stack([values[order[n, :, b], b].mean(axis=0) for b in range(BLOCKS)]) for n in range(7)]
    )

    aggregate = trimmed_mean(by_peer(updates), BLOCKS, f=2, mixing=partial(nearest_neighbours, f=2))

    assert_same(aggregate, np.sort(mixed, axis=0)[2:5].mean(axis=0), 2.0**-9)


@pytest.mark.parametrize("name", [n for n in RULE_NAMES if n != "trimmed-mean-implied"])
@settings(deadline=None, max_examples=6)
@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_no_rule_depends_on_arrival_order_and_all_have_canonical_bytes(name, seed, shuffler: random.Random):
    rule: Callable[..., Aggregate] = rule_of(name, 1, b"public")
    items = list(by_peer([an_update(seed + n) for n in range(7)]).items())
    first = rule(dict(items), BLOCKS)
    shuffler.shuffle(items)

    raw_bytes = encode_aggregate(first, BLOCKS, has_scale=True)
    assert encode_aggregate(rule(dict(items), BLOCKS), BLOCKS, has_scale=True) == raw_bytes
    again = decode_aggregate(raw_bytes, BLOCKS, has_scale=True)
    assert np.array_equal(dense(again), dense(first))


@pytest.mark.parametrize("name", [n for n in RULE_NAMES if not uses_reputation(n)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_rule_that_hears_all_nodes_refuses_what_may_have_no_honest_majority(name, count):
    updates = by_peer([an_update(seed) for seed in range(count)])

    with pytest.raises(ValueError, match="no honest majority"):
        rule_of(name, 2, b"public")(updates, BLOCKS)


def largest_there_is(seed: int, size: int = (1 << 23) - 1) -> Update:
    """The blow-up: every value as large as the wire allows."""
    one = an_update(seed, live=1.1)
    values = np.full(one.value_BK.shape, size, np.int32)
    return Update(one.blocks_B, one.index_BK, values, np.full(len(one.blocks_B), -19), one.mantissa_B)


@pytest.mark.parametrize("name", ["unit", "clipped", "arc"])
def test_two_blown_up_messages_move_no_block_further_than_honest_norms_reach(name):
    honest = [an_update(seed, live=1.1, exponents=0) for seed in range(6)]
    updates = [*honest, largest_there_is(100), largest_there_is(101)]
    norms = np.sqrt((scaled_rows("unit" if name == "unit" else "raw", rows(honest)[0]) ** 2).sum(axis=2))
    bound = norms.max(axis=0)

    without = dense(mean_over_senders(by_peer(honest), BLOCKS, scale=SCALES[name]))
    moved = dense(mean_over_senders(by_peer(updates), BLOCKS, scale=SCALES[name]))

    assert np.all(np.sqrt(((moved - without) ** 2).sum(axis=1)) <= 3 * bound + 1e-6)


@pytest.mark.parametrize("value", [-1, 1, 2])
def test_the_smallest_value_that_one_node_can_send_keeps_its_size(value):
    one = an_update(0, live=1.1)
    values = np.where(np.arange(12) == 3, value, 0) * np.ones_like(one.value_BK)
    update = Update(one.blocks_B, one.index_BK, values, np.full(BLOCKS, LEAST), one.mantissa_B)

    for rule in (mean_over_senders, partial(trimmed_mean, f=0), partial(centered_clip, f=0)):
        moved = dense(rule(by_peer([update]), BLOCKS))
        assert np.allclose(moved[moved != 0], value * 2.0**LEAST)
        assert np.count_nonzero(moved) == BLOCKS


def test_zeros_under_a_large_scale_are_the_least_norm_and_raise_nobodys():
    def one_block(size: int, exponent: int) -> Update:
        values = np.full((1, 4), size, np.int32)
        return Update(np.array([0]), np.arange(4)[None], values, np.array([exponent]), np.array([128]))

    updates = by_peer([one_block(0, MOST), one_block(100, LEAST), one_block(400, LEAST)])
    scaled = scales.clipped(updates, 1)

    large = scaled[a_peer(2)].of(updates[a_peer(2)].value_BK, slice(None))
    small = scaled[a_peer(1)].of(updates[a_peer(1)].value_BK, slice(None))
    assert np.array_equal(large, small)  # cut to the middle norm, which is the small one's


def test_without_a_scale_the_same_messages_decide_everything():
    honest = [an_update(seed, live=1.1, exponents=0) for seed in range(6)]
    updates = [*honest, largest_there_is(100), largest_there_is(101)]

    assert np.abs(dense(mean_over_senders(by_peer(updates), BLOCKS, scale=raw))).max() > 1
    assert np.abs(rows(honest)[0]).max() < 1e-3


@pytest.mark.parametrize("count", [1, 2, 128])
def test_sums_of_the_largest_values_of_as_many_nodes_as_there_may_be_are_exact(count):
    updates = by_peer([largest_there_is(7, 32767 * 255)] * count)

    for rule in (mean_over_senders, partial(trimmed_mean, f=0)):
        aggregate = rule(updates, BLOCKS)
        assert np.allclose(dense(aggregate)[dense(aggregate) != 0], 32767 * 255 * 2.0**-19, rtol=2**-13)
        assert aggregate.exponent_N.min() >= AGGREGATE_EXPONENTS[0]
        assert aggregate.exponent_N.max() <= AGGREGATE_EXPONENTS[1]
        assert np.abs(aggregate.value_T).max() <= VALUE_MAX


def test_a_block_that_most_nodes_leave_out_stands_still_when_clipped():
    updates = by_peer(
        [an_update(n, live=1.1) for n in range(2)] + [an_update(n, live=0) for n in range(2, 6)]
    )

    assert len(mean_over_senders(updates, BLOCKS, scale=scales.clipped).value_T) == 0
    assert len(mean_over_senders(updates, BLOCKS, scale=raw).value_T) > 0


def test_clipping_leaves_what_is_small_as_it_was():
    small, *rest = [an_update(n, live=1.1, exponents=0) for n in range(5)]
    small = Update(small.blocks_B, small.index_BK, small.value_BK // 64, small.exponent_B, small.mantissa_B)

    scaled = scales.clipped(by_peer([small, *rest]), BLOCKS)[a_peer(0)]

    assert np.array_equal(scaled.of(small.value_BK, slice(None)), small.value_BK.astype(np.int64) << 7)


@given(st.integers(0, 2**62))
def test_bit_lengths_are_pythons(number: int):
    assert bit_lengths(np.array([number, -number])).tolist() == [number.bit_length()] * 2


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_norms_come_in_their_order_however_far_apart(one, other):
    """The key of a norm compares as the norm does."""
    updates = [an_update(seed, k=4, live=1.1, exponents=20) for seed in (one, other, one + other)]
    values, _ = rows(updates)
    norm = np.sqrt((values**2).sum(axis=2))

    scaled = scales.clipped(by_peer(updates), BLOCKS)

    for row, update in enumerate(updates):
        is_cut = scaled[a_peer(row)].m_B != 1
        middle = np.sort(norm, axis=0)[1]
        clear = np.abs(norm[row] - middle) > 1e-6 * middle
        assert np.array_equal(is_cut[clear], (norm[row] > middle)[clear]), update


@every_scale
def test_the_opposite_messages_give_the_opposite_aggregate(name):
    """Every rounding is toward zero, so no sign is favoured."""
    updates = [an_update(seed) for seed in range(6)]
    opposite = [replace(update, value_BK=-update.value_BK) for update in updates]

    for rule in (mean_over_senders, partial(trimmed_mean, f=1)):
        one, other = (rule(by_peer(group), BLOCKS, scale=SCALES[name]) for group in (updates, opposite))
        assert np.array_equal(dense(one), -dense(other))


@given(st.integers(1, 2**58))
@example(2**54 - 1)
@example(2**57 - 1)
@example(2**58 - 1)
def test_roots_of_energies_are_whole_and_in_their_octave(energy: int):
    root_B, shift_B = scales._root(np.array([energy]))
    root, shift = int(root_B[0]), int(shift_B[0])

    assert 2**29 <= root < 2**30
    assert root * root <= energy << 2 * shift < (root + 1) * (root + 1)
