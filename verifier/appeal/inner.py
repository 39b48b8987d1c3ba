"""Inner: judges a whole round of inner steps in the reference class, from states that only its node has.

Room: verifier (pure). What an audit between classes does with one segment and a few blocks is done here with
all segments and all blocks: each begins in the state that the node committed to before it, and ends within
the limits of a segment from the one that it committed to behind it. So no false state holds that the node
went on from, the round's start excepted: that is an end of an earlier step, and was committed to there.

Shape suffixes: P = parameters, N = blocks, C = 4096, S = 1 and the inner optimiser's moments, R = S rows for
each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit, Outcome
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST
from assay.protocol.update_rule import BLOCK_SIZE
from assay.training.codec.contribution import decode_contribution
from assay.training.frozen import ALL_TRAINED
from assay.training.layout import Layout, to_blocks
from assay.training.optimiser.inner import Floats, Gradient, InnerState, run_steps
from assay.training.optimiser.node_state import NodeState
from assay.training.optimiser.schedule import rate
from assay.training.optimiser.step import begin
from assay.training.reference.gradient import run
from assay.training.reference.operators import Array, Operator, operators
from assay.training.reference.operators import sources as gradient_sources
from assay.training.reference.rounding import JITTERED, jittered_operators
from assay.training.transform.compress import distance_blocks
from assay.verifier.audit.carried import carried, is_synced
from assay.verifier.audit.displacement import ModelledSegment, judge_movement, wider, worse_of
from assay.verifier.audit.exact import DISTANCE_PPB_MAX, compare
from assay.verifier.audit.limits import Limits
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.segment import OpenedSegment, check_reached
from assay.verifier.audit.segment_limits import FRESH_STEPS, limits_of, regime_of
from assay.verifier.audit.tolerance import SAMPLES, WIDEST, jitter_seed, step_widening


def has_limits(spec: RunSpec, limits: Limits, commit: Commit) -> bool:
    """Whether every segment of a round has limits, however old the moments are that it begins with."""
    local, dtype = spec.rule.local, spec.compute.dtype
    last = local.steps - local.segment * (spec.rule.segments - 1)  # it may be shorter
    lengths = {local.segment, last}
    found = (
        limits_of(limits.segments, commit.exec_class, dtype, regime_of(local, age), length)
        for age in (0, FRESH_STEPS)
        for length in lengths
    )
    return all(one is not None for one in found)


def judge_round(
    spec: RunSpec,
    limits: Limits,
    layout: Layout,
    commit: Commit,
    theta_P: Floats,
    tokens: NDArray[np.int64],
    frozen: Mapping[str, Array],
    carried_in: InnerState | None,
    ends_RP: Floats,
    before_NC: Floats,
    after_NC: Floats,
    update: NDArray[np.uint8],
) -> Finding:
    """The worst finding about any segment of a round, and about its message.

    Args:
        spec, limits, layout, commit: The run and the step, of which `has_limits` holds.
        theta_P: The round's public parameters.
        tokens: Its batch.
        frozen: Parameters that are not trained, by the names of their operators.
        carried_in: The inner state that the node's step before ended in; None if it begins afresh.
        ends_RP: The state after each segment, parameters and then each moment.
        before_NC, after_NC: The error before and after the step.
        update: The message.

    Raises:
        FloatingPointError: the reference class's steps do not stay finite.
    """
    rule, local, round_id = spec.rule, spec.rule.local, int(commit.round)
    no_error = np.zeros((0, 0), np.float32)
    start = begin(spec, layout, theta_P, NodeState(no_error, carried_in, commit.base), round_id)
    found = Finding(Outcome.MATCH, NO_DIGEST, 0, 0)
    with np.errstate(all="ignore"):
        for first, end_SP in zip(
            range(0, local.steps, local.segment), np.split(ends_RP, rule.segments), strict=True
        ):
            last = min(first + local.segment, local.steps)
            walk = partial(run_steps, spec, round_id, first, last, start, theta_P, tokens)
            end = InnerState(end_SP[0], tuple(end_SP[1:]), start.count + last - first)
            within = limits_of(
                limits.segments,
                commit.exec_class,
                spec.compute.dtype,
                regime_of(local, start.count),
                last - first,
            )
            assert within is not None, "see has_limits"
            try:
                check_reached(rule, commit, theta_P, start, first)
            except MalformedMessage:  # in an audit it opens no step
                return Finding(Outcome.MISMATCH, NO_DIGEST, DISTANCE_PPB_MAX, 0)
            ours, _ = walk(partial(_gradient, spec, layout, frozen))
            if not ours.is_finite:
                raise FloatingPointError(f"inner steps {first} to {last} do not stay finite")
            lr = rate(local.schedule, *spec.in_line(round_id), steps=local.steps, step=last - 1)
            shown = OpenedSegment(None, end.count, rows_of(layout, end_SP), end_SP[0])
            judged = partial(
                judge_movement,
                ModelledSegment(local, spec.compute.dtype, layout, last - first, lr, start, ours),
                shown,
                blocks=range(layout.blocks),
                recomputed=NO_DIGEST,
            )
            moved, _ = judged(within)
            if moved.outcome is Outcome.MISMATCH:  # only then may a rounding excuse it
                times = _widening(spec, layout, commit, frozen, walk)
                moved, _ = judged(wider(within, max(1.0, times)))
            found, start = worse_of(found, moved), end
        return worse_of(
            found, judge_message(spec, layout, commit, theta_P, start.theta_P, before_NC, after_NC, update)
        )


def rows_of(layout: Layout, state_SP: Floats) -> tuple[Floats, ...]:
    """All blocks of an inner state, part by part. Each of shape (N, C)."""
    return tuple(to_blocks(layout, part_P).reshape(-1, BLOCK_SIZE) for part_P in state_SP)


def judge_message(
    spec: RunSpec,
    layout: Layout,
    commit: Commit,
    theta_P: Floats,
    end_P: Floats,
    before_NC: Floats,
    after_NC: Floats,
    update: NDArray[np.uint8],
) -> Finding:
    """Whether message and error follow from a node's last parameters: bit for bit, on every machine."""
    rule, round_id, blocks = spec.rule, int(commit.round), range(layout.blocks)
    sent = decode_contribution(spec, layout, round_id, update.tobytes())
    x_NC = distance_blocks(rule, layout, theta_P, end_P)
    return compare(
        rule.compress,
        blocks,
        is_synced(spec, layout, round_id),
        carried(spec, layout, commit, blocks, before_NC, x_NC, 0.0),
        after_NC,
        sent,
        x_NC,
        recomputed=NO_DIGEST,
        is_work_equal=True,
    )


def _gradient(
    spec: RunSpec, layout: Layout, frozen: Mapping[str, Array], theta_P: Floats, tokens: NDArray[np.int64]
) -> tuple[float, Floats]:
    """The reference class's gradient; its loss is not needed."""
    return 0.0, _run(spec, layout, frozen, theta_P, tokens, operators(spec.model, len(tokens), spec.compute))


def _run(
    spec: RunSpec,
    layout: Layout,
    frozen: Mapping[str, Array],
    theta_P: Floats,
    tokens: NDArray[np.int64],
    program: tuple[Operator, ...],
) -> Floats:
    sources = gradient_sources(layout, np.ascontiguousarray(theta_P), tokens, ALL_TRAINED)
    return run(program, {**sources, **frozen}, lambda _operator, _output: None)


def _widening(
    spec: RunSpec,
    layout: Layout,
    commit: Commit,
    frozen: Mapping[str, Array],
    walk: Callable[[Gradient], object],
) -> float:
    """How many times farther than usual a rounding leads in any gradient of a segment, in any block."""
    found = [1.0]

    def see(theta_P: Floats, tokens: NDArray[np.int64]) -> tuple[float, Floats]:
        loss, slope_P = _gradient(spec, layout, frozen, theta_P, tokens)
        program = operators(spec.model, len(tokens), spec.compute)
        for sample in range(SAMPLES):
            jittered = jittered_operators(program, spec.compute.dtype, jitter_seed(commit, sample), JITTERED)
            try:
                moved_P = _run(spec, layout, frozen, theta_P, tokens, jittered)
            except FloatingPointError:  # as an audit has it: a rounding leads beyond all numbers
                found.append(WIDEST)
            else:
                wide_N = step_widening(spec, layout, int(commit.round), slope_P, moved_P)
                found.append(float(wide_N.max()))
        return loss, slope_P

    walk(see)
    return max(found)
