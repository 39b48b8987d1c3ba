"""Inner: the optimiser steps a node takes between two syncs, from committed state to committed state.

Room: training (pure). Every step but the gradient is float32, each operation rounded on its own; norms and
products are sums in one order. So equal gradients give equal bits on any machine. A long inner loop is
cut into segments: the state at the end of each is committed, and an audit repeats one segment from the state
before it (docs/protocol.md, "Audits").

Shape suffixes: P = parameters, N = blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from assay.protocol.encoding import merkle
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE, PPM, LocalSpec, Optimiser
from assay.training.exact import is_finite
from assay.training.layout import Layout, layout_of, to_blocks
from assay.training.optimiser.matrices import rest_of
from assay.training.optimiser.momentum_root import block_leaves
from assay.training.optimiser.muon import momenta, muon_step
from assay.training.optimiser.schedule import rate
from assay.training.transform.blocked_dct import length

Floats = NDArray[np.float32]
Gradient = Callable[[Floats, NDArray[np.int64]], tuple[float, Floats]]  # (theta, tokens) -> loss, gradient
_THETA_DOMAIN = b"assay/inner-theta/1"
_MOMENTS_DOMAIN = b"assay/inner-moments/2"


@dataclass(frozen=True, slots=True)
class InnerState:
    """State of a node's inner optimiser.

    theta_P: its own parameters. moments: two, or none with SGD. count: steps since they were zero.
    """

    theta_P: Floats
    moments: tuple[Floats, ...]
    count: int

    @property
    def is_finite(self) -> bool:
        """Whether all of it is."""
        return all(is_finite(part_P) for part_P in (self.theta_P, *self.moments))


@dataclass(frozen=True, slots=True)
class InnerRoots:
    """Merkle roots that an inner state's digest binds: of its parameters and of its moments, by block.

    moments: zeros where the optimiser has none.
    """

    count: int
    theta: Digest
    moments: Digest

    @property
    def digest(self) -> Digest:
        """The inner state's entry in a commit."""
        body = self.count.to_bytes(8, "big") + self.theta + self.moments
        return Digest(blake3(b"assay/inner/2" + body).digest())


def fresh(local: LocalSpec, theta_P: Floats) -> InnerState:
    """An inner state with zero moments at these parameters.

    The zeros take no memory until somebody writes them, as those of `zeros_like` would: a round that starts
    here holds its start to its end.
    """
    return InnerState(theta_P, tuple(np.zeros(len(theta_P), np.float32) for _ in range(local.moments)), 0)


def theta_leaves(run_id: Digest, layout: Layout, theta_P: Floats) -> list[Digest]:
    """Leaf hashes of a node's parameters, one per 64 x 64 block."""
    return block_leaves(theta_domain(run_id), to_blocks(layout, theta_P).reshape(-1, BLOCK_SIZE))


def theta_domain(run_id: Digest) -> bytes:
    """Domain of parameter leaves: one run's blocks never verify as another's."""
    return blake3(_THETA_DOMAIN + run_id).digest()


def moments_rows(layout: Layout, moments: tuple[Floats, ...]) -> Floats:
    """The moments by block, those of one block one after another. Shape (N, moments * 4096)."""
    parts = [to_blocks(layout, moment_P).reshape(-1, BLOCK_SIZE) for moment_P in moments]
    return np.concatenate(parts, axis=1) if parts else np.zeros((layout.blocks, 0), np.float32)


def moments_tree(run_id: Digest, rows_NC: Floats) -> merkle.Tree:
    """The tree over `moments_rows`: one leaf per block, all moments in it."""
    return merkle.tree(block_leaves(moments_domain(run_id), rows_NC))


def moments_root(run_id: Digest, layout: Layout, moments: tuple[Floats, ...]) -> Digest:
    """Root of that tree; zeros where there are no moments."""
    return moments_tree(run_id, moments_rows(layout, moments)).root if moments else NO_DIGEST


def moments_domain(run_id: Digest) -> bytes:
    """Domain of moment leaves: no parameters, and no other run's moments, verify as them."""
    return blake3(_MOMENTS_DOMAIN + run_id).digest()


def roots_of(run_id: Digest, layout: Layout, state: InnerState) -> InnerRoots:
    """The Merkle roots that a commit binds of an inner state."""
    root = merkle.root(theta_leaves(run_id, layout, state.theta_P))
    return InnerRoots(state.count, root, moments_root(run_id, layout, state.moments))


def segments(
    spec: RunSpec,
    round_id: int,
    start: InnerState,
    anchor_P: Floats,
    tokens: NDArray[np.int64],
    gradient: Gradient,
) -> Iterator[tuple[InnerState, float]]:
    """The state at the end of each segment of a round, and the mean loss over its steps.

    Args:
        spec: The run.
        round_id: The round.
        start: The inner state the node begins with.
        anchor_P: theta_0 of the proximal term.
        tokens: The round's batch. Shape (steps * sequences, context + 1).
        gradient: Loss and gradient of one step.
    """
    local = spec.rule.local
    for first in range(0, local.steps, local.segment):
        last = min(first + local.segment, local.steps)
        start, loss = run_steps(spec, round_id, first, last, start, anchor_P, tokens, gradient)
        yield start, loss


def run_steps(
    spec: RunSpec,
    round_id: int,
    first: int,
    last: int,
    state: InnerState,
    anchor_P: Floats,
    tokens: NDArray[np.int64],
    gradient: Gradient,
) -> tuple[InnerState, float]:
    """Steps `first` to `last` (exclusive) of a round. Arguments as `segments`; nothing is modified."""
    local, layout = spec.rule.local, layout_of(spec.model)
    sequences, losses = len(tokens) // local.steps, []
    for step in range(first, last):
        batch = tokens[step * sequences : (step + 1) * sequences]
        loss, slope_P = gradient(state.theta_P, batch)
        losses.append(loss)
        lr = rate(local.schedule, *spec.in_line(round_id), steps=local.steps, step=step)
        state = inner_step(local, layout, lr, state, anchor_P, slope_P)
    return state, float(np.mean(losses))


def inner_step(
    local: LocalSpec, layout: Layout, lr: np.float32, state: InnerState, anchor_P: Floats, slope_P: Floats
) -> InnerState:
    """One optimiser step from a gradient; nothing is modified.

    Reference:
        Loshchilov & Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101 (AdamW);
        Li et al., "Federated Optimization in Heterogeneous Networks", arXiv:1812.06127 (FedProx).
    """
    theta_P = state.theta_P
    if local.proximal_micro:
        slope_P = slope_P + np.float32(local.proximal_micro / PPM) * (theta_P - anchor_P)
    if local.clip_micro:
        norm = length(slope_P)
        slope_P = slope_P * np.float32(min(local.clip_micro / PPM / max(norm, 1e-12), 1.0))
    if local.optimiser is Optimiser.SGD:
        moved_P: Floats = _decayed(local, lr, theta_P) - np.multiply(slope_P, lr)
        return InnerState(moved_P, (), state.count + 1)
    count = state.count + 1
    if local.optimiser is Optimiser.MUON:
        moments = momenta(local, layout, state.moments, slope_P)
        moved_P = _decayed(local, lr, theta_P) - muon_step(local, layout, moments[0], slope_P) * lr
        rest = np.flatnonzero(rest_of(layout))
        moved_P[rest] = adamw_moved(local, lr, theta_P[rest], tuple(part[rest] for part in moments), count)
        return InnerState(moved_P, moments, count)
    assert local.optimiser is Optimiser.ADAMW
    beta1, beta2 = local.beta1_micro / PPM, local.beta2_micro / PPM
    mean_P = state.moments[0] * np.float32(beta1) + slope_P * np.float32(1 - beta1)
    square_P = state.moments[1] * np.float32(beta2) + (slope_P * slope_P) * np.float32(1 - beta2)
    moments = mean_P, square_P
    return InnerState(adamw_moved(local, lr, theta_P, moments, count), moments, count)


def moved_most(local: LocalSpec) -> float:
    """The most that a step moves by at a rate of 1, without decay; infinite where nothing bounds it.

    SGD: the length of all of it. Else the root mean square: of AdamW by the inequality of Cauchy and Schwarz,
    |m| <= c sqrt(v) for all gradients with this c; Muon's matrices move by 0.24 at most.
    """
    if local.optimiser is Optimiser.SGD:
        return local.clip_micro / PPM or math.inf
    beta1, beta2 = local.beta1_micro / PPM, local.beta2_micro / PPM
    if beta1 * beta1 >= beta2 or beta2 >= 1:
        return math.inf
    return max((1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2)), 1.0)


def adamw_moved(
    local: LocalSpec, lr: np.float32, theta_P: Floats, moments: tuple[Floats, ...], count: int
) -> Floats:
    """The parameters after an AdamW step, from those before it and the moments after it; by element.

    Args:
        local: The optimiser's constants.
        lr: Rate of the step.
        theta_P: Before the step; any part of them.
        moments: Of the same part.
        count: Steps since the moments were zero, this one included.
    """
    left1, left2 = (_power(beta / PPM, count) for beta in (local.beta1_micro, local.beta2_micro))
    step_size = np.float32(float(lr) / (1 - left1))
    under_P = np.sqrt(moments[1] / np.float32(1 - left2)) + np.float32(local.epsilon_pico / 1e12)
    moved_P: Floats = _decayed(local, lr, theta_P) - np.multiply(moments[0] / under_P, step_size)
    return moved_P


def _decayed(local: LocalSpec, lr: np.float32, theta_P: Floats) -> Floats:
    if not local.decay_micro:
        return theta_P
    return theta_P * (np.float32(1) - lr * np.float32(local.decay_micro / PPM))


def _power(base: float, exponent: int) -> float:
    """A whole power by squaring, lowest bit first: Python's own power is the libm's."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base, exponent = base * base, exponent >> 1
    return result
