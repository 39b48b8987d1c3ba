"""Data: committed to the byte, and no choice of batch left to anybody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.types import Digest, PeerId
from assay.training.data.batches import (
    batch_positions,
    batch_root,
    batch_tokens,
    validation_tokens,
)
from tests.protocol.chains import NODES, a_spec
from tests.specs import a_rule

SPEC = a_spec()
WINDOW = SPEC.model.context + 1
TOKENS = np.random.default_rng(1).integers(0, 256, SPEC.data.tokens).astype(np.uint8)


@given(st.integers(0, 2**63), st.binary(min_size=32, max_size=32), st.integers(1, 100))
def test_a_batch_is_distinct_whole_windows_of_the_training_part(round_id, node, sequences):
    spec = replace(SPEC, rule=a_rule(sequences=sequences))
    positions = batch_positions(spec, PeerId(node), round_id)

    assert len(set(positions)) == sequences
    assert all(at % WINDOW == 0 for at in positions)
    assert all(at >= 0 and at + WINDOW <= 900 for at in positions)


def test_a_batch_follows_from_seed_round_and_node_alone_and_from_each_of_them():
    batch = batch_positions(SPEC, NODES[0], 3)

    assert batch == batch_positions(replace(SPEC, name="other"), NODES[0], 3)
    others = (
        batch_positions(SPEC, NODES[1], 3),
        batch_positions(SPEC, NODES[0], 4),
        batch_positions(replace(SPEC, seed=8), NODES[0], 3),
    )
    assert batch not in others


def test_batches_are_spread_over_all_of_the_data():
    windows = 900 // WINDOW
    counts = np.zeros(windows)
    for round_id in range(2000):
        for at in batch_positions(SPEC, NODES[0], round_id):
            counts[at // WINDOW] += 1

    expected = 2000 * SPEC.rule.sequences_per_round / windows
    assert counts.min() > expected / 2
    assert counts.max() < expected * 2


def test_batches_are_the_frozen_ones():
    assert batch_positions(SPEC, PeerId(bytes(32)), 0) == (648, 576)
    assert batch_positions(SPEC, PeerId(bytes(32)), 1) == (657, 81)


def test_what_a_commit_says_about_its_batch_binds_data_and_positions():
    other = replace(SPEC, data=replace(SPEC.data, root=Digest(b"\1" * 32)))

    roots = {
        batch_root(SPEC, (0, 9)),
        batch_root(SPEC, (9, 0)),
        batch_root(SPEC, (0,)),
        batch_root(other, (0, 9)),
    }

    assert len(roots) == 4


def test_a_round_of_several_steps_draws_all_of_their_sequences_at_once():
    """Else two steps of a round could train on the same text, and the audit of one need the others."""
    inner = a_rule("sparseloco", steps=5, sequences=3)
    positions = batch_positions(replace(SPEC, rule=inner), NODES[0], 1)

    assert len(set(positions)) == 15 == inner.sequences_per_round
    assert positions == batch_positions(replace(SPEC, rule=a_rule(sequences=15)), NODES[0], 1)


def test_a_step_that_needs_more_windows_than_there_are_is_refused_and_one_that_needs_all_ends():
    windows = 900 // WINDOW

    def positions(sequences):
        return batch_positions(replace(SPEC, rule=a_rule(sequences=sequences)), NODES[0], 0)

    assert sorted(positions(windows)) == [number * WINDOW for number in range(windows)]
    with pytest.raises(ValueError, match=f"{windows} sequences of {WINDOW} tokens"):
        positions(windows + 1)


def test_held_out_sequences_come_from_the_end_that_nobody_trains_on():
    tokens = TOKENS.copy()
    tokens[:900], tokens[900:] = 1, 2

    held = validation_tokens(tokens, SPEC, 64)

    assert held.shape == (11, WINDOW)  # 100 bytes hold eleven windows of nine
    assert (held == 2).all()
    assert validation_tokens(tokens, SPEC, 4).shape == (4, WINDOW)
    batch = batch_tokens(tokens, batch_positions(SPEC, NODES[0], 0), SPEC.model.context)
    assert (batch == 1).all()
    assert batch.dtype == np.int64
