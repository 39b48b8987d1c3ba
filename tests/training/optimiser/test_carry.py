"""Carry: honest steps keep their momentum, a false one is cut down at once and gone after T steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.params import RunSpec
from assay.testing import specs
from assay.testing.members import RUN_ID
from assay.testing.signed import a_spec
from assay.training.layout import layout_of
from assay.training.optimiser.carry import begins_anew, carried_shares, leave, mean_block
from assay.training.optimiser.inner import InnerState
from assay.training.optimiser.node_state import NodeState, start_private
from assay.training.optimiser.node_state import commit as root
from assay.training.optimiser.schedule import rate
from assay.training.optimiser.step import Work, begin, encode, local
from assay.training.transform.blocked_dct import row_lengths

BLOCKS, T = 8, 16
EVERY = np.arange(BLOCKS)
QUIET = 3  # a round in which no block of these eight begins anew


def a_run(method: str = "demo", **choices: object) -> RunSpec:
    rule = specs.a_rule(method, **{"reset_rounds": T, "floor_ppm": 1_000_000, **choices})
    return replace(a_spec(), rule=rule, rounds=1_000)


def blocks_of(length: float, seed: int = 0, count: int = BLOCKS) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((count, 4096))
    return (drawn * (length / np.linalg.norm(drawn, axis=1, keepdims=True))).astype(np.float32)


def shares(
    spec: RunSpec, before: np.ndarray, x: np.ndarray, round_id: int = QUIET, base: int = 0, **more: float
) -> np.ndarray:
    lengths = row_lengths(x)
    mean = mean_block(spec.rule, lengths)
    return carried_shares(
        spec.rule, spec.rounds, base or round_id, round_id, EVERY, before, lengths, mean, **more
    )


def limit(beta: float = 0.95) -> float:
    """Of the error, in lengths of x."""
    return sum(beta**n for n in range(T)) / beta


def test_what_honest_steps_of_one_size_leave_is_carried_whole():
    """Even if all of them point one way and nothing was ever sent."""
    x, before = blocks_of(1.0), np.zeros((BLOCKS, 4096), np.float32)
    for _ in range(T - 1):
        before = before * np.float32(0.95) + x

    assert shares(a_run(), before, x).tolist() == [1.0] * BLOCKS


@pytest.mark.parametrize(
    ("over", "share"),
    [(0.999, 1), (1.001, 0.5), (1.999, 0.5), (2.001, 0.25), (1e6, 2.0**-20), (1e25, 2.0**-84)],
)
def test_a_larger_error_is_halved_until_it_is_within_the_limit(over, share):
    before, x = blocks_of(limit() * over), blocks_of(1.0, seed=1)

    assert shares(a_run(), before, x).tolist() == [share] * BLOCKS


def test_a_quiet_block_may_carry_what_a_mean_one_may():
    x = blocks_of(1.0, seed=1)
    x[0] = 0
    mean = float(np.sqrt(7 / 8))

    assert shares(a_run(), blocks_of(limit() * mean * 0.999), x)[0] == 1
    assert shares(a_run(), blocks_of(limit() * mean * 1.001), x)[0] == 0.5


def test_without_any_work_nothing_is_carried():
    assert not shares(a_run(), blocks_of(1e-20), np.zeros((BLOCKS, 4096), np.float32)).any()


def test_the_limit_follows_the_rate_so_that_a_falling_one_drops_nothing():
    spec = a_run(floor_ppm=0)
    half = next(r for r in range(1000) if r % T == QUIET and shares_rate(spec, r) < 0.5)
    before, x = blocks_of(limit() * 1.5), blocks_of(1.0, seed=1)

    assert shares(spec, before, x, round_id=half).tolist() == [1] * BLOCKS
    assert shares(spec, before, x).tolist() == [0.5] * BLOCKS


def shares_rate(spec: RunSpec, round_id: int) -> float:
    return float(rate(spec.rule.outer.schedule, spec.rounds, round_id)) / (
        spec.rule.outer.schedule.peak_nano / 1e9
    )


def test_every_block_begins_anew_once_in_t_steps_and_not_all_at_once():
    spec, x = a_run(), blocks_of(1.0)
    dropped = [np.flatnonzero(shares(spec, x, x, round_id=r) == 0).tolist() for r in range(5, 5 + T)]

    assert sorted(block for blocks in dropped for block in blocks) == EVERY.tolist()
    assert max(map(len, dropped)) == 1


def test_an_auditor_of_another_class_asks_on_both_sides_of_the_limit():
    before, x = blocks_of(limit() * 1.01), blocks_of(1.0, seed=1)

    assert shares(a_run(), before, x, slack=1.25).tolist() == [1] * BLOCKS
    assert shares(a_run(), before, x, slack=1 / 1.25).tolist() == [0.5] * BLOCKS


def test_a_false_momentum_is_heard_for_t_steps_at_most():
    """The adversary's signs are sent at first; after T steps the node's messages are the honest ones."""
    spec = replace(a_run(), model=specs.a_model())
    layout = layout_of(spec.model)
    honest = start_private(layout)
    false = replace(honest, error_NC=blocks_of(1e30, seed=9, count=layout.blocks))
    differs = []
    for number in range(1, 3 * T):
        work = Work(x_NC=blocks_of(1.0, seed=100 + number, count=layout.blocks), loss=1.0)
        honest, true = encode(spec, layout, number, honest, work)
        false, other = encode(spec, layout, number, false, work)
        differs.append(true != other)

    assert differs[0]
    assert not any(differs[T:])
    assert np.array_equal(false.error_NC, honest.error_NC)


@pytest.mark.parametrize("method", ["sparseloco", "streaming-diloco"])
def test_an_inner_state_is_not_carried_into_the_rounds_that_t_divides(method):
    spec = replace(a_run(method, keeps_moments=True), model=specs.a_model())
    layout = layout_of(spec.model)
    theta = np.zeros(layout.parameters, np.float32)
    huge = np.full(layout.parameters, 1e30, np.float32)
    private = NodeState(start_private(layout).error_NC, InnerState(huge, (huge, huge), 9))

    for base, round_id in ((T, T), (2 * T, 2 * T), (T, T + 1), (1, T + 1), (1, 9 * T - 1)):
        assert begins_anew(spec.rule, base, round_id)
        begun = begin(spec, layout, theta, replace(private, base=base), round_id)
        assert (begun.count, begun.theta_P.max(), max(m.max() for m in begun.moments)) == (0, 0, 0)
    for base, round_id in ((T + 1, T + 1), (T + 1, 2 * T - 1), (1, T - 1)):
        assert not begins_anew(spec.rule, base, round_id)
        assert begin(spec, layout, theta, replace(private, base=base), round_id).count == 9


def test_a_block_whose_round_was_missed_begins_anew_in_the_next_step():
    """Else a node that stays away once in T rounds would keep a false block for ever."""
    spec, x, before = a_run(), blocks_of(1.0), blocks_of(1.0, seed=1)
    due = T - 5  # of block 5

    assert np.flatnonzero(shares(spec, before, x, due + 1, base=due + 1) == 0).tolist() == [4]
    assert np.flatnonzero(shares(spec, before, x, due + 1, base=due) == 0).tolist() == [4, 5]
    assert np.flatnonzero(shares(spec, before, x, due + 1, base=due - 1) == 0).tolist() == [4, 5, 6]
    assert not shares(spec, before, x, due + T, base=due + 1).any()


def test_nothing_is_left_of_a_block_that_begins_anew_not_even_the_sign_of_a_zero():
    error = np.array([[-1.0, np.inf, np.nan], [-1.0, 2.0, 3.0], [-1.0, 2.0, 3.0]], np.float32)

    leave(error, np.array([0, 0.5, 1], np.float32))

    assert error.tolist() == [[0, 0, 0], [-0.5, 1, 1.5], [-1, 2, 3]]
    assert not np.signbit(error[0]).any()


RENEWED = {
    "demo": {},
    "sparseloco": {"keeps_moments": True},
    "streaming-diloco": {"keeps_moments": True, "feedback_micro": 950_000},
    "fedavg": {},
}


ATTENDS = {
    "always": lambda number: True,
    "not when block 0 is due": lambda number: number % T,
    "in every third round": lambda number: number % 3 == 0,
}


@pytest.mark.parametrize("attends", ATTENDS)
@pytest.mark.parametrize("method", RENEWED)
def test_after_renewal_rounds_no_bit_depends_on_what_was_there_before(method, attends):
    """From a step in which the inner state begins anew, whatever error and inner state it claims."""
    spec = replace(a_run(method, **RENEWED[method]), model=specs.a_model())
    rule, layout = spec.rule, layout_of(spec.model)
    draw, first = np.random.default_rng(2), 2 * T
    inner = InnerState(draw.standard_normal(layout.parameters).astype(np.float32), (), 9)
    inner = replace(inner, moments=tuple(abs(inner.theta_P) for _ in range(rule.local.moments)))
    told = NodeState(-blocks_of(7.0, 3, layout.blocks), inner if rule.carries_inner else None, first)
    one, other = told, replace(start_private(layout), base=first)
    theta = draw.standard_normal(layout.parameters).astype(np.float32)
    differed = []
    for number in range(first, first + rule.renewal_rounds + 2 * T):
        if number > first and not ATTENDS[attends](number):
            continue
        tokens = np.full(1, number)
        slope = np.random.default_rng(number).standard_normal(layout.parameters).astype(np.float32)
        slope[::2] = -0.0
        works = [
            local(spec, layout, theta, each, tokens, number, lambda *_, s=slope: (1.0, s))
            for each in (one, other)
        ]
        one, other = (
            encode(spec, layout, number, each, work)[0]
            for each, work in zip((one, other), works, strict=True)
        )
        is_equal = root(RUN_ID, rule, layout, one) == root(RUN_ID, rule, layout, other)
        if number + 1 - first >= rule.renewal_rounds:
            assert is_equal, number
        differed.append(not is_equal)
    assert differed[0] == rule.compress.keeps_error


def test_blocks_of_a_fragment_count_their_own_steps():
    """A block that is sent in every fourth round begins anew in one of T of those."""
    spec, x = a_run("streaming-diloco", feedback_micro=950_000), blocks_of(1.0)
    assert spec.rule.fragments == 4

    for round_id in range(40, 40 + 4 * T):
        dropped = np.flatnonzero(shares(spec, x * 0, x, round_id=round_id) == 0)
        assert dropped.tolist() == [block for block in EVERY if (round_id // 4 + block) % T == 0]


def test_with_inner_steps_the_limit_follows_the_rate_of_the_rounds_last_step_and_the_block_alone():
    spec = a_run("sparseloco", steps=4, segment=2, inner_warmup_rounds=8)
    x = blocks_of(1e-3, seed=1)
    x[0] *= 100
    for round_id in (1, 3, 6, 200, 990):
        schedule = spec.rule.local.schedule
        now = float(rate(schedule, spec.rounds, round_id, steps=4, step=3)) / (schedule.peak_nano / 1e9)
        for over, share in ((0.9999, 1), (1.0001, 0.5)):
            before = blocks_of(limit() * 1e-3 / now * over)
            quiet = [at for at in range(1, BLOCKS) if (round_id + at) % T]
            assert set(shares(spec, before, x, round_id=round_id)[quiet]) == {share}


def test_the_mean_block_is_a_root_mean_square_and_none_with_inner_steps():
    x = blocks_of(1.0)
    x[:4] *= 7
    assert mean_block(a_run().rule, row_lengths(x)) == pytest.approx(5.0)
    assert mean_block(a_run().rule, row_lengths(x[:1])) == pytest.approx(7.0)
    assert mean_block(a_run("sparseloco").rule, row_lengths(x)) == 0
