"""Carry: how much of a node's private state enters its next step, so that no false state lasts.

Room: training (pure, without torch). An audit recomputes one step from the state that the node claims to
have begun with. Were that state free, one false step that nobody drew would decide every later message: an
error of 1e30 leaves no bit of `x` in beta * E + x, so no gradient is needed any more, and every audit of
those steps agrees. Two rules of the step itself keep it from that:

    size    |beta E_b| <= (1 + beta + ... + beta^(T-1)) * max(|x_b|, mean block) * peak rate / rate
            what T steps of the present size can have left; a larger block is halved until it is not
    life    every block's error begins anew at 0 in every T-th of its fragment's rounds (T = `reset_rounds`),
            block after block, and an inner optimiser's state in every round that T divides; who missed the
            round makes up for it in its next step, else a node that stays away in it would keep its lie

So what a node has after `RuleSpec.renewal_rounds` does not depend on what it had before them, bit for bit.
Halving is exact, and so is a reset: where neither happens the step is that of DeMo, bit for bit. Without
inner steps the mean block is the root mean square of all blocks of x; with them it counts as 0, for an
auditor then knows the round's displacement in the opened blocks only.

Reference:
    Xie et al., "CSER: Communication-efficient SGD with Error Reset", NeurIPS 2020, arXiv:2007.13221: a
    periodic reset of the error, there to bound its variance.
Shape suffixes: N = blocks, C = 4096, B = blocks given.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from assay.protocol.update_rule import PPM, RuleSpec
from assay.training.optimiser.inner import Floats
from assay.training.optimiser.schedule import rate_nano
from assay.training.transform.blocked_dct import row_lengths


def begins_anew(rule: RuleSpec, base: int, round_id: int) -> bool:
    """Whether the inner optimiser's state is not carried into this round from that of the step before.

    base: 1 + the round of that step; 0 after a fresh start.
    """
    return round_id // rule.compress.reset_rounds != (base - 1) // rule.compress.reset_rounds


def is_renewed(
    rule: RuleSpec, base: int, round_id: int, blocks: NDArray[np.int64], fragment_B: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which blocks' error is not carried into this round from the step before. Shape (B,).

    Args:
        rule: Of the run.
        base: 1 + the round of that step; 0 after a fresh start, whose error is 0 in any case.
        round_id: The round.
        blocks: Numbers of the blocks given.
        fragment_B: The fragment of each.
    """
    before_B, now_B = (
        ((at - fragment_B) // rule.fragments + blocks) // rule.compress.reset_rounds
        for at in (base - 1, round_id)
    )
    found: NDArray[np.bool_] = before_B != now_B
    return found


def leave(error_BC: Floats, share_B: Floats) -> None:
    """Leave of each block's error its share, in place; of one with none +0 throughout, whatever it held."""
    less = np.flatnonzero(share_B != 1)
    error_BC[less] *= share_B[less, None]
    error_BC[share_B == 0] = 0  # of -x and of infinity a product leaves -0 and no number


def mean_block(rule: RuleSpec, length_N: NDArray[np.float64]) -> float:
    """The root mean square of the lengths of all blocks of x; 0 for a rule with inner steps."""
    if not rule.is_gradient:
        return 0.0
    return math.sqrt(math.fsum(np.square(length_N)) / max(len(length_N), 1))


def carried_shares(
    rule: RuleSpec,
    rounds: int,
    base: int,
    round_id: int,
    blocks: NDArray[np.int64],
    before_BC: Floats,
    length_B: NDArray[np.float64],
    mean: float,
    *,
    slack: float = 1.0,
    rounds_before: int = 0,
) -> Floats:
    """The share of each block's error that a step carries: 1, a power of two below it, or 0.

    Args:
        rule: Of the run.
        rounds: Of the run.
        base: 1 + the round of the node's step before.
        round_id: The round of the step.
        blocks: Numbers of the blocks given, all of the round's fragment.
        before_BC: Their error before the step. Shape (B, C), float32; finite.
        length_B: `row_lengths` of what the step adds to them.
        mean: `mean_block` of all blocks of x.
        slack: Factor on the limits. An auditor of another execution class, whose x differs in the last bits,
            asks on both sides of 1.
        rounds_before: Trained by the runs that this one continues.

    Returns:
        Shape (B,), float32. The same bits on every machine for the same error and x.
    """
    if not rule.compress.keeps_error:
        return np.ones(len(before_BC), np.float32)
    return shares_by_length(
        rule, rounds, base, round_id, blocks, row_lengths(before_BC), length_B, mean,
        slack=slack, rounds_before=rounds_before,
    )  # fmt: skip


def shares_by_length(
    rule: RuleSpec,
    rounds: int,
    base: int,
    round_id: int,
    blocks: NDArray[np.int64],
    before_B: NDArray[np.float64],
    length_B: NDArray[np.float64],
    mean: float,
    *,
    slack: float = 1.0,
    rounds_before: int = 0,
) -> Floats:
    """`carried_shares` of a rule that keeps an error, by the `row_lengths` of that before the step."""
    share_B = np.ones(len(before_B), np.float32)
    size_B = before_B * (rule.compress.feedback_micro / PPM)
    limit_B = np.maximum(length_B, mean) * (
        slack * _room(rule, rounds_before + rounds, rounds_before + round_id)
    )
    for block in np.flatnonzero(~(size_B <= limit_B)):
        excess = math.frexp(size_B[block] / limit_B[block])[1] if limit_B[block] > 0 else 1024
        share_B[block] = math.ldexp(1.0, -excess)  # 0 below what float32 can hold
    fragment_B = np.full(len(blocks), round_id % rule.fragments)
    share_B[is_renewed(rule, base, round_id, blocks, fragment_B)] = 0
    return share_B


def _room(rule: RuleSpec, rounds: int, round_id: int) -> float:
    """The limit of a block's error, in units of its present size."""
    local = rule.local
    schedule = rule.outer.schedule if rule.is_gradient else local.schedule
    last = round_id * local.steps + local.steps - 1
    now = rate_nano(schedule, rounds * local.steps, last, local.steps)
    left = _left(rule.compress.feedback_micro, rule.compress.reset_rounds)
    return left * schedule.peak_nano / now if now else 0.0


@lru_cache(maxsize=16)
def _left(feedback_micro: int, rounds: int) -> float:
    """1 + beta + ... + beta^(rounds - 1), added up in this order."""
    total, share = 0.0, 1.0
    for _ in range(rounds):
        total += share
        share *= feedback_micro / PPM
    return total
