"""Draws: without replacement no two steps share one, and sources are drawn by their weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.messages import OwnData
from assay.protocol.params import RunSpec, SourceShare, Stratum, check_spec
from assay.protocol.types import Digest, PeerId
from assay.testing.members import a_member
from assay.testing.specs import a_model, a_rule, a_spec, some_data
from assay.training.data.batches import batch_positions
from assay.training.data.permutation import permuted

NODES = tuple(sorted(PeerId(hashlib.sha256(b"node %d" % n).digest()) for n in range(3)))
WINDOW = 9
# 100 windows, of which 11 are held out; the second source begins in the middle of window 60.
DATA = some_data(tokens=100 * WINDOW, validation_tokens=11 * WINDOW, replaces=False)
SHARES = (SourceShare(tokens=60 * WINDOW + 4, weight_milli=250), SourceShare(tokens=356, weight_milli=750))
RUN = a_spec(model=a_model(context=8), data=DATA, rule=a_rule(sequences=4), nodes=tuple(map(a_member, NODES)))
MIXED = replace(RUN, data=replace(DATA, mixture=SHARES))
TRAINED = 89


def windows_of(spec: RunSpec, seat: int, round_id: int, tokens: int = 32) -> list[int]:
    starts = batch_positions(spec, NODES[seat % 3], round_id, tokens, seat=seat)
    return [at // WINDOW for at in starts]


def drawn(spec: RunSpec, rounds: int) -> list[int]:
    """What all three nodes train on, in the order in which draws are numbered."""
    seats = range(spec.seats)
    return [one for number in range(rounds) for seat in seats for one in windows_of(spec, seat, number)]


# ---- the permutation


@pytest.mark.parametrize("count", [*range(1, 40), 97, 100, 1000])
def test_a_permutation_takes_every_number_once(count):
    assert sorted(permuted(at, count, b"key") for at in range(count)) == list(range(count))


@given(st.integers(1, 2**60), st.data())
def test_a_number_of_a_large_permutation_stays_in_range_and_differs_from_its_neighbour(count, data):
    one, other = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
    found = permuted(one, count, b"key"), permuted(other, count, b"key")

    assert all(0 <= at < count for at in found)
    assert (found[0] == found[1]) == (one == other)


def test_each_key_has_an_order_of_its_own_in_which_every_number_may_come_first():
    first = Counter(permuted(0, 10, b"%d" % key) for key in range(4000))

    assert set(first) == set(range(10))
    assert min(first.values()) > 300 and max(first.values()) < 500


# ---- without replacement


def test_over_a_pass_each_window_that_is_trained_on_comes_exactly_once_over_all_nodes():
    order = drawn(RUN, 30)
    held_out = {RUN.split.held_out(number) for number in range(RUN.split.held)}
    passes = [order[at : at + TRAINED] for at in range(0, 3 * TRAINED, TRAINED)]

    for one in passes:
        assert sorted(one) == sorted(set(range(100)) - held_out)
    assert passes[0] != passes[1] != passes[2]


def test_with_replacement_windows_come_again_before_all_have_come():
    """Or the test above would hold whatever the rule."""
    order = drawn(replace(RUN, data=replace(DATA, replaces=True)), 30)

    assert len(set(order[:TRAINED])) < TRAINED


def test_what_absent_nodes_and_smaller_steps_leave_out_is_drawn_by_nobody_else_in_that_pass():
    compute = replace(RUN.compute, micro_sequences=1)
    spec = replace(RUN, rule=a_rule(sequences=1, sequences_max=4), seats=5, compute=compute)
    sizes = {0: 8, 1: 32, 4: 16}
    order = [one for number in range(4) for seat, size in sizes.items()
             for one in windows_of(spec, seat, number, size)]  # fmt: skip

    assert len(set(order)) == len(order) == 4 * 7  # 4 rounds of 5 seats with 4 windows are within a pass
    for seat, size in sizes.items():
        assert windows_of(spec, seat, 2, size) == windows_of(spec, seat, 2)[: size // 8]


def test_draws_follow_from_the_seat_and_not_from_the_key_that_a_node_may_choose():
    other = PeerId(bytes(32))

    assert batch_positions(RUN, other, 3, 32, seat=1) == batch_positions(RUN, NODES[0], 3, 32, seat=1)
    assert batch_positions(RUN, other, 3, 32, seat=1) != batch_positions(RUN, other, 3, 32, seat=2)


def test_another_seed_has_another_order():
    assert windows_of(RUN, 0, 0) != windows_of(replace(RUN, seed=RUN.seed + 1), 0, 0)


def test_a_run_that_continues_another_goes_on_with_its_passes():
    before = replace(RUN.predecessor, rounds=5)
    assert windows_of(replace(RUN, predecessor=before), 1, 2) == windows_of(RUN, 1, 7)


def test_a_node_passes_over_its_own_data_alone():
    strata = (Stratum(tokens=0, seats=1), Stratum(tokens=DATA.tokens, seats=2))
    spec = replace(RUN, data=replace(DATA, strata=strata))
    check_spec(spec)
    own = OwnData(root=Digest(b"r" * 32), windows=40)

    def order(bound: OwnData, rounds: int = 10) -> list[int]:
        return [at // WINDOW for n in range(rounds) for at in batch_positions(spec, NODES[0], n, 32, bound)]

    assert sorted(order(own)) == list(range(40))
    assert order(own) != order(replace(own, root=Digest(b"s" * 32)))


# ---- weights


@pytest.mark.parametrize("replaces", [True, False])
def test_a_source_is_drawn_by_its_weight_and_never_a_window_of_two_sources(replaces):
    spec = replace(MIXED, data=replace(MIXED.data, replaces=replaces))
    check_spec(spec)
    order = drawn(spec, 250)  # 3,000 draws

    share = sum(one < 60 for one in order) / len(order)
    assert share == pytest.approx(0.25, abs=0.02 if replaces else 0)
    assert 60 not in order
    everything = set(range(100)) - {60} - {RUN.split.held_out(number) for number in range(11)}
    assert set(order) == everything


def test_with_weights_each_source_has_passes_of_its_own():
    order = drawn(MIXED, 250)
    for part in ([one for one in order if one < 60], [one for one in order if one > 60]):
        count = len(set(part))
        whole = len(part) // count
        assert whole > 10
        for at in range(whole):
            assert len(set(part[at * count : (at + 1) * count])) == count


def test_draws_are_the_frozen_ones():
    with_weights = replace(MIXED, data=replace(MIXED.data, replaces=True))
    assert windows_of(RUN, 0, 0) == [42, 19, 12, 86]
    assert windows_of(MIXED, 1, 7) == [10, 64, 67, 41]
    assert windows_of(with_weights, 0, 0) == [15, 67, 88, 79]


# ---- what does not fit


def shares(*each: tuple[int, int]) -> tuple[SourceShare, ...]:
    return tuple(SourceShare(tokens=tokens, weight_milli=weight) for tokens, weight in each)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mixture": shares((450, 500), (450, 499))}, "weigh 999 thousandths .* expected 900 and 1000"),
        ({"mixture": shares((450, 500), (449, 500))}, "sources of 899 tokens"),
        ({"mixture": shares((450, 1000), (450, 0))}, "1 at least of each"),
        ({"mixture": shares((870, 500), (30, 500))}, "source 1 has 0 windows of 9 tokens .* a step needs 4"),
        (
            {"mixture": SHARES, "strata": (Stratum(tokens=450, seats=2), Stratum(tokens=450, seats=1)),
             "replaces": True},
            "expected strata, or weights",
        ),
        (
            {"strata": (Stratum(tokens=450, seats=2), Stratum(tokens=450, seats=1))},
            "strata are drawn with replacement",
        ),
    ],
)  # fmt: skip
def test_ways_to_draw_that_contradict_each_other_are_refused(changes, expected):
    with pytest.raises(ValueError, match=expected):
        check_spec(replace(RUN, data=replace(DATA, **changes)))


def test_a_source_that_holds_just_one_step_is_taken_and_drawn_to_its_end():
    small = shares((4 * WINDOW, 990), (900 - 4 * WINDOW, 10))
    for replaces in (True, False):
        spec = replace(RUN, data=replace(DATA, mixture=small, replaces=replaces))
        check_spec(spec)
        assert len(spec.portions(NODES[0])[0].numbers) == 4
        assert len(drawn(spec, 5)) == 60
