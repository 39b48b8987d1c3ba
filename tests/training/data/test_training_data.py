"""Data: committed to the byte, and no choice of batch left to anybody."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.params import RunSpec, Stratum, check_spec
from assay.protocol.split import Split
from assay.protocol.types import Digest, PeerId
from assay.testing.members import a_member
from assay.testing.specs import a_model, a_rule, a_spec, some_data
from assay.training.data.batches import (
    batch_positions,
    batch_root,
    validation_tokens,
)

NODES = tuple(sorted(PeerId(hashlib.sha256(b"node %d" % n).digest()) for n in range(3)))
SPEC = a_spec(model=a_model(context=8), data=some_data(), rule=a_rule())
WINDOW = SPEC.model.context + 1
TOKENS = np.random.default_rng(1).integers(0, 256, SPEC.data.tokens).astype(np.uint8)


def batch_of(spec: RunSpec, node: PeerId, round_id: int) -> tuple[int, ...]:
    """The batch of the smallest step."""
    return batch_positions(spec, node, round_id, spec.tokens_per_step)


@given(st.integers(0, 2**63), st.binary(min_size=32, max_size=32), st.integers(1, 100))
def test_a_batch_is_distinct_whole_windows_of_the_training_part(round_id, node, sequences):
    spec = replace(SPEC, rule=a_rule(sequences=sequences))
    positions = batch_of(spec, PeerId(node), round_id)

    assert len(set(positions)) == sequences
    assert all(at % WINDOW == 0 for at in positions)
    assert all(at >= 0 and at + WINDOW <= 900 for at in positions)


def test_a_batch_follows_from_seed_round_and_node_alone_and_from_each_of_them():
    batch = batch_of(SPEC, NODES[0], 3)

    assert batch == batch_of(replace(SPEC, name="other"), NODES[0], 3)
    others = (
        batch_of(SPEC, NODES[1], 3),
        batch_of(SPEC, NODES[0], 4),
        batch_of(replace(SPEC, seed=8), NODES[0], 3),
    )
    assert batch not in others


def test_batches_are_spread_over_all_of_the_data():
    windows = 900 // WINDOW
    counts = np.zeros(windows)
    for round_id in range(2000):
        for at in batch_of(SPEC, NODES[0], round_id):
            counts[at // WINDOW] += 1

    expected = 2000 * SPEC.rule.sequences_per_round / windows
    assert counts.min() > expected / 2
    assert counts.max() < expected * 2


def test_batches_are_the_frozen_ones():
    assert batch_of(SPEC, PeerId(bytes(32)), 0) == (648, 576)
    assert batch_of(SPEC, PeerId(bytes(32)), 1) == (657, 81)


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
    positions = batch_of(replace(SPEC, rule=inner), NODES[0], 1)

    assert len(set(positions)) == 15 == inner.sequences_per_round
    assert positions == batch_of(replace(SPEC, rule=a_rule(sequences=15)), NODES[0], 1)


def test_a_larger_step_begins_with_the_sequences_of_a_smaller_one():
    """So what a node can decide by its step's size is how far it goes, not which windows it leaves out."""
    compute = replace(SPEC.compute, micro_sequences=2)
    spec = replace(SPEC, rule=a_rule(sequences=2, sequences_max=8), compute=compute)
    sizes = [batch_positions(spec, NODES[0], 3, count * SPEC.model.context) for count in (2, 4, 6, 8)]

    assert [len(set(one)) for one in sizes] == [2, 4, 6, 8]
    assert all(sizes[-1][: len(one)] == one for one in sizes)
    assert sizes[0] == batch_of(replace(SPEC, rule=a_rule(sequences=2)), NODES[0], 3)
    for tokens in (3 * SPEC.model.context, 10 * SPEC.model.context):
        with pytest.raises(ValueError, match=f"{tokens} tokens, expected 16 to 64 in steps of 16"):
            batch_positions(spec, NODES[0], 3, tokens)


def test_a_step_that_needs_more_windows_than_there_are_is_refused_and_one_that_needs_all_ends():
    windows = 900 // WINDOW

    def positions(sequences):
        return batch_of(replace(SPEC, rule=a_rule(sequences=sequences)), NODES[0], 0)

    assert sorted(positions(windows)) == [number * WINDOW for number in range(windows)]
    with pytest.raises(ValueError, match=f"{windows} sequences of {WINDOW} tokens"):
        positions(windows + 1)


def test_what_is_held_out_is_what_nobody_trains_on():
    windows = 1000 // WINDOW
    spec = replace(SPEC, rule=a_rule(sequences=windows - 11))  # 100 bytes hold eleven windows of nine
    trained = {at // WINDOW for at in batch_of(spec, NODES[0], 0)}
    tokens = TOKENS.copy()
    for number in range(windows):
        tokens[number * WINDOW : (number + 1) * WINDOW] = 1 + (number not in trained)

    held = validation_tokens(tokens, SPEC, 64)

    assert held.shape == (11, WINDOW) and held.dtype == np.int64
    assert (held == 2).all()
    assert validation_tokens(tokens, SPEC, 4).shape == (4, WINDOW)


@pytest.mark.parametrize("pair", [1, 2])
def test_a_unit_of_what_is_held_out_is_that_of_the_whole_and_no_other_is_read(pair):
    """Else measuring them one after the other takes as many reads as their number's square."""
    read = []

    class Stream:
        def __getitem__(self, span):
            read.append(span)
            return TOKENS[span]

    spec = replace(SPEC, compute=replace(SPEC.compute, beta_micro=10**5)) if pair == 2 else SPEC
    whole = validation_tokens(TOKENS, spec, 6)
    assert len(whole) == 6

    for unit in range(6 // pair):
        one = validation_tokens(Stream(), spec, 6, units=slice(unit, unit + 1))
        assert np.array_equal(one, whole[unit * pair : (unit + 1) * pair])
    assert len(read) == 6
    assert validation_tokens(Stream(), spec, 6, units=slice(6, 7)).shape == (0, WINDOW)


@pytest.mark.parametrize("windows", [1, 2, 40, 111, 1000])
def test_every_window_is_trained_on_or_held_out_and_none_is_both(windows):
    for held in {1, 2, 31, 32, 33, 64, 65, windows // 20, windows // 2, windows}:
        if 1 <= held <= windows:
            split = Split(windows, held)
            trained = [split.training(n) for n in range(windows - held)]
            kept = [split.held_out(n) for n in range(held)]

            assert trained == sorted(trained) and kept == sorted(kept)
            assert sorted(trained + kept) == list(range(windows))
            for window in range(windows + 1):
                assert split.trained_before(window) == sum(one < window for one in trained)


def test_every_source_is_held_out_by_its_share_of_the_tokens():
    """The last twentieth of a stream in path order was one folder of one source."""
    split = Split(46_511, 2_325)  # 6 MB in windows of 129: 73 stretches of 32 windows
    kept = np.array([split.held_out(n) for n in range(split.held)])

    for first, last in ((0, 23_000), (23_000, 40_000), (40_000, 46_511)):
        share = np.count_nonzero((first <= kept) & (kept < last)) / (last - first)
        assert share == pytest.approx(0.05, rel=0.12)
    assert np.count_nonzero(np.diff(kept) > 1) == split.strata - 1 == 72


# One begins in a window.
STRATA = (Stratum(tokens=600 * 9 + 4, seats=2), Stratum(tokens=400 * 9 - 4, seats=1))
STRATUM_RUN = a_spec(
    model=a_model(context=8),
    data=some_data(tokens=1000 * 9, validation_tokens=80 * 9, strata=STRATA),
    rule=a_rule(sequences=8),
    nodes=tuple(map(a_member, NODES)),
)


def trained_windows(spec: RunSpec, node: PeerId, rounds: int) -> set[int]:
    return {at // WINDOW for number in range(rounds) for at in batch_of(spec, node, number)}


def test_a_node_trains_on_all_of_its_stratum_and_on_nothing_else():
    held_out = {STRATUM_RUN.split.held_out(number) for number in range(STRATUM_RUN.split.held)}
    first, second, third = (trained_windows(STRATUM_RUN, node, 1500) for node in NODES)

    assert first == second == set(range(600)) - held_out
    assert third == set(range(601, 1000)) - held_out  # window 600 holds tokens of both


def test_a_node_that_joins_later_is_assigned_by_its_key_and_by_each_stratums_share_of_seats():
    strangers = [PeerId(hashlib.sha256(b"stranger %d" % n).digest()) for n in range(600)]
    found = [STRATUM_RUN.stratum_of(peer) for peer in strangers]

    assert found == [STRATUM_RUN.stratum_of(peer) for peer in strangers]
    assert found.count(1) / len(found) == pytest.approx(1 / 3, abs=0.06)
    other_seed = replace(STRATUM_RUN, seed=STRATUM_RUN.seed + 1)
    assert found != [other_seed.stratum_of(peer) for peer in strangers]


def test_without_strata_every_node_trains_on_everything():
    everything = replace(STRATUM_RUN, data=replace(STRATUM_RUN.data, strata=()))
    check_spec(everything)

    assert {everything.stratum_of(node) for node in NODES} == {0}
    assert len(trained_windows(everything, NODES[2], 1500)) == 1000 - 80


@pytest.mark.parametrize(
    ("strata", "expected"),
    [
        (STRATA[:1], "strata of 2 seats and 5404 tokens, expected 3 and 9000"),
        ((replace(STRATA[0], seats=3), STRATA[1]), "strata of 4 seats"),
        ((replace(STRATA[0], seats=3), replace(STRATA[1], seats=0)), "a seat in each"),
        (
            (replace(STRATA[0], tokens=9000 - 70), replace(STRATA[1], tokens=70)),
            "stratum 1 has 0 windows of 9 tokens to train on, a step needs 8",
        ),
    ],
)
def test_strata_that_do_not_fit_their_run_are_refused(strata, expected):
    with pytest.raises(ValueError, match=expected):
        check_spec(replace(STRATUM_RUN, data=replace(STRATUM_RUN.data, strata=strata)))
