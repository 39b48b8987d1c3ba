"""Step: one round of any method, as pure functions of public state, private state and local work.

Room: training (pure). The family of methods is one pipeline with numbers in it
(`protocol/update_rule.py`); a method is a preset of those numbers (`training/methods/`).

    begin -> local -> encode -> bytes -> decode -> aggregate -> apply
                         '-> commit: the root of the private state, which goes into the message

`decode` is in contribution.py, `apply` in outer.py and `commit` in node_state.py, which need no
torch; aggregation is the verifiers' (`verifier/aggregation/registry.py`). All of it can be repeated by an
auditor: `local` and `encode` read no clock and no peer, and the batch is the only randomness.

Shape suffixes: P = parameters, N = blocks, C = 4096.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from assay.protocol.auditing.commitments import sketch_digest
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE, PPM
from assay.training.codec.factors import encode_factors
from assay.training.codec.wire import Update, encode_update
from assay.training.data.rollouts import rollouts_digest
from assay.training.fragments import fragment_blocks, fragment_positions
from assay.training.layout import Layout, to_blocks
from assay.training.optimiser.carry import begins_anew, carried_shares, is_renewed, leave, mean_block
from assay.training.optimiser.inner import Floats, Gradient, InnerState, fresh, segments
from assay.training.optimiser.node_state import NodeState
from assay.training.optimiser.outer import applied_fragments
from assay.training.optimiser.schedule import rate
from assay.training.transform.blocked_dct import row_lengths
from assay.training.transform.compress import (
    Transition,
    distance_blocks,
    gradient_blocks,
    transition,
    work_sketch,
)


@dataclass(frozen=True, slots=True)
class Work:
    """Result of local work.

    x_NC: what enters the compressor, by block. loss: mean over the batch, nats. ends: the inner
    state at the end of every segment; none for a single gradient. start: the one before the first.
    rollouts: with GRPO, the digest of what was sampled.
    """

    x_NC: Floats
    loss: float
    ends: tuple[InnerState, ...] = ()
    start: InnerState | None = None
    rollouts: Digest = NO_DIGEST


def begin(spec: RunSpec, layout: Layout, theta_P: Floats, private: NodeState, round_id: int) -> InnerState:
    """The inner state a round starts from.

    Args:
        spec: The run.
        layout: Order and shapes of the parameters.
        theta_P: The network's parameters that local work reads.
        private: After the node's last contribution.
        round_id: The round to come.
    """
    rule, carried = spec.rule, private.inner
    if carried is None or begins_anew(rule, private.base, round_id):
        return fresh(rule.local, theta_P)
    started = carried if rule.local.keeps_moments else fresh(rule.local, carried.theta_P)
    if not rule.is_local_kept:
        return replace(started, theta_P=theta_P)
    merge = np.float32(rule.merge_ppm / PPM)
    merged_P = carried.theta_P
    missed = range(max(private.base - 1, round_id - rule.fragments), round_id)  # more only repeat fragments
    for fragment in applied_fragments(spec, missed):
        is_in = fragment_positions(layout, rule.fragments, fragment)
        mixed_P = theta_P * (np.float32(1) - merge) + merged_P * merge
        merged_P = np.where(is_in, mixed_P, merged_P)
    return replace(started, theta_P=merged_P)


def local(
    spec: RunSpec,
    layout: Layout,
    theta_P: Floats,
    private: NodeState,
    tokens: NDArray[np.int64],
    round_id: int,
    gradient: Gradient,
    into_NC: Floats | None = None,
) -> Work:
    """A node's own work of one round.

    Args:
        spec: The run.
        layout: Order and shapes of the parameters.
        theta_P: The network's parameters `read_lag` rounds ago.
        private: After the node's last contribution.
        tokens: Its batch. Shape (steps * sequences, context + 1), int64.
        round_id: The round.
        gradient: Loss and gradient at some parameters on some tokens.
        into_NC: Room that `x_NC` of the result may take, float32.
    """
    if spec.rule.is_gradient:
        loss, slope_P = gradient(theta_P, tokens)
        lr = rate(spec.rule.outer.schedule, *spec.in_line(round_id))
        x_NC = gradient_blocks(spec.rule, layout, slope_P, lr, into_NC)
        return Work(x_NC, loss, rollouts=sampled_digest(spec, tokens))
    start = begin(spec, layout, theta_P, private, round_id)
    states, losses = zip(*segments(spec, round_id, start, theta_P, tokens, gradient), strict=True)
    x_NC = distance_blocks(spec.rule, layout, theta_P, states[-1].theta_P)
    return Work(x_NC, float(np.mean(losses)), states, start)


def sketches(layout: Layout, work: Work, pattern: Digest) -> tuple[Digest, ...]:
    """The sketch digests that a commit binds: one for each segment, or one for the gradient."""
    if work.start is None:
        return (gradient_sketch(pattern, work.x_NC, work.rollouts),)
    states = (work.start, *work.ends)
    return tuple(way_sketch(layout, start, end, pattern) for start, end in pairwise(states))


def sampled_digest(spec: RunSpec, tokens: NDArray[np.int64]) -> Digest:
    """With GRPO, the digest of a step's rollouts; else zero, for the batch is everybody's."""
    return rollouts_digest(tokens) if spec.compute.is_grpo else NO_DIGEST


def gradient_sketch(pattern: Digest, x_NC: Floats, rollouts: Digest = NO_DIGEST) -> Digest:
    """Digest of the sketch of a gradient and, with GRPO, of the rollouts behind it.

    Where all completions of a group earn the same, its gradient is 0, which anybody can say without sampling.
    """
    return bound_sketch(pattern, work_sketch(pattern, x_NC), rollouts)


def bound_sketch(pattern: Digest, sketch: bytes, rollouts: Digest = NO_DIGEST) -> Digest:
    """`gradient_sketch` by the `work_sketch` of the gradient."""
    own = sketch_digest(sketch)
    return (
        own if rollouts == NO_DIGEST else sketch_digest(b"assay/rollout-sketch/1" + pattern + own + rollouts)
    )


def way_sketch(layout: Layout, start: InnerState, end: InnerState, pattern: Digest) -> Digest:
    """Digest of the sketch of a segment's displacement (pseudo-gradient)."""
    way_NC = to_blocks(layout, start.theta_P - end.theta_P).reshape(-1, BLOCK_SIZE)
    return sketch_digest(work_sketch(pattern, way_NC))


def compress(
    spec: RunSpec,
    layout: Layout,
    base: int,
    round_id: int,
    before_NC: Floats,
    x_NC: Floats,
    *,
    uses_up: bool = False,
) -> Transition:
    """The sent and the retained part of some work, over all blocks. `uses_up`: see `encode`."""
    rule, every = spec.rule, np.arange(layout.blocks)
    if rule.fragments == 1:
        kept_NC = _carried(spec, base, round_id, every, before_NC, x_NC, uses_up=uses_up)
        return transition(rule.compress, kept_NC, x_NC, before_NC if uses_up else None)
    fragment_N = fragment_blocks(layout, rule.fragments)
    own = np.flatnonzero(fragment_N == round_id % rule.fragments)
    kept_BC = _carried(spec, base, round_id, own, before_NC[own], x_NC, uses_up=True)
    part = transition(rule.compress, kept_BC, x_NC[own])
    after_NC = before_NC.copy()
    after_NC[is_renewed(rule, base, round_id, every, fragment_N)] = 0  # of others, in rounds that were missed
    after_NC[own] = part.after_BC
    sent = replace(part.sent, blocks_B=own[part.sent.blocks_B])
    factors = part.factors and replace(part.factors, blocks_B=sent.blocks_B)
    return Transition(sent, after_NC, factors)


def _carried(
    spec: RunSpec,
    base: int,
    round_id: int,
    blocks: NDArray[np.int64],
    before_BC: Floats,
    x_NC: Floats,
    *,
    uses_up: bool,
) -> Floats:
    """The error that these blocks carry into the step; with `uses_up` in the memory of `before_BC`."""
    length_N = row_lengths(x_NC)
    mean = mean_block(spec.rule, length_N)
    lengths_B = length_N[blocks]
    share_B = carried_shares(
        spec.rule, spec.rounds, base, round_id, blocks, before_BC, lengths_B, mean,
        rounds_before=spec.predecessor.rounds,
    )  # fmt: skip
    kept_BC = before_BC if uses_up or (share_B == 1).all() else before_BC.copy()
    leave(kept_BC, share_B)
    return kept_BC


def encode(
    spec: RunSpec, layout: Layout, round_id: int, private: NodeState, work: Work, *, uses_up: bool = False
) -> tuple[NodeState, bytes]:
    """The private state after a round, and the message.

    With `uses_up` the error before the round may be overwritten by the one after it.
    """
    rule = spec.rule
    moved = compress(spec, layout, private.base, round_id, private.error_NC, work.x_NC, uses_up=uses_up)
    after = NodeState(moved.after_BC, work.ends[-1] if rule.carries_inner else None, round_id + 1)
    if moved.factors is not None:
        return after, encode_factors(moved.factors, layout.blocks)
    return after, message(spec, layout, moved.sent)


def message(spec: RunSpec, layout: Layout, update: Update) -> bytes:
    """The bytes of an update, for rules without factors."""
    return encode_update(update, layout.blocks, spec.rule.compress.k, spec.rule.compress.values)
