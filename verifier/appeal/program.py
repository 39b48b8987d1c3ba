"""Program: a whole step as operators, from its sources to the finding that it holds in the reference class.

Room: verifier (pure). The operators are those of the gradient (training/reference/operators.py) and one more,
`finding`: the rule and the tolerance tests of an audit between classes, over *all* blocks of the node's error
before and after the step and its whole message. Its one output says that the step holds; where it does not,
there is none, so no claim about such a step is right. Behind the gradient's operators are those of jittered
ones (training/reference/rounding.py): where a rounding leads far, limits widen in proportion, as the distance
of an honest machine of another class does.

    parameters, tokens --operators--> gradient ------------------------+
                       --operators--> jittered gradients --> widening -+
    error before, error after, message --------------------------------+--> finding

With inner steps that repeats for each of them, and one operator more takes the step: all are steps of the
reference class, from the round's public parameters on. The finding compares where they end with where the
node's ended, within the limits of a segment of as many steps, and the message with the node's own end.

    parameters --gradient 0--> state 0 --gradient 1--> ... --> last state --+
    the node's end, error before, error after, message --------------------+--> finding

Where moments are kept from round to round, the round's start is private too, so that nobody else knows what
follows from it. There the finding is the whole program, and a juror takes all inner steps (inner.py).

All sources are bound by the commit, and the commit by the case's id: docs/protocol.md, section 7b. Those that
only the node has are read by the finding alone: whoever has the public ones knows every output before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from assay.protocol.messages import Commit, Outcome
from assay.protocol.params import ComputeSpec, ModelSpec, RunSpec
from assay.protocol.types import NO_DIGEST
from assay.protocol.update_rule import RuleSpec
from assay.training.codec.contribution import decode_contribution
from assay.training.layout import Layout, frozen_layout, layout_of
from assay.training.optimiser.carry import mean_block
from assay.training.optimiser.inner import InnerState, fresh, inner_step
from assay.training.optimiser.schedule import rate
from assay.training.reference.narrowing import OPERATORS_MAX
from assay.training.reference.operators import TOKENS, Array, Operator, operators
from assay.training.reference.rounding import JITTERED, jittered_operators
from assay.training.transform.blocked_dct import row_lengths
from assay.verifier.appeal.inner import has_limits, judge_message, judge_round, rows_of
from assay.verifier.audit.carried import carried_as_shown
from assay.verifier.audit.displacement import ModelledSegment, judge_movement, wider, worse_of
from assay.verifier.audit.limits import Limit, Limits
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.segment import OpenedSegment
from assay.verifier.audit.segment_limits import limits_of, regime_of
from assay.verifier.audit.tolerance import (
    SAMPLES,
    Doubles,
    floor_of,
    jitter_seed,
    judge,
    judged_blocks,
    step_widening,
)

FINDING, WIDENING, WIDEST_SO_FAR, STATE = "finding", "widening", "widest", "state"
THETA = "step/theta"  # flat; operators of a gradient read its tensors by their own names
# Of kept moments: the inner state that the step before ended in.
START, START_COUNT = "step/start", "step/start-count"
BEFORE, AFTER, END, UPDATE = "step/before", "step/after", "step/end", "step/update"
HOLDS = np.ones(1, np.int8)


def why_not(spec: RunSpec, limits: Limits | None, commit: Commit) -> str | None:
    """Why no program decides this step; None if one does.

    Args:
        spec: The run.
        limits: Those that it names.
        commit: The step.
    """
    rule = spec.rule
    if spec.brings_data(commit.node):
        return "it was trained on data that only its node has, which no juror may be shown"
    try:
        sequences = spec.step_sequences(commit.tokens)
    except ValueError as fault:
        return f"its commit is of no step of this run: {fault}"
    has_limits = limits is not None and spec.audit.limits != NO_DIGEST
    reason = why_never(spec.model, spec.compute, rule, sequences, has_limits=has_limits)
    if reason is not None or limits is None:
        return reason
    if commit.state == NO_DIGEST:
        return (
            f"the commit of round {int(commit.round)} names no parameters (state_every = {spec.state_every})"
        )
    if not (rule.is_gradient or _is_measured(spec, limits, commit)):
        steps = rule.local.segment if rule.carries_inner else rule.local.steps
        return f"no limits were measured for {steps} inner steps of its node's execution class"
    return None


def why_never(
    model: ModelSpec, compute: ComputeSpec, rule: RuleSpec, sequences: int, *, has_limits: bool
) -> str | None:
    """Why no program decides any step of a run; None if one may.

    Args:
        model: Of the run.
        compute: Likewise.
        rule: Likewise.
        sequences: Of the step.
        has_limits: Whether the run names limits between execution classes.
    """
    if compute.is_grpo:
        return "its rollouts are sampled in its node's execution class, which has no operators"
    if rule.is_local_kept:
        return "its node goes on from parameters of its own (fragments, merge)"
    if rule.read_lag:
        return f"its commits name other parameters than its node reads (read_lag = {rule.read_lag})"
    if not has_limits:
        return "the run names no limits between execution classes"
    if (count := computed_count(model, compute, rule, sequences)) > OPERATORS_MAX:
        last = "jurors compute" if rule.carries_inner else "can be narrowed down"
        return f"its program has {count:,} operators, at most {OPERATORS_MAX:,} {last}"
    return None


def operator_count(spec: RunSpec, commit: Commit) -> int:
    """How many operators `program_of` a step has: with kept moments one, which contains all."""
    sequences = spec.step_sequences(commit.tokens)
    return 1 if spec.rule.carries_inner else computed_count(spec.model, spec.compute, spec.rule, sequences)


def computed_count(model: ModelSpec, compute: ComputeSpec, rule: RuleSpec, sequences: int) -> int:
    """How many operators are computed for a step, those within another one included."""
    rows = compute.micro_sequences or sequences
    one, two = (len(operators(model, min(groups * rows, sequences), compute)) for groups in (1, 2))
    gradient = one + (-(-sequences // rows) - 1) * (two - one)  # each group after the first has as many
    one_step = gradient * (1 + SAMPLES) + SAMPLES
    if rule.is_gradient:
        return one_step + 1
    tensors = (rule.local.steps - 1) * len(layout_of(model).names)
    return rule.local.steps * (one_step + 3) + tensors + 1


def program_of(spec: RunSpec, limits: Limits, commit: Commit) -> tuple[Operator, ...]:
    """The operators of a step, in order; the last one is `FINDING`.

    Args:
        spec: The run.
        limits: Those that it names.
        commit: The step, of which `why_not` says nothing; its execution class decides the limit.
    """
    layout = layout_of(spec.model)
    if spec.rule.carries_inner:
        return _one_finding(spec, limits, layout, commit)
    if not spec.rule.is_gradient:
        return _inner_program(spec, limits, layout, commit)
    made, last, wide = _gradients(spec, layout, commit)
    holds = partial(_holds, spec, limits, layout, commit)
    return (*made, Operator(FINDING, (last, BEFORE, AFTER, UPDATE, *wide), holds))


def _gradients(
    spec: RunSpec, layout: Layout, commit: Commit
) -> tuple[tuple[Operator, ...], str, tuple[str, ...]]:
    """The operators of a gradient, of jittered ones and of their widenings; the names of it and of these."""
    gradient = operators(spec.model, spec.step_sequences(commit.tokens), spec.compute)
    last, made, wide = gradient[-1].name, list(gradient), []
    for sample in range(SAMPLES):
        head = f"{sample}/{JITTERED}"
        made += jittered_operators(gradient, spec.compute.dtype, jitter_seed(commit, sample), head)
        wide.append(head + WIDENING)
        widens = partial(_widening, spec, layout, int(commit.round))
        made.append(Operator(wide[-1], (last, head + last), widens))
    return tuple(made), last, tuple(wide)


def _inner_program(spec: RunSpec, limits: Limits, layout: Layout, commit: Commit) -> tuple[Operator, ...]:
    """The operators of all inner steps of a round, one step after another, and the finding.

    With STEP as `stepN`, every step has the operators of `_gradients` by their names behind STEP, before them
    `STEP/tokens` and, but in the first, the tensors of the state before it, and behind them:

        STEP/widest   the largest widening of each block up to here. Shape (N,), float64
        STEP/state    parameters and moments after the step, one row each. Shape (1 + moments, P), float32
    """
    one_step, last, wide = _gradients(spec, layout, commit)
    own, local, made = {one.name for one in one_step} | {TOKENS}, spec.rule.local, list[Operator]()
    sequences = spec.step_sequences(commit.tokens)
    state, widest = tuple[str, ...](), tuple[str, ...]()
    for step in range(local.steps):
        head, moved = f"step{step}/", own | set(layout.names if step else ())
        rows = slice(step * sequences, (step + 1) * sequences)
        made.append(Operator(head + TOKENS, (TOKENS,), partial(_rows_of, rows)))
        for name in layout.names if step else ():
            made.append(Operator(head + name, state, partial(_tensor, layout, name)))
        made += (
            Operator(
                head + one.name,
                tuple(head + name if name in moved else name for name in one.inputs),
                one.function,
            )
            for one in one_step
        )
        made.append(Operator(head + WIDEST_SO_FAR, (*(head + name for name in wide), *widest), _widest))
        steps = partial(_stepped, spec, layout, int(commit.round), step)
        made.append(Operator(head + STATE, (head + last, THETA, *state), steps))
        widest, state = (head + WIDEST_SO_FAR,), (head + STATE,)
    found = _inner_limits(spec, limits, commit)
    if found is None:
        raise ValueError("no limits for these inner steps, see why_not")
    holds = partial(_inner_holds, spec, found, layout, commit)
    return (*made, Operator(FINDING, (*state, THETA, END, BEFORE, AFTER, UPDATE, *widest), holds))


def _one_finding(spec: RunSpec, limits: Limits, layout: Layout, commit: Commit) -> tuple[Operator, ...]:
    """The finding alone: all of the step's sources are its inputs."""
    names = frozen_layout(spec.model).names
    own = START, START_COUNT, END, BEFORE, AFTER, UPDATE
    holds = partial(_round_holds, spec, limits, layout, commit, names)
    return (Operator(FINDING, (THETA, TOKENS, *own, *names), holds),)


def _is_measured(spec: RunSpec, limits: Limits, commit: Commit) -> bool:
    if spec.rule.carries_inner:
        return has_limits(spec, limits, commit)
    return _inner_limits(spec, limits, commit) is not None


def _inner_limits(spec: RunSpec, limits: Limits, commit: Commit) -> tuple[Limit, ...] | None:
    """The limits of a segment as long as the round, from moments of zero on; None where there are none."""
    local, dtype = spec.rule.local, spec.compute.dtype
    return limits_of(limits.segments, commit.exec_class, dtype, regime_of(local, 0), local.steps)


def _rows_of(rows: slice, tokens: Array) -> Array:
    return tokens[rows]


def _tensor(layout: Layout, name: str, state_SP: NDArray[np.float32]) -> Array:
    found: Array = layout.views(state_SP[0])[name]
    return found


def _widest(*wide: Doubles) -> Array:
    widest: Array = np.maximum.reduce(wide)
    return widest


def _stepped(
    spec: RunSpec,
    layout: Layout,
    round_id: int,
    step: int,
    slope_P: NDArray[np.float32],
    theta_P: NDArray[np.float32],
    *state: NDArray[np.float32],
) -> Array:
    """The inner state after a step, from the one before it; the first begins at the round's parameters."""
    local = spec.rule.local
    _check_shape("a gradient", slope_P, (layout.parameters,))
    before = fresh(local, theta_P)
    for state_SP in state:
        _check_shape("an inner state", state_SP, (1 + local.moments, layout.parameters))
        before = InnerState(state_SP[0], tuple(state_SP[1:]), step)
    lr = rate(local.schedule, *spec.in_line(round_id), steps=local.steps, step=step)
    with np.errstate(all="ignore"):
        after = inner_step(local, layout, lr, before, theta_P, slope_P)
    return np.stack((after.theta_P, *after.moments))


def _inner_holds(
    spec: RunSpec,
    limits: Sequence[Limit],
    layout: Layout,
    commit: Commit,
    state_SP: NDArray[np.float32],
    theta_P: NDArray[np.float32],
    end_SP: NDArray[np.float32],
    before_NC: NDArray[np.float32],
    after_NC: NDArray[np.float32],
    update: NDArray[np.uint8],
    wide_N: Doubles,
) -> Array:
    """`HOLDS`, unless the node ended farther from the reference class than any doubt covers, or its message
    and error do not follow from its end.

    Raises:
        ArithmeticError: it does not hold.
    """
    local, round_id = spec.rule.local, int(commit.round)
    _check_shape("an inner state", state_SP, (1 + local.moments, layout.parameters))
    _check_shape("a widening", wide_N, (layout.blocks,))
    lr = rate(local.schedule, *spec.in_line(round_id), steps=local.steps, step=local.steps - 1)
    ours = InnerState(state_SP[0], tuple(state_SP[1:]), local.steps)
    start, dtype = fresh(local, theta_P), spec.compute.dtype
    walked = ModelledSegment(local, dtype, layout, local.steps, lr, start, ours)
    end = rows_of(layout, end_SP)
    shown = OpenedSegment(None, local.steps, end, end[0])
    within = wider(limits, max(1.0, float(wide_N.max())))
    with np.errstate(all="ignore"):
        moved, _ = judge_movement(walked, shown, within, range(layout.blocks), recomputed=NO_DIGEST)
        compared = judge_message(spec, layout, commit, theta_P, end_SP[0], before_NC, after_NC, update)
    return _unless_false(worse_of(moved, compared))


def _round_holds(
    spec: RunSpec,
    limits: Limits,
    layout: Layout,
    commit: Commit,
    names: Sequence[str],
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    start_SP: NDArray[np.float32],
    start_count_1: NDArray[np.int64],
    ends_RP: NDArray[np.float32],
    before_NC: NDArray[np.float32],
    after_NC: NDArray[np.float32],
    update: NDArray[np.uint8],
    *frozen: Array,
) -> Array:
    """`HOLDS`, unless a segment of a round whose moments are kept is false, or its message is.

    Raises:
        ArithmeticError: one is.
    """
    start = InnerState(start_SP[0], tuple(start_SP[1:]), int(start_count_1[0])) if len(start_SP) else None
    others = dict(zip(names, frozen, strict=True))
    private = start, ends_RP, before_NC, after_NC, update
    return _unless_false(judge_round(spec, limits, layout, commit, theta_P, tokens, others, *private))


def _unless_false(found: Finding) -> Array:
    if found.outcome is Outcome.MISMATCH:
        raise ArithmeticError(f"block {found.block} is off by {found.distance_ppb} ppb")
    return HOLDS


def _check_shape(what: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{what} of shape {array.shape}, expected {shape}")


def _widening(
    spec: RunSpec, layout: Layout, round_id: int, slope_P: NDArray[np.float32], moved_P: NDArray[np.float32]
) -> Array:
    for found_P in (slope_P, moved_P):
        _check_shape("a gradient", found_P, (layout.parameters,))
    return step_widening(spec, layout, round_id, slope_P, moved_P)


def _holds(
    spec: RunSpec,
    limits: Limits,
    layout: Layout,
    commit: Commit,
    slope_P: NDArray[np.float32],
    before_NC: NDArray[np.float32],
    after_NC: NDArray[np.float32],
    update: NDArray[np.uint8],
    *wide: Doubles,
) -> Array:
    """`HOLDS`, unless the step differs from the reference class's by more than any doubt covers.

    Raises:
        ArithmeticError: it does.
    """
    _check_shape("a gradient", slope_P, (layout.parameters,))
    for wide_N in wide:
        _check_shape("a widening", wide_N, (layout.blocks,))
    round_id, blocks = int(commit.round), range(layout.blocks)
    sent = decode_contribution(spec, layout, round_id, update.tobytes())
    with np.errstate(all="ignore"):
        x_NC = judged_blocks(spec, layout, round_id, slope_P)
        mean, floor = mean_block(spec.rule, row_lengths(x_NC)), floor_of(x_NC)
        shown = before_NC, after_NC
        carried_NC = carried_as_shown(spec, layout, commit, blocks, shown, sent, x_NC, mean=mean, floor=floor)
        limit = limits.of(commit.exec_class, spec.compute.dtype)
        rule = spec.rule.compress
        found, _ = judge(
            rule,
            limit,
            blocks,
            carried_NC,
            after_NC,
            sent,
            x_NC,
            floor=floor,
            recomputed=NO_DIGEST,
            widening_B=np.maximum.reduce(wide),
        )
    return _unless_false(found)
