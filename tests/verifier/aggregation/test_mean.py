"""The mean over senders: order does not matter, and nobody weighs more than one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Aggregate, Update, decode_aggregate, encode_aggregate
from assay.training.exact import VALUE_MAX
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.aggregation.registry import rule_of

BLOCKS, K = 3, 8


def a_peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def an_update(seed: int, *, span: int = 40, live: float = 0.8) -> Update:
    """Indices close together, so that nodes often send the same ones."""
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(rng.random(BLOCKS) < live)
    index = np.array([np.sort(rng.choice(span, K, replace=False)) for _ in blocks], np.int64).reshape(-1, K)
    return Update(blocks, index, rng.choice(np.array([-1, 1], np.int8), index.shape))


def says(sign: int, index: int) -> Update:
    return Update(np.array([0]), np.array([[index]]), np.array([[sign]], np.int8))


def dense(aggregate: Aggregate) -> np.ndarray:
    values = np.zeros((BLOCKS, BLOCK_SIZE), np.int64)
    values[aggregate.blocks, aggregate.index_T] = aggregate.value_T
    return values


groups = st.lists(st.integers(0, 2**32), min_size=1, max_size=9, unique=True)


@given(groups, st.randoms(use_true_random=False))
def test_the_order_in_which_updates_arrive_does_not_matter(seeds, shuffler: random.Random):
    updates = {a_peer(n): an_update(seed) for n, seed in enumerate(seeds)}
    items = list(updates.items())
    shuffler.shuffle(items)

    first, again = mean_over_senders(updates, BLOCKS), mean_over_senders(dict(items), BLOCKS)

    assert encode_aggregate(first, BLOCKS) == encode_aggregate(again, BLOCKS)


def test_it_does_not_matter_how_a_decoded_array_lies_in_memory():
    rows = {a_peer(seed): an_update(seed) for seed in range(3)}
    columns = {
        peer: Update(one.blocks_B, np.asfortranarray(one.index_BK), np.asfortranarray(one.value_BK))
        for peer, one in rows.items()
    }

    first, again = mean_over_senders(rows, BLOCKS), mean_over_senders(columns, BLOCKS)

    assert encode_aggregate(first, BLOCKS) == encode_aggregate(again, BLOCKS)


@given(groups)
def test_every_coefficient_is_the_mean_sign_of_those_who_sent_it(seeds):
    updates = [an_update(seed) for seed in seeds]
    sums, counts = {}, {}
    for update in updates:
        for block, row, signs in zip(update.blocks_B, update.index_BK, update.value_BK, strict=True):
            for index, sign in zip(row, signs, strict=True):
                at = (int(block), int(index))
                sums[at], counts[at] = sums.get(at, 0) + int(sign), counts.get(at, 0) + 1

    aggregate = mean_over_senders({a_peer(n): u for n, u in enumerate(updates)}, BLOCKS)

    expected = {
        at: (abs(total) * VALUE_MAX // counts[at]) * (1 if total > 0 else -1)
        for at, total in sorted(sums.items())
        if total
    }
    found = zip(
        aggregate.blocks.tolist(), aggregate.index_T.tolist(), aggregate.value_T.tolist(), strict=True
    )
    assert [((b, i), v) for b, i, v in found] == list(expected.items())


@settings(deadline=None)
@given(groups, st.integers(0, 2**32))
def test_one_node_moves_a_coefficient_by_at_most_its_share_of_those_who_sent_it(seeds, other):
    updates = {a_peer(n): an_update(seed) for n, seed in enumerate(seeds)}
    liar = {**updates, a_peer(0): an_update(other)}
    others = {peer: update for peer, update in updates.items() if peer != a_peer(0)}
    senders = np.zeros((BLOCKS, BLOCK_SIZE), np.int64)
    for update in others.values():
        senders[update.blocks_B[:, None], update.index_BK] += 1

    moved = np.abs(dense(mean_over_senders(liar, BLOCKS)) - dense(mean_over_senders(updates, BLOCKS)))

    assert np.all(moved <= 2 * VALUE_MAX // (senders + 1) + 1)


@given(groups)
def test_no_value_leaves_the_range_that_the_exact_transform_takes(seeds):
    aggregate = mean_over_senders({a_peer(n): an_update(seed) for n, seed in enumerate(seeds)}, BLOCKS)

    assert np.abs(aggregate.value_T).max(initial=0) <= VALUE_MAX
    assert np.all(aggregate.value_T != 0)


@pytest.mark.parametrize("colluders", [1, 2, 7])
def test_colluders_on_an_index_that_nobody_else_sends_count_once(colluders):
    updates = {a_peer(n): says(1, 99) for n in range(colluders)}
    updates |= {a_peer(100 + n): says(1, 7) for n in range(3)}

    values = dense(mean_over_senders(updates, BLOCKS))

    assert values[0, 99] == VALUE_MAX == values[0, 7]


def test_votes_that_cancel_leave_nothing():
    updates = {a_peer(0): says(1, 5), a_peer(1): says(-1, 5)}

    assert len(mean_over_senders(updates, BLOCKS).value_T) == 0


@pytest.mark.parametrize(("signs", "value"), [((1, 1, -1), VALUE_MAX // 3), ((-1, -1, 1), -(VALUE_MAX // 3))])
def test_means_are_rounded_toward_zero_on_both_sides(signs, value):
    updates = {a_peer(n): says(sign, 5) for n, sign in enumerate(signs)}

    assert mean_over_senders(updates, BLOCKS).value_T.tolist() == [value]


def test_an_aggregate_goes_over_the_wire_and_back():
    aggregate = mean_over_senders({a_peer(n): an_update(n) for n in range(5)}, BLOCKS)

    raw = encode_aggregate(aggregate, BLOCKS)

    assert encode_aggregate(decode_aggregate(raw, BLOCKS), BLOCKS) == raw


def test_no_updates_have_no_mean():
    with pytest.raises(ValueError, match="no updates"):
        mean_over_senders({}, BLOCKS)


@pytest.mark.parametrize(
    "rule", ["mean", "clipping+mean", "trimmed-mean", "centered-clip", "nnm+trimmed-mean"]
)
def test_where_nobody_sends_anything_an_aggregate_with_amplitudes_still_has_its_exponents(rule):
    """Every block of a fragment may be dead: too small for the wire."""
    nothing = Update(
        np.zeros(0, np.int64),
        np.zeros((0, 4), np.int64),
        np.zeros((0, 4), np.int32),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
    )
    found = rule_of(rule, 1, bytes(32))({a_peer(number): nothing for number in range(4)}, 5)

    assert found.exponent_N is not None and found.exponent_N.tolist() == [0] * 5
    body = encode_aggregate(found, 5, has_scale=True)
    assert len(decode_aggregate(body, 5, has_scale=True).value_T) == 0
