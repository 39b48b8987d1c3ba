"""Tolerance: judges an opened step between two execution classes whose gradients differ in the last bits.

Room: verifier (pure). An opening fixes what local work put into each block, whatever message was made of it;
that *implied* x is compared with the auditor's own. The node's choice and values are then judged from the
node's own coefficients, which the opening also fixes, so that no near tie between two machines matters:
indices of two machines are never compared.

    after + q - beta * before = implied x  ~  x recomputed       T1, T2: distance by block
    after + q = U:  q is what the rule sends of U                T3: choice, T4: values

Every limit is a `Limit` (limits.py). A test passes, fails, or fails so narrowly that it is BORDERLINE: that
is for a committee, never for a slash. T5 (drift.py) covers many audits of one node.

Shape suffixes: B = opened blocks, C = 4096, L = opened blocks that were sent, K = sent per block.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Commit, Outcome
from assay.protocol.params import Precision, RunSpec, Values
from assay.protocol.types import Digest
from assay.protocol.update_rule import BLOCK_SIZE, PPM, CompressSpec
from assay.training.codec.values import quantise, tree_sum
from assay.training.codec.wire import Update
from assay.training.layout import Layout, to_blocks
from assay.training.optimiser.schedule import rate
from assay.training.transform.compress import gradient_blocks, transition
from assay.training.transform.low_rank import compress_lowrank
from assay.verifier.audit.exact import DISTANCE_PPB_MAX
from assay.verifier.audit.limit import CAP
from assay.verifier.audit.limits import POLICIES, Limit
from assay.verifier.audit.messages import Finding

Doubles = NDArray[np.float64]

FLOOR = 1e-3  # of the mean block's size: the size that smaller blocks count as
SMALL_CAP = 100  # times T1: as CAP, of blocks at the floor
BAND, CAP_BAND = 5, 2  # times its limit: up to there a failing test is borderline
EXCUSED = 3  # times T1: where rounding explains more, a test says nothing
ROUNDING = 2.0**-23  # of U: more than the two roundings of beta * before + x and of U - q can do
NUDGE = 2.0**-20  # of U: covers the rounding of U - q, so that ties may fall either way
FACTOR_STEPS = 16 / 127  # of the largest: one rounding moved blocks of almost lower rank by up to 4.7
SAMPLES = 4  # of what a rounding does; the largest counts, as one may happen to do little
DOUBTED = 3  # times that: so far limits reach, and they convict from about ten times it on
LOST = 0.5  # of a block: where a rounding does as much anywhere, nothing can be told from it
WIDEST = 1e9  # times: limits that nothing exceeds
_PPB = 1e-9
_GROUP_BLOCKS = 256  # the squares of this many are in memory at once
_TINY = 2.0**-120


class Grade(enum.IntEnum):
    """Outcome of one test."""

    PASSED = 0
    BORDERLINE = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """Distances of an opening from the recompute, by opened block, before any limit is applied.

    rho_B: distance of the implied x, relative to x. rounding_B: how much of it float32 arithmetic may
    explain. is_small_B: the size of x is at the floor. choice_B: T3's shortfall, relative to the largest |U|;
    inf where sending, or not sending, broke the rule. doubt_B: how much of it a rho of 1 explains.
    value_B: T4's, likewise. residual_BC: implied x less x, relative to the size of x.
    """

    rho_B: Doubles
    rounding_B: Doubles
    is_small_B: NDArray[np.bool_]
    choice_B: Doubles
    doubt_B: Doubles
    value_B: Doubles
    residual_BC: Doubles


def excess(measured: Measured) -> Doubles:
    """The distance that no rounding explains. Shape (B,)."""
    beyond_B: Doubles = np.maximum(measured.rho_B - measured.rounding_B, 0.0)
    return beyond_B


@dataclass(frozen=True, slots=True)
class Grades:
    """Outcome of every test. ratios: each distance in units of its limit."""

    t1: Grade
    t2: Grade
    t3: Grade
    t4: Grade
    ratios: tuple[float, float, float, float]

    @property
    def worst(self) -> Grade:
        """The worst outcome: a step passes only if every test does."""
        return max(self.t1, self.t2, self.t3, self.t4)


def floor_of(x_NC: NDArray[np.float32]) -> float:
    """The least size a block counts as: a thousandth of the mean block's."""
    parts = [_norm(x_NC[at : at + _GROUP_BLOCKS]) for at in range(0, len(x_NC), _GROUP_BLOCKS)]
    return FLOOR * math.sqrt(math.fsum(float(n) ** 2 for n in np.concatenate(parts)) / len(x_NC))


def jitter_seed(commit: Commit, sample: int, drawn_by: bytes = b"") -> bytes:
    """What decides how a step's gradient is jittered: nobody knew it who chose parameters or data.

    drawn_by: in an audit the seed that drew the step, which its node did not know when it signed the commit.
    """
    return digest(commit) + drawn_by + bytes([sample])


def judged_blocks(
    spec: RunSpec, layout: Layout, round_id: int, slope_P: NDArray[np.float32]
) -> NDArray[np.float32]:
    """A gradient as audits compare it: what a step adds, or by block, with inner steps. Shape (N, C)."""
    if not spec.rule.is_gradient:
        return to_blocks(layout, slope_P).reshape(layout.blocks, -1)
    lr = rate(spec.rule.outer.schedule, *spec.in_line(round_id))
    return gradient_blocks(spec.rule, layout, slope_P, lr)


def step_widening(
    spec: RunSpec,
    layout: Layout,
    round_id: int,
    slope_P: NDArray[np.float32],
    jittered_P: NDArray[np.float32],
) -> Doubles:
    """`widening` of a step, by its gradient and one that was jittered."""
    with np.errstate(all="ignore"):
        x_NC, moved_NC = (judged_blocks(spec, layout, round_id, one) for one in (slope_P, jittered_P))
    return widening(x_NC, moved_NC, spec.compute.dtype)


def widening(x_NC: NDArray[np.float32], jittered_NC: NDArray[np.float32], dtype: Precision) -> Doubles:
    """How many times wider limits are to be for what rounding alone may do, by block; above 1 it exceeds one.

    Same bits everywhere.

    Args:
        x_NC: What the step adds, recomputed; finite. Shape (N, C), float32.
        jittered_NC: The same from a `jittered_gradient`.
        dtype: The precision in which the gradient is computed.

    Returns:
        Shape (N,), N blocks; at most `WIDEST`, for all blocks where it is so for one.
    """
    with np.errstate(all="ignore"):
        noise_NC = jittered_NC - x_NC
    if not np.isfinite(noise_NC).all():
        return np.full(len(x_NC), WIDEST)
    share_N: Doubles = _norm(noise_NC) / np.maximum(_norm(x_NC), max(floor_of(x_NC), _TINY))
    if share_N.max(initial=0.0) > LOST:
        return np.full(len(x_NC), WIDEST)
    return share_N * (DOUBTED / (POLICIES[dtype].t1 * _PPB))


def judge(
    compress: CompressSpec,
    limit: Limit,
    blocks: Sequence[int],
    before_BC: NDArray[np.float32],
    after_BC: NDArray[np.float32],
    update: Update,
    x_BC: NDArray[np.float32],
    *,
    floor: float,
    recomputed: Digest,
    widening_B: Doubles | None = None,
) -> tuple[Finding, Measured | None]:
    """Judge checked blocks of another execution class.

    Args:
        compress: The compression rule: what is sent and how.
        limit: For this pair of classes.
        blocks: The opened blocks, ascending.
        before_BC: Momentum before the step, opened blocks; finite.
        after_BC: What the node claims after it; finite.
        update: The node's whole message.
        x_BC: What the step adds to the opened blocks, recomputed.
        floor: `floor_of` all recomputed blocks.
        recomputed: Digest of the recomputed sketch, copied into the verdict.
        widening_B: `widening` of the opened blocks; above 1, it multiplies the limits of x.

    Returns:
        MATCH, MISMATCH or BORDERLINE, with the block that differs most; and what was measured.
        If the recompute itself is not finite, the result is BORDERLINE with nothing measured. INCONCLUSIVE in
        place of MATCH where float32's rounding of the error alone may reach the limits: nothing was tested;
        and of anything where `widening` says that nothing can be told, with nothing measured.
    """
    if not len(blocks):
        return Finding(Outcome.MATCH, recomputed, 0, 0), None
    if widening_B is not None and widening_B.max() >= WIDEST:
        return Finding(Outcome.INCONCLUSIVE, recomputed, 0, 0), None
    if not (np.isfinite(x_BC).all() and math.isfinite(floor)):
        return Finding(Outcome.BORDERLINE, recomputed, DISTANCE_PPB_MAX, int(blocks[0])), None
    measured = measure(
        compress, blocks, before_BC, after_BC, update, x_BC, floor=floor, widening_B=widening_B
    )
    grade = grades(measured, limit).worst
    excess_B = excess(measured)
    worst = int(np.argmax(excess_B))
    distance = int(min(float(excess_B[worst]) / _PPB, float(DISTANCE_PPB_MAX)))
    passed = Outcome.INCONCLUSIVE if _excuses_all(measured, limit) else Outcome.MATCH
    outcome = {Grade.PASSED: passed, Grade.FAILED: Outcome.MISMATCH}
    found = Finding(
        outcome.get(grade, Outcome.BORDERLINE),
        recomputed,
        distance,
        int(blocks[worst]),
    )
    return found, measured


def grades(measured: Measured, limit: Limit) -> Grades:
    """The outcomes of T1 to T4.

    T1: the median distance is at most t1; borderline up to 5 t1. T2: the 95th percentile is at most t2
    (up to 5 t2), and no block is above 10 t1 (up to 20 t1), at the floor above 100 t1 (up to 200 t1).
    T3, T4: no block's shortfall is above t3, t4 (up to 5 times it); where the amplitude is not sent, t3
    grows by its uncertainty under t2. Blocks at the floor are left out of median and percentile:
    the others could hide behind them.
    """
    excess_B, median = excess(measured), median_of(measured)
    ranked = np.sort(excess_B[~measured.is_small_B])
    p95 = float(ranked[-(-len(ranked) * 19 // 20) - 1]) if len(ranked) else 0.0
    t1, t2 = limit.t1 * _PPB, limit.t2 * _PPB
    cap = float((excess_B / np.where(measured.is_small_B, SMALL_CAP * t1, CAP * t1)).max(initial=0.0))
    choice = float((measured.choice_B / (limit.t3 * _PPB + t2 * measured.doubt_B)).max(initial=0.0))
    value = float(measured.value_B.max(initial=0.0)) / (limit.t4 * _PPB)
    return Grades(
        t1=_grade(median / t1, BAND),
        t2=max(_grade(p95 / t2, BAND), _grade(cap, CAP_BAND)),
        t3=_grade(choice, BAND),
        t4=_grade(value, BAND),
        ratios=(median / t1, max(p95 / t2, cap), choice, value),
    )


def _excuses_all(measured: Measured, limit: Limit) -> bool:
    """Whether rounding may explain `EXCUSED` times what T1 allows, in the median block above the floor."""
    ranked = np.sort(measured.rounding_B[~measured.is_small_B])
    return bool(len(ranked)) and float(ranked[len(ranked) // 2]) > EXCUSED * limit.t1 * _PPB


def median_of(measured: Measured) -> float:
    """The median distance of the blocks above the floor; 0 if there are none."""
    ranked = np.sort(excess(measured)[~measured.is_small_B])
    return float(ranked[len(ranked) // 2]) if len(ranked) else 0.0


def measure(
    compress: CompressSpec,
    blocks: Sequence[int],
    before_BC: NDArray[np.float32],
    after_BC: NDArray[np.float32],
    update: Update,
    x_BC: NDArray[np.float32],
    *,
    floor: float,
    widening_B: Doubles | None = None,
) -> Measured:
    """Distances of an opening from its rule and the recompute; arguments as of `judge`.

    Sums are fixed trees in float64: the same on every machine for the same x.
    """
    # a Byzantine node's momentum may overflow; the audit must still end in a verdict
    with np.errstate(all="ignore"):
        # beta * before rounds here as it must have rounded there: only what follows can differ.
        due_BC = (before_BC * np.float32(compress.feedback_micro / PPM)).astype(np.float64) + x_BC
        sent = _sent(compress, blocks, update, due_BC)
        own_BC = after_BC.astype(np.float64)
        own_BC[sent.at_L[:, None], sent.index_LK] += sent.q_LK
        residual_BC = own_BC - due_BC
        size_B = _norm(x_BC)
        scale_B = np.maximum(size_B, max(floor, _TINY))
        if widening_B is not None:
            scale_B *= np.maximum(widening_B, 1.0)
        top_B = np.maximum(np.abs(own_BC).max(axis=1), _TINY)
        choice_B, doubt_B, value_B = (np.zeros(len(blocks)) for _ in range(3))
        short_L = _shortfall(compress, sent, own_BC)
        # Where a rounding leads anywhere, what is zero here may be one elsewhere.
        is_exact_B = np.ones(len(blocks), np.bool_) if widening_B is None else widening_B == 0
        short_L[_is_dead(compress, sent, own_BC, due_BC) & is_exact_B[sent.at_L]] = np.inf
        choice_B[sent.at_L] = short_L / top_B[sent.at_L]
        choice_B[_withheld(compress, after_BC, sent)] = np.inf
        value_B[sent.at_L] = _miswritten(compress, sent, own_BC, after_BC) / top_B[sent.at_L]
        if _is_amplitude_free(compress):
            # The auditor's mean stands for the node's; between them lies at most this much of rho.
            doubt_B[sent.at_L] = (scale_B / top_B)[sent.at_L] / math.sqrt(compress.k)
        distance_B, rounding_B = _norm(residual_BC), ROUNDING * _norm(due_BC)
        distance_B[_is_untouched(size_B) & is_exact_B & (distance_B > rounding_B)] = np.inf
        return Measured(
            rho_B=_or_inf(distance_B / scale_B),
            rounding_B=rounding_B / scale_B,
            is_small_B=size_B <= floor,
            choice_B=_or_inf(choice_B),
            doubt_B=doubt_B,
            value_B=_or_inf(value_B),
            residual_BC=residual_BC / scale_B[:, None],
        )


@dataclass(frozen=True, slots=True)
class _Sent:
    """The opened blocks of a message. at_L: their positions among the opened. q_LK: what a receiver sees."""

    at_L: NDArray[np.int64]
    index_LK: NDArray[np.int64]
    q_LK: Doubles
    exponent_L: NDArray[np.int64] | None
    mantissa_L: NDArray[np.int64] | None


def _sent(compress: CompressSpec, blocks: Sequence[int], update: Update, due_BC: Doubles) -> _Sent:
    opened_B = np.array(blocks, np.int64)
    is_opened_B = np.isin(update.blocks_B, opened_B)
    at_L, index_LK = np.searchsorted(opened_B, update.blocks_B[is_opened_B]), update.index_BK[is_opened_B]
    q_LK = update.value_BK[is_opened_B].astype(np.float64)
    if _is_amplitude_free(compress):
        # The amplitude is not sent. Whatever it was, it left U - q without a mean along the signs (T4), so
        # what is due there tells it but for rho.
        mean_L = _mean(q_LK * due_BC[at_L[:, None], index_LK])
        return _Sent(at_L, index_LK, q_LK * mean_L[:, None], None, None)
    assert update.exponent_B is not None
    exponent_L = update.exponent_B[is_opened_B]
    mantissa_L = None if update.mantissa_B is None else update.mantissa_B[is_opened_B]
    return _Sent(at_L, index_LK, np.ldexp(q_LK, exponent_L[:, None]), exponent_L, mantissa_L)


def _shortfall(compress: CompressSpec, sent: _Sent, own_BC: Doubles) -> Doubles:
    """By how much the largest coefficient that was left out exceeds the smallest one sent. Shape (L,)."""
    if sent.index_LK.shape[1] == BLOCK_SIZE:
        return np.zeros(len(sent.at_L))
    left_LC = np.abs(own_BC[sent.at_L])
    chosen_LK = np.take_along_axis(left_LC, sent.index_LK, axis=1)
    if _is_amplitude_free(compress):
        chosen_LK = own_BC[sent.at_L[:, None], sent.index_LK] * np.sign(sent.q_LK)
    np.put_along_axis(left_LC, sent.index_LK, -np.inf, axis=1)
    short_L: Doubles = np.maximum(left_LC.max(axis=1) - chosen_LK.min(axis=1), 0.0)
    return short_L


def _is_dead(compress: CompressSpec, sent: _Sent, own_BC: Doubles, due_BC: Doubles) -> NDArray[np.bool_]:
    """Whether a block that was sent is one of zeros, or has no k others. Shape (L,).

    Zeros are the same on all machines, but for a rounding. Where something was sent, 0 may also be what
    rounding left of a small coefficient.
    """
    if sent.index_LK.shape[1] == BLOCK_SIZE:
        return np.zeros(len(sent.at_L), np.bool_)
    own_LK: Doubles = own_BC[sent.at_L[:, None], sent.index_LK]
    if _is_amplitude_free(compress):
        own_LK = own_LK * np.sign(sent.q_LK)
    has_work_L = due_BC[sent.at_L].any(axis=1)
    lacks_L = ((own_LK == 0) & (sent.q_LK == 0)).any(axis=1)
    return np.array(lacks_L | ~has_work_L, np.bool_)


def _is_untouched(size_B: Doubles) -> NDArray[np.bool_]:
    """Blocks to which nothing is added, on any machine; signs would multiply the least lie. Shape (B,)."""
    return np.asarray(size_B == 0)


def _withheld(compress: CompressSpec, after_BC: NDArray[np.float32], sent: _Sent) -> NDArray[np.int64]:
    """Opened blocks that were not sent although the rule sends what they hold: U is there, bit for bit."""
    is_sent_B = np.zeros(len(after_BC), bool)
    is_sent_B[sent.at_L] = True
    quiet = np.flatnonzero(~is_sent_B)
    return quiet[transition(compress, np.zeros_like(after_BC[quiet]), after_BC[quiet]).sent.blocks_B]


def _miswritten(
    compress: CompressSpec, sent: _Sent, own_BC: Doubles, after_BC: NDArray[np.float32]
) -> Doubles:
    """How far what was written is from what the rule writes of the node's own coefficients. Shape (L,)."""
    rows, at = sent.at_L, (sent.at_L[:, None], sent.index_LK)
    if _is_amplitude_free(compress):
        lean_L: Doubles = np.abs(_mean(np.sign(sent.q_LK) * after_BC[at]))
        return lean_L
    if compress.rank:
        due_LC = compress_lowrank(own_BC[rows].astype(np.float32), compress.rank)[1]
        top_L = np.abs(own_BC[rows]).max(axis=1, initial=0)
        gap_L: Doubles = np.abs(sent.q_LK - due_LC).max(axis=1, initial=0) - FACTOR_STEPS * top_L
        return np.maximum(gap_L, 0.0)
    return _miswritten_levels(compress, sent, own_BC[at])


def _miswritten_levels(compress: CompressSpec, sent: _Sent, own_LK: Doubles) -> Doubles:
    """The same of whole levels. What was rounded may have been on the other side of a tie."""
    best_LK = np.full(own_LK.shape, np.inf)
    is_large_LK = np.abs(own_LK) > _mean(np.abs(own_LK))[:, None]
    for is_moved_LK in (np.ones(own_LK.shape), is_large_LK):  # alone, large ones move against the mean
        for nudge in (0.0, -NUDGE, NUDGE):
            written = quantise(compress.values, (own_LK * (1 + nudge * is_moved_LK)).astype(np.float32))
            gap_LK = np.abs(sent.q_LK - written.sent_BK)
            is_scale_L = (written.mantissa_B == sent.mantissa_L) & (written.exponent_B == sent.exponent_L)
            is_same_L1 = (is_scale_L & written.is_live_B)[:, None]
            np.minimum(best_LK, gap_LK, out=best_LK, where=is_same_L1)
    # No such scale: then the rule would not write any of the block's values.
    worst_L: Doubles = np.where(np.isinf(best_LK), np.abs(own_LK), best_LK).max(axis=1, initial=0)
    return worst_L


def _is_amplitude_free(compress: CompressSpec) -> bool:
    return compress.values is Values.SIGN and not compress.rank


def _grade(ratio: float, band: float) -> Grade:
    if ratio <= 1:
        return Grade.PASSED
    return Grade.BORDERLINE if ratio <= band else Grade.FAILED


def _norm(rows_BC: NDArray[np.float32] | Doubles) -> Doubles:
    length_B: Doubles = np.sqrt(tree_sum(np.square(rows_BC, dtype=np.float64)))
    return length_B


def _mean(rows_LK: Doubles) -> Doubles:
    mean_L: Doubles = tree_sum(rows_LK) / rows_LK.shape[1]
    return mean_L


def _or_inf(values_B: Doubles) -> Doubles:
    return np.where(np.isnan(values_B), np.inf, values_B)
