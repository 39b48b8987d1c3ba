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

All sources are bound by the commit, and the commit by the case's id: docs/protocol.md, section 7b.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from assay.protocol.messages import Commit, Outcome
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST
from assay.protocol.update_rule import Outer
from assay.training.codec.contribution import decode_contribution
from assay.training.layout import Layout, layout_of
from assay.training.optimiser.carry import mean_block
from assay.training.reference.operators import Array, Operator, operators
from assay.training.reference.rounding import JITTERED, jittered_operators
from assay.training.transform.blocked_dct import row_lengths
from assay.verifier.audit.carried import carried_as_shown
from assay.verifier.audit.limits import Limits
from assay.verifier.audit.tolerance import (
    SAMPLES,
    Doubles,
    floor_of,
    jitter_seed,
    judge,
    judged_blocks,
    step_widening,
)

FINDING, WIDENING = "finding", "widening"
BEFORE, AFTER, UPDATE = "step/before", "step/after", "step/update"
HOLDS = np.ones(1, np.int8)


def why_not(spec: RunSpec, commit: Commit) -> str | None:
    """Why no program decides this step; None if one does."""
    rule = spec.rule
    if spec.compute.is_grpo:
        return "its rollouts are sampled in its node's execution class, which has no operators"
    if not rule.is_gradient:
        return "its rule has inner steps, which have no operators"
    if rule.read_lag or rule.apply_lag or rule.outer.kind not in (Outer.SIGN, Outer.SGD):
        return "its commits do not name the parameters alone"
    if spec.audit.limits == NO_DIGEST:
        return "the run names no limits between execution classes"
    if commit.state == NO_DIGEST:
        return (
            f"the commit of round {int(commit.round)} names no parameters (state_every = {spec.state_every})"
        )
    return None


def program_of(spec: RunSpec, limits: Limits, commit: Commit) -> tuple[Operator, ...]:
    """The operators of a step, in order; the last one is `FINDING`.

    Args:
        spec: The run.
        limits: Those that it names.
        commit: The step; its execution class decides the limit.
    """
    layout = layout_of(spec.model)
    gradient = operators(spec.model, spec.rule.sequences_per_round, spec.compute)
    last, made, wide = gradient[-1].name, list(gradient), []
    for sample in range(SAMPLES):
        head = f"{sample}/{JITTERED}"
        made += jittered_operators(gradient, spec.compute.dtype, jitter_seed(commit, sample), head)
        wide.append(head + WIDENING)
        widens = partial(_widening, spec, layout, int(commit.round))
        made.append(Operator(wide[-1], (last, head + last), widens))
    holds = partial(_holds, spec, limits, layout, commit)
    return (*made, Operator(FINDING, (last, BEFORE, AFTER, UPDATE, *wide), holds))


def _widening(
    spec: RunSpec, layout: Layout, round_id: int, slope_P: NDArray[np.float32], moved_P: NDArray[np.float32]
) -> Array:
    for found_P in (slope_P, moved_P):
        if found_P.shape != (layout.parameters,):
            raise ValueError(f"a gradient of shape {found_P.shape}, expected {layout.parameters} values")
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
    if slope_P.shape != (layout.parameters,):
        raise ValueError(f"a gradient of shape {slope_P.shape}, expected {layout.parameters} values")
    for wide_N in wide:
        if wide_N.shape != (layout.blocks,):
            raise ValueError(f"a widening of shape {wide_N.shape}, expected {layout.blocks} blocks")
    round_id, blocks = int(commit.round), range(layout.blocks)
    sent = decode_contribution(spec, layout, round_id, update.tobytes())
    with np.errstate(all="ignore"):
        x_NC = judged_blocks(spec, layout, round_id, slope_P)
        mean, floor = mean_block(spec.rule, row_lengths(x_NC)), floor_of(x_NC)
        shown = before_NC, after_NC
        carried_NC = carried_as_shown(
            spec, layout, round_id, blocks, shown, sent, x_NC, mean=mean, floor=floor
        )
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
    if found.outcome is Outcome.MISMATCH:
        raise ArithmeticError(f"block {found.block} is off by {found.distance_ppb} ppb")
    return HOLDS
