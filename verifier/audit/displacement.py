"""Displacement: judges whether a segment of inner steps moved as ours did, on another execution class.

Room: verifier (pure). Both segments begin in one opened state. The displacement of each part of the state is
compared block by block, relative to ours:

    parameters      theta' - theta                 noise turns small gradients' steps: the widest limit
    first moment    m' - beta1^steps m             linear in the gradients: the sharpest
    second moment   v' - beta2^steps v             what the next steps are divided by

A segment of one AdamW step is judged more sharply: its parameters follow, by element, from the moments the
node opened, so they contain nobody's noise. Blocks in which AdamW takes the first step of a parameter, of a
token's embedding when it first occurs or beside Muon's fresh matrices, have the limits of fresh moments: that
step is nearly a sign, and a gradient that is nearly zero may turn. The message has no tolerance: it follows
from the last parameters, which are opened too, bit for bit on every machine (`exact.compare`).

Shape suffixes: N = blocks, B = opened blocks, C = 4096.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from assay.protocol.messages import Outcome
from assay.protocol.params import Precision
from assay.protocol.types import Digest
from assay.protocol.update_rule import BLOCK_SIZE, PPM, LocalSpec, Optimiser
from assay.training.codec.values import tree_sum
from assay.training.layout import Layout, to_blocks
from assay.training.optimiser.inner import Floats, InnerState, adamw_moved
from assay.training.optimiser.matrices import rest_of
from assay.verifier.audit.exact import DISTANCE_PPB_MAX
from assay.verifier.audit.limit import Limit
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.segment import OpenedSegment
from assay.verifier.audit.segment_limits import SEGMENT_POLICIES, Regime, regime_of
from assay.verifier.audit.tolerance import Grade, Measured, excess, floor_of, grades, median_of

Doubles = NDArray[np.float64]

# Of what follows from the node's own opened values: float32's rounding.
OWN_WORK = Limit(t1=2_000, t2=4_000, t3=1_000, t4=1_000)
_ROUNDING = 2.0**-23  # of a part, each step: its roundings on two machines
_PPB = 1e-9
_TINY = 2.0**-120
_RANKS = {Outcome.MATCH: 0, Outcome.INCONCLUSIVE: 1, Outcome.BORDERLINE: 2, Outcome.MISMATCH: 3}


@dataclass(frozen=True, slots=True)
class ModelledSegment:
    """A segment as we recomputed it. steps: their count. lr: the rate of its last step."""

    local: LocalSpec
    dtype: Precision
    layout: Layout
    steps: int
    lr: np.float32
    start: InnerState
    end: InnerState


def judge_movement(
    walked: ModelledSegment,
    shown: OpenedSegment,
    limits: Sequence[Limit],
    blocks: Sequence[int],
    *,
    recomputed: Digest,
) -> tuple[Finding, tuple[Measured, ...]]:
    """Judge the end state of a segment of another execution class.

    Args:
        walked: Our own steps from the start that the node opened.
        shown: The opened blocks of the node's end state; finite.
        limits: For this pair of classes, part by part.
        blocks: The opened blocks, ascending.
        recomputed: Digest of the recomputed sketch, copied into the verdict.

    Returns:
        MATCH, MISMATCH or BORDERLINE, with the block that differs most; and what was measured of each part.
        If our own steps do not stay finite, the result is BORDERLINE with nothing measured.
    """
    if shown.count != walked.end.count:  # integer arithmetic of the optimiser: equal on every machine
        return Finding(Outcome.MISMATCH, recomputed, DISTANCE_PPB_MAX, 0), ()
    if not len(blocks):
        return Finding(Outcome.MATCH, recomputed, 0, 0), ()
    if not walked.end.is_finite:
        return Finding(Outcome.BORDERLINE, recomputed, DISTANCE_PPB_MAX, int(blocks[0])), ()
    measured = measure_movement(walked, gained(walked, blocks), shown)
    graded = [grades(part, limit) for part, limit in zip(measured, sharpened(walked, limits), strict=True)]
    worst = max(range(len(graded)), key=lambda at: max(graded[at].ratios))
    excess_B = excess(measured[worst])
    block = int(np.argmax(excess_B))
    outcome = {Grade.PASSED: Outcome.MATCH, Grade.FAILED: Outcome.MISMATCH}
    found = Finding(
        outcome.get(max(one.worst for one in graded), Outcome.BORDERLINE),
        recomputed,
        int(min(float(excess_B[block]) / _PPB, float(DISTANCE_PPB_MAX))),
        int(blocks[block]),
    )
    return found, measured


def wider(limits: Sequence[Limit], times: float) -> tuple[Limit, ...]:
    """The limits of a segment's parts, this many times as wide."""
    return tuple(replace(one, t1=math.ceil(one.t1 * times), t2=math.ceil(one.t2 * times)) for one in limits)


def sharpened(walked: ModelledSegment, limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """The limits of a segment's parts, tighter where the parameters follow from one step's opened moments."""
    first = replace(OWN_WORK, profile=0) if _is_one_step(walked) else limits[0]
    return (first, *limits[1:])


@dataclass(frozen=True, slots=True)
class RelativeMovement:
    """Displacement of one part of our own state, in the opened blocks.

    before_BC, after_BC: at the segment's start and end. size_B: of the displacement. floor: the size that
    smaller blocks count as. times_B: by how much limits are wider there. is_untouched_B: whether no gradient
    reached the block.
    """

    before_BC: Floats
    after_BC: Floats
    size_B: Doubles
    floor: float
    times_B: Doubles
    is_untouched_B: NDArray[np.bool_]


def gained(walked: ModelledSegment, blocks: Sequence[int]) -> tuple[RelativeMovement, ...]:
    """The displacement of each part of our own state in the segment."""
    local, layout, found = walked.local, walked.layout, []
    kept = (1.0, *(beta / PPM for beta in (local.beta1_micro, local.beta2_micro)))
    before = (walked.start.theta_P, *walked.start.moments)
    after = (walked.end.theta_P, *walked.end.moments)
    # a Byzantine node's start may hold any value; the audit must still end in a verdict
    with np.errstate(all="ignore"):
        untouched_B = _untouched(walked, blocks)
        times = _times(walked)  # of SGD, as of `before`, for the first part only
        for share, before_P, after_P, times_N in zip(kept, before, after, times, strict=False):
            gain_NC = _rows(layout, after_P - before_P * np.float32(share**walked.steps))
            before_BC, after_BC = (_rows(layout, part_P)[blocks] for part_P in (before_P, after_P))
            size_B, floor = _norm(gain_NC[blocks]), floor_of(gain_NC)
            times_B = times_N[blocks]
            found.append(RelativeMovement(before_BC, after_BC, size_B, floor, times_B, untouched_B))
    return tuple(found)


def _untouched(walked: ModelledSegment, blocks: Sequence[int]) -> NDArray[np.bool_]:
    """Blocks that no gradient reached, on any machine: Adam's moments are 0, and only decay moves them.

    A sign has no size, so the least lie there would decide what is sent. Muon may move what no gradient
    reaches of a matrix, and what SGD moves by less than a rounding is not known to be 0 elsewhere.
    """
    layout, moments = walked.layout, walked.end.moments
    if walked.local.moments < 2:
        return np.zeros(len(blocks), np.bool_)
    is_reached_P = (moments[0] != 0) | (moments[1] != 0)
    if walked.local.optimiser is Optimiser.MUON:
        is_reached_P |= ~rest_of(layout)
    return np.array(~_rows(layout, is_reached_P.astype(np.float32))[blocks].any(axis=1))


def _times(walked: ModelledSegment) -> Sequence[Doubles]:
    """By how much each part's limits are wider in each block: where AdamW takes a parameter's first step."""
    layout, local = walked.layout, walked.local
    own, fresh = (
        SEGMENT_POLICIES.get((walked.dtype, one))
        for one in (regime_of(local, walked.start.count), Regime.FRESH)
    )
    times = np.ones((1 + local.moments, layout.blocks))
    if own is None or fresh is None or not local.moments:
        return tuple(times)
    is_first_P = (walked.start.moments[1] == 0) & (walked.end.moments[1] > 0)
    if local.optimiser is Optimiser.MUON:
        is_first_P &= rest_of(layout)
    is_first_N = _rows(layout, is_first_P.astype(np.float32)).any(axis=1)
    for part, (wide, narrow) in enumerate(zip(fresh, own, strict=True)):
        if part or not _is_one_step(walked):  # parameters that follow from opened moments hold no noise
            times[part, is_first_N] = wide.t1 / narrow.t1
    return tuple(times)


def measure_movement(
    walked: ModelledSegment, own: Sequence[RelativeMovement], shown: OpenedSegment
) -> tuple[Measured, ...]:
    """Distance of each part of the opened end state from ours, relative to our displacement.

    Args:
        walked: Our own steps.
        own: What they gained in the opened blocks.
        shown: The opened end.
    """
    found = []
    with np.errstate(all="ignore"):
        for part, mine in enumerate(own):
            due_BC = mine.after_BC
            if part == 0 and _is_one_step(walked):
                due_BC = adamw_moved(walked.local, walked.lr, mine.before_BC, shown.end[1:], walked.end.count)
            residual_BC = shown.end[part].astype(np.float64) - due_BC
            scale_B = np.maximum(mine.size_B, max(mine.floor, _TINY)) * mine.times_B
            distance_B, zeros_B = _norm(residual_BC), np.zeros(len(scale_B))
            largest_B = np.maximum(_norm(mine.before_BC), _norm(mine.after_BC))
            decay_B = np.where(mine.size_B > 0, walked.steps * _ROUNDING * largest_B, 0.0)
            distance_B[mine.is_untouched_B & (distance_B > decay_B)] = np.inf
            rho_B = distance_B / scale_B
            found.append(
                Measured(
                    rho_B=np.where(np.isfinite(rho_B) & np.isfinite(scale_B), rho_B, np.inf),
                    rounding_B=walked.steps * _ROUNDING * largest_B / scale_B,
                    is_small_B=mine.size_B <= mine.floor,
                    choice_B=zeros_B,
                    doubt_B=zeros_B,
                    value_B=zeros_B,
                    residual_BC=residual_BC / scale_B[:, None],
                )
            )
    return tuple(found)


def as_one(
    measured: Sequence[Measured], limits: Sequence[Limit], blocks: Sequence[int], block_count: int
) -> tuple[Measured, list[int], Limit]:
    """All parts of a segment as one residual for the drift statistics; every part may be biased by itself.

    Returns:
        The part that is farthest from what honest audits keep to, with the directions of all parts, each of
        length 1, one after another; the numbers of their blocks; and that part's limit.
    """
    over = [
        median_of(part) / (limit.profile * _PPB) if limit.profile else 0.0
        for part, limit in zip(measured, limits, strict=True)
    ]
    most = max(range(len(over)), key=over.__getitem__)
    rows, numbers = [], []
    for part, one in enumerate(measured):
        length = float(np.sqrt(tree_sum(tree_sum(np.square(one.residual_BC))[None])[0]))
        rows.append(one.residual_BC / (length or 1.0))
        numbers += [part * block_count + block for block in blocks]
    return replace(measured[most], residual_BC=np.concatenate(rows)), numbers, limits[most]


def worse_of(one: Finding, other: Finding) -> Finding:
    """The finding that weighs more."""
    return max(one, other, key=lambda found: _RANKS[found.outcome])


def _is_one_step(walked: ModelledSegment) -> bool:
    return walked.steps == 1 and walked.local.optimiser is Optimiser.ADAMW


def _rows(layout: Layout, flat_P: Floats) -> Floats:
    return to_blocks(layout, flat_P).reshape(-1, BLOCK_SIZE)


def _norm(rows_BC: NDArray[np.float32] | Doubles) -> Doubles:
    length_B: Doubles = np.sqrt(tree_sum(np.square(rows_BC, dtype=np.float64)))
    return length_B
